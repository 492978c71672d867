"""Multilinear interpolation on the pixel lattice, in any dimension, with four padding modes.

Interpolated data has a kink wherever a coordinate is an integer. There the derivative along that axis is defined as
the mean of the two one-sided slopes, which is the central difference (v(n + 1) − v(n − 1)) / 2 of the neighboring
pixels, padded according to ``padding_mode``. A coordinate counts as an integer within ``lattice_tolerance`` of one, so
that rounding errors of a position do not select one of the slopes. All backends use this definition.
"""

import contextlib
from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from . import _compat

PADDING_MODES = ("zeros", "border", "reflect", "circular")

# Positions are clamped here before they become integers: float32 has no fractions left beyond it.
FARTHEST = 2.0**23

# In pixels. Samples of a ball of radius 60 are computed to within 8e-6 in float32. The tolerance of float64 also leaves
# room for finite differences.
_LATTICE_TOLERANCE = {torch.float32: 2.0**-16, torch.float64: 2.0**-36}


def lattice_tolerance(dtype: torch.dtype) -> float:
    """Return how far from an integer a coordinate computed in ``dtype`` still counts as one, in pixels."""
    return _LATTICE_TOLERANCE[torch.promote_types(dtype, torch.float32)]


@contextlib.contextmanager
def use_lattice_tolerance(dtype: torch.dtype, tolerance: float) -> Iterator[None]:
    """Set the tolerance of a dtype for a comparison, for all threads; a negative one makes derivatives one-sided."""
    before = _LATTICE_TOLERANCE[dtype]
    _LATTICE_TOLERANCE[dtype] = tolerance
    try:
        yield
    finally:
        _LATTICE_TOLERANCE[dtype] = before


def corners(
    position: Tensor,
    size: Sequence[int],
    padding_mode: str,
    base: Sequence[Tensor] | None = None,
    tolerance: float | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the lattice points around each position as (flat index into ``size``, interpolation weight).

    There are two along each axis, or three where the derivative at a lattice point needs both neighbors.

    Args:
        position: (..., d), in pixels along the axes of ``size``, relative to ``base`` if that is given.
        size: extent of each spatial axis.
        padding_mode: "zeros", "border" (repeat the border pixel), "reflect" (about its center) or "circular".
        base: whole pixels along each axis, (...) each. Positions relative to it keep their precision far from 0.
        tolerance: see ``lattice_tolerance``; by default that of the position's dtype.

    >>> x = torch.tensor([10.0, 20.0, 40.0])
    >>> sum(x[i] * w for i, w in corners(torch.tensor([[0.5], [1.25]]), [3], "zeros"))
    tensor([15., 25.])
    """
    position = position.clamp(-FARTHEST, FARTHEST)
    tolerance = lattice_tolerance(position.dtype) if tolerance is None else tolerance
    axes = []
    for axis, extent in enumerate(size):
        first, weights = _weights(position[..., axis], tolerance)
        first = first if base is None else first + base[axis]
        axes.append([_fold(first + k, weight, extent, padding_mode) for k, weight in enumerate(weights)])
    for corner in product(*axes):
        flat, weight = corner[0]
        for (index, factor), extent in zip(corner[1:], size[1:], strict=True):
            flat, weight = flat * extent + index, weight * factor
        yield flat, weight


def _weights(position: Tensor, tolerance: float) -> tuple[Tensor, list[Tensor]]:
    """Return the first lattice index around positions along one axis, and the weights from there on."""
    low = position.floor()
    two = low.long(), [1 - (position - low), position - low]
    if not _differentiable(position):
        return two
    nearest = position.round()
    whole = (position - nearest).abs() <= tolerance
    if _readable(position) and not whole.any():
        return two
    # At an integer n the weights of n − 1, n, n + 1 have the values of linear interpolation, and the derivatives of
    # the central difference: −½, 0, ½.
    difference = position - nearest
    value = difference.detach()
    slope = 0.5 * (difference - value)  # zero, with a derivative of ½
    before = torch.where(whole, (-value).clamp_min(0) - slope, 1 - (position - low))
    here = torch.where(whole, 1 - value.abs(), position - low)
    after = torch.where(whole, value.clamp_min(0) + slope, 0.0)
    return torch.where(whole, nearest - 1, low).long(), [before, here, after]


def _differentiable(position: Tensor) -> bool:
    """Return whether derivatives with respect to positions may be required."""
    if _compat.functorch_active() or _compat.forward_mode_active():
        return True
    return torch.is_grad_enabled() and position.requires_grad


def _readable(position: Tensor) -> bool:
    """Return whether code may depend on the values: they are not traced, and reading them does not wait for a GPU."""
    if torch.compiler.is_compiling() or _compat.functorch_active():
        return False
    return type(position) is Tensor and position.device.type == "cpu"


def line(start: int, stop: int, extent: int, padding_mode: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the padded index of pixels start to stop − 1 along an axis, and their weight.

    The weight is 0 outside the image if ``padding_mode`` is "zeros", otherwise 1.
    """
    index = torch.arange(start, stop, device=device)
    return _fold(index, torch.ones_like(index, dtype=torch.float32), extent, padding_mode)


def _fold(index: Tensor, weight: Tensor, extent: int, padding_mode: str) -> tuple[Tensor, Tensor]:
    """Return the pixel in [0, extent) that pads an index along one axis, and its weight, 0 outside for "zeros"."""
    if padding_mode == "circular":
        return _remainder(index, extent), weight
    if padding_mode == "reflect" and extent > 1:
        period = 2 * (extent - 1)
        index = _remainder(index, period)
        return torch.minimum(index, period - index), weight
    inside = index.clamp(0, extent - 1)
    if padding_mode == "zeros":
        weight = weight * (inside == index)  # a product, so that a NaN position stays NaN
    return inside, weight


def _remainder(index: Tensor, period: int) -> Tensor:
    """Return index mod period, in [0, period)."""
    # The period is a tensor because ONNX has no remainder by a scalar that depends on the image size.
    return index.remainder(torch.full((), period, dtype=index.dtype, device=index.device))


def interpolate(field: Tensor, position: Tensor, padding_mode: str) -> Tensor:
    """Return a field (B, C, *spatial) interpolated at positions (B, *out, d): (B, C, *out)."""
    flat = field.flatten(2)  # [B, C, S]
    out = position.shape[1:-1]
    result = torch.zeros((), dtype=field.dtype, device=field.device)
    for index, weight in corners(position, field.shape[2:], padding_mode):
        picked = flat.gather(2, index.flatten(1).unsqueeze(1).expand(-1, flat.shape[1], -1))  # [B, C, N]
        result = result + picked * weight.flatten(1).unsqueeze(1).to(field.dtype)
    return result.unflatten(2, out)
