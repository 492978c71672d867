"""Geodesic balls around the vessels of a retina: they follow a vessel, which tangent balls cannot do."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import skimage
import torch

import metricconv as mc
from metricconv import viz


def main(folder="outputs/examples", size=240, contrast=25.0):
    """Write vessels.png and return the fraction of the balls' area that is vessel."""
    green = skimage.data.retina()[350 : 350 + size, 680 : 680 + size, 1] / 255

    # An isotropic metric with short paths along vessels: ball radius 1 px outside of vessels, 1 + contrast inside.
    ridges = skimage.filters.gaussian(skimage.filters.sato(green, sigmas=[3, 5]), 2)
    vessel = np.clip(ridges / np.quantile(ridges, 0.95), 0, 1)
    metric = mc.Riemannian.isotropic(torch.tensor(1 + contrast * vessel)[None, None])

    # Some pixels on vessels, far from each other (farthest-point sampling).
    candidates = torch.tensor(np.argwhere(vessel[20:-20, 20:-20] > 0.95) + 20.0)
    points = candidates[:1]
    while len(points) < 9:
        farthest = torch.cdist(candidates, points).amin(1).argmax()
        points = torch.cat([points, candidates[farthest : farthest + 1]])

    figure, axes = plt.subplots(1, 2, figsize=(9, 4.8), layout="constrained")
    for ax, kind in zip(axes, ("tangent", "geodesic"), strict=True):
        viz.plot_unit_balls(metric, green, points, ball=kind, axes=ax).set_title(f"{kind} balls")
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(folder) / "vessels.png")

    # Fraction of the covered area that is vessel.
    covered = {}
    for kind in ("tangent", "geodesic"):
        outlines = [ball.outline.numpy() for ball in viz.unit_balls(metric, points, kind)]
        inside = [vessel[skimage.draw.polygon(*outline.T, vessel.shape)] for outline in outlines]
        covered[kind] = float(np.concatenate(inside).mean())
    return covered


if __name__ == "__main__":
    print(main())
