"""See where a trained network looks: record the supports of its layers on an image, and draw their unit balls."""

from pathlib import Path

import matplotlib.pyplot as plt
import skimage
import torch
from torch import nn

import metricconv as mc
from metricconv import viz


def main(folder="outputs/examples", steps=200, count=32):
    """Write where_it_looks.png and return the largest anisotropy of each layer."""
    torch.manual_seed(0)
    names = ("brick", "grass", "gravel")
    textures = torch.stack([torch.tensor(getattr(skimage.data, name)() / 255.0 - 0.5).float() for name in names])
    net = nn.Sequential(
        *(mc.nn.MetricConv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(mc.nn.MetricConv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(mc.nn.MetricConv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, len(names))),
    )
    optimiser = torch.optim.AdamW(mc.nn.param_groups(net, lr=3e-3, metric_lr_mult=1.0))
    for _ in range(steps):  # tell patches of 32 × 32 pixels apart
        kinds = torch.randint(len(names), (count,))
        corners = torch.randint(512 - 32, (count, 2)).tolist()
        patches = [textures[k, y : y + 32, x : x + 32] for k, (y, x) in zip(kinds, corners, strict=True)]
        loss = nn.functional.cross_entropy(net(torch.stack(patches).unsqueeze(1)), kinds)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    image = torch.cat(list(textures[:, :64, :64]), dim=1)[None, None]  # side by side
    with torch.no_grad(), mc.nn.record_supports(net.eval()) as seen:
        net(image)

    figure, axes = plt.subplots(len(seen), 1, figsize=(8, 8.6), layout="constrained")
    points = [(y, x) for y in range(8, 64, 16) for x in range(8, 192, 16)]
    for ax, (name, support) in zip(axes, seen.items(), strict=True):
        viz.plot_unit_balls(support.metric, image, points, axes=ax).set_title(f"layer {name} on {', '.join(names)}")
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(folder) / "where_it_looks.png")
    return {name: float(support.metric.anisotropy.max()) for name, support in seen.items()}


if __name__ == "__main__":
    print(main())
