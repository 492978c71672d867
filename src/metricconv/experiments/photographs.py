"""Photographs that come with scikit-image."""

import numpy as np
import skimage


def photograph(name: str, size: int) -> np.ndarray:
    """Return one of scikit-image's pictures, grey, size × size and in [0, 1], as float32."""
    image = getattr(skimage.data, name)()
    image = skimage.color.rgb2gray(image) if image.ndim == 3 else image
    grey = skimage.transform.resize(image, (size, size), anti_aliasing=True).astype(np.float32)
    return grey if grey.max() <= 1 else grey / 255
