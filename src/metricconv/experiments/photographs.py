"""Photographs that come with scikit-image, and how near a filtered one is to the clean one."""

import math

import numpy as np
import skimage


def photograph(name: str, size: int) -> np.ndarray:
    """Return one of scikit-image's pictures, grey, size × size and in [0, 1], as float32."""
    image = getattr(skimage.data, name)()
    image = skimage.color.rgb2gray(image) if image.ndim == 3 else image
    grey = skimage.transform.resize(image, (size, size), anti_aliasing=True).astype(np.float32)
    return grey if grey.max() <= 1 else grey / 255


def psnr(clean: np.ndarray, image: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio, 10 log₁₀(1 / mean squared error), in decibels."""
    return decibels(float(np.mean((clean.astype(np.float64) - image) ** 2)))


def decibels(error: float) -> float:
    """Return the peak signal-to-noise ratio of a mean squared error."""
    return math.inf if error == 0 else -10 * math.log10(error)
