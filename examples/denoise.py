"""Denoise a photograph without learning: all filters average k² samples and differ in the sampling locations."""

from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import skimage

import metricconv as mc


def main(folder="outputs/examples", size=192, samples=11):
    """Write denoise.png and return the PSNR of each image."""
    clean = skimage.transform.resize(skimage.data.camera(), (size, size), anti_aliasing=True)
    noisy = clean + np.random.default_rng(0).normal(0, 0.1, clean.shape)

    # A tangent ball uses the metric at its pixel for all of its points: a metric that flattens balls along edges suits
    # it. A geodesic ball follows the changes of the metric: an isotropic metric suits it, with long distances at edges.
    gradient = partial(mc.metrics.gradient_metric, iota=0.15, alpha=20, scale=1.5)
    edge = partial(mc.metrics.edge_metric, iota=0.01, alpha=20, scale=1)
    images = {
        "noisy": noisy,
        f"box {samples} × {samples}": mc.filters.box_filter(noisy, samples),
        "box 3 × 3": mc.filters.box_filter(noisy, 3),
        "tangent balls": mc.filters.tangent_filter(noisy, samples, metric=gradient),
        "geodesic balls": mc.filters.geodesic_filter(noisy, samples, metric=edge),
    }
    psnr = {
        name: float(skimage.metrics.peak_signal_noise_ratio(clean, image, data_range=1))
        for name, image in images.items()
    }

    figure, axes = plt.subplots(1, len(images), figsize=(13, 3), layout="constrained")
    for ax, (name, image) in zip(axes, images.items(), strict=True):
        ax.imshow(image, cmap="gray", vmin=0, vmax=1)
        ax.set(title=f"{name}: {psnr[name]:.1f} dB", xticks=[], yticks=[])
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(folder) / "denoise.png")
    return psnr


if __name__ == "__main__":
    print(main())
