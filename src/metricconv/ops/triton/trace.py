"""The kernels that trace geodesics from every pixel, forward and backward.

A program integrates one ray of BM pixels, in T steps of the integrator of ``metrics/flow.py``. Its state is four
vectors: displacement x, last step w, change of the step b, momentum q. The samples of ray ρ that lie in step t are
entries first[ρ·T + t] … first[ρ·T + t + 1] of the list ``sample``, each at a fraction of the step.
"""

import triton
import triton.language as tl

from .flow import LEAST_NORM, LEAST_PIVOT, factorize, flow, flow_adjoint, reciprocal
from .geodesic_field import (
    field_slopes,
    interpolate_field,
    interpolate_rounded_field,
    interpolation_nodes,
    join_quad,
    node_indices,
    scatter_field_gradient,
    split_quad,
)
from .geometry import divide
from .slopes import any_integer, integer_limit, opposite_side


@triton.jit
def block_pixels(block, shape, BM: tl.constexpr, MARGIN: tl.constexpr):
    """Return a block's pixels: their indices, nodes (y, x), and validity."""
    pixel = block * BM + tl.arange(0, BM)
    valid = pixel < shape[0] * shape[1]
    pixel = tl.minimum(pixel, shape[0] * shape[1] - 1)
    row = divide(pixel, shape[1], shape[2], shape[3], False)
    return pixel, row + MARGIN, pixel - row * shape[1] + MARGIN, valid


@triton.jit
def load_node(field, node, plane):
    """Return M and ω at a node: the first five local values, see flow.py."""
    quad = field + 4 * node
    o0, o1 = tl.load(quad + 4 * plane + 3), tl.load(quad + 8 * plane + 3)
    return tl.load(quad), tl.load(quad + 1), tl.load(quad + 2), o0, o1


@triton.jit
def load_rounded_node(field, octets, node):
    """Return the same from a rounded field."""
    quad = field + 4 * node
    o0, o1 = tl.load(quad + 3), tl.load(octets + 8 * node).to(tl.float32)
    return tl.load(quad), tl.load(quad + 1), tl.load(quad + 2), o0, o1


@triton.jit
def riemannian_norm(local, u0, u1):
    """Return |u|_M, clamped as by the smallest pivots, and 1 where it was not clamped, else 0."""
    square = local[0] * (u0 * u0) + 2 * local[1] * (u0 * u1) + local[2] * (u1 * u1)
    floor = LEAST_PIVOT * (local[0] * (u0 * u0) + local[2] * (u1 * u1))
    return tl.sqrt(tl.where(square >= floor, square, floor)), tl.where(square >= floor, 1.0, 0.0)


@triton.jit
def drift_factor(local, e0, e1):
    """Return 1 + ωᵀe for |e|_M = 1, clamped, and 1 where it was not clamped, else 0."""
    c = 1.0 + (local[3] * e0 + local[4] * e1)
    return tl.where(c < LEAST_NORM, LEAST_NORM, c), tl.where(c < LEAST_NORM, 0.0, 1.0)


@triton.jit
def initial_state(local, u0, u1, h):
    """Return the first step and momentum of a ray."""
    norm, _ = riemannian_norm(local, u0, u1)
    scale = reciprocal(norm)
    e0, e1 = u0 * scale, u1 * scale
    c, _ = drift_factor(local, e0, e1)
    speed = h * reciprocal(c)
    return speed * e0, speed * e1, local[0] * e0 + local[1] * e1, local[1] * e0 + local[2] * e1


@triton.jit
def initial_state_adjoint(local, u0, u1, h, gw0, gw1, gq0, gq1):
    """Return the gradients of M and ω at the pixel, given those of the first step and momentum."""
    norm, norm_slope = riemannian_norm(local, u0, u1)
    e0, e1 = u0 / norm, u1 / norm
    c, c_slope = drift_factor(local, e0, e1)
    gc = -h * (gw0 * e0 + gw1 * e1) / (c * c) * c_slope
    ge0 = h * gw0 / c + gc * local[3] + local[0] * gq0 + local[1] * gq1
    ge1 = h * gw1 / c + gc * local[4] + local[1] * gq0 + local[2] * gq1
    grad_square = -0.5 * (ge0 * e0 + ge1 * e1) / (norm * norm)
    cross_slope = tl.where(norm_slope > 0, 2.0, 0.0)
    part = tl.where(norm_slope > 0, 1.0, LEAST_PIVOT)
    return (
        gq0 * e0 + grad_square * part * (u0 * u0),
        gq0 * e1 + gq1 * e0 + grad_square * cross_slope * (u0 * u1),
        gq1 * e1 + grad_square * part * (u1 * u1),
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
    grad_y = quads[0] * slopes[0] + quads[1] * slopes[1] + quads[2] * slopes[2]
    grad_x = quads[0] * slopes[3] + quads[1] * slopes[4] + quads[2] * slopes[5]
    return tl.sum(grad_y, 1), tl.sum(grad_x, 1)


@triton.jit
def normalize_momentum(q0, q1):
    """Return the momentum scaled to a largest component of 1, and the scale. The flow is homogeneous in it."""
    scale = reciprocal(tl.maximum(tl.abs(q0), tl.abs(q1)))
    return q0 * scale, q1 * scale, scale


@triton.jit
def step(local, q0, q1, w0, w1, h, doubled):
    """Return a step, its change and the momentum after it."""
    M = factorize(local)
    _, _, f0, f1 = flow(local, M, q0, q1, 0.5 * h)
    s0, s1, f0, f1 = flow(local, M, q0 + f0, q1 + f1, h)
    # Steps are evaluated at midpoints: half a step after the start, and one step apart.
    return s0, s1, doubled * (s0 - w0), doubled * (s1 - w1), q0 + f0, q1 + f1


@triton.jit
def advance(field, octets, y, x, state, h, doubled, nodes, last, density, PADDING: tl.constexpr, ROUNDED: tl.constexpr):
    """Return a ray's state after one more step: displacement, step, its change, and momentum."""
    x0, x1, w0, w1, b0, b1, q0, q1 = state
    q0, q1, _ = normalize_momentum(q0, q1)
    at_y, at_x = midpoint(y, x, x0, x1, w0, w1, b0, b1, density)
    corners, weights, _, _ = interpolation_nodes(at_y, at_x, nodes, last, PADDING)
    if ROUNDED:
        local = interpolate_rounded_field(field, octets, corners, weights, nodes, PADDING)
    else:
        local = interpolate_field(field, corners, weights, nodes, PADDING)
    w0, w1, b0, b1, q0, q1 = step(local, q0, q1, w0, w1, h, doubled)
    return x0 + w0, x1 + w1, w0, w1, b0, b1, q0, q1


@triton.jit
def store_displacements(to, y, x, valid):
    """Store displacements [BM], both components adjacent."""
    tl.store(to[:, None] + tl.arange(0, 2)[None, :], tl.join(y, x), mask=valid[:, None])


@triton.jit
def trace_kernel(
    field,  # [F, 3, *nodes, 4]: see geodesic_field.py; [F, 1, *nodes, 4] of a rounded field
    octets,  # [F, *nodes, 8] of a rounded field
    vectors,  # [R, 3]: direction and length of each ray
    first,  # [R·T + 1]
    sample,  # index of each sample, in the order of ``first``
    fraction,  # position of each sample in its step, from 0 to 1
    out,  # [F, P, H, W, 2]: displacements
    shape,  # (H, W), and factor and shift to divide by W: see geometry.divide
    nodes,  # (H, W) of the field
    last,  # largest position along each axis, just below the last node
    density,  # nodes per pixel
    samples,
    steps,
    PADDING: tl.constexpr,
    MARGIN: tl.constexpr,
    ROUNDED: tl.constexpr,
    ENDS_ONLY: tl.constexpr,  # each ray has one sample, at its end, besides the center
    BM: tl.constexpr,
):
    """Write the displacements of the samples of one ray, for a tile of pixels."""
    pixel, y, x, valid = block_pixels(tl.program_id(0), shape, BM, MARGIN)
    ray, image = tl.program_id(1), tl.program_id(2).to(tl.int64)
    plane, size = nodes[0] * nodes[1], shape[0] * shape[1]
    out += image * samples * 2 * size + 2 * pixel
    u0, u1 = tl.load(vectors + 3 * ray), tl.load(vectors + 3 * ray + 1)
    h = tl.load(vectors + 3 * ray + 2) / steps
    node = y * nodes[1] + x
    if ROUNDED:
        field += image * 4 * plane
        octets += image * 8 * plane
        origin = load_rounded_node(field, octets, node)
    else:
        field += image * 12 * plane
        origin = load_node(field, node, plane)
    w0, w1, q0, q1 = initial_state(origin, u0, u1, h)
    zero = tl.zeros_like(w0)
    state = (zero, zero, w0, w1, zero, zero, q0, q1)
    for t in range(steps):  # not unrolled: compiles three times faster, and is as fast
        doubled = tl.where(t == 0, 2.0, 1.0)
        state = advance(field, octets, y, x, state, h, doubled, nodes, last, density, PADDING, ROUNDED)
        if not ENDS_ONLY:
            for s in range(tl.load(first + ray * steps + t), tl.load(first + ray * steps + t + 1)):
                remaining = 1 - tl.load(fraction + s)
                bend = 0.5 * remaining * (1 - remaining)
                to = out + tl.load(sample + s) * 2 * size
                at_y = state[0] - remaining * state[2] - bend * state[4]
                store_displacements(to, at_y, state[1] - remaining * state[3] - bend * state[5], valid)
    if ENDS_ONLY:
        end = tl.load(first + (ray + 1) * steps) - 1
        store_displacements(out + tl.load(sample + end) * 2 * size, state[0], state[1], valid)
        for s in range(tl.load(first + ray * steps), end):
            store_displacements(out + tl.load(sample + s) * 2 * size, zero, zero, valid)


@triton.jit
def trace_backward_kernel(
    grad,  # [F, P, 2, H, W]
    field,
    grad_field,  # as field, to be added to
    states,  # [T, 2, programs of this launch, BM, 4]: buffer for the states before each step
    vectors,
    first,
    sample,
    fraction,
    shape,
    nodes,
    last,
    density,
    samples,
    first_program,  # index of this launch's first program among those of all images, rays and blocks of pixels
    rays,
    steps,
    PADDING: tl.constexpr,
    MARGIN: tl.constexpr,
    BM: tl.constexpr,
):
    """Trace one ray of a tile of pixels again, then propagate the gradients of its samples backwards along it."""
    plane, size = nodes[0] * nodes[1], shape[0] * shape[1]
    blocks = (size + BM - 1) // BM
    program = first_program + tl.program_id(0)
    pixel, y, x, valid = block_pixels(program % blocks, shape, BM, MARGIN)
    ray, image = program // blocks % rays, (program // blocks // rays).to(tl.int64)
    field += image * 12 * plane
    grad_field += image * 12 * plane
    grad += image * samples * 2 * size + pixel
    state_stride = tl.num_programs(0) * BM * 4  # elements of half the states of a step
    states += tl.program_id(0) * BM * 4 + node_indices(tl.arange(0, BM), 4)
    u0, u1 = tl.load(vectors + 3 * ray), tl.load(vectors + 3 * ray + 1)
    h = tl.load(vectors + 3 * ray + 2) / steps
    origin = load_node(field, y * nodes[1] + x, plane)
    w0, w1, q0, q1 = initial_state(origin, u0, u1, h)
    x0, x1, b0, b1 = tl.zeros_like(w0), tl.zeros_like(w0), tl.zeros_like(w0), tl.zeros_like(w0)
    for t in range(steps):
        tl.store(states + 2 * t * state_stride, join_quad(x0, x1, w0, w1))
        tl.store(states + (2 * t + 1) * state_stride, join_quad(b0, b1, q0, q1))
        q0, q1, _ = normalize_momentum(q0, q1)
        at_y, at_x = midpoint(y, x, x0, x1, w0, w1, b0, b1, density)
        corners, weights, _, _ = interpolation_nodes(at_y, at_x, nodes, last, PADDING)
        local = interpolate_field(field, corners, weights, nodes, PADDING)
        w0, w1, b0, b1, q0, q1 = step(local, q0, q1, w0, w1, h, tl.where(t == 0, 2.0, 1.0))
        x0, x1 = x0 + w0, x1 + w1
    tl.debug_barrier()  # the program reads what its threads stored

    zero = tl.zeros_like(w0)
    gx0, gx1, gw0, gw1, gb0, gb1, gq0, gq1 = zero, zero, zero, zero, zero, zero, zero, zero
    for reverse in range(steps):
        t = steps - 1 - reverse
        x0, x1, w0, w1 = split_quad(tl.load(states + 2 * t * state_stride))
        b0, b1, q0, q1 = split_quad(tl.load(states + (2 * t + 1) * state_stride))
        gs0, gs1 = gx0 + gw0, gx1 + gw1  # of the step
        for s in range(tl.load(first + ray * steps + t), tl.load(first + ray * steps + t + 1)):
            d = tl.load(fraction + s)
            at = grad + tl.load(sample + s) * 2 * size
            g0, g1 = tl.load(at, mask=valid, other=0.0), tl.load(at + size, mask=valid, other=0.0)
            gx0, gx1, gs0, gs1 = gx0 + g0, gx1 + g1, gs0 + d * g0, gs1 + d * g1
            gb0, gb1 = gb0 - 0.5 * d * (1 - d) * g0, gb1 - 0.5 * d * (1 - d) * g1
        doubled = tl.where(t == 0, 2.0, 1.0)
        gs0, gs1, gw0, gw1 = gs0 + doubled * gb0, gs1 + doubled * gb1, -doubled * gb0, -doubled * gb1
        q0, q1, scale = normalize_momentum(q0, q1)
        at_y, at_x = midpoint(y, x, x0, x1, w0, w1, b0, b1, density)
        corners, weights, along_y, along_x = interpolation_nodes(at_y, at_x, nodes, last, PADDING)
        local = interpolate_field(field, corners, weights, nodes, PADDING)
        slopes = field_slopes(field, corners, along_y, along_x, nodes, PADDING)
        M = factorize(local)
        _, _, f0, f1 = flow(local, M, q0, q1, 0.5 * h)
        late = flow_adjoint(local, M, q0 + f0, q1 + f1, h * gs0, h * gs1, h * gq0, h * gq1)
        early = flow_adjoint(local, M, q0, q1, zero, zero, 0.5 * h * late[12], 0.5 * h * late[13])
        gq0, gq1 = (gq0 + late[12] + early[12]) * scale, (gq1 + late[13] + early[13]) * scale
        grad_local = (
            late[0] + early[0], late[1] + early[1], late[2] + early[2], late[3] + early[3], late[4] + early[4],
            late[5] + early[5], late[6] + early[6], late[7] + early[7], late[8] + early[8], late[9] + early[9],
            late[10] + early[10], late[11] + early[11],
        )  # fmt: skip
        quads = scatter_field_gradient(grad_field, corners, weights, grad_local, nodes, valid, PADDING)
        gy, gx = position_gradient(quads, slopes)
        # The midpoint of the first step moves along u only, others in all directions.
        limits = integer_limit(tl.abs(u0) + t), integer_limit(tl.abs(u1) + t)
        if any_integer(at_y, at_x, limits, valid):  # the mean of both sides: see slopes.py
            at_y, at_x = opposite_side(at_y, limits[0]), opposite_side(at_x, limits[1])
            others = interpolation_nodes(at_y, at_x, nodes, last, PADDING)
            slopes = field_slopes(field, others[0], others[2], others[3], nodes, PADDING)
            other_y, other_x = position_gradient(quads, slopes)
            gy, gx = 0.5 * (gy + other_y), 0.5 * (gx + other_x)
        gy, gx = gy * density[0], gx * density[1]
        gx0, gx1, gw0, gw1 = gx0 + gy, gx1 + gx, gw0 + 0.5 * gy, gw1 + 0.5 * gx
        gb0, gb1 = 0.25 * gy, 0.25 * gx

    grad_origin = initial_state_adjoint(origin, u0, u1, h, gw0, gw1, gq0, gq1)
    to = grad_field + 4 * (y * nodes[1] + x)
    for component in tl.static_range(3):
        tl.atomic_add(to + component, grad_origin[component], mask=valid, sem="relaxed")
    tl.atomic_add(to + 4 * plane + 3, grad_origin[3], mask=valid, sem="relaxed")
    tl.atomic_add(to + 8 * plane + 3, grad_origin[4], mask=valid, sem="relaxed")
