"""Derivatives of interpolated data at integer coordinates: central differences, as _interpolation.py defines them.

A coordinate is an integer where it equals that of one of its cell's corners, up to the tolerance. Its *side* says where
the neighbor lies that is outside of the cell: −1 before the cell, 1 after it, 0 if the coordinate is not an integer.
With values v₀, v₁ at the cell's corners along an axis and v at that outer neighbor, the derivative is

    side     −1           0          1
             ½(v₁ − v)    v₁ − v₀    ½(v − v₀)

On the outermost line of the halo, beyond which data is constant, the outer neighbor is the corner itself: the side is
−2 or 2.
"""

import numpy as np

from .jit import inlined


@inlined
def side_of(upper_weight, tolerance):
    """Return the side of a coordinate, given the interpolation weight of its upper corner; NaN is not an integer."""
    real = type(upper_weight)
    return real(-1) if upper_weight <= tolerance else real(1) if upper_weight >= real(1) - tolerance else real(0)


@inlined
def slope_factors(side):
    """Return the factors of v₁ − v₀ and v − v₀ in the derivative."""
    zero, half, one = type(side)(0), type(side)(0.5), type(side)(1)
    inner = one if side == zero else half if side < zero else zero
    outer = zero if side == zero else -half if side < zero else half
    return inner, outer


@inlined
def outer_neighbor_step(side, pitch):
    """Return the distance from the cell's lower corner to the outer neighbor; 0 if there is none."""
    lines = np.int64(0) if side == 0 else np.int64(3 - side) if side > 0 else -np.int64(2 + side)
    return lines * np.int64(pitch)


@inlined
def neighbor_steps(side, pitch):
    """Return the distances from an integer coordinate to its neighbors before and after; 0 if there are none."""
    none = pitch - pitch
    step = none if side == 0 else pitch
    return none if side == -2 else step, none if side == 2 else step


@inlined
def outer_neighbor_node(flow, axis, cell, side):
    """Return the index of the outer neighbor in a geodesic field, which repeats its border or wraps around."""
    last = flow.nodes[axis] - 1
    node = cell + 2 if side > 0 else cell - 1
    if flow.circular:
        return node + last if node < 0 else node - last if node > last else node
    return min(max(node, 0), last)
