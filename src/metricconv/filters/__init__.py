"""Learning-free image filters: averages over a support, for NumPy arrays and tensors.

The support is a box, a grid of any spacing, random sampling locations, or the unit ball of a metric of the image.

All of them take a gray image (H, W) or volume (D, H, W), or one with channels along ``channel_axis``, as in
scikit-image, and return an array or tensor of the same shape. Floating-point images keep their dtype. Integers are
divided by the maximum of their type, as by ``skimage.util.img_as_float``: an 8-bit image becomes floats in [0, 1],
float64 for NumPy arrays and torch's default dtype for tensors. Integers of up to 16 bits are filtered in float32, which
is accurate enough and takes half the time and memory. All channels are filtered over the same support.
"""

from ._balls import geodesic_filter, tangent_filter
from ._denoise import denoise
from ._diffusion import anisotropic_diffusion
from ._grids import box_filter, dilated_filter, interpolated_filter
from ._modules import (
    AnisotropicDiffusion,
    BoxFilter,
    DilatedFilter,
    GeodesicFilter,
    InterpolatedFilter,
    RandomDeformableFilter,
    TangentFilter,
)
from ._noise import estimate_noise
from ._random import random_deformable_filter
from ._regression import regression_filter, regression_gradient

__all__ = [
    "AnisotropicDiffusion",
    "BoxFilter",
    "DilatedFilter",
    "GeodesicFilter",
    "InterpolatedFilter",
    "RandomDeformableFilter",
    "TangentFilter",
    "anisotropic_diffusion",
    "box_filter",
    "denoise",
    "dilated_filter",
    "estimate_noise",
    "geodesic_filter",
    "interpolated_filter",
    "random_deformable_filter",
    "regression_filter",
    "regression_gradient",
    "tangent_filter",
]
