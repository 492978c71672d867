"""Conversion of images, arrays or tensors, to tensors (1, C, *spatial), and the PSNR of images."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import _checks

if TYPE_CHECKING:
    import numpy


def to_floats(image: object) -> Tensor:
    """Return an image as a tensor of finite floats, integers divided by the maximum of their type."""
    if isinstance(image, Tensor):
        values, floats = _checks.with_values(_checks.dense(image, "image"), "image"), torch.get_default_dtype()
    else:
        import numpy  # only arrays need it

        if not isinstance(image, numpy.ndarray):
            raise TypeError(f"`image` must be a NumPy array or a torch.Tensor, got {type(image).__name__}")
        if numpy.ma.is_masked(image):
            raise ValueError(f"`image` has {numpy.ma.count_masked(image)} masked pixels; fill them first")
        try:
            # A copy: torch does not support read-only arrays, negative strides or foreign byte orders. Of two integer
            # types with the same number of bits it supports one, which has the name of the other.
            dtype = numpy.dtype(image.dtype.newbyteorder("=").str)
            values, floats = torch.from_numpy(image.astype(dtype)), torch.float64
        except TypeError:
            raise TypeError(f"`image` must have a dtype that torch supports, got {image.dtype}") from None
    if values.is_complex() or values.is_quantized:
        raise TypeError(f"`image` must hold real numbers, got dtype {values.dtype}")
    if not values.is_floating_point():
        largest = 1 if values.dtype == torch.bool else torch.iinfo(values.dtype).max
        values = values.to(floats if values.dtype.itemsize > 2 else torch.float32) / largest
    elif values.dtype.itemsize == 1:
        raise TypeError(f"`image` must hold floats of 16 bits or more, got dtype {values.dtype}")
    _checks.finite(values, "image")
    return values


def result_dtype(image: object, values: Tensor) -> torch.dtype:
    """Return the dtype of the filtered image, given the values converted to floats."""
    if isinstance(image, Tensor):
        return image.dtype if image.is_floating_point() else torch.get_default_dtype()
    return values.dtype if image.dtype.kind == "f" else torch.float64  # type: ignore[attr-defined]


def to_field(values: Tensor, channel_axis: int | None) -> Tensor:
    """Return an image as a tensor (1, C, *spatial) of float32 or wider."""
    check_axes(tuple(values.shape), channel_axis)
    field = values.unsqueeze(0) if channel_axis is None else values.movedim(channel_axis, 0)
    return field.unsqueeze(0).to(torch.promote_types(values.dtype, torch.float32))


def check_axes(shape: tuple[int, ...], channel_axis: int | None) -> None:
    """Check that the shape is that of an image or a volume."""
    axes = len(shape)
    if channel_axis is not None and (not _checks.is_whole(channel_axis) or not -axes <= channel_axis < axes):
        raise ValueError(f"`channel_axis` (={channel_axis!r}) is not an axis of `image` of shape {shape}")
    if axes - (channel_axis is not None) not in (2, 3) or not math.prod(shape):
        raise ValueError(
            f"`image` must have 2 or 3 spatial axes and not be empty, got shape {shape} with "
            f"`channel_axis` (={channel_axis!r})"
        )


def psnr(clean: "numpy.ndarray", image: "numpy.ndarray") -> float:
    """Return the peak signal-to-noise ratio of an image with values in [0, 1], in decibels."""
    return psnr_from_mse(float(((clean.astype("float64") - image) ** 2).mean()))


def psnr_from_mse(error: float) -> float:
    """Return the peak signal-to-noise ratio of a mean squared error, 10 log₁₀(1 / error), in decibels."""
    return math.inf if error == 0 else -10 * math.log10(error)


def unit(image: object) -> int:
    """Return the value that ``to_floats`` converts to 1."""
    dtype = image.dtype  # type: ignore[attr-defined]
    if isinstance(dtype, torch.dtype):
        return 1 if dtype.is_floating_point or dtype == torch.bool else torch.iinfo(dtype).max
    import numpy

    return int(numpy.iinfo(dtype).max) if dtype.kind in "ui" else 1
