"""The adjoint of the scheme in geodesics.py: from the gradients of the samples to that of the field's nodes."""

import numpy as np

from .central_difference import outer_neighbor_node, side_of, slope_factors
from .flow import HALF, ONE, QUARTER, ZERO, least_values, rates, rates_backward, squares
from .geodesics import (
    ADJOINT_B,
    ADJOINT_FIELD,
    ADJOINT_MIDPOINT,
    ADJOINT_Q,
    ADJOINT_W,
    ADJOINT_X,
    FIELD,
    GRAD_B,
    GRAD_STEP,
    GRAD_W,
    GRAD_X,
    NODE,
    RECORD,
    ROW,
    SIZE,
    STRIP,
    UPPER,
    WEIGHT_SLOPE,
    Q,
    field_at,
    own_metric,
    step_at,
)
from .jit import inlined, noalloc, optional
from .plane_interpolation import corner_weights
from .simd import node_dot, scatter_to_nodes


@optional
def accumulate_sample_gradient(flow, fraction, paths, grad_position, n):
    """Add the gradient [3, n] of the samples at a fraction of the paths to that of the step that contains it."""
    step, step_fraction, bend_weight = step_at(flow, fraction, paths.path)
    grad_record, grad = np.uint64(step) * GRAD_STEP, paths.grad
    for axis in range(2):
        row_start = grad_record + np.uint64(axis) * ROW
        for i in range(n):
            grad_value = grad_position[1 + axis, i]
            grad[row_start + GRAD_X + i] += grad_value
            grad[row_start + GRAD_W + i] += step_fraction * grad_value
            grad[row_start + GRAD_B + i] -= bend_weight * grad_value


@optional
def trace_backward(flow, field, u0, u1, length, paths, grad_field, written, n):
    """Backpropagate along the paths, and add the result to grad_field [nodes, 12]."""
    path, adjoint = paths.path, paths.adjoint
    h = length / path.dtype.type(flow.steps)
    adjoint[:] = 0
    for step in range(flow.steps - 1, -1, -1):
        node = paths.node[step * STRIP :]
        advance_paths_backward(
            np.uint64(step) * RECORD, np.uint64(step) * GRAD_STEP, h, path.dtype.type(2 if step == 0 else 1), paths, n
        )
        interpolate_field_backward(flow, field, np.uint64(step) * RECORD, paths, node, grad_field, written, n)
        midpoints_backward(flow, np.uint64(step) * RECORD, paths, n)
    start_paths_backward(flow, u0, u1, h, paths, grad_field, written, n)
    paths.grad[:] = 0


@noalloc
def advance_paths_backward(record, grad_record, h, bend_factor, paths, n):
    """Backpropagate through one step, to the record it starts from and the interpolated field."""
    path, grad, adjoint = paths.path, paths.grad, paths.adjoint
    least, half = least_values(path), HALF * h
    for i in range(n):
        at, grad_at = record + i, grad_record + i
        q0, q1 = path[at + Q], path[at + Q + ROW]
        local = field_at(path, at + FIELD)
        _, _, f0, f1 = rates(local, q0, q1, least)
        grad_q0, grad_q1 = adjoint[ADJOINT_Q + i], adjoint[ADJOINT_Q + ROW + i]
        bend0 = bend_factor * (grad[grad_at + GRAD_B] + adjoint[ADJOINT_B + i])
        bend1 = bend_factor * (grad[grad_at + GRAD_B + ROW] + adjoint[ADJOINT_B + ROW + i])
        grad_w0 = grad[grad_at + GRAD_W] + adjoint[ADJOINT_W + i] + adjoint[ADJOINT_X + i] + bend0
        grad_w1 = grad[grad_at + GRAD_W + ROW] + adjoint[ADJOINT_W + ROW + i] + adjoint[ADJOINT_X + ROW + i] + bend1
        second = rates_backward(
            local, q0 + half * f0, q1 + half * f1, h * grad_w0, h * grad_w1, h * grad_q0, h * grad_q1, least
        )
        first = rates_backward(local, q0, q1, ZERO, ZERO, half * second[0], half * second[1], least)
        size = path[at + SIZE]
        adjoint[ADJOINT_Q + i] = (grad_q0 + second[0] + first[0]) / size
        adjoint[ADJOINT_Q + ROW + i] = (grad_q1 + second[1] + first[1]) / size
        adjoint[ADJOINT_X + i] += grad[grad_at + GRAD_X]
        adjoint[ADJOINT_X + ROW + i] += grad[grad_at + GRAD_X + ROW]
        adjoint[ADJOINT_W + i], adjoint[ADJOINT_W + ROW + i] = -bend0, -bend1
        write_three_sums(adjoint, ADJOINT_FIELD + i, first[2:5], second[2:5])
        write_three_sums(adjoint, ADJOINT_FIELD + ROW * np.uint64(3) + i, first[5:8], second[5:8])
        write_three_sums(adjoint, ADJOINT_FIELD + ROW * np.uint64(6) + i, first[8:11], second[8:11])
        write_three_sums(adjoint, ADJOINT_FIELD + ROW * np.uint64(9) + i, first[11:], second[11:])


@inlined
def write_three_sums(rows, at, a, b):
    """Write the sums of three pairs of values to three consecutive rows."""
    rows[at], rows[at + ROW], rows[at + ROW + ROW] = a[0] + b[0], a[1] + b[1], a[2] + b[2]


@noalloc
def interpolate_field_backward(flow, field, record, paths, node, grad_field, written, n):
    """Add the gradient of the interpolated field to the nodes; write the gradient of the midpoints."""
    path, adjoint, node_values = paths.path, paths.adjoint, paths.node_values
    flat, flat_grad, down_stride = field.reshape(-1), grad_field.reshape(-1), np.uint64(flow.nodes[1]) * NODE
    tolerance = path.dtype.type(flow.tolerance)
    for k in range(NODE):
        for i in range(n):
            node_values[i * NODE + k] = adjoint[ADJOINT_FIELD + k * ROW + i]
    low, high = written[0], written[1]
    for i in range(n):
        low, high = min(low, node[i]), max(high, node[i])
        a = np.uint64(node[i]) * NODE
        upper0, upper1 = path[record + UPPER + i], path[record + UPPER + ROW + i]
        corners = (a, a + NODE, a + down_stride, a + down_stride + NODE)
        dot_a, dot_b, dot_c, dot_d = scatter_to_nodes(
            flat_grad, flat, corners, corner_weights(upper0, upper1, ONE), node_values, i * NODE
        )
        mixed = (dot_d - dot_c) - (dot_b - dot_a)
        down, right = (dot_c - dot_a) + upper1 * mixed, (dot_b - dot_a) + upper0 * mixed
        side0, side1 = side_of(upper0, tolerance), side_of(upper1, tolerance)
        if side0 != ZERO:
            row = (
                outer_neighbor_node(flow, 0, node[i] // flow.nodes[1], side0) * flow.nodes[1] + node[i] % flow.nodes[1]
            )
            first, second = dots_of_two(flat, np.uint64(row) * NODE, NODE, node_values, i * NODE)
            inner, outer = slope_factors(side0)
            down = inner * down + outer * (first - dot_a + upper1 * (second - first - (dot_b - dot_a)))
        if side1 != ZERO:
            column = outer_neighbor_node(flow, 1, node[i] % flow.nodes[1], side1)
            start = np.uint64(node[i] // flow.nodes[1] * flow.nodes[1] + column) * NODE
            first, second = dots_of_two(flat, start, down_stride, node_values, i * NODE)
            inner, outer = slope_factors(side1)
            right = inner * right + outer * (first - dot_a + upper0 * (second - first - (dot_c - dot_a)))
        adjoint[ADJOINT_MIDPOINT + i], adjoint[ADJOINT_MIDPOINT + ROW + i] = down, right
    written[0], written[1] = low, high


@inlined
def dots_of_two(flat, start, step, node_values, at):
    """Return the dot products of a gradient with two neighboring nodes of the field."""
    return node_dot(flat, start, node_values, at), node_dot(flat, start + step, node_values, at)


@noalloc
def midpoints_backward(flow, record, paths, n):
    """Add the gradient of the midpoints to those of position, displacement and bend before the step."""
    path, adjoint = paths.path, paths.adjoint
    for axis in range(2):
        row, scale = np.uint64(axis) * ROW, path.dtype.type(1 / flow.spacing[axis])
        for i in range(n):
            at = row + i
            grad_value = adjoint[at + ADJOINT_MIDPOINT] * path[record + at + WEIGHT_SLOPE] * scale
            adjoint[at + ADJOINT_X] += grad_value
            adjoint[at + ADJOINT_W] += HALF * grad_value
            adjoint[at + ADJOINT_B] = QUARTER * grad_value


@noalloc
def start_paths_backward(flow, u0, u1, h, paths, grad_field, written, n):
    """Backpropagate through ``start_paths``, to the metric at the pixel itself."""
    adjoint, node = paths.adjoint, paths.node[flow.steps * STRIP :]
    least = least_values(adjoint)
    for i in range(n):
        center = np.uint64(node[i])
        m00, m01, m11, w0, w1 = own_metric(paths.own, i)
        square, floor = squares(m00, m01, m11, u0, u1, least)
        inverse = ONE / np.sqrt(square if square > floor else floor)
        e0, e1 = u0 * inverse, u1 * inverse
        unclamped_c = ONE + w0 * e0 + w1 * e1
        c = unclamped_c if unclamped_c > least[1] else least[1]
        grad_w0, grad_w1 = h * adjoint[ADJOINT_W + i] / c, h * adjoint[ADJOINT_W + ROW + i] / c
        grad_q0, grad_q1 = adjoint[ADJOINT_Q + i], adjoint[ADJOINT_Q + ROW + i]
        grad_c = -(grad_w0 * e0 + grad_w1 * e1) / c if unclamped_c > least[1] else ZERO
        grad_e0 = grad_w0 + grad_c * w0 + m00 * grad_q0 + m01 * grad_q1
        grad_e1 = grad_w1 + grad_c * w1 + m01 * grad_q0 + m11 * grad_q1
        grad_square = -HALF * (grad_e0 * e0 + grad_e1 * e1) * inverse * inverse
        own, cross = (grad_square, grad_square) if square > floor else (least[0] * grad_square, ZERO)
        grad_field[center, 0] += grad_q0 * e0 + own * u0 * u0
        grad_field[center, 1] += grad_q0 * e1 + grad_q1 * e0 + (cross + cross) * u0 * u1
        grad_field[center, 2] += grad_q1 * e1 + own * u1 * u1
        grad_field[center, 3] += grad_c * e0
        grad_field[center, 4] += grad_c * e1
        written[0], written[1] = min(written[0], node[i]), max(written[1], node[i])
