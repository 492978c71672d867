"""The kernels that shoot geodesics from every pixel, and carry gradients back along them.

A program follows one ray of BM pixels, T steps of the integrator of ``metrics/flow.py``. Its state is four vectors:
displacement x, stride w, bend b, momentum q. The samples of ray ρ that lie in step t are numbers
first[ρ·T + t] … first[ρ·T + t + 1] of the list ``sample``, each at a fraction of the step.
"""

import triton
import triton.language as tl

from .flow import (
    LEAST_NORM,
    LEAST_PIVOT,
    apart,
    corners_of,
    flow,
    flow_adjoint,
    inverse,
    read,
    read_adjoint,
    read_rounded,
    read_slopes,
    reciprocal,
    together,
    tuple_at,
)
from .geometry import divide
from .slopes import any_whole, other_side, whole_limit


@triton.jit
def place_of(block, shape, BM: tl.constexpr, MARGIN: tl.constexpr):
    """Return a block's pixels: their numbers, nodes (y, x), and which are in range."""
    pixel = block * BM + tl.arange(0, BM)
    live = pixel < shape[0] * shape[1]
    pixel = tl.minimum(pixel, shape[0] * shape[1] - 1)
    row = divide(pixel, shape[1], shape[2], shape[3], False)
    return pixel, row + MARGIN, pixel - row * shape[1] + MARGIN, live


@triton.jit
def load_at(field, node, plane):
    """Return M and ω at a node, as the first numbers of a local tuple."""
    quad = field + 4 * node
    o0, o1 = tl.load(quad + 4 * plane + 3), tl.load(quad + 8 * plane + 3)
    return tl.load(quad), tl.load(quad + 1), tl.load(quad + 2), o0, o1


@triton.jit
def load_rounded_at(field, octets, node):
    """Return the same from a rounded field."""
    quad = field + 4 * node
    o0, o1 = tl.load(quad + 3), tl.load(octets + 8 * node).to(tl.float32)
    return tl.load(quad), tl.load(quad + 1), tl.load(quad + 2), o0, o1


@triton.jit
def euclidean(local, u0, u1):
    """Return |u|_M, at least what the least pivots would make of it, and 1 where it was not clamped."""
    square = local[0] * (u0 * u0) + 2 * local[1] * (u0 * u1) + local[2] * (u1 * u1)
    floor = LEAST_PIVOT * (local[0] * (u0 * u0) + local[2] * (u1 * u1))
    return tl.sqrt(tl.where(square >= floor, square, floor)), tl.where(square >= floor, 1.0, 0.0)


@triton.jit
def tilt(local, e0, e1):
    """Return 1 + ωᵀe for |e|_M = 1, at least what the drift may leave, and 1 where it was not clamped."""
    c = 1.0 + (local[3] * e0 + local[4] * e1)
    return tl.where(c < LEAST_NORM, LEAST_NORM, c), tl.where(c < LEAST_NORM, 0.0, 1.0)


@triton.jit
def start(local, u0, u1, h):
    """Return the first stride and momentum of a ray."""
    norm, _ = euclidean(local, u0, u1)
    over = reciprocal(norm)
    e0, e1 = u0 * over, u1 * over
    c, _ = tilt(local, e0, e1)
    speed = h * reciprocal(c)
    return speed * e0, speed * e1, local[0] * e0 + local[1] * e1, local[1] * e0 + local[2] * e1


@triton.jit
def start_adjoint(local, u0, u1, h, gw0, gw1, gq0, gq1):
    """Return what gradients of the first stride and momentum say about M and ω at the pixel."""
    norm, free = euclidean(local, u0, u1)
    e0, e1 = u0 / norm, u1 / norm
    c, tilts = tilt(local, e0, e1)
    gc = -h * (gw0 * e0 + gw1 * e1) / (c * c) * tilts
    ge0 = h * gw0 / c + gc * local[3] + local[0] * gq0 + local[1] * gq1
    ge1 = h * gw1 / c + gc * local[4] + local[1] * gq0 + local[2] * gq1
    to_square = -0.5 * (ge0 * e0 + ge1 * e1) / (norm * norm)
    off = tl.where(free > 0, 2.0, 0.0)
    part = tl.where(free > 0, 1.0, LEAST_PIVOT)
    return (
        gq0 * e0 + to_square * part * (u0 * u0),
        gq0 * e1 + gq1 * e0 + to_square * off * (u0 * u1),
        gq1 * e1 + to_square * part * (u1 * u1),
        gc * e0,
        gc * e1,
    )


@triton.jit
def midpoint(y, x, x0, x1, w0, w1, b0, b1, density):
    """Return the node coordinates of a step's predicted midpoint."""
    return y + (x0 + 0.5 * w0 + 0.25 * b0) * density[0], x + (x1 + 0.5 * w1 + 0.25 * b1) * density[1]


@triton.jit
def position_gradient(quads, slopes):
    """Return the gradients of a position along y and x, given those of the quads there and the quads' slopes."""
    to_y = quads[0] * slopes[0] + quads[1] * slopes[1] + quads[2] * slopes[2]
    to_x = quads[0] * slopes[3] + quads[1] * slopes[4] + quads[2] * slopes[5]
    return tl.sum(to_y, 1), tl.sum(to_x, 1)


@triton.jit
def unit(q0, q1):
    """Return a momentum with a largest component of 1, and what it was multiplied by: the flow is homogeneous in it."""
    over = reciprocal(tl.maximum(tl.abs(q0), tl.abs(q1)))
    return q0 * over, q1 * over, over


@triton.jit
def step(local, q0, q1, w0, w1, h, doubled):
    """Return a step's stride, bend and final momentum."""
    M = inverse(local)
    _, _, f0, f1 = flow(local, M, q0, q1, 0.5 * h)
    s0, s1, f0, f1 = flow(local, M, q0 + f0, q1 + f1, h)
    # Strides are those of midpoints, half a step after the start and one step after each other.
    return s0, s1, doubled * (s0 - w0), doubled * (s1 - w1), q0 + f0, q1 + f1


@triton.jit
def advance(field, octets, y, x, state, h, doubled, nodes, last, density, MODE: tl.constexpr, ROUNDED: tl.constexpr):
    """Return a ray's state one step on: displacement, stride, bend and momentum."""
    x0, x1, w0, w1, b0, b1, q0, q1 = state
    q0, q1, _ = unit(q0, q1)
    at_y, at_x = midpoint(y, x, x0, x1, w0, w1, b0, b1, density)
    corners, weights, _, _ = corners_of(at_y, at_x, nodes, last, MODE)
    if ROUNDED:
        local = read_rounded(field, octets, corners, weights, nodes, MODE)
    else:
        local = read(field, corners, weights, nodes, MODE)
    w0, w1, b0, b1, q0, q1 = step(local, q0, q1, w0, w1, h, doubled)
    return x0 + w0, x1 + w1, w0, w1, b0, b1, q0, q1


@triton.jit
def write(to, y, x, live):
    """Write displacements [BM] side by side."""
    tl.store(to[:, None] + tl.arange(0, 2)[None, :], tl.join(y, x), mask=live[:, None])


@triton.jit
def trace_kernel(
    field,  # [F, 3, *nodes, 4]: see flow.py; of a rounded field one plane of the three
    octets,  # [F, *nodes, 8] of a rounded field
    vectors,  # [R, 3]: direction and length of each ray
    first,  # [R·T + 1]
    sample,  # which sample, for each in ``first``
    fraction,  # of its step at which it lies
    out,  # [F, P, H, W, 2]: displacements
    shape,  # (H, W), and W as a multiplication: see geometry.divide
    nodes,  # (H, W) of the field
    last,  # just before the last node along each axis
    density,  # nodes to a pixel
    samples,
    steps,
    MODE: tl.constexpr,
    MARGIN: tl.constexpr,
    ROUNDED: tl.constexpr,
    PLAIN: tl.constexpr,  # a ray has one sample, at its end, and but for that the centre at most
    BM: tl.constexpr,
):
    """Write where the samples of one ray lie, for a tile of pixels."""
    pixel, y, x, live = place_of(tl.program_id(0), shape, BM, MARGIN)
    ray, image = tl.program_id(1), tl.program_id(2).to(tl.int64)
    plane, size = nodes[0] * nodes[1], shape[0] * shape[1]
    out += image * samples * 2 * size + 2 * pixel
    u0, u1 = tl.load(vectors + 3 * ray), tl.load(vectors + 3 * ray + 1)
    h = tl.load(vectors + 3 * ray + 2) / steps
    node = y * nodes[1] + x
    if ROUNDED:
        field += image * 4 * plane
        octets += image * 8 * plane
        origin = load_rounded_at(field, octets, node)
    else:
        field += image * 12 * plane
        origin = load_at(field, node, plane)
    w0, w1, q0, q1 = start(origin, u0, u1, h)
    zero = tl.zeros_like(w0)
    state = (zero, zero, w0, w1, zero, zero, q0, q1)
    for t in range(steps):  # written out one by one they would take three times as long to compile, and no less to run
        doubled = tl.where(t == 0, 2.0, 1.0)
        state = advance(field, octets, y, x, state, h, doubled, nodes, last, density, MODE, ROUNDED)
        if not PLAIN:
            for s in range(tl.load(first + ray * steps + t), tl.load(first + ray * steps + t + 1)):
                ahead = 1 - tl.load(fraction + s)
                bend = 0.5 * ahead * (1 - ahead)
                to = out + tl.load(sample + s) * 2 * size
                at_y = state[0] - ahead * state[2] - bend * state[4]
                write(to, at_y, state[1] - ahead * state[3] - bend * state[5], live)
    if PLAIN:
        end = tl.load(first + (ray + 1) * steps) - 1
        write(out + tl.load(sample + end) * 2 * size, state[0], state[1], live)
        for s in range(tl.load(first + ray * steps), end):
            write(out + tl.load(sample + s) * 2 * size, zero, zero, live)


@triton.jit
def trace_backward_kernel(
    grad,  # [F, P, 2, H, W]
    field,
    grad_field,  # as field, zeros to be added to
    states,  # [T, 2, programs of this launch, BM, 4]: room for the states before each step
    vectors,
    first,
    sample,
    fraction,
    shape,
    nodes,
    last,
    density,
    samples,
    first_program,  # of this launch, among those of all images, rays and blocks of pixels
    rays,
    steps,
    MODE: tl.constexpr,
    MARGIN: tl.constexpr,
    BM: tl.constexpr,
):
    """Shoot one ray of a tile of pixels again, then walk it backwards with the gradients of its samples."""
    plane, size = nodes[0] * nodes[1], shape[0] * shape[1]
    blocks = (size + BM - 1) // BM
    program = first_program + tl.program_id(0)
    pixel, y, x, live = place_of(program % blocks, shape, BM, MARGIN)
    ray, image = program // blocks % rays, (program // blocks // rays).to(tl.int64)
    field += image * 12 * plane
    grad_field += image * 12 * plane
    grad += image * samples * 2 * size + pixel
    room = tl.num_programs(0) * BM * 4  # of half the states of a step
    states += tl.program_id(0) * BM * 4 + tuple_at(tl.arange(0, BM), 4)
    u0, u1 = tl.load(vectors + 3 * ray), tl.load(vectors + 3 * ray + 1)
    h = tl.load(vectors + 3 * ray + 2) / steps
    origin = load_at(field, y * nodes[1] + x, plane)
    w0, w1, q0, q1 = start(origin, u0, u1, h)
    x0, x1, b0, b1 = tl.zeros_like(w0), tl.zeros_like(w0), tl.zeros_like(w0), tl.zeros_like(w0)
    for t in range(steps):
        tl.store(states + 2 * t * room, together(x0, x1, w0, w1))
        tl.store(states + (2 * t + 1) * room, together(b0, b1, q0, q1))
        q0, q1, _ = unit(q0, q1)
        at_y, at_x = midpoint(y, x, x0, x1, w0, w1, b0, b1, density)
        corners, weights, _, _ = corners_of(at_y, at_x, nodes, last, MODE)
        local = read(field, corners, weights, nodes, MODE)
        w0, w1, b0, b1, q0, q1 = step(local, q0, q1, w0, w1, h, tl.where(t == 0, 2.0, 1.0))
        x0, x1 = x0 + w0, x1 + w1
    tl.debug_barrier()  # what was stored is read by the same program

    zero = tl.zeros_like(w0)
    gx0, gx1, gw0, gw1, gb0, gb1, gq0, gq1 = zero, zero, zero, zero, zero, zero, zero, zero
    for back in range(steps):
        t = steps - 1 - back
        x0, x1, w0, w1 = apart(tl.load(states + 2 * t * room))
        b0, b1, q0, q1 = apart(tl.load(states + (2 * t + 1) * room))
        gs0, gs1 = gx0 + gw0, gx1 + gw1  # of the stride
        for s in range(tl.load(first + ray * steps + t), tl.load(first + ray * steps + t + 1)):
            d = tl.load(fraction + s)
            at = grad + tl.load(sample + s) * 2 * size
            g0, g1 = tl.load(at, mask=live, other=0.0), tl.load(at + size, mask=live, other=0.0)
            gx0, gx1, gs0, gs1 = gx0 + g0, gx1 + g1, gs0 + d * g0, gs1 + d * g1
            gb0, gb1 = gb0 - 0.5 * d * (1 - d) * g0, gb1 - 0.5 * d * (1 - d) * g1
        doubled = tl.where(t == 0, 2.0, 1.0)
        gs0, gs1, gw0, gw1 = gs0 + doubled * gb0, gs1 + doubled * gb1, -doubled * gb0, -doubled * gb1
        q0, q1, over = unit(q0, q1)
        at_y, at_x = midpoint(y, x, x0, x1, w0, w1, b0, b1, density)
        corners, weights, along_y, along_x = corners_of(at_y, at_x, nodes, last, MODE)
        local = read(field, corners, weights, nodes, MODE)
        slopes = read_slopes(field, corners, along_y, along_x, nodes, MODE)
        M = inverse(local)
        _, _, f0, f1 = flow(local, M, q0, q1, 0.5 * h)
        late = flow_adjoint(local, M, q0 + f0, q1 + f1, h * gs0, h * gs1, h * gq0, h * gq1)
        early = flow_adjoint(local, M, q0, q1, zero, zero, 0.5 * h * late[12], 0.5 * h * late[13])
        gq0, gq1 = (gq0 + late[12] + early[12]) * over, (gq1 + late[13] + early[13]) * over
        to_local = (
            late[0] + early[0], late[1] + early[1], late[2] + early[2], late[3] + early[3], late[4] + early[4],
            late[5] + early[5], late[6] + early[6], late[7] + early[7], late[8] + early[8], late[9] + early[9],
            late[10] + early[10], late[11] + early[11],
        )  # fmt: skip
        quads = read_adjoint(grad_field, corners, weights, to_local, nodes, live, MODE)
        gy, gx = position_gradient(quads, slopes)
        # The midpoint of the first step moves along u only, that of others anywhere.
        limits = whole_limit(tl.abs(u0) + t), whole_limit(tl.abs(u1) + t)
        if any_whole(at_y, at_x, limits, live):  # on the lattice, the mean of both sides: see slopes.py
            at_y, at_x = other_side(at_y, limits[0]), other_side(at_x, limits[1])
            others = corners_of(at_y, at_x, nodes, last, MODE)
            slopes = read_slopes(field, others[0], others[2], others[3], nodes, MODE)
            other_y, other_x = position_gradient(quads, slopes)
            gy, gx = 0.5 * (gy + other_y), 0.5 * (gx + other_x)
        gy, gx = gy * density[0], gx * density[1]
        gx0, gx1, gw0, gw1 = gx0 + gy, gx1 + gx, gw0 + 0.5 * gy, gw1 + 0.5 * gx
        gb0, gb1 = 0.25 * gy, 0.25 * gx

    to_origin = start_adjoint(origin, u0, u1, h, gw0, gw1, gq0, gq1)
    to = grad_field + 4 * (y * nodes[1] + x)
    for number in tl.static_range(3):
        tl.atomic_add(to + number, to_origin[number], mask=live, sem="relaxed")
    tl.atomic_add(to + 4 * plane + 3, to_origin[3], mask=live, sem="relaxed")
    tl.atomic_add(to + 8 * plane + 3, to_origin[4], mask=live, sem="relaxed")
