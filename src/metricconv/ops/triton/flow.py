"""The geodesic flow of a 2-D metric in registers, with its derivative: the formulas of ``metrics/flow.py``.

At a place the flow needs twelve numbers, of which seven are derivatives: the local tuple

    m00 m01 m11   o0 o1   B = ∂₀ω₁ − ∂₁ω₀   ∂₀m00 ∂₀m01 ∂₀m11   ∂₁m00 ∂₁m01 ∂₁m11.

A field keeps them as three planes of quads, each read and added to at once: (m00 m01 m11 B), (∂₀m00 ∂₀m01 ∂₀m11 o0),
(∂₁m00 ∂₁m01 ∂₁m11 o1). A rounded field, for images in bfloat16, keeps quads (m00 m01 m11 o0), and in bfloat16 octets
(o1 B ∂₀m00 ∂₀m01 ∂₀m11 ∂₁m00 ∂₁m01 ∂₁m11): two thirds of the bytes, while M, which must stay positive, is not touched.
But for those octets everything is float32, and elementwise over the [BM] places of a tile.
"""

import triton
import triton.language as tl

from ...metrics.flow import _LEAST_NORM, _LEAST_PIVOT
from .geometry import INTERPRETED, add_product, axis_corners, widen

LEAST_PIVOT = tl.constexpr(_LEAST_PIVOT)
LEAST_NORM = tl.constexpr(_LEAST_NORM)


@triton.jit
def reciprocal(x):
    """Return 1 / x by the hardware's own approximation, to within 1 ulp; |x| is neither huge nor denormal."""
    if INTERPRETED:
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)


@triton.jit
def between(position, extent, last, MODE: tl.constexpr):
    """Return the two nodes around a position along one axis, their weights, and these weights' derivatives.

    Where a field has a margin, what lies beyond it is what lies on it: just before the ``last`` node there is, so that
    the two are always neighbours.
    """
    if MODE == "circular":
        return axis_corners(0, position, extent, MODE)
    else:
        near = tl.minimum(tl.maximum(position, 0.0), last)
        low = tl.floor(near)
        index, up = low.to(tl.int32), near - low
        moves = tl.where((position >= 0) & (position < extent - 1), 1.0, 0.0)
        return index, index + 1, 1 - up, up, -moves, moves


@triton.jit
def corners_of(y, x, nodes, last, MODE: tl.constexpr):
    """Return the four nodes around a place, their weights, and these weights' derivatives along y and x."""
    y0, y1, wy0, wy1, vy0, vy1 = between(y, nodes[0], last[0], MODE)
    x0, x1, wx0, wx1, vx0, vx1 = between(x, nodes[1], last[1], MODE)
    width = nodes[1]
    corners = (y0 * width + x0, y0 * width + x1, y1 * width + x0, y1 * width + x1)
    weights = (wy0 * wx0, wy0 * wx1, wy1 * wx0, wy1 * wx1)
    along_y = (vy0 * wx0, vy0 * wx1, vy1 * wx0, vy1 * wx1)
    along_x = (wy0 * vx0, wy0 * vx1, wy1 * vx0, wy1 * vx1)
    return corners, weights, along_y, along_x


@triton.jit
def tuple_at(nodes, SIZE: tl.constexpr):
    """Return where the quads or octets of these nodes lie in a plane: [BM, SIZE]."""
    return nodes[:, None] * SIZE + tl.arange(0, SIZE)[None, :]


@triton.jit
def tuples(plane, nodes, width, MODE: tl.constexpr, SIZE: tl.constexpr):
    """Return where a plane keeps the quads or octets of four nodes: [BM, SIZE] each."""
    first = plane + tuple_at(nodes[0], SIZE)
    if MODE == "circular":
        second, third = plane + tuple_at(nodes[1], SIZE), plane + tuple_at(nodes[2], SIZE)
        return first, second, third, plane + tuple_at(nodes[3], SIZE)
    else:  # one address and its neighbours, which costs less than four
        below = first + SIZE * width
        return first, first + SIZE, below, below + SIZE


@triton.jit
def gather(plane, nodes, weights, width, MODE: tl.constexpr, SIZE: tl.constexpr):
    """Interpolate the quads or octets of a plane, in its dtype: [BM, SIZE]."""
    at = tuples(plane, nodes, width, MODE, SIZE)
    DTYPE: tl.constexpr = tl.float32 if INTERPRETED else plane.dtype.element_ty
    value = weights[0].to(DTYPE)[:, None] * tl.load(at[0]).to(DTYPE)
    value = add_product(weights[1].to(DTYPE)[:, None], tl.load(at[1]).to(DTYPE), value)
    value = add_product(weights[2].to(DTYPE)[:, None], tl.load(at[2]).to(DTYPE), value)
    return add_product(weights[3].to(DTYPE)[:, None], tl.load(at[3]).to(DTYPE), value)


@triton.jit
def apart(quad):
    """Return the four numbers of quads [BM, 4]."""
    even, odd = tl.split(tl.reshape(quad, (quad.shape[0], 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    if INTERPRETED:  # whose atomics read the memory behind such a view: copies
        first, second, third, fourth = first + 0.0, second + 0.0, third + 0.0, fourth + 0.0
    return first, second, third, fourth


@triton.jit
def together(first, second, third, fourth):
    """Return quads [BM, 4] of four numbers."""
    pairs = tl.join(tl.join(first, third), tl.join(second, fourth))
    return tl.reshape(pairs, (first.shape[0], 4))


@triton.jit
def read(field, nodes, weights, size, MODE: tl.constexpr):
    """Interpolate the local tuple from a field of planes of size (H, W)."""
    plane, width = size[0] * size[1], size[1]
    m00, m01, m11, B = apart(gather(field, nodes, weights, width, MODE, 4))
    a00, a01, a11, o0 = apart(gather(field + 4 * plane, nodes, weights, width, MODE, 4))
    b00, b01, b11, o1 = apart(gather(field + 8 * plane, nodes, weights, width, MODE, 4))
    return m00, m01, m11, o0, o1, B, a00, a01, a11, b00, b01, b11


@triton.jit
def read_rounded(field, octets, nodes, weights, size, MODE: tl.constexpr):
    """Interpolate the local tuple from a rounded field."""
    m00, m01, m11, o0 = apart(gather(field, nodes, weights, size[1], MODE, 4))
    octet = widen(gather(octets, nodes, weights, size[1], MODE, 8))
    even, odd = tl.split(tl.reshape(octet, (octet.shape[0], 4, 2)))
    o1, a00, a11, b01 = apart(even)
    B, a01, b00, b11 = apart(odd)
    return m00, m01, m11, o0, o1, B, a00, a01, a11, b00, b01, b11


@triton.jit
def read_slopes(field, nodes, along_y, along_x, size, MODE: tl.constexpr):
    """Return the derivatives of the three planes' quads along y, then along x: [BM, 4] each.

    Called next to ``read``, which loads the same nodes, so that they are loaded once.
    """
    plane, width = size[0] * size[1], size[1]
    second, third = field + 4 * plane, field + 8 * plane
    return (
        gather(field, nodes, along_y, width, MODE, 4),
        gather(second, nodes, along_y, width, MODE, 4),
        gather(third, nodes, along_y, width, MODE, 4),
        gather(field, nodes, along_x, width, MODE, 4),
        gather(second, nodes, along_x, width, MODE, 4),
        gather(third, nodes, along_x, width, MODE, 4),
    )


@triton.jit
def read_adjoint(grad_field, nodes, weights, g, size, live, MODE: tl.constexpr):
    """Add the gradients g of a local tuple to those of the field; return them as quads."""
    quads = (together(g[0], g[1], g[2], g[5]), together(g[6], g[7], g[8], g[3]), together(g[9], g[10], g[11], g[4]))
    for number in tl.static_range(3):
        to = tuples(grad_field + 4 * number * size[0] * size[1], nodes, size[1], MODE, 4)
        for corner in tl.static_range(4):
            share = weights[corner][:, None] * quads[number]
            tl.atomic_add(to[corner], share, mask=live[:, None], sem="relaxed")
    return quads


@triton.jit
def inverse(local):
    """Return 1/m00, m01/m00 and 1/pivot of M = LDLᵀ, the second pivot kept positive; and 1 where it was not clamped."""
    over = reciprocal(local[0])
    ratio = local[1] * over
    pivot, least = local[2] - ratio * local[1], local[2] * LEAST_PIVOT
    return over, ratio, reciprocal(tl.where(pivot >= least, pivot, least)), tl.where(pivot >= least, 1.0, 0.0)


@triton.jit
def ray(local, M, q0, q1):
    """Return |q|_{M⁻¹} and its inverse, e = M⁻¹q / |q|, 1/(1 + ωᵀe), and 1 where that was not clamped."""
    over, ratio, over_pivot, _ = M
    rest = q1 - ratio * q0
    r1 = rest * over_pivot
    square = q0 * q0 * over + rest * r1
    short = tl.rsqrt(square)
    e0, e1 = (q0 * over - ratio * r1) * short, r1 * short
    c = 1.0 + (local[3] * e0 + local[4] * e1)
    return (
        square * short,
        short,
        e0,
        e1,
        reciprocal(tl.where(c < LEAST_NORM, LEAST_NORM, c)),
        tl.where(c < LEAST_NORM, 0.0, 1.0),
    )


@triton.jit
def pulls(local, turn, e0, e1):
    """Return ½ eᵀ(∂_k M)e + Σ_j (∂_k ω_j − ∂_j ω_k) e_j for both k, where ``turn`` stands for B."""
    a, b = 0.5 * e0, 0.5 * e1
    p0 = e0 * (local[6] * a + local[7] * e1) + e1 * (local[8] * b + turn)
    p1 = e0 * (local[9] * a + (local[10] * e1 - turn)) + e1 * (local[11] * b)
    return p0, p1


@triton.jit
def flow(local, M, q0, q1, h):
    """Return the velocity ẋ and the rate of momentum q̇ times h; M is what ``inverse`` found.

    With r = M⁻¹q and n = |q|, the unit vector is e = r/n and 1 + ωᵀe = (n + ωᵀr)/n: nothing need be divided by n.
    """
    over, ratio, over_pivot, _ = M
    rest, along = q1 - ratio * q0, q0 * over
    r1 = rest * over_pivot
    r0 = along - ratio * r1
    norm = tl.sqrt(q0 * along + rest * r1)
    p0, p1 = pulls(local, norm * local[5], r0, r1)
    speed = h * reciprocal(tl.maximum(norm + (local[3] * r0 + local[4] * r1), norm * LEAST_NORM))
    return speed * r0, speed * r1, speed * p0, speed * p1


@triton.jit
def flow_adjoint(local, M, q0, q1, gv0, gv1, gf0, gf1):
    """Return what gradients of ẋ and q̇ say about the local tuple, and about q."""
    over, ratio, over_pivot, free = M
    norm, short, e0, e1, over_c, tilts = ray(local, M, q0, q1)
    r0, r1 = e0 * norm, e1 * norm
    p0, p1 = pulls(local, local[5], e0, e1)
    h0, h1 = gf0 * (norm * over_c), gf1 * (norm * over_c)  # of the pulls
    work = (gf0 * p0 + gf1 * p1) * over_c
    gc = -((gv0 * e0 + gv1 * e1) * over_c + work * norm) * over_c * tilts
    ge0 = gv0 * over_c + h0 * (local[6] * e0 + local[7] * e1) + h1 * (local[9] * e0 + local[10] * e1 - local[5])
    ge1 = gv1 * over_c + h0 * (local[7] * e0 + local[8] * e1 + local[5]) + h1 * (local[10] * e0 + local[11] * e1)
    ge0, ge1 = ge0 + gc * local[3], ge1 + gc * local[4]
    to_square = 0.5 * (work - (ge0 * e0 + ge1 * e1) * short) * short
    # With r = M⁻¹q and qᵀr = |q|²: one more solution of the same system carries the gradient to M and q.
    s0, s1 = ge0 * short + to_square * q0, ge1 * short + to_square * q1
    y1 = (s1 - ratio * s0) * over_pivot
    y0 = s0 * over - ratio * y1
    to_m11 = -y1 * r1
    bound = to_m11 * (1 - free)  # a clamped pivot is m11 = m01²/m00 + a small part of m11
    return (
        -y0 * r0 - bound * ratio * ratio, -(y0 * r1 + y1 * r0) + 2 * bound * ratio,
        to_m11 * tl.where(free > 0, 1.0, LEAST_PIVOT),
        gc * e0, gc * e1, h0 * e1 - h1 * e0,
        h0 * (0.5 * e0 * e0), h0 * (e0 * e1), h0 * (0.5 * e1 * e1),
        h1 * (0.5 * e0 * e0), h1 * (e0 * e1), h1 * (0.5 * e1 * e1),
        y0 + to_square * r0, y1 + to_square * r1,
    )  # fmt: skip


@triton.jit
def smooth_kernel(source, target, stride, height, width, MODE: tl.constexpr, BLOCK: tl.constexpr):
    """Average the planes of [F, n, H, W], whose fields lie ``stride`` apart, with weights ¼ ½ ¼ along both axes."""
    plane, field, number = height * width, tl.program_id(1).to(tl.int64), tl.program_id(2)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live, y, x = pixel < plane, pixel // width, pixel % width
    source += field * stride + number * plane
    above = mean(row_at(source, y, x, -1, height, width, live, MODE))
    own = mean(row_at(source, y, x, 0, height, width, live, MODE))
    value = mean((above, own, mean(row_at(source, y, x, 1, height, width, live, MODE))))
    tl.store(target + (field * tl.num_programs(2) + number) * plane + pixel, value, mask=live)


@triton.jit
def mean(three):
    """Return the binomial average of three numbers."""
    return 0.25 * (three[0] + three[2]) + 0.5 * three[1]


@triton.jit
def value_at(source, y, x, i: tl.constexpr, j: tl.constexpr, height, width, live, MODE: tl.constexpr):
    """Return a plane's values i rows below pixels and j columns to their right."""
    at = neighbour(y, i, height, MODE) * width + neighbour(x, j, width, MODE)
    return tl.load(source + at, mask=live, other=0.0)


@triton.jit
def row_at(source, y, x, i: tl.constexpr, height, width, live, MODE: tl.constexpr):
    """Return a plane's values at three pixels side by side, i rows below pixels."""
    left = value_at(source, y, x, i, -1, height, width, live, MODE)
    own = value_at(source, y, x, i, 0, height, width, live, MODE)
    return left, own, value_at(source, y, x, i, 1, height, width, live, MODE)


@triton.jit
def column_at(source, y, x, j: tl.constexpr, height, width, live, MODE: tl.constexpr):
    """Return a plane's values at three pixels above each other, j columns to the right of pixels."""
    above = value_at(source, y, x, -1, j, height, width, live, MODE)
    own = value_at(source, y, x, 0, j, height, width, live, MODE)
    return above, own, value_at(source, y, x, 1, j, height, width, live, MODE)


@triton.jit
def smooth_adjoint_kernel(source, target, height, width, MODE: tl.constexpr, BLOCK: tl.constexpr):
    """Add what gradients of averages say about the planes averaged, to a target of zeros."""
    plane = (tl.program_id(1).to(tl.int64) * tl.num_programs(2) + tl.program_id(2)) * height * width
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = pixel < height * width
    y, x = pixel // width, pixel % width
    value = tl.load(source + plane + pixel, mask=live, other=0.0)
    for i in tl.static_range(3):
        for j in tl.static_range(3):
            at = plane + neighbour(y, i - 1, height, MODE) * width + neighbour(x, j - 1, width, MODE)
            tl.atomic_add(target + at, binomial(i, j) * value, mask=live, sem="relaxed")


@triton.jit
def binomial(i: tl.constexpr, j: tl.constexpr):
    """Return the weight of cell (i, j) of 3 × 3."""
    return (0.5 if i == 1 else 0.25) * (0.5 if j == 1 else 0.25)


@triton.jit
def neighbour(index, step: tl.constexpr, extent, MODE: tl.constexpr):
    """Return the index a step away, the border's or the other side's beyond the border."""
    if MODE == "circular":
        return (index + step + extent) % extent
    else:
        return tl.minimum(tl.maximum(index + step, 0), extent - 1)


@triton.jit
def inside(value, own, there, MODE: tl.constexpr):
    """Return a neighbour's value, or the own one where no neighbour is there."""
    return value if MODE == "circular" else tl.where(there, value, own)


@triton.jit
def differ(source, y, x, height, width, scale_y, scale_x, live, inner, MODE: tl.constexpr, SMOOTH: tl.constexpr):
    """Return a plane's values, or averages, and their central differences along y and x, which are 0 off the image."""
    if SMOOTH:
        b = row_at(source, y, x, -1, height, width, live, MODE)
        c = row_at(source, y, x, 0, height, width, live, MODE)
        d = row_at(source, y, x, 1, height, width, live, MODE)
        own, value = mean(c), mean((mean(b), mean(c), mean(d)))
        above = mean((mean(row_at(source, y, x, -2, height, width, live, MODE)), mean(b), own))
        below = mean((own, mean(d), mean(row_at(source, y, x, 2, height, width, live, MODE))))
        first, own, third = mean((b[0], c[0], d[0])), mean((b[1], c[1], d[1])), mean((b[2], c[2], d[2]))
        left = mean((mean(column_at(source, y, x, -2, height, width, live, MODE)), first, own))
        right = mean((own, third, mean(column_at(source, y, x, 2, height, width, live, MODE))))
    else:
        value = value_at(source, y, x, 0, 0, height, width, live, MODE)
        above = value_at(source, y, x, -1, 0, height, width, live, MODE)
        below = value_at(source, y, x, 1, 0, height, width, live, MODE)
        left = value_at(source, y, x, 0, -1, height, width, live, MODE)
        right = value_at(source, y, x, 0, 1, height, width, live, MODE)
    down = inside(below, value, y < height - 1, MODE) - inside(above, value, y > 0, MODE)
    across = inside(right, value, x < width - 1, MODE) - inside(left, value, x > 0, MODE)
    return value, tl.where(inner, down * scale_y, 0.0), tl.where(inner, across * scale_x, 0.0)


@triton.jit
def differ_adjoint(target, y, x, height, width, gy, gx, live, MODE: tl.constexpr):
    """Add what gradients of (scaled) central differences say about a plane."""
    tl.atomic_add(target + neighbour(y, 1, height, MODE) * width + x, gy, mask=live, sem="relaxed")
    tl.atomic_add(target + neighbour(y, -1, height, MODE) * width + x, -gy, mask=live, sem="relaxed")
    tl.atomic_add(target + y * width + neighbour(x, 1, width, MODE), gx, mask=live, sem="relaxed")
    tl.atomic_add(target + y * width + neighbour(x, -1, width, MODE), -gx, mask=live, sem="relaxed")


@triton.jit
def derive_kernel(
    M,  # [F, 3, H, W]
    omega,  # [F, 2, H, W]
    field,  # [F, 3, H + 2·MARGIN, W + 2·MARGIN, 4]; of a rounded field one plane of the three
    octets,  # [F, H + 2·MARGIN, W + 2·MARGIN, 8] of a rounded field
    M_stride,  # between fields
    omega_stride,
    height,
    width,
    scale_y,  # 1 / (2·spacing)
    scale_x,
    MODE: tl.constexpr,
    DRIFT: tl.constexpr,
    SMOOTH: tl.constexpr,  # M and ω are averaged first
    ROUNDED: tl.constexpr,
    MARGIN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write M, ω, its curl and ∂M at every node; in the margin the border's values, and derivatives of 0."""
    node, y, x, live, inner, plane = nodes_of(height, width, MARGIN, BLOCK)
    number, size = tl.program_id(1).to(tl.int64), height * width
    M += number * M_stride
    m00, a00, b00 = differ(M, y, x, height, width, scale_y, scale_x, live, inner, MODE, SMOOTH)
    m01, a01, b01 = differ(M + size, y, x, height, width, scale_y, scale_x, live, inner, MODE, SMOOTH)
    m11, a11, b11 = differ(M + 2 * size, y, x, height, width, scale_y, scale_x, live, inner, MODE, SMOOTH)
    o0, o1, turn = tl.zeros_like(m00), tl.zeros_like(m00), tl.zeros_like(m00)
    if DRIFT:
        omega += number * omega_stride
        o0, _, across = differ(omega, y, x, height, width, scale_y, scale_x, live, inner, MODE, SMOOTH)
        o1, down, _ = differ(omega + size, y, x, height, width, scale_y, scale_x, live, inner, MODE, SMOOTH)
        turn = down - across
    mask = live[:, None]
    if ROUNDED:
        tl.store(field + number * 4 * plane + tuple_at(node, 4), together(m00, m01, m11, o0), mask=mask)
        octet = tl.join(together(o1, a00, a11, b01), together(turn, a01, b00, b11))
        octet = tl.reshape(octet, (BLOCK, 8)).to(tl.bfloat16)
        tl.store(octets + number * 8 * plane + tuple_at(node, 8), octet, mask=mask)
    else:
        to = field + number * 12 * plane + tuple_at(node, 4)
        tl.store(to, together(m00, m01, m11, turn), mask=mask)
        tl.store(to + 4 * plane, together(a00, a01, a11, o0), mask=mask)
        tl.store(to + 8 * plane, together(b00, b01, b11, o1), mask=mask)


@triton.jit
def derive_adjoint_kernel(
    source,  # [F, n, H, W], zeros to be added to
    field,  # [F, 3, H + 2·MARGIN, W + 2·MARGIN, 4]: gradients
    height,
    width,
    scale_y,
    scale_x,
    MODE: tl.constexpr,
    DRIFT: tl.constexpr,
    MARGIN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Carry gradients of a field back to M and ω."""
    node, y, x, live, inner, plane = nodes_of(height, width, MARGIN, BLOCK)
    number, size, here = tl.program_id(1).to(tl.int64), height * width, y * width + x
    field += number * 12 * plane
    source += number * (5 if DRIFT else 3) * size
    of, mask = field + tuple_at(node, 4), live[:, None]
    values = apart(tl.load(of, mask=mask, other=0.0))
    downs = apart(tl.load(of + 4 * plane, mask=mask, other=0.0))
    rights = apart(tl.load(of + 8 * plane, mask=mask, other=0.0))
    for number in tl.static_range(3):
        to = source + number * size
        tl.atomic_add(to + here, values[number], mask=live, sem="relaxed")
        differ_adjoint(to, y, x, height, width, downs[number] * scale_y, rights[number] * scale_x, inner, MODE)
    if DRIFT:
        tl.atomic_add(source + 3 * size + here, downs[3], mask=live, sem="relaxed")
        tl.atomic_add(source + 4 * size + here, rights[3], mask=live, sem="relaxed")
        none, turn = tl.zeros_like(values[3]), values[3]
        differ_adjoint(source + 3 * size, y, x, height, width, none, -turn * scale_x, inner, MODE)
        differ_adjoint(source + 4 * size, y, x, height, width, turn * scale_y, none, inner, MODE)


@triton.jit
def nodes_of(height, width, MARGIN: tl.constexpr, BLOCK: tl.constexpr):
    """Return a program's nodes, the pixels they stand on, which are in range and in the image; and how many in all."""
    across, plane = width + 2 * MARGIN, (height + 2 * MARGIN) * (width + 2 * MARGIN)
    node = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = node < plane
    row, column = node // across - MARGIN, node % across - MARGIN
    y, x = neighbour(row, 0, height, "border"), neighbour(column, 0, width, "border")
    inner = live & (row == y) & (column == x)
    return node, y, x, live, inner, plane
