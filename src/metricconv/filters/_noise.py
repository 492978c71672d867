"""Estimation of the standard deviation of white Gaussian noise."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _checks, _images

__all__ = ["estimate_noise"]

# Side of the patches by number of spatial axes, and how many are used at most.
_PATCH, _MAX_PATCHES = {2: 8, 3: 4}, 2**16
# Large images are represented by windows: four along each axis.
_WINDOW, _WINDOWS = {2: 512, 3: 48}, 4
# Patches per component of a patch that the estimate needs.
_LEAST_RATIO = 16
# Bound on λ_1 / (λ_{n/8} − λ_1) of most images without noise, see below.
_SIGNAL_SHARE = 1.0


def estimate_noise(image: object, *, channel_axis: int | None = None) -> float:
    """Return an estimate of the standard deviation of white noise, in the units of the image.

    Small patches of an image vary mostly in a few directions, those of smooth regions and edges, while white noise has
    the variance σ² in all directions. So σ² follows from the smallest eigenvalues of the patches' covariance matrix.
    Constant patches, such as a black background, are ignored. Images that are too small for an estimate give 0.

    Args:
        image: array or tensor (H, W) or (D, H, W), with channels if ``channel_axis`` is given. Integers are not scaled:
            8-bit images have a noise level between 0 and 255.
        channel_axis: axis of the channels, None for a gray image. All channels have the same noise level.

    >>> noisy = 10 + 3 * torch.randn(200, 200, generator=torch.Generator().manual_seed(0))
    >>> round(estimate_noise(noisy), 1)
    3.0
    """
    _checks.not_traced("filters")
    values = _images.to_floats(image)
    field = _images.to_field(values, channel_axis)[0]
    return noise_level(noise_windows(field)) * _images.unit(image)


def noise_windows(field: Any) -> list[Any]:
    """Return the windows of an image (C, *spatial) that represent it: the whole image if it is small."""
    size = field.shape[1:]
    length = _WINDOW[len(size)]
    axes: list[list[slice]] = []
    for n in size:
        if n <= _WINDOWS * length:
            axes.append([slice(0, n)])
        else:
            starts = [round(i * (n - length) / (_WINDOWS - 1)) for i in range(_WINDOWS)]
            axes.append([slice(start, start + length) for start in starts])
    return [field[(slice(None), *window)] for window in itertools.product(*axes)]


def noise_level(windows: Sequence[Tensor]) -> float:
    """Return the standard deviation of the noise in windows (C, *spatial) of an image."""
    dim = windows[0].dim() - 1
    pixels = sum(window.numel() for window in windows)
    side = min(_PATCH[dim], *(n for window in windows for n in window.shape[1:]))
    while side > 1 and pixels < _LEAST_RATIO * side**dim:
        side -= 1
    if side < 2:
        return 0.0
    step = max(math.ceil((pixels / _MAX_PATCHES) ** (1 / dim)), 1)
    size, count = side**dim, 0
    first, second = torch.zeros(size, dtype=torch.float64), torch.zeros(size, size, dtype=torch.float64)
    for window in windows:
        for channel in window:
            patches = channel.double().cpu()
            for axis in range(dim):
                patches = patches.unfold(axis, side, step)
            patches = patches.reshape(-1, size)
            patches = patches[patches.amin(1) < patches.amax(1)]
            count += len(patches)
            first += patches.sum(0)
            second += patches.T @ patches
    if count < size:
        return 0.0
    mean = first / count
    covariance = second / count - torch.outer(mean, mean)
    return math.sqrt(max(_noise_variance(torch.linalg.eigvalsh(covariance), count), 0.0))


def _noise_variance(eigenvalues: Tensor, patches: int) -> float:
    """Return the variance of the noise from the eigenvalues of the covariance of patches, in ascending order.

    The smallest eigenvalues of an image without noise grow quickly: in photographs, λ_1 is about half of λ_{n/8} − λ_1.
    Noise adds σ² to both. Subtracting the difference errs on the side of too little noise in strong texture.
    """
    n = len(eigenvalues)
    ratio = math.sqrt(n / patches)
    if ratio >= 1:
        return 0.0
    # The eigenvalues of the sample covariance of white noise lie between σ² (1 − √(n/N))² and σ² (1 + √(n/N))².
    low, high = (float(eigenvalues[k]) / ((1 - ratio) ** 2 + 4 * ratio * k / n) for k in (0, n // 8))
    return low - _SIGNAL_SHARE * max(high - low, 0.0)
