"""Geodesic balls around the vessels of a retina: they run along a vessel, where tangent balls cannot know of it."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import skimage
import torch

import metricconv as mc
from metricconv import viz


def main(folder="outputs/examples", size=240, contrast=25.0):
    """Write vessels.png and return how much of the balls is vessel."""
    green = skimage.data.retina()[350 : 350 + size, 680 : 680 + size, 1] / 255

    # A round metric in which ways along vessels are short: a ball of radius 1 px beside them, 1 + contrast on them.
    ridges = skimage.filters.gaussian(skimage.filters.sato(green, sigmas=[3, 5]), 2)
    vessel = np.clip(ridges / np.quantile(ridges, 0.95), 0, 1)
    metric = mc.Riemannian.isotropic(torch.tensor(1 + contrast * vessel)[None, None])

    # Some pixels on vessels, far from each other.
    places = torch.tensor(np.argwhere(vessel[20:-20, 20:-20] > 0.95) + 20.0)
    points = places[:1]
    while len(points) < 9:
        farthest = torch.cdist(places, points).amin(1).argmax()
        points = torch.cat([points, places[farthest : farthest + 1]])

    figure, axes = plt.subplots(1, 2, figsize=(9, 4.8), layout="constrained")
    for ax, kind in zip(axes, ("tangent", "geodesic"), strict=True):
        viz.plot_unit_balls(metric, green, points, ball=kind, axes=ax).set_title(f"{kind} balls")
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(folder) / "vessels.png")

    # How much of what the balls cover is vessel.
    covered = {}
    for kind in ("tangent", "geodesic"):
        outlines = [ball.outline.numpy() for ball in viz.unit_balls(metric, points, kind)]
        inside = [vessel[skimage.draw.polygon(*outline.T, vessel.shape)] for outline in outlines]
        covered[kind] = float(np.concatenate(inside).mean())
    return covered


if __name__ == "__main__":
    print(main())
