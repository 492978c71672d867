"""The implicit metric of a deformable convolution: fit a Randers metric to its sampling locations."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import skimage
import torch

import metricconv as mc
from metricconv import viz


def main(folder="outputs/examples", size=128, steps=150):
    """Write implicit_metric.png and return how well a metric explains the layer."""
    torch.manual_seed(0)
    clean = skimage.transform.resize(skimage.data.camera()[40:296, 130:386], (size, size), anti_aliasing=True)
    clean = torch.tensor(clean).float()[None, None]
    noisy = clean + 0.1 * torch.randn_like(clean)

    layer = mc.nn.DeformableConv2d(1, 1, 5, padding=2, padding_mode="reflect", bias=False, learn_weight=False)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    for _ in range(steps):
        loss = torch.nn.functional.mse_loss(layer(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    with torch.no_grad(), mc.nn.record_supports(layer) as seen:
        layer(noisy)
    fit = mc.metrics.fit_randers(seen[""])  # 50 offsets per pixel, explained by 5 parameters
    residual = fit.residual[0, 0]

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.5), layout="constrained")
    part = [(y, x) for y in np.linspace(0.2, 0.36, 3) * size for x in np.linspace(0.38, 0.54, 3) * size]
    viz.plot_unit_balls(seen[""], noisy, part, axes=left).set_title("samples and fitted balls")
    left.set(xlim=(0.33 * size, 0.59 * size), ylim=(0.41 * size, 0.15 * size))
    viz.plot_metric_field(fit.metric, clean, "anisotropy", axes=middle).set_title("anisotropy of the implicit metric")
    shown = right.imshow(residual.numpy(), cmap="magma")
    figure.colorbar(shown, ax=right, label="RMS distance of samples (px)", fraction=0.046)
    right.set(title="residual of the fit", xticks=[], yticks=[])
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(folder) / "implicit_metric.png")
    return {"residual": residual.median().item(), "anisotropy": fit.metric.anisotropy.median().item()}


if __name__ == "__main__":
    print(main())
