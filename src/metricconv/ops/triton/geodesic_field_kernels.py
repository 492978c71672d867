"""Kernels that compute the metric fields of geodesic_field.py from M and ω, and carry gradients back to these."""

import triton
import triton.language as tl

from .geodesic_field import join_quad, node_indices, split_quad


@triton.jit
def smooth_kernel(source, target, stride, height, width, PADDING: tl.constexpr, BLOCK: tl.constexpr):
    """Average each plane of [F, n, H, W] with weights ¼ ½ ¼ along both axes; ``stride`` is that of the first axis."""
    plane, field, number = height * width, tl.program_id(1).to(tl.int64), tl.program_id(2)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid, y, x = pixel < plane, pixel // width, pixel % width
    source += field * stride + number * plane
    above = average(load_row(source, y, x, -1, height, width, valid, PADDING))
    center = average(load_row(source, y, x, 0, height, width, valid, PADDING))
    value = average((above, center, average(load_row(source, y, x, 1, height, width, valid, PADDING))))
    tl.store(target + (field * tl.num_programs(2) + number) * plane + pixel, value, mask=valid)


@triton.jit
def average(three):
    """Return the average of three values with weights ¼ ½ ¼."""
    return 0.25 * (three[0] + three[2]) + 0.5 * three[1]


@triton.jit
def load_neighbor(source, y, x, i: tl.constexpr, j: tl.constexpr, height, width, valid, PADDING: tl.constexpr):
    """Return a plane's values i rows below and j columns to the right of pixels."""
    at = neighbor_index(y, i, height, PADDING) * width + neighbor_index(x, j, width, PADDING)
    return tl.load(source + at, mask=valid, other=0.0)


@triton.jit
def load_row(source, y, x, i: tl.constexpr, height, width, valid, PADDING: tl.constexpr):
    """Return a plane's values at three neighbors in a row, i rows below pixels."""
    left = load_neighbor(source, y, x, i, -1, height, width, valid, PADDING)
    center = load_neighbor(source, y, x, i, 0, height, width, valid, PADDING)
    return left, center, load_neighbor(source, y, x, i, 1, height, width, valid, PADDING)


@triton.jit
def load_column(source, y, x, j: tl.constexpr, height, width, valid, PADDING: tl.constexpr):
    """Return a plane's values at three neighbors in a column, j columns to the right of pixels."""
    above = load_neighbor(source, y, x, -1, j, height, width, valid, PADDING)
    center = load_neighbor(source, y, x, 0, j, height, width, valid, PADDING)
    return above, center, load_neighbor(source, y, x, 1, j, height, width, valid, PADDING)


@triton.jit
def smooth_adjoint_kernel(source, target, height, width, PADDING: tl.constexpr, BLOCK: tl.constexpr):
    """Add the gradients of the planes, given those of their averages, to ``target``."""
    plane = (tl.program_id(1).to(tl.int64) * tl.num_programs(2) + tl.program_id(2)) * height * width
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = pixel < height * width
    y, x = pixel // width, pixel % width
    value = tl.load(source + plane + pixel, mask=valid, other=0.0)
    for i in tl.static_range(3):
        for j in tl.static_range(3):
            at = plane + neighbor_index(y, i - 1, height, PADDING) * width + neighbor_index(x, j - 1, width, PADDING)
            tl.atomic_add(target + at, binomial_weight(i, j) * value, mask=valid, sem="relaxed")


@triton.jit
def binomial_weight(i: tl.constexpr, j: tl.constexpr):
    """Return the weight of neighbor (i, j) of 3 × 3."""
    return (0.5 if i == 1 else 0.25) * (0.5 if j == 1 else 0.25)


@triton.jit
def neighbor_index(index, step: tl.constexpr, extent, PADDING: tl.constexpr):
    """Return the index ``step`` away: clamped to the border, or periodic."""
    if PADDING == "circular":
        return (index + step + extent) % extent
    else:
        return tl.minimum(tl.maximum(index + step, 0), extent - 1)


@triton.jit
def value_or_center(value, center, exists, PADDING: tl.constexpr):
    """Return the value of a neighbor if it exists, otherwise that of the pixel itself."""
    return value if PADDING == "circular" else tl.where(exists, value, center)


@triton.jit
def differences(
    source, y, x, height, width, scale_y, scale_x, valid, in_image, PADDING: tl.constexpr, SMOOTH: tl.constexpr
):
    """Return a plane's values, or averages, and their central differences along y and x, which are 0 in the margin."""
    if SMOOTH:
        b = load_row(source, y, x, -1, height, width, valid, PADDING)
        c = load_row(source, y, x, 0, height, width, valid, PADDING)
        d = load_row(source, y, x, 1, height, width, valid, PADDING)
        center, value = average(c), average((average(b), average(c), average(d)))
        above = average((average(load_row(source, y, x, -2, height, width, valid, PADDING)), average(b), center))
        below = average((center, average(d), average(load_row(source, y, x, 2, height, width, valid, PADDING))))
        first, center, third = average((b[0], c[0], d[0])), average((b[1], c[1], d[1])), average((b[2], c[2], d[2]))
        left = average((average(load_column(source, y, x, -2, height, width, valid, PADDING)), first, center))
        right = average((center, third, average(load_column(source, y, x, 2, height, width, valid, PADDING))))
    else:
        value = load_neighbor(source, y, x, 0, 0, height, width, valid, PADDING)
        above = load_neighbor(source, y, x, -1, 0, height, width, valid, PADDING)
        below = load_neighbor(source, y, x, 1, 0, height, width, valid, PADDING)
        left = load_neighbor(source, y, x, 0, -1, height, width, valid, PADDING)
        right = load_neighbor(source, y, x, 0, 1, height, width, valid, PADDING)
    down = value_or_center(below, value, y < height - 1, PADDING) - value_or_center(above, value, y > 0, PADDING)
    across = value_or_center(right, value, x < width - 1, PADDING) - value_or_center(left, value, x > 0, PADDING)
    return value, tl.where(in_image, down * scale_y, 0.0), tl.where(in_image, across * scale_x, 0.0)


@triton.jit
def differences_adjoint(target, y, x, height, width, gy, gx, valid, PADDING: tl.constexpr):
    """Add the gradient of a plane, given those of its (scaled) central differences."""
    tl.atomic_add(target + neighbor_index(y, 1, height, PADDING) * width + x, gy, mask=valid, sem="relaxed")
    tl.atomic_add(target + neighbor_index(y, -1, height, PADDING) * width + x, -gy, mask=valid, sem="relaxed")
    tl.atomic_add(target + y * width + neighbor_index(x, 1, width, PADDING), gx, mask=valid, sem="relaxed")
    tl.atomic_add(target + y * width + neighbor_index(x, -1, width, PADDING), -gx, mask=valid, sem="relaxed")


@triton.jit
def field_kernel(
    M,  # [F, 3, H, W]
    omega,  # [F, 2, H, W]
    field,  # [F, 3, H + 2·MARGIN, W + 2·MARGIN, 4]; one plane if rounded
    octets,  # [F, H + 2·MARGIN, W + 2·MARGIN, 8] of a rounded field
    M_stride,  # between fields
    omega_stride,
    height,
    width,
    scale_y,  # 1 / (2·spacing)
    scale_x,
    PADDING: tl.constexpr,
    DRIFT: tl.constexpr,
    SMOOTH: tl.constexpr,  # average M and ω first
    ROUNDED: tl.constexpr,
    MARGIN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write M, ω, its curl and ∂M at every node; in the margin the values at the border, with derivatives 0."""
    node, y, x, valid, in_image, plane = program_nodes(height, width, MARGIN, BLOCK)
    number, size = tl.program_id(1).to(tl.int64), height * width
    M += number * M_stride
    m00, a00, b00 = differences(M, y, x, height, width, scale_y, scale_x, valid, in_image, PADDING, SMOOTH)
    m01, a01, b01 = differences(M + size, y, x, height, width, scale_y, scale_x, valid, in_image, PADDING, SMOOTH)
    m11, a11, b11 = differences(M + 2 * size, y, x, height, width, scale_y, scale_x, valid, in_image, PADDING, SMOOTH)
    o0, o1, curl = tl.zeros_like(m00), tl.zeros_like(m00), tl.zeros_like(m00)
    if DRIFT:
        omega += number * omega_stride
        o0, _, across = differences(omega, y, x, height, width, scale_y, scale_x, valid, in_image, PADDING, SMOOTH)
        o1, down, _ = differences(omega + size, y, x, height, width, scale_y, scale_x, valid, in_image, PADDING, SMOOTH)
        curl = down - across
    mask = valid[:, None]
    if ROUNDED:
        tl.store(field + number * 4 * plane + node_indices(node, 4), join_quad(m00, m01, m11, o0), mask=mask)
        octet = tl.join(join_quad(o1, a00, a11, b01), join_quad(curl, a01, b00, b11))
        octet = tl.reshape(octet, (BLOCK, 8)).to(tl.bfloat16)
        tl.store(octets + number * 8 * plane + node_indices(node, 8), octet, mask=mask)
    else:
        to = field + number * 12 * plane + node_indices(node, 4)
        tl.store(to, join_quad(m00, m01, m11, curl), mask=mask)
        tl.store(to + 4 * plane, join_quad(a00, a01, a11, o0), mask=mask)
        tl.store(to + 8 * plane, join_quad(b00, b01, b11, o1), mask=mask)


@triton.jit
def field_adjoint_kernel(
    source,  # [F, n, H, W], to be added to
    field,  # [F, 3, H + 2·MARGIN, W + 2·MARGIN, 4]: gradients
    height,
    width,
    scale_y,
    scale_x,
    PADDING: tl.constexpr,
    DRIFT: tl.constexpr,
    MARGIN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add the gradients of M and ω, given those of the field."""
    node, y, x, valid, in_image, plane = program_nodes(height, width, MARGIN, BLOCK)
    number, size, here = tl.program_id(1).to(tl.int64), height * width, y * width + x
    field += number * 12 * plane
    source += number * (5 if DRIFT else 3) * size
    of, mask = field + node_indices(node, 4), valid[:, None]
    values = split_quad(tl.load(of, mask=mask, other=0.0))
    downs = split_quad(tl.load(of + 4 * plane, mask=mask, other=0.0))
    rights = split_quad(tl.load(of + 8 * plane, mask=mask, other=0.0))
    for number in tl.static_range(3):
        to = source + number * size
        tl.atomic_add(to + here, values[number], mask=valid, sem="relaxed")
        differences_adjoint(
            to, y, x, height, width, downs[number] * scale_y, rights[number] * scale_x, in_image, PADDING
        )
    if DRIFT:
        tl.atomic_add(source + 3 * size + here, downs[3], mask=valid, sem="relaxed")
        tl.atomic_add(source + 4 * size + here, rights[3], mask=valid, sem="relaxed")
        none, curl = tl.zeros_like(values[3]), values[3]
        differences_adjoint(source + 3 * size, y, x, height, width, none, -curl * scale_x, in_image, PADDING)
        differences_adjoint(source + 4 * size, y, x, height, width, curl * scale_y, none, in_image, PADDING)


@triton.jit
def program_nodes(height, width, MARGIN: tl.constexpr, BLOCK: tl.constexpr):
    """Return a program's nodes, their nearest pixels (y, x), which are valid, which in the image, and nodes in all."""
    across, plane = width + 2 * MARGIN, (height + 2 * MARGIN) * (width + 2 * MARGIN)
    node = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = node < plane
    row, column = node // across - MARGIN, node % across - MARGIN
    y, x = neighbor_index(row, 0, height, "border"), neighbor_index(column, 0, width, "border")
    in_image = valid & (row == y) & (column == x)
    return node, y, x, valid, in_image, plane
