"""Derivatives of interpolated data at pixel centers.

Between pixels c and c + 1 the derivative along an axis is the slope V(c + 1) − V(c). At an integer position n, within a
tolerance, it is the mean of the slopes on both sides of n: see ``_interpolation.py``. So the gradient of a position is
computed in the cell that contains it and, if a tile has integer positions, a second time on their opposite side. The
interpolated value is the same on both sides, hence so is the derivative along the other axis.
"""

import torch
import triton
import triton.language as tl

from ..._interpolation import lattice_tolerance
from .geometry import FARTHEST

# A position is an integer if it is at least this far from the middle of its cell; NEVER is out of reach.
INTEGER = tl.constexpr(0.5 - lattice_tolerance(torch.float32))
NEVER = tl.constexpr(1.0)
# Smaller components of a direction are rounding errors of 0.
SMALLEST_COMPONENT = tl.constexpr(2.0**-20)
ULP = tl.constexpr(2.0**-23)  # of 1


@triton.jit
def integer_limit(component):
    """Return the limit for ``is_integer`` along an axis, given that component of the direction in which samples move.

    If the component is 0, the derivative along the axis is not needed, and no position counts as an integer.
    """
    return tl.where(tl.abs(component) > SMALLEST_COMPONENT, INTEGER, NEVER)


@triton.jit
def integer_limits(a, b, radius, sampling_grid, KIND: tl.constexpr):
    """Return the limits along y and x for the sample with reference position (a, b, radius)."""
    if KIND == "ball" or KIND == "dilated":  # samples move along (a, b) only; the center does not move
        return integer_limit(a * radius), integer_limit(b * radius)
    else:  # the reference grid of a 1-D support has no extent along y, and its samples do not move along it
        return tl.where((sampling_grid.step_y == 0) & (sampling_grid.step_x > 0), NEVER, INTEGER), INTEGER


@triton.jit
def is_integer(position, limit):
    """Return whether positions count as integers. NaN does not."""
    return tl.abs(position - tl.floor(position) - 0.5) >= limit


@triton.jit
def is_movable(dy, dx, sampling_grid, KIND: tl.constexpr):
    """Return whether samples can move: [BM]. All can but the center of a geodesic ball.

    Geodesic balls are computed as deformable supports without a reference grid, whose other displacements are not 0.
    """
    if KIND == "deformable":
        return tl.abs(dy) + tl.abs(dx) + (sampling_grid.step_y + sampling_grid.step_x) > 0
    else:
        return tl.full(dy.shape, 1, tl.int1)


@triton.jit
def any_integer(y, x, limits, movable):
    """Return whether any movable position of a tile is an integer along y or x: a scalar."""
    found = (is_integer(y, limits[0]) | is_integer(x, limits[1])) & movable
    return tl.max(found.to(tl.int32), 0) > 0


@triton.jit
def opposite_side(position, limit):
    """Return the positions with integers replaced by the nearest number in the cell on their opposite side."""
    nearest = tl.floor(position + 0.5)
    below = nearest - tl.maximum(tl.abs(nearest), 1.0) * ULP
    return tl.where(is_integer(position, limit), tl.where(position < nearest, nearest, below), position)


@triton.jit
def opposite_side_from_base(base, position, limit):
    """Return the same for base + position, as (base, position). The small position is more precise than the sum."""
    nearest = tl.floor(position + 0.5)
    integer = is_integer(position, limit) & (tl.abs(position) <= FARTHEST)  # beyond it there is no derivative
    base = tl.where(integer, base + nearest.to(tl.int32), base)
    return base, tl.where(integer, tl.where(position < nearest, 0.0, -ULP), position)
