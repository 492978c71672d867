"""Geodesics of a strip of pixels in one direction, by the scheme of metrics/flow.py.

The field is a table [nodes, 12], see flow.py. A path of T steps is T + 1 records. A record is a set of rows, each with
one value per pixel. Record r holds the position X after r steps; the displacement W and the bend B (the change of the
displacement) of the step before; the momentum Q; and the field interpolated for the next step. The first record also
has a W, that of the tangent ball.

Rows lie at constant distances in one flat array. This shows LLVM that they do not overlap, so that it vectorizes loops
over many of them.
"""

from typing import NamedTuple

import numpy as np

from ..._interpolation import FARTHEST
from .flow import HALF, ONE, QUARTER, ZERO, least_values, rates, squares
from .jit import inlined, noalloc, optional
from .plane_interpolation import corner_weights
from .simd import FIELD_CHANNELS, SAMPLES_PER_VECTOR, blend_nodes
from .strip import STRIP

# First indices of the rows of a record, unsigned so that numba omits the test for negative indices. Vectors (y, x):
# position, displacement, bend, momentum; the factor by which the momentum was normalized; the weights of the upper
# corners at the midpoint, their slopes, and the interpolated field.
ROW, NODE = np.uint64(STRIP), np.uint64(FIELD_CHANNELS)
X, W, B, Q, SIZE, UPPER, WEIGHT_SLOPE, FIELD, RECORD = (ROW * np.uint64(row) for row in (0, 2, 4, 6, 8, 9, 11, 13, 25))

# Gradients of a step's start, displacement and bend from its samples; then the adjoint state of the backward pass, with
# the gradients of the midpoint and of the interpolated field.
GRAD_X, GRAD_W, GRAD_B, GRAD_STEP = (ROW * np.uint64(row) for row in (0, 2, 4, 6))
ADJOINT_X, ADJOINT_W, ADJOINT_B, ADJOINT_Q, ADJOINT_MIDPOINT, ADJOINT_FIELD, ADJOINT = (
    ROW * np.uint64(row) for row in (0, 2, 4, 6, 8, 10, 22)
)


class FlowSettings(NamedTuple):
    """Constants of all geodesics.

    The table has one more node on either side than the metric field, or, if it is circular, one more after the last.
    """

    steps: int  # per geodesic
    nodes: tuple[int, ...]  # along y and x
    spacing: tuple[float, ...]  # pixels between nodes
    circular: bool
    tolerance: float  # see _interpolation.lattice_tolerance


class Paths(NamedTuple):
    """Buffers for the paths of a strip."""

    own: np.ndarray  # [5 · STRIP], the metric at the pixels, M (3) and ω (2)
    path: np.ndarray  # [(T + 1) · RECORD]
    node: np.ndarray  # [(T + 1) · STRIP], int32: lower corner of each midpoint's cell, then the pixel's own node
    grad: np.ndarray  # [T · GRAD_STEP]
    adjoint: np.ndarray  # [ADJOINT]
    node_values: np.ndarray  # [STRIP · 12], the gradient of the field at the midpoints of one step


def make_paths(flow: FlowSettings, dtype: np.dtype) -> Paths:
    """Return the buffers for a strip's paths."""
    records = flow.steps + 1
    return Paths(
        np.zeros(5 * STRIP, dtype),
        np.zeros(records * int(RECORD), dtype),
        np.zeros(records * STRIP, np.int32),
        np.zeros(flow.steps * int(GRAD_STEP), dtype),
        np.zeros(int(ADJOINT), dtype),
        np.zeros(STRIP * FIELD_CHANNELS, dtype),
    )


@optional
def load_metric(flow, field, pixel, paths, n):
    """Write the nodes of n pixels and the metric there; pixel [2, n]."""
    own, node, margin = paths.own, paths.node[flow.steps * STRIP :], 0 if flow.circular else 1
    for i in range(n):
        node[i] = (np.int32(pixel[0, i]) + margin) * flow.nodes[1] + np.int32(pixel[1, i]) + margin
    for i in range(n):
        for k in range(np.uint64(5)):
            own[k * ROW + i] = field[np.uint64(node[i]), k]


@optional
def trace(flow, field, u0, u1, length, pixel, paths, n):
    """Integrate the geodesics of n pixels in the direction u; pixel [2, n]."""
    path, node = paths.path, paths.node
    h = length / path.dtype.type(flow.steps)
    start_paths(u0, u1, h, paths, n)
    for step in range(flow.steps):
        record = np.uint64(step) * RECORD
        find_midpoints(flow, record, pixel, path, node[step * STRIP :], n)
        interpolate_field(flow, field, record, paths, node[step * STRIP :], n)
        advance_paths(record, h, path.dtype.type(2 if step == 0 else 1), path, n)


@noalloc
def start_paths(u0, u1, h, paths, n):
    """Write the first record: displacement and momentum given by the metric at the pixel itself."""
    path, own, least = paths.path, paths.own, least_values(paths.path)
    for i in range(n):
        m00, m01, m11, w0, w1 = own_metric(own, i)
        square, floor = squares(m00, m01, m11, u0, u1, least)
        inverse = ONE / np.sqrt(square if square > floor else floor)
        e0, e1 = u0 * inverse, u1 * inverse
        c = ONE + w0 * e0 + w1 * e1
        scale = h / (c if c > least[1] else least[1])
        path[X + i] = path[X + ROW + i] = path[B + i] = path[B + ROW + i] = ZERO
        path[W + i], path[W + ROW + i] = scale * e0, scale * e1
        path[Q + i], path[Q + ROW + i] = m00 * e0 + m01 * e1, m01 * e0 + m11 * e1


@inlined
def own_metric(own, i):
    """Return M and ω at a pixel."""
    return own[i], own[ROW + i], own[np.uint64(2) * ROW + i], own[np.uint64(3) * ROW + i], own[np.uint64(4) * ROW + i]


@noalloc
def find_midpoints(flow, record, pixel, path, node, n):
    """Normalize the momentum, and write the node and weights of the midpoint of the next step."""
    real, margin = path.dtype.type, ZERO if flow.circular else ONE
    farthest, is_circular, tolerance = real(FARTHEST), real(1 if flow.circular else 0), real(flow.tolerance)
    last0, last1 = real(flow.nodes[0] - 1), real(flow.nodes[1] - 1)  # also the period of a circular field
    scale0, scale1 = real(1 / flow.spacing[0]), real(1 / flow.spacing[1])
    for i in range(n):
        at = record + i
        q0, q1 = path[at + Q], path[at + Q + ROW]
        size = np.abs(q0) if np.abs(q0) > np.abs(q1) else np.abs(q1)
        path[at + SIZE] = size
        path[at + Q], path[at + Q + ROW] = q0 / size, q1 / size
        ahead0 = path[at + X] + HALF * path[at + W] + QUARTER * path[at + B]
        ahead1 = path[at + X + ROW] + HALF * path[at + W + ROW] + QUARTER * path[at + B + ROW]
        cell0, upper0, slope0 = clamp_to_field(
            pixel[0, i] + ahead0 * scale0 + margin, last0, is_circular, farthest, tolerance
        )
        cell1, upper1, slope1 = clamp_to_field(
            pixel[1, i] + ahead1 * scale1 + margin, last1, is_circular, farthest, tolerance
        )
        node[i] = cell0 * np.int32(flow.nodes[1]) + cell1
        path[at + UPPER], path[at + UPPER + ROW] = upper0, upper1
        path[at + WEIGHT_SLOPE], path[at + WEIGHT_SLOPE + ROW] = slope0, slope1


@inlined
def clamp_to_field(position, last, is_circular, farthest, tolerance):
    """Clamp or wrap a coordinate to the field; return the cell, the upper corner's weight, and this weight's slope."""
    wrapped = position if position > -farthest else -farthest
    wrapped = wrapped if wrapped < farthest else farthest
    wrapped = wrapped - last * (is_circular * np.floor(wrapped / last))
    clamped = wrapped if wrapped > ZERO else ZERO
    clamped = clamped if clamped < last else last
    cell = np.int32(clamped if clamped < last - ONE else last - ONE)
    return (
        cell,
        clamped - np.float32(cell) if position == position else position,
        ONE if np.abs(wrapped - clamped) <= max(tolerance, ZERO) else ZERO,
    )


@noalloc
def interpolate_field(flow, field, record, paths, node, n):
    """Interpolate the field at the midpoints. The last four may exceed n within the buffer."""
    path, flat, down = paths.path, field.reshape(-1), np.uint64(flow.nodes[1]) * NODE
    for i in range(np.uint64(0), n, np.uint64(SAMPLES_PER_VECTOR)):
        j, k, m = i + np.uint64(1), i + np.uint64(2), i + np.uint64(3)
        blend_nodes(
            flat,
            (
                cell_corners(node, i, down), cell_corners(node, j, down), cell_corners(node, k, down),
                cell_corners(node, m, down),
            ),
            (
                midpoint_weights(path, record, i), midpoint_weights(path, record, j),
                midpoint_weights(path, record, k), midpoint_weights(path, record, m),
            ),
            path,
            record + FIELD + i,
            ROW,
        )  # fmt: skip


@inlined
def cell_corners(node, i, down):
    """Return where the four corners of the cell of midpoint i start in the field."""
    a = np.uint64(node[i]) * NODE
    return a, a + NODE, a + down, a + down + NODE


@inlined
def midpoint_weights(path, record, i):
    """Return the interpolation weights of the four corners for midpoint i."""
    return corner_weights(path[record + UPPER + i], path[record + UPPER + ROW + i], ONE)


@noalloc
def advance_paths(record, h, bend_factor, path, n):
    """Take one step with the velocity at its midpoint.

    The bend compares this velocity with that of the midpoint before, one step earlier; in the first step with that of
    the start, half a step earlier, so ``bend_factor`` is 2 there and 1 later.
    """
    least, half = least_values(path), HALF * h
    for i in range(n):
        at = record + i
        q0, q1 = path[at + Q], path[at + Q + ROW]
        local = field_at(path, at + FIELD)
        _, _, f0, f1 = rates(local, q0, q1, least)
        v0, v1, f0, f1 = rates(local, q0 + half * f0, q1 + half * f1, least)
        w0, w1 = h * v0, h * v1
        path[at + RECORD + W], path[at + RECORD + W + ROW] = w0, w1
        path[at + RECORD + B] = bend_factor * (w0 - path[at + W])
        path[at + RECORD + B + ROW] = bend_factor * (w1 - path[at + W + ROW])
        path[at + RECORD + X] = path[at + X] + w0
        path[at + RECORD + X + ROW] = path[at + X + ROW] + w1
        path[at + RECORD + Q], path[at + RECORD + Q + ROW] = q0 + h * f0, q1 + h * f1


@inlined
def field_at(values, at):
    """Return the twelve field values of a pixel."""
    y, x = at + ROW * np.uint64(6), at + ROW * np.uint64(9)
    return (
        *three_rows(values, at),
        *three_rows(values, at + ROW * np.uint64(3)),
        *three_rows(values, y),
        *three_rows(values, x),
    )


@inlined
def three_rows(values, at):
    """Return the values of three consecutive rows."""
    return values[at], values[at + ROW], values[at + ROW + ROW]


@optional
def fill_displacement(flow, fraction, paths, displacement, n):
    """Write the displacement [3, n] at a fraction of the paths in [0, 1], on the parabola of the step around it."""
    step, step_fraction, bend_weight = step_at(flow, fraction, paths.path)
    record = np.uint64(step) * RECORD
    for axis in range(2):
        row_start, path = record + np.uint64(axis) * ROW, paths.path
        for i in range(n):
            at = row_start + i
            displacement[1 + axis, i] = (
                path[at + X] + step_fraction * path[at + RECORD + W] - bend_weight * path[at + RECORD + B]
            )


@noalloc
def step_at(flow, fraction, like):
    """Return the step that contains a fraction of a path, the fraction f of that step, and f(1 − f)/2."""
    real = like.dtype.type
    step = min(max(int(np.ceil(fraction * real(flow.steps))) - 1, 0), flow.steps - 1)
    step_fraction = fraction * real(flow.steps) - real(step)
    return step, step_fraction, HALF * step_fraction * (ONE - step_fraction)
