"""Plot the receptive field of a deep unit: the composed supports of all layers below it, and of ordinary layers."""

from pathlib import Path

import matplotlib.pyplot as plt
import skimage
import torch
from torch import nn

import metricconv as mc
from metricconv import viz


def main(folder="outputs/examples", size=128, depth=6):
    """Write receptive_fields.png and return the effective size of each receptive field in pixels."""
    image = skimage.transform.resize(skimage.data.camera(), (size, size), anti_aliasing=True)
    image = torch.tensor(image).float()[None, None]

    # No training: all layers share a metric of the image's structures, with balls as large as the 5 × 5 grid.
    metric = mc.metrics.structure_metric(image, iota=0.15, alpha=30)
    layers = [mc.nn.MetricConv2d(1, 1, 5, padding=2, padding_mode="reflect", metric=metric) for _ in range(depth)]
    net = nn.Sequential(*layers)

    points = [(0.25, 0.26), (0.55, 0.33), (0.71, 0.6)]
    points = [(int(y * size), int(x * size)) for y, x in points]
    figure, axes = plt.subplots(1, len(points), figsize=(11, 3.9), layout="constrained")
    effective_sizes = []
    for ax, (y, x) in zip(axes, points, strict=True):
        viz.plot_receptive_field(net, image, (y, x), axes=ax).set_title(f"a unit of layer {depth} at ({y}, {x})")
        ax.plot(x, y, "o", color="white", markeredgecolor="black", markersize=4)
        view = 0.25 * size
        ax.set(xlim=(x - view, x + view), ylim=(y + view, y - view))
        field = viz.receptive_field(net, image, (y, x))
        effective_sizes.append(float(1 / field.square().sum()))  # pixels of a uniform field of the same concentration
    figure.supxlabel("solid: 50 % and 90 % of the receptive field; dashed: ordinary convolutions", fontsize=9)
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(folder) / "receptive_fields.png")
    return effective_sizes


if __name__ == "__main__":
    print(main())
