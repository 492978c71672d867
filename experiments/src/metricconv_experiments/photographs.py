"""Photographs included in scikit-image."""

import numpy as np
import skimage


def photograph(name: str, size: int) -> np.ndarray:
    """Return an image of ``skimage.data`` in gray, size × size, as float32 in [0, 1]."""
    image = getattr(skimage.data, name)()
    image = skimage.color.rgb2gray(image) if image.ndim == 3 else image
    gray = skimage.transform.resize(image, (size, size), anti_aliasing=True).astype(np.float32)
    return gray if gray.max() <= 1 else gray / 255
