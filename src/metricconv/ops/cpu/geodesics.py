"""Geodesics of a strip of pixels in one direction, by the scheme of metrics/flow.py.

The field is a table [nodes, 12] of M (3), ω (2), its curl, ∂_y M (3) and ∂_x M (3). A path of T steps is T + 1 records,
each of rows of numbers, one for each pixel: at record r the position X after r steps, the stride W and the bend B of
the step before, the momentum Q, and what was looked up for the step that follows. The first has a stride too, that of
the tangent ball.

Rows lie a constant number of places apart in one flat array: that is how the compiler sees that they do not overlap,
and makes vector instructions of loops over many of them.
"""

from typing import NamedTuple

import numpy as np

from ..._interpolation import FARTHEST
from .flow import HALF, ONE, QUARTER, ZERO, guards, rates, squares
from .jit import compiled, inlined, inner
from .nodes import CHANNELS, mix

# Pixels a strip: its buffers fill half of the first cache, and steps from tap to tap are few.
STRIP = 512

# Where rows start, unsigned: indices that numba need not ask the sign of. The rows of a record, vectors (y, x):
# position, stride, bend, momentum; the momentum's size before it was divided by it; the lookup's weights of the later
# corners, how they follow the position, and what was found.
ROW, NODE = np.uint64(STRIP), np.uint64(CHANNELS)
X, W, B, Q, SIZE, UP, FOLLOWS, LOCAL, RECORD = (ROW * np.uint64(row) for row in (0, 2, 4, 6, 8, 9, 11, 13, 25))

# Gradients: of a step's start, stride and bend as samples feel them; then those of the state while retracing, of where
# the field was looked up and of what was found.
FELT_X, FELT_W, FELT_B, FELT = (ROW * np.uint64(row) for row in (0, 2, 4, 6))
TO_X, TO_W, TO_B, TO_Q, TO_PLACE, TO_LOCAL, STATE = (ROW * np.uint64(row) for row in (0, 2, 4, 6, 8, 10, 22))


class Flow(NamedTuple):
    """What all geodesics share: their steps, and the nodes of the field, with one more on either side (or, where the
    field starts anew past its border, after the last).
    """

    steps: int  # 0 where there are no geodesics
    nodes: tuple[int, ...]  # along y and x
    spacing: tuple[float, ...]  # pixels between nodes
    circular: bool
    tolerance: float  # see _interpolation.lattice_tolerance


class Paths(NamedTuple):
    """Room for the paths of a strip."""

    path: np.ndarray  # [(T + 1) · RECORD]
    node: np.ndarray  # [(T + 1) · STRIP], of the first corner of each lookup, int32
    felt: np.ndarray  # [T · FELT]
    state: np.ndarray  # [STATE]
    found: np.ndarray  # [STRIP · 12], what one step looks up, pixel by pixel


@compiled
def make_paths(flow, like):
    """Return room for a strip's paths, none if there are no geodesics."""
    records = flow.steps + 1 if flow.steps else 0
    return Paths(
        np.zeros(records * np.intp(RECORD), like.dtype),
        np.zeros(records * STRIP, np.int32),
        np.zeros(flow.steps * np.intp(FELT), like.dtype),
        np.zeros(np.intp(STATE) if flow.steps else 0, like.dtype),
        np.zeros(STRIP * CHANNELS if flow.steps else 0, like.dtype),
    )


@inner
def trace(flow, table, u0, u1, length, pixel, paths, n):
    """Trace the geodesics of n pixels in the direction u; pixel [2, n]."""
    path, node = paths.path, paths.node
    h = length / path.dtype.type(flow.steps)
    set_out(flow, table, u0, u1, h, pixel, paths, n)
    for step in range(flow.steps):
        here = np.uint64(step) * RECORD
        find_midpoints(flow, here, pixel, path, node[step * STRIP :], n)
        look_up(flow, table, here, paths, node[step * STRIP :], n)
        go(here, h, path.dtype.type(2 if step == 0 else 1), path, n)


@inner
def set_out(flow, table, u0, u1, h, pixel, paths, n):
    """Write the first record: the stride and the momentum that the metric at the pixel itself gives."""
    path, node = paths.path, paths.node[flow.steps * STRIP :]
    margin, least = 0 if flow.circular else 1, guards(path)
    for i in range(n):
        node[i] = (np.int32(pixel[0, i]) + margin) * flow.nodes[1] + np.int32(pixel[1, i]) + margin
    for i in range(n):
        m00, m01, m11, w0, w1 = metric_at(table, np.uint64(node[i]))
        square, floor = squares(m00, m01, m11, u0, u1, least)
        inverse = ONE / np.sqrt(square if square > floor else floor)
        e0, e1 = u0 * inverse, u1 * inverse
        c = ONE + w0 * e0 + w1 * e1
        pace = h / (c if c > least[1] else least[1])
        path[X + i] = path[X + ROW + i] = path[B + i] = path[B + ROW + i] = ZERO
        path[W + i], path[W + ROW + i] = pace * e0, pace * e1
        path[Q + i], path[Q + ROW + i] = m00 * e0 + m01 * e1, m01 * e0 + m11 * e1


@inlined
def metric_at(table, node):
    """Return M and ω of a node."""
    return table[node, 0], table[node, 1], table[node, 2], table[node, 3], table[node, 4]


@inner
def find_midpoints(flow, here, pixel, path, node, n):
    """Divide the momentum by its size, and write where the field is looked up: half a step ahead."""
    real, margin = path.dtype.type, ZERO if flow.circular else ONE
    far, wraps, tolerance = real(FARTHEST), real(1 if flow.circular else 0), real(flow.tolerance)
    last0, last1 = real(flow.nodes[0] - 1), real(flow.nodes[1] - 1)  # also the period of a circular field
    scale0, scale1 = real(1 / flow.spacing[0]), real(1 / flow.spacing[1])
    for i in range(n):
        at = here + i
        q0, q1 = path[at + Q], path[at + Q + ROW]
        size = np.abs(q0) if np.abs(q0) > np.abs(q1) else np.abs(q1)
        path[at + SIZE] = size
        path[at + Q], path[at + Q + ROW] = q0 / size, q1 / size
        ahead0 = path[at + X] + HALF * path[at + W] + QUARTER * path[at + B]
        ahead1 = path[at + X + ROW] + HALF * path[at + W + ROW] + QUARTER * path[at + B + ROW]
        cell0, up0, follows0 = bring(pixel[0, i] + ahead0 * scale0 + margin, last0, wraps, far, tolerance)
        cell1, up1, follows1 = bring(pixel[1, i] + ahead1 * scale1 + margin, last1, wraps, far, tolerance)
        node[i] = cell0 * np.int32(flow.nodes[1]) + cell1
        path[at + UP], path[at + UP + ROW] = up0, up1
        path[at + FOLLOWS], path[at + FOLLOWS + ROW] = follows0, follows1


@inlined
def bring(p, last, wraps, far, tolerance):
    """Bring a position along one axis into the field: return its cell, its weight there, and whether this follows."""
    near = p if p > -far else -far
    near = near if near < far else far
    near = near - last * (wraps * np.floor(near / last))
    inside = near if near > ZERO else ZERO
    inside = inside if inside < last else last
    cell = np.int32(inside if inside < last - ONE else last - ONE)
    return (
        cell,
        inside - np.float32(cell) if p == p else p,
        ONE if np.abs(near - inside) <= max(tolerance, ZERO) else ZERO,
    )


@inner
def look_up(flow, table, here, paths, node, n):
    """Interpolate the field at the midpoints."""
    path, found, flat, down = paths.path, paths.found, table.reshape(-1), np.uint64(flow.nodes[1]) * NODE
    for i in range(n):
        a = np.uint64(node[i]) * NODE
        weights = corner_weights(path[here + UP + i], path[here + UP + ROW + i])
        mix(flat, (a, a + NODE, a + down, a + down + NODE), weights, found, i * NODE)
    for k in range(NODE):
        for i in range(n):
            path[here + LOCAL + k * ROW + i] = found[i * NODE + k]


@inlined
def corner_weights(up0, up1):
    """Return the weights of the four corners."""
    both = up0 * up1
    return ONE - up0 - up1 + both, up1 - both, up0 - both, both


@inner
def go(here, h, catch_up, path, n):
    """Take one step; its stride is that of the midpoint, half a step after the start and one after the one before."""
    least, half = guards(path), HALF * h
    for i in range(n):
        at = here + i
        q0, q1 = path[at + Q], path[at + Q + ROW]
        local = row_of(path, at + LOCAL)
        _, _, f0, f1 = rates(local, q0, q1, least)
        v0, v1, f0, f1 = rates(local, q0 + half * f0, q1 + half * f1, least)
        w0, w1 = h * v0, h * v1
        path[at + RECORD + W], path[at + RECORD + W + ROW] = w0, w1
        path[at + RECORD + B] = catch_up * (w0 - path[at + W])
        path[at + RECORD + B + ROW] = catch_up * (w1 - path[at + W + ROW])
        path[at + RECORD + X] = path[at + X] + w0
        path[at + RECORD + X + ROW] = path[at + X + ROW] + w1
        path[at + RECORD + Q], path[at + RECORD + Q + ROW] = q0 + h * f0, q1 + h * f1


@inlined
def row_of(rows, at):
    """Return the twelve numbers of a pixel."""
    y, x = at + ROW * np.uint64(6), at + ROW * np.uint64(9)
    return (*three(rows, at), *three(rows, at + ROW * np.uint64(3)), *three(rows, y), *three(rows, x))


@inlined
def three(rows, at):
    """Return three of them."""
    return rows[at], rows[at + ROW], rows[at + ROW + ROW]


@inner
def displace(flow, part, paths, displacement, n):
    """Write the displacement [3, n] at a part of the paths, in [0, 1]: on the parabola of the step it falls into."""
    step, along, sag = place_on(flow, part, paths.path)
    here = np.uint64(step) * RECORD
    for axis in range(2):
        of, path = here + np.uint64(axis) * ROW, paths.path
        for i in range(n):
            at = of + i
            displacement[1 + axis, i] = path[at + X] + along * path[at + RECORD + W] - sag * path[at + RECORD + B]


@inner
def place_on(flow, part, like):
    """Return the step that a part of a path falls into, the part f of that step, and f(1 − f)/2."""
    real = like.dtype.type
    step = min(max(int(np.ceil(part * real(flow.steps))) - 1, 0), flow.steps - 1)
    along = part * real(flow.steps) - real(step)
    return step, along, HALF * along * (ONE - along)
