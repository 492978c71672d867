"""Geodesics of a strip of pixels in one direction, and the adjoint of their discrete scheme; see metrics/flow.py.

The field is a table [nodes, 12] of M (3), ω (2), its curl, ∂_y M (3) and ∂_x M (3). A path of T steps is T + 1 records,
each of rows of numbers, one for each pixel: at record r the position X after r steps, the stride W and the bend B of
the step before, the momentum Q, and what was looked up for the step that follows. The first has a stride too, that of
the tangent ball.

Rows lie a constant number of places apart in one flat array: that is how the compiler sees that they do not overlap,
and makes vector instructions of loops over many of them.
"""

from typing import NamedTuple

import numpy as np

from .jit import compiled, inlined, inner

# Pixels a strip: its buffers fill half of the first cache, and steps from tap to tap are few.
STRIP = 512

CHANNELS = 12  # of a node

# Where rows start, unsigned: indices that numba need not ask the sign of. The rows of a record, vectors (y, x):
# position, stride, bend, momentum; the momentum's size before it was divided by it; the lookup's weights of the later
# corners, how they follow the position, and what was found.
ROW, NODE = np.uint64(STRIP), np.uint64(CHANNELS)
X, W, B, Q, SIZE, UP, FOLLOWS, LOCAL, RECORD = (ROW * np.uint64(row) for row in (0, 2, 4, 6, 8, 9, 11, 13, 25))

# Gradients: of a step's start, stride and bend as samples feel them; then those of the state while retracing, of where
# the field was looked up and of what was found.
FELT_X, FELT_W, FELT_B, FELT = (ROW * np.uint64(row) for row in (0, 2, 4, 6))
TO_X, TO_W, TO_B, TO_Q, TO_PLACE, TO_LOCAL, STATE = (ROW * np.uint64(row) for row in (0, 2, 4, 6, 8, 10, 22))

# As in metrics/flow.py.
LEAST_PIVOT = 1e-6
LEAST_NORM = 1e-3
FARTHEST = 2.0**23

# Exact in float32, and so no reason to widen what they are multiplied with, nor to narrow it.
ZERO, QUARTER, HALF, ONE = map(np.float32, (0, 0.25, 0.5, 1))


class Flow(NamedTuple):
    """What all geodesics share: their steps, and the nodes of the field, with one more on either side (or, where the
    field starts anew past its border, after the last).
    """

    steps: int  # 0 where there are no geodesics
    nodes: tuple[int, int]
    spacing: tuple[float, float]  # pixels between nodes
    circular: bool


class Paths(NamedTuple):
    """Room for the paths of a strip."""

    path: np.ndarray  # [(T + 1) · RECORD]
    node: np.ndarray  # [(T + 1) · STRIP], of the first corner of each lookup, int32
    felt: np.ndarray  # [T · FELT]
    state: np.ndarray  # [STATE]


@compiled
def make_paths(flow, like):
    """Return room for a strip's paths, none if there are no geodesics."""
    records = flow.steps + 1 if flow.steps else 0
    return Paths(
        np.zeros(records * np.intp(RECORD), like.dtype),
        np.zeros(records * STRIP, np.int32),
        np.zeros(flow.steps * np.intp(FELT), like.dtype),
        np.zeros(np.intp(STATE) if flow.steps else 0, like.dtype),
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
        look_up(flow, table, here, path, node[step * STRIP :], n)
        go(here, h, path.dtype.type(2 if step == 0 else 1), path, n)


@inner
def set_out(flow, table, u0, u1, h, pixel, paths, n):
    """Write the first record: the stride and the momentum that the metric at the pixel itself gives."""
    path, node = paths.path, paths.node[flow.steps * STRIP :]
    flat, margin, least = table.reshape(-1), 0 if flow.circular else 1, guards(path)
    for i in range(n):
        node[i] = (np.int32(pixel[0, i]) + margin) * flow.nodes[1] + np.int32(pixel[1, i]) + margin
    for i in range(n):
        at = np.uint64(node[i]) * NODE
        m00, m01, m11, w0, w1 = flat[at], flat[at + np.uint64(1)], flat[at + np.uint64(2)], flat[at + np.uint64(3)], flat[at + np.uint64(4)]
        square, floor = squares(m00, m01, m11, u0, u1, least)
        inverse = ONE / np.sqrt(square if square > floor else floor)
        e0, e1 = u0 * inverse, u1 * inverse
        c = ONE + w0 * e0 + w1 * e1
        pace = h / (c if c > least[1] else least[1])
        path[X + i] = path[X + ROW + i] = path[B + i] = path[B + ROW + i] = ZERO
        path[W + i], path[W + ROW + i] = pace * e0, pace * e1
        path[Q + i], path[Q + ROW + i] = m00 * e0 + m01 * e1, m01 * e0 + m11 * e1


@inner
def find_midpoints(flow, here, pixel, path, node, n):
    """Divide the momentum by its size, and write where the field is looked up: half a step ahead."""
    real, margin = path.dtype.type, ZERO if flow.circular else ONE
    far, wraps = real(FARTHEST), real(1 if flow.circular else 0)
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
        cell0, up0, follows0 = bring(pixel[0, i] + ahead0 * scale0 + margin, last0, wraps, far)
        cell1, up1, follows1 = bring(pixel[1, i] + ahead1 * scale1 + margin, last1, wraps, far)
        node[i] = cell0 * np.int32(flow.nodes[1]) + cell1
        path[at + UP], path[at + UP + ROW] = up0, up1
        path[at + FOLLOWS], path[at + FOLLOWS + ROW] = follows0, follows1


@inlined
def bring(p, last, wraps, far):
    """Bring a position along one axis into the field: return its cell, its weight there, and whether this follows."""
    near = p if p > -far else -far
    near = near if near < far else far
    near = near - last * (wraps * np.floor(near / last))
    inside = near if near > ZERO else ZERO
    inside = inside if inside < last else last
    cell = np.int32(inside if inside < last - ONE else last - ONE)
    return cell, inside - np.float32(cell) if p == p else p, ONE if near == inside else ZERO


@inner
def look_up(flow, table, here, path, node, n):
    """Interpolate the field at the midpoints."""
    flat, down = table.reshape(-1), np.uint64(flow.nodes[1]) * NODE
    for i in range(n):
        a = np.uint64(node[i]) * NODE
        b, c, d = a + NODE, a + down, a + down + NODE
        wa, wb, wc, wd = corner_weights(path[here + UP + i], path[here + UP + ROW + i])
        for k in range(NODE):
            found = flat[a + k] * wa + flat[b + k] * wb + flat[c + k] * wc + flat[d + k] * wd
            path[here + LOCAL + k * ROW + i] = found


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


@inlined
def guards(like):
    """Return the least pivot and the least norm in the dtype of an array."""
    return like.dtype.type(LEAST_PIVOT), like.dtype.type(LEAST_NORM)


@inlined
def squares(m00, m01, m11, u0, u1, least):
    """Return |u|²_M, and what the least pivots would make of it."""
    a, d = m00 * u0 * u0, m11 * u1 * u1
    return a + (m01 + m01) * u0 * u1 + d, least[0] * (a + d)


@inlined
def raise_index(m00, m01, m11, q0, q1, least):
    """Return M⁻¹q by elimination, with its second pivot kept positive."""
    ratio = m01 / m00
    pivot, floor = m11 - ratio * m01, least[0] * m11
    z = (q1 - ratio * q0) / (pivot if pivot > floor else floor)
    return q0 / m00 - ratio * z, z


@inlined
def direction(local, q0, q1, least):
    """Return n = |q|_{M⁻¹}, e = M⁻¹q / n, 1 + ωᵀe and c, which is at least so much."""
    m00, m01, m11, w0, w1 = local[:5]
    s0, s1 = raise_index(m00, m01, m11, q0, q1, least)
    n = np.sqrt(s0 * q0 + s1 * q1)
    e0, e1 = s0 / n, s1 / n
    c = ONE + w0 * e0 + w1 * e1
    return n, e0, e1, c, (c if c > least[1] else least[1])


@inlined
def forces(local, e0, e1):
    """Return ½ eᵀ(∂M)e + the curl's turn of e."""
    curl, y0, y1, y2, x0, x1, x2 = local[5:]
    g0 = HALF * (y0 * e0 * e0 + y2 * e1 * e1) + y1 * e0 * e1 + curl * e1
    g1 = HALF * (x0 * e0 * e0 + x2 * e1 * e1) + x1 * e0 * e1 - curl * e0
    return g0, g1


@inlined
def rates(local, q0, q1, least):
    """Return the velocity ẋ = e/c and the rate of momentum q̇."""
    n, e0, e1, _, c = direction(local, q0, q1, least)
    g0, g1 = forces(local, e0, e1)
    return e0 / c, e1 / c, g0 * (n / c), g1 * (n / c)


@inlined
def rates_back(local, q0, q1, to_v0, to_v1, to_f0, to_f1, least):
    """Return the gradients of momentum (2) and field (12), given those of velocity and rate of momentum."""
    m00, m01, m11, w0, w1, curl, y0, y1, y2, x0, x1, x2 = local
    n, e0, e1, free, c = direction(local, q0, q1, least)
    g0, g1 = forces(local, e0, e1)
    inverse = ONE / c
    t0, t1 = to_f0 * n * inverse, to_f1 * n * inverse
    to_ratio = to_f0 * g0 + to_f1 * g1
    to_n = to_ratio * inverse
    to_c = -(to_ratio * n + to_v0 * e0 + to_v1 * e1) * inverse * inverse
    to_c = to_c if free > least[1] else ZERO
    to_e0 = to_v0 * inverse + t0 * (y0 * e0 + y1 * e1) + t1 * (x0 * e0 + x1 * e1 - curl) + to_c * w0
    to_e1 = to_v1 * inverse + t0 * (y1 * e0 + y2 * e1 + curl) + t1 * (x1 * e0 + x2 * e1) + to_c * w1
    # e = s/n with s = M⁻¹q and n² = sᵀq; a is the gradient of s, raised, and t that of n².
    to_n -= (to_e0 * e0 + to_e1 * e1) / n
    t, s0, s1 = HALF * to_n / n, n * e0, n * e1
    a0, a1 = raise_index(m00, m01, m11, to_e0 / n, to_e1 / n, least)
    to_m00 = -s0 * (a0 + t * s0)
    to_m01 = -(a0 * s1 + a1 * s0) - (t + t) * s0 * s1
    to_m11 = -s1 * (a1 + t * s1)
    # Where the second pivot is ε m₁₁, M stands for a matrix whose last entry is m₀₁²/m₀₀ + ε m₁₁.
    ratio = m01 / m00
    kept = to_m11 if m11 - ratio * m01 <= least[0] * m11 else ZERO
    return (
        a0 + (t + t) * s0, a1 + (t + t) * s1,
        to_m00 - kept * ratio * ratio, to_m01 + (kept + kept) * ratio, to_m11 - kept + kept * least[0],
        to_c * e0, to_c * e1, t0 * e1 - t1 * e0,
        HALF * t0 * e0 * e0, t0 * e0 * e1, HALF * t0 * e1 * e1,
        HALF * t1 * e0 * e0, t1 * e0 * e1, HALF * t1 * e1 * e1,
    )  # fmt: skip


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
def place_on(flow, part, like):
    """Return the step that a part of a path falls into, the part f of that step, and f(1 − f)/2."""
    real = like.dtype.type
    step = min(max(int(np.ceil(part * real(flow.steps))) - 1, 0), flow.steps - 1)
    along = part * real(flow.steps) - real(step)
    return step, along, HALF * along * (ONE - along)


@inner
def retrace(flow, table, u0, u1, length, paths, total, touched, n):
    """Carry what samples felt back along the paths, and add it to the gradient of the table, total [nodes, 12]."""
    path, state = paths.path, paths.state
    h = length / path.dtype.type(flow.steps)
    state[:] = 0
    for step in range(flow.steps - 1, -1, -1):
        node = paths.node[step * STRIP :]
        go_back(
            np.uint64(step) * RECORD, np.uint64(step) * FELT, h, path.dtype.type(2 if step == 0 else 1), paths, n
        )
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
        second = rates_back(
            local, q0 + half * f0, q1 + half * f1, h * to_w0, h * to_w1, h * to_q0, h * to_q1, least
        )
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
    path, state = paths.path, paths.state
    flat, grad, down = table.reshape(-1), total.reshape(-1), np.uint64(flow.nodes[1]) * NODE
    low, high = touched[0], touched[1]
    for i in range(n):
        low, high = min(low, node[i]), max(high, node[i])
        a = np.uint64(node[i]) * NODE
        b, c, d = a + NODE, a + down, a + down + NODE
        up0, up1 = path[here + UP + i], path[here + UP + ROW + i]
        wa, wb, wc, wd = corner_weights(up0, up1)
        across0, across1, down0, down1 = up0 * ZERO, up0 * ZERO, up0 * ZERO, up0 * ZERO
        for k in range(NODE):
            pull = state[TO_LOCAL + k * ROW + i]
            grad[a + k] += pull * wa
            grad[b + k] += pull * wb
            grad[c + k] += pull * wc
            grad[d + k] += pull * wd
            across0 += pull * (flat[b + k] - flat[a + k])
            across1 += pull * (flat[d + k] - flat[c + k])
            down0 += pull * (flat[c + k] - flat[a + k])
            down1 += pull * (flat[d + k] - flat[b + k])
        state[TO_PLACE + i] = down0 + up1 * (down1 - down0)
        state[TO_PLACE + ROW + i] = across0 + up0 * (across1 - across0)
    touched[0], touched[1] = low, high


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
    flat, grad, least = table.reshape(-1), total.reshape(-1), guards(state)
    for i in range(n):
        at = np.uint64(node[i]) * NODE
        m00, m01, m11, w0, w1 = flat[at], flat[at + np.uint64(1)], flat[at + np.uint64(2)], flat[at + np.uint64(3)], flat[at + np.uint64(4)]
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
        grad[at] += to_q0 * e0 + own * u0 * u0
        grad[at + np.uint64(1)] += to_q0 * e1 + to_q1 * e0 + (cross + cross) * u0 * u1
        grad[at + np.uint64(2)] += to_q1 * e1 + own * u1 * u1
        grad[at + np.uint64(3)] += to_c * e0
        grad[at + np.uint64(4)] += to_c * e1
        touched[0], touched[1] = min(touched[0], node[i]), max(touched[1], node[i])
