"""Averages of images over a support, whole or in strips: what all filters share."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from .. import _checks, _images, _interpolation
from ..ops import support_conv
from ..supports import Support

if TYPE_CHECKING:
    import numpy

Image = TypeVar("Image", "numpy.ndarray[Any, Any]", Tensor)


def filter_image(image: Image, channel_axis: int | None, mean: Callable[[Tensor], Tensor]) -> Image:
    """Apply a function of tensors (1, C, *spatial) to an image."""
    return filter_components(image, channel_axis, mean)[0]


def filter_components(image: Image, channel_axis: int | None, function: Callable[[Tensor], Tensor]) -> Image:
    """Apply a function from tensors (1, C, *spatial) to (n, C, *spatial); return n images along a new first axis."""
    _checks.not_traced("filters")
    values = _images.to_floats(image)
    dtype = _images.result_dtype(image, values)
    x = _images.to_field(values, channel_axis)
    axes = values.dim()
    del values  # frees memory
    y = function(x)
    del x
    y = y.squeeze(1) if channel_axis is None else y.movedim(1, channel_axis % axes + 1)
    if isinstance(image, Tensor):
        return y.to(dtype)
    return y.detach().to(dtype, memory_format=torch.contiguous_format).contiguous().numpy()


def average(x: Tensor, support: Support, padding_mode: str) -> Tensor:
    """Average each channel over a support."""
    return convolve_centered(x, support, _equal_weights(x, support), padding_mode)


def convolve_centered(x: Tensor, support: Support, weight: Tensor, padding_mode: str) -> Tensor:
    """Convolve each channel with weights (C, 1, *kernel_size) over a support, padded to the size of the image."""
    padding = tuple(d * (k - 1) // 2 for k, d in zip(support.kernel_size, support.dilation, strict=True))
    return support_conv(x, support, weight, padding=padding, groups=x.shape[1], padding_mode=padding_mode)


def convolve(x: Tensor, support: Support, padding: tuple[int, ...], padding_mode: str) -> Tensor:
    """Convolve each channel with equal weights of sum 1."""
    weight = _equal_weights(x, support)
    return support_conv(x, support, weight, padding=padding, groups=x.shape[1], padding_mode=padding_mode)


def _equal_weights(x: Tensor, support: Support) -> Tensor:
    return x.new_full((x.shape[1], 1, *support.kernel_size), 1 / support.samples)


def padded_strips(x: Tensor, step: int, margin: int, padding_mode: str) -> Iterator[tuple[int, int, Tensor]]:
    """Yield start and stop of each strip of ``step`` rows, and its rows with ``margin`` more on either side."""
    size = x.shape[2]
    index, inside = _interpolation.line(-margin, size + margin, size, padding_mode, x.device)
    for start in range(0, size, step):
        stop = min(start + step, size)
        rows = slice(start, stop + 2 * margin)
        yield start, stop, x.index_select(2, index[rows]) * inside[rows].to(x.dtype).view(-1, *(1,) * (x.dim() - 3))


def centering_dilation(kernel_size: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dilation that centers outputs on pixels: 2 for even kernels, whose center is between two pixels.

    It does not affect the sampling locations, which depend on the metric or the spacing.
    """
    return tuple(2 - k % 2 for k in kernel_size)
