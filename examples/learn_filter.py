"""Learn a filter on one image: the supports adapt to the image's structures, with five parameters per pixel."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import skimage
import torch

import metricconv as mc
from metricconv import viz


def main(folder="outputs/examples", size=128, steps=150):
    """Write learn_filter.png and return the PSNR at every step."""
    torch.manual_seed(0)
    clean = skimage.transform.resize(skimage.data.camera()[40:296, 130:386], (size, size), anti_aliasing=True)
    clean = torch.tensor(clean).float()[None, None]
    noisy, other = (clean + 0.1 * torch.randn_like(clean) for _ in range(2))  # train on one, test on the other

    # The kernel is fixed to the mean: only the sampling locations are learned.
    layer = mc.nn.MetricConv2d(
        1, 1, 5, padding=2, padding_mode="reflect", bias=False, learn_weight=False, parametrization="cholesky"
    )
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.03)
    images = {"training noise": noisy, "test noise": other}
    psnr = {name: [] for name in images}
    for _ in range(steps):
        loss = torch.nn.functional.mse_loss(layer(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():  # both after the step, with the same weights
            for name, image in images.items():
                psnr[name].append(decibels(layer(image), clean))

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.5), layout="constrained")
    for name, values in psnr.items():
        left.plot(values, label=f"{name} ({decibels(images[name], clean):.2f} dB unfiltered)")
    left.set(xlabel="step", ylabel="PSNR (dB)", title="learning the sampling locations")
    left.legend()
    part = [(y, x) for y in np.linspace(0.12, 0.42, 6) * size for x in np.linspace(0.3, 0.6, 6) * size]
    viz.plot_unit_balls(layer, other, part, axes=middle).set_title("unit balls, test noise")
    middle.set(xlim=(0.27 * size, 0.63 * size), ylim=(0.45 * size, 0.09 * size))
    with torch.no_grad():
        right.imshow(layer(other)[0, 0].numpy(), cmap="gray", vmin=0, vmax=1)
    right.set(title=f"filtered: {psnr['test noise'][-1]:.1f} dB", xticks=[], yticks=[])
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(folder) / "learn_filter.png")
    return psnr


def decibels(image, clean):
    """Return the PSNR of an image with values in [0, 1]."""
    return -10 * torch.nn.functional.mse_loss(image, clean).log10().item()


if __name__ == "__main__":
    print({name: values[-1] for name, values in main().items()})
