"""Derivatives of interpolated data at whole coordinates: central differences, as _interpolation.py defines them.

A coordinate is whole where it is that of one of its cell's corners, within the tolerance. Its *side* says where the
neighbour lies that the cell does not have: −1 before the cell, 1 after it, 0 where the coordinate is not whole. With
values v₀, v₁ at the cell's corners along an axis and v at that further neighbour, the derivative is

    side     −1           0          1
             ½(v₁ − v)    v₁ − v₀    ½(v − v₀)

On the outermost line of the halo, beyond which data is constant, the further neighbour is the corner itself: the side
is −2 or 2.
"""

import numpy as np

from .jit import inlined


@inlined
def side_of(up, tolerance):
    """Return the side of a coordinate, given its weight of the later corner; NaN is not whole."""
    real = type(up)
    return real(-1) if up <= tolerance else real(1) if up >= real(1) - tolerance else real(0)


@inlined
def slope_factors(side):
    """Return the factors of v₁ − v₀ and v − v₀ in the derivative."""
    zero, half, one = type(side)(0), type(side)(0.5), type(side)(1)
    inner = one if side == zero else half if side < zero else zero
    outer = zero if side == zero else -half if side < zero else half
    return inner, outer


@inlined
def further(side, pitch):
    """Return how far from the cell's first corner the further neighbour lies; 0 where there is none."""
    lines = np.int64(0) if side == 0 else np.int64(3 - side) if side > 0 else -np.int64(2 + side)
    return lines * np.int64(pitch)


@inlined
def steps_around(side, pitch):
    """Return how far before and after a whole coordinate its neighbours lie; 0 where there are none."""
    none = pitch - pitch
    step = none if side == 0 else pitch
    return none if side == -2 else step, none if side == 2 else step


@inlined
def further_node(flow, axis, cell, side):
    """Return the index of the further neighbour in a geodesic field, which repeats its border or wraps around."""
    last = flow.nodes[axis] - 1
    node = cell + 2 if side > 0 else cell - 1
    if flow.circular:
        return node + last if node < 0 else node - last if node > last else node
    return min(max(node, 0), last)
