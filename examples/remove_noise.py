"""Remove noise from a photograph: ``denoise``, which estimates the noise level, and classical filters at their best."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import skimage
from skimage.restoration import denoise_nl_means, denoise_tv_chambolle

import metricconv as mc

STRENGTHS = (0.4, 0.55, 0.7, 0.85, 1.0)


def bilateral(image, color, space, half=5):
    """Return the mean of a window, weighted by distance and by difference of intensities."""
    padded = np.pad(image, half, mode="reflect")
    total = weights = 0
    for y, x in np.ndindex(2 * half + 1, 2 * half + 1):
        moved = padded[y : y + image.shape[0], x : x + image.shape[1]]
        exponent = ((y - half) ** 2 + (x - half) ** 2) / space**2 + ((moved - image) / color) ** 2
        weight = np.exp(-exponent / 2)
        total, weights = total + weight * moved, weights + weight
    return total / weights


def main(folder="outputs/examples", size=256):
    """Write remove_noise.png and return the PSNR of each image."""
    clean = skimage.transform.resize(skimage.data.camera(), (size, size), anti_aliasing=True)
    sigma = 25 / 255
    noisy = clean + np.random.default_rng(0).normal(0, sigma, clean.shape)

    def psnr(image):
        return float(skimage.metrics.peak_signal_noise_ratio(clean, image, data_range=1))

    def best(method):
        """Return the result of the best strength, chosen with the clean image."""
        return max(map(method, STRENGTHS), key=psnr)

    images = {
        "noisy": noisy,
        "bilateral": best(lambda t: bilateral(noisy, 5 * t * sigma, 1.5)),
        "total variation": best(lambda t: denoise_tv_chambolle(noisy, t * sigma)),
        "non-local means": best(lambda t: denoise_nl_means(noisy, 5, 8, t * sigma, sigma=sigma)),
        "mc.filters.denoise": mc.filters.denoise(noisy),
        "clean": clean,
    }
    decibels = {name: psnr(image) for name, image in images.items() if name != "clean"}

    top, bottom, left, right = (round(fraction * size) for fraction in (0.1, 0.5, 0.3, 0.7))
    figure, axes = plt.subplots(2, 3, figsize=(9, 6.6), dpi=120, layout="constrained")
    for panel, (name, image) in zip(axes.flat, images.items(), strict=True):
        panel.imshow(image[top:bottom, left:right], cmap="gray", vmin=0, vmax=1)
        panel.set(xticks=[], yticks=[])
        title = f"{name}: {decibels[name]:.1f} dB" if name in decibels else name
        panel.set_title(title, fontsize=11, fontweight="bold" if name.startswith("mc.") else "normal")
    Path(folder).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(folder) / "remove_noise.png")
    return decibels


if __name__ == "__main__":
    for name, decibels in main().items():
        print(f"{name:20}  {decibels:.2f} dB")
    print("wrote outputs/examples/remove_noise.png")
