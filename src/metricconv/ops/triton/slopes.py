"""Derivatives of interpolated data at lattice points.

Inside a cell [c, c + 1] the derivative along an axis is the slope V(c + 1) − V(c). Where the position is a whole number
n, within a tolerance, it is the mean of the slopes of the cells on both sides of n: see ``_interpolation.py``. So the
gradient of a position is computed in the cell that contains it, and then, by tiles that have whole positions, once more
on the other side of these. A value is the same on both sides: the derivative along another axis does not change.
"""

import torch
import triton
import triton.language as tl

from ..._interpolation import lattice_tolerance
from .geometry import FARTHEST

# How far from the middle of its cell a position must lie to count as whole, and a limit that none reaches.
WHOLE = tl.constexpr(0.5 - lattice_tolerance(torch.float32))
NEVER = tl.constexpr(1.0)
# Components of directions below this one are 0 but for rounding.
SLIGHT = tl.constexpr(2.0**-20)
ULP = tl.constexpr(2.0**-23)  # of 1


@triton.jit
def whole_limit(component):
    """Return the limit for ``is_whole`` along an axis, given this component of the direction in which samples move.

    Where it is 0 the derivative along the axis is not needed, and no position has to count as whole.
    """
    return tl.where(tl.abs(component) > SLIGHT, WHOLE, NEVER)


@triton.jit
def tap_limits(a, b, r, lattice, KIND: tl.constexpr):
    """Return the limits along y and x for the sample at reference cell (a, b, r)."""
    if KIND == "ball" or KIND == "dilated":  # it moves along (a, b) only, the centre not at all
        return whole_limit(a * r), whole_limit(b * r)
    else:  # nothing moves along the y axis of a 1-D support, whose grid has no extent along it
        return tl.where((lattice.step_y == 0) & (lattice.step_x > 0), NEVER, WHOLE), WHOLE


@triton.jit
def is_whole(position, limit):
    """Return where a position counts as whole; never where it is NaN."""
    return tl.abs(position - tl.floor(position) - 0.5) >= limit


@triton.jit
def may_move(dy, dx, lattice, KIND: tl.constexpr):
    """Return where a sample may move: [BM].

    The centre of a geodesic ball does not. Displacements along its rays are given as a deformable support without a
    reference grid, and those of other samples are not 0.
    """
    if KIND == "deformable":
        return tl.abs(dy) + tl.abs(dx) + (lattice.step_y + lattice.step_x) > 0
    else:
        return tl.full(dy.shape, 1, tl.int1)


@triton.jit
def any_whole(y, x, limits, moves):
    """Return whether a tile has positions that count as whole along y or x, among those that move: a scalar."""
    whole = (is_whole(y, limits[0]) | is_whole(x, limits[1])) & moves
    return tl.max(whole.to(tl.int32), 0) > 0


@triton.jit
def other_side(position, limit):
    """Return positions on the other side of whole numbers, one unit in the last place below or on them."""
    nearest = tl.floor(position + 0.5)
    below = nearest - tl.maximum(tl.abs(nearest), 1.0) * ULP
    return tl.where(is_whole(position, limit), tl.where(position < nearest, nearest, below), position)


@triton.jit
def other_side_from(base, position, limit):
    """Return the same for base + position, as base and position: the latter is small, and all the more precise."""
    nearest = tl.floor(position + 0.5)
    whole = is_whole(position, limit) & (tl.abs(position) <= FARTHEST)  # beyond it nothing has a derivative
    base = tl.where(whole, base + nearest.to(tl.int32), base)
    return base, tl.where(whole, tl.where(position < nearest, 0.0, -ULP), position)
