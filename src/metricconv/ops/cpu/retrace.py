"""The adjoint of the geodesics' discrete scheme: from what samples felt back along the paths to the field's nodes."""

import numpy as np

from .flow import HALF, ONE, QUARTER, ZERO, guards, rates, rates_back, squares
from .geodesics import (
    FELT,
    FELT_B,
    FELT_W,
    FELT_X,
    FOLLOWS,
    LOCAL,
    NODE,
    RECORD,
    ROW,
    SIZE,
    STRIP,
    TO_B,
    TO_LOCAL,
    TO_PLACE,
    TO_Q,
    TO_W,
    TO_X,
    UP,
    Q,
    corner_weights,
    metric_at,
    place_on,
    row_of,
)
from .jit import inlined, inner
from .nodes import dot, unmix
from .sides import further_node, side_of, slope_factors


@inner
def feel(flow, part, paths, slope, n):
    """Add what the gradient [3, n] of the samples at a part of the paths says about their steps."""
    step, along, sag = place_on(flow, part, paths.path)
    here, felt = np.uint64(step) * FELT, paths.felt
    for axis in range(2):
        of = here + np.uint64(axis) * ROW
        for i in range(n):
            pull = slope[1 + axis, i]
            felt[of + FELT_X + i] += pull
            felt[of + FELT_W + i] += along * pull
            felt[of + FELT_B + i] -= sag * pull


@inner
def retrace(flow, table, u0, u1, length, paths, total, touched, n):
    """Carry what samples felt back along the paths, and add it to the gradient of the table, total [nodes, 12]."""
    path, state = paths.path, paths.state
    h = length / path.dtype.type(flow.steps)
    state[:] = 0
    for step in range(flow.steps - 1, -1, -1):
        node = paths.node[step * STRIP :]
        go_back(np.uint64(step) * RECORD, np.uint64(step) * FELT, h, path.dtype.type(2 if step == 0 else 1), paths, n)
        look_back(flow, table, np.uint64(step) * RECORD, paths, node, total, touched, n)
        lean_back(flow, np.uint64(step) * RECORD, paths, n)
    return_home(flow, table, u0, u1, h, paths, total, touched, n)
    paths.felt[:] = 0


@inner
def go_back(here, seen, h, catch_up, paths, n):
    """Undo one step: from the gradients of what it arrived at to those of what it started from and looked up."""
    path, felt, state = paths.path, paths.felt, paths.state
    least, half = guards(path), HALF * h
    for i in range(n):
        at, of = here + i, seen + i
        q0, q1 = path[at + Q], path[at + Q + ROW]
        local = row_of(path, at + LOCAL)
        _, _, f0, f1 = rates(local, q0, q1, least)
        to_q0, to_q1 = state[TO_Q + i], state[TO_Q + ROW + i]
        bend0 = catch_up * (felt[of + FELT_B] + state[TO_B + i])
        bend1 = catch_up * (felt[of + FELT_B + ROW] + state[TO_B + ROW + i])
        to_w0 = felt[of + FELT_W] + state[TO_W + i] + state[TO_X + i] + bend0
        to_w1 = felt[of + FELT_W + ROW] + state[TO_W + ROW + i] + state[TO_X + ROW + i] + bend1
        second = rates_back(local, q0 + half * f0, q1 + half * f1, h * to_w0, h * to_w1, h * to_q0, h * to_q1, least)
        first = rates_back(local, q0, q1, ZERO, ZERO, half * second[0], half * second[1], least)
        size = path[at + SIZE]
        state[TO_Q + i] = (to_q0 + second[0] + first[0]) / size
        state[TO_Q + ROW + i] = (to_q1 + second[1] + first[1]) / size
        state[TO_X + i] += felt[of + FELT_X]
        state[TO_X + ROW + i] += felt[of + FELT_X + ROW]
        state[TO_W + i], state[TO_W + ROW + i] = -bend0, -bend1
        put_three(state, TO_LOCAL + i, first[2:5], second[2:5])
        put_three(state, TO_LOCAL + ROW * np.uint64(3) + i, first[5:8], second[5:8])
        put_three(state, TO_LOCAL + ROW * np.uint64(6) + i, first[8:11], second[8:11])
        put_three(state, TO_LOCAL + ROW * np.uint64(9) + i, first[11:], second[11:])


@inlined
def put_three(rows, at, a, b):
    """Write the sums of three numbers."""
    rows[at], rows[at + ROW], rows[at + ROW + ROW] = a[0] + b[0], a[1] + b[1], a[2] + b[2]


@inner
def look_back(flow, table, here, paths, node, total, touched, n):
    """Add the gradients of what was looked up to the nodes, and find those of where."""
    path, state, found = paths.path, paths.state, paths.found
    flat, grad, down_step = table.reshape(-1), total.reshape(-1), np.uint64(flow.nodes[1]) * NODE
    tolerance = path.dtype.type(flow.tolerance)
    for k in range(NODE):
        for i in range(n):
            found[i * NODE + k] = state[TO_LOCAL + k * ROW + i]
    low, high = touched[0], touched[1]
    for i in range(n):
        low, high = min(low, node[i]), max(high, node[i])
        a = np.uint64(node[i]) * NODE
        up0, up1 = path[here + UP + i], path[here + UP + ROW + i]
        corners = (a, a + NODE, a + down_step, a + down_step + NODE)
        fa, fb, fc, fd = unmix(grad, flat, corners, corner_weights(up0, up1), found, i * NODE)
        twist = (fd - fc) - (fb - fa)
        down, right = (fc - fa) + up1 * twist, (fb - fa) + up0 * twist
        side0, side1 = side_of(up0, tolerance), side_of(up1, tolerance)
        if side0 != ZERO:
            row = further_node(flow, 0, node[i] // flow.nodes[1], side0) * flow.nodes[1] + node[i] % flow.nodes[1]
            first, second = beside(flat, np.uint64(row) * NODE, NODE, found, i * NODE)
            inner, outer = slope_factors(side0)
            down = inner * down + outer * (first - fa + up1 * (second - first - (fb - fa)))
        if side1 != ZERO:
            column = further_node(flow, 1, node[i] % flow.nodes[1], side1)
            start = np.uint64(node[i] // flow.nodes[1] * flow.nodes[1] + column) * NODE
            first, second = beside(flat, start, down_step, found, i * NODE)
            inner, outer = slope_factors(side1)
            right = inner * right + outer * (first - fa + up0 * (second - first - (fc - fa)))
        state[TO_PLACE + i], state[TO_PLACE + ROW + i] = down, right
    touched[0], touched[1] = low, high


@inlined
def beside(flat, start, step, found, at):
    """Return the dot products of a gradient with two neighbouring nodes of the table."""
    return dot(flat, start, found, at), dot(flat, start + step, found, at)


@inner
def lean_back(flow, here, paths, n):
    """Carry the gradient of where the field was looked up to position, stride and bend before the step."""
    path, state = paths.path, paths.state
    for axis in range(2):
        row, scale = np.uint64(axis) * ROW, path.dtype.type(1 / flow.spacing[axis])
        for i in range(n):
            at = row + i
            pull = state[at + TO_PLACE] * path[here + at + FOLLOWS] * scale
            state[at + TO_X] += pull
            state[at + TO_W] += HALF * pull
            state[at + TO_B] = QUARTER * pull


@inner
def return_home(flow, table, u0, u1, h, paths, total, touched, n):
    """Undo ``set_out``: add what the first stride and momentum say about the metric at the pixel itself."""
    state, node = paths.state, paths.node[flow.steps * STRIP :]
    least = guards(state)
    for i in range(n):
        home = np.uint64(node[i])
        m00, m01, m11, w0, w1 = metric_at(table, home)
        square, floor = squares(m00, m01, m11, u0, u1, least)
        inverse = ONE / np.sqrt(square if square > floor else floor)
        e0, e1 = u0 * inverse, u1 * inverse
        free = ONE + w0 * e0 + w1 * e1
        c = free if free > least[1] else least[1]
        to_w0, to_w1 = h * state[TO_W + i] / c, h * state[TO_W + ROW + i] / c
        to_q0, to_q1 = state[TO_Q + i], state[TO_Q + ROW + i]
        to_c = -(to_w0 * e0 + to_w1 * e1) / c if free > least[1] else ZERO
        to_e0 = to_w0 + to_c * w0 + m00 * to_q0 + m01 * to_q1
        to_e1 = to_w1 + to_c * w1 + m01 * to_q0 + m11 * to_q1
        to_square = -HALF * (to_e0 * e0 + to_e1 * e1) * inverse * inverse
        own, cross = (to_square, to_square) if square > floor else (least[0] * to_square, ZERO)
        total[home, 0] += to_q0 * e0 + own * u0 * u0
        total[home, 1] += to_q0 * e1 + to_q1 * e0 + (cross + cross) * u0 * u1
        total[home, 2] += to_q1 * e1 + own * u1 * u1
        total[home, 3] += to_c * e0
        total[home, 4] += to_c * e1
        touched[0], touched[1] = min(touched[0], node[i]), max(touched[1], node[i])
