"""Plot the supports of a trained network: record them on an image and draw their unit balls."""

from pathlib import Path

import matplotlib.pyplot as plt
import skimage
import torch
from torch import nn

import metricconv as mc
from metricconv import viz


def main(folder="outputs/examples", steps=200, count=32):
    """Write learned_supports.png and return the largest anisotropy of each layer."""
    torch.manual_seed(0)
    names = ("brick", "grass", "gravel")
    textures = torch.stack([torch.tensor(getattr(skimage.data, name)() / 255.0 - 0.5).float() for name in names])
    net = nn.Sequential(
        *(mc.nn.MetricConv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(mc.nn.MetricConv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(mc.nn.MetricConv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, len(names))),
    )
    optimizer = torch.optim.AdamW(mc.nn.param_groups(net, lr=3e-3, metric_lr_mult=1.0))
    for _ in range(steps):  # classify patches of 32 × 32 pixels
        kinds = torch.randint(len(names), (count,))
        corners = torch.randint(512 - 32, (count, 2)).tolist()
        patches = [textures[k, y : y + 32, x : x + 32] for k, (y, x) in zip(kinds, corners, strict=True)]
        loss = nn.functional.cross_entropy(net(torch.stack(patches).unsqueeze(1)), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    figure, axes = plt.subplots(3, len(names), figsize=(8, 8.6), layout="constrained")
    points = [(y, x) for y in (11, 32, 53) for x in (11, 32, 53)]
    anisotropy = {}
    for n, image in enumerate(textures[:, None, None, :64, :64]):
        with torch.no_grad(), mc.nn.record_supports(net.eval()) as seen:
            net(image)
        for ax, (name, support) in zip(axes[:, n], seen.items(), strict=True):
            viz.plot_unit_balls(support, image + 0.5, points, axes=ax).set_title(f"layer {name} on {names[n]}")
            anisotropy[name] = max(anisotropy.get(name, 1.0), float(support.metric.anisotropy.max()))
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(folder) / "learned_supports.png")
    return anisotropy


if __name__ == "__main__":
    print(main())
