"""Denoise a photograph without learning: all filters average k² samples and differ in the sampling locations."""

from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import skimage
import torch

import metricconv as mc
from metricconv import viz


def main(folder="outputs/examples", size=256, samples=11):
    """Write denoise.png and return the PSNR of each image."""
    clean = skimage.transform.resize(skimage.data.camera(), (size, size), anti_aliasing=True)
    noisy = clean + np.random.default_rng(0).normal(0, 0.1, clean.shape)

    # A tangent ball uses the metric at its pixel for all of its points: a metric that flattens balls along edges suits
    # it. A geodesic ball follows the changes of the metric: an isotropic metric suits it, with long distances at edges.
    gradient = partial(mc.metrics.gradient_metric, iota=0.15, alpha=20, scale=1.5)
    drift = partial(gradient, eps_omega=0.5)
    edge = partial(mc.metrics.edge_metric, iota=0.01, alpha=20, scale=1)
    filters = mc.filters
    images = {
        "noisy": noisy,
        f"box {samples} × {samples}": filters.box_filter(noisy, samples),
        "random deformable": filters.random_deformable_filter(noisy, samples, seed=0),
        "interpolated 5 × 5": filters.interpolated_filter(noisy, samples, size=5),
        "gradient metric": filters.tangent_filter(noisy, samples, metric=gradient),
        "gradient with drift": filters.tangent_filter(noisy, samples, metric=drift),
        "edge metric": filters.tangent_filter(noisy, samples, metric="edge"),
        "edge, geodesic balls": filters.geodesic_filter(noisy, samples, metric=edge),
    }
    psnr = {
        name: float(skimage.metrics.peak_signal_noise_ratio(clean, image, data_range=1))
        for name, image in images.items()
    }

    # Rows and columns of the part that is shown.
    top, bottom, left, right = (round(fraction * size) for fraction in (0.12, 0.52, 0.3, 0.7))
    view = {"xlim": (left - 0.5, right - 0.5), "ylim": (bottom - 0.5, top - 0.5), "xticks": [], "yticks": []}
    figure = plt.figure(figsize=(11.6, 4.5), dpi=120, layout="constrained")
    axes = figure.subplot_mosaic([["balls", "balls", 0, 1, 2, 3], ["balls", "balls", 4, 5, 6, 7]])
    points = [(y, x) for y in np.linspace(top, bottom, 17)[1::2] for x in np.linspace(left, right, 17)[1::2]]
    metric = drift(torch.from_numpy(noisy)[None, None])
    balls = viz.plot_unit_balls(metric, noisy.clip(0, 1), points, axes=axes["balls"])
    balls.set(title="unit balls of the gradient metric with drift,\nover the noisy image", **view)
    for n, (name, image) in enumerate(images.items()):
        axes[n].imshow(image, cmap="gray", vmin=0, vmax=1)
        axes[n].set(**view)
        weight = "bold" if psnr[name] == max(psnr.values()) else "normal"
        axes[n].set_title(f"{name}\n{psnr[name]:.1f} dB", fontsize=11, fontweight=weight)
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(folder) / "denoise.png")
    return psnr


if __name__ == "__main__":
    for name, decibels in main().items():
        print(f"{name:20}  {decibels:.2f} dB")
    print("wrote outputs/examples/denoise.png")
