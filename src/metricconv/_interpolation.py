"""Multilinear interpolation on the pixel lattice, in any dimension, with the four ways of looking past the border."""

from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

PADDING_MODES = ("zeros", "border", "reflect", "circular")

# Positions are clamped here before they become integers: float32 has no fractions left beyond it.
FARTHEST = 2.0**23


def corners(
    position: Tensor, size: Sequence[int], padding_mode: str, base: Sequence[Tensor] | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the 2^d lattice points around each position as (flat index into ``size``, interpolation weight).

    Args:
        position: (..., d), in pixels along the axes of ``size``; from ``base`` on, if that is given.
        size: extent of each spatial axis.
        padding_mode: what stands past the border: "zeros", the "border" pixel, a "reflect"-ion about its centre,
            or the image again ("circular").
        base: whole pixels along each axis, (...) each: far from 0, a position has no fractions of its own.

    >>> x = torch.tensor([10.0, 20.0, 40.0])
    >>> sum(x[i] * w for i, w in corners(torch.tensor([[0.5], [1.25]]), [3], "zeros"))
    tensor([15., 25.])
    """
    position = position.clamp(-FARTHEST, FARTHEST)
    low = position.floor()
    fraction = position - low
    axes = []
    for axis, extent in enumerate(size):
        index = low[..., axis].long() if base is None else low[..., axis].long() + base[axis]
        up = fraction[..., axis]
        axes.append((_fold(index, 1 - up, extent, padding_mode), _fold(index + 1, up, extent, padding_mode)))
    for corner in product(*axes):
        flat, weight = corner[0]
        for (index, factor), extent in zip(corner[1:], size[1:], strict=True):
            flat, weight = flat * extent + index, weight * factor
        yield flat, weight


def line(start: int, stop: int, extent: int, padding_mode: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return, for pixels start to stop − 1 along an axis, which pixel of it each is, and its weight.

    The weight is 0 past a border of zeros, else 1.
    """
    index = torch.arange(start, stop, device=device)
    return _fold(index, torch.ones_like(index, dtype=torch.float32), extent, padding_mode)


def _fold(index: Tensor, weight: Tensor, extent: int, padding_mode: str) -> tuple[Tensor, Tensor]:
    """Bring an index along one axis into [0, extent); outside, "zeros" takes its weight away."""
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
    # The period as a tensor: ONNX has no remainder by a number that varies with the image's size.
    return index.remainder(torch.full((), period, dtype=index.dtype, device=index.device))


def interpolate(field: Tensor, position: Tensor, padding_mode: str) -> Tensor:
    """Read a field (B, C, *spatial) at positions (B, *out, d): (B, C, *out)."""
    flat = field.flatten(2)  # [B, C, S]
    out = position.shape[1:-1]
    result = torch.zeros((), dtype=field.dtype, device=field.device)
    for index, weight in corners(position, field.shape[2:], padding_mode):
        picked = flat.gather(2, index.flatten(1).unsqueeze(1).expand(-1, flat.shape[1], -1))  # [B, C, N]
        result = result + picked * weight.flatten(1).unsqueeze(1).to(field.dtype)
    return result.unflatten(2, out)
