"""Filter a volume and apply a 3-D layer: everything works in one, two and three dimensions."""

from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import skimage
import torch

import metricconv as mc


def main(folder="outputs/examples", size=40, depth=10, samples=5):
    """Write volume.png and return the PSNR of each volume, of depth × size × size voxels."""
    blobs = skimage.data.binary_blobs(2 * size, blob_size_fraction=0.15, n_dim=3, volume_fraction=0.4, rng=0)
    slices = blobs[size - depth : size + depth].astype(float)  # (z, y, x)
    clean = skimage.transform.downscale_local_mean(slices, (2, 2, 2))
    noisy = clean + np.random.default_rng(0).normal(0, 0.3, clean.shape)

    edge = partial(mc.metrics.edge_metric, iota=0.05, alpha=6, scale=1.5)
    volumes = {
        "noisy": noisy,
        "box": mc.filters.box_filter(noisy, samples),
        "tangent balls": mc.filters.tangent_filter(noisy, samples, metric=edge),
        "geodesic balls": mc.filters.geodesic_filter(noisy, samples, metric=edge),
    }
    psnr = {
        name: float(skimage.metrics.peak_signal_noise_ratio(clean, volume, data_range=1))
        for name, volume in volumes.items()
    }

    layer = mc.nn.MetricConv3d(1, 4, 3, padding=1)  # ellipsoids: 6 parameters for M, 3 for ω, and those of its frame
    features = layer(torch.tensor(noisy)[None, None].float())

    figure, axes = plt.subplots(1, 5, figsize=(13, 3), layout="constrained")
    for ax, (name, volume) in zip(axes, {"clean": clean, **volumes}.items(), strict=True):
        ax.imshow(volume[depth // 2], cmap="gray", vmin=0, vmax=1)
        ax.set(title=name if name == "clean" else f"{name}: {psnr[name]:.1f} dB", xticks=[], yticks=[])
    figure.supylabel("middle slice", fontsize=9)
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(folder) / "volume.png")
    return {**psnr, "features": tuple(features.shape)}


if __name__ == "__main__":
    print(main())
