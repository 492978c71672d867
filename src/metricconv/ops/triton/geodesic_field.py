"""Interpolation of metric fields in the kernels of geodesics, and its derivative and adjoint.

A field holds the local values of the flow (see flow.py) at every node, in three planes of quads, each loaded and
added to as one vector: (m00 m01 m11 B), (∂₀m00 ∂₀m01 ∂₀m11 o0), (∂₁m00 ∂₁m01 ∂₁m11 o1). A rounded field, for images in
bfloat16, holds float32 quads (m00 m01 m11 o0) and bfloat16 octets (o1 B ∂₀m00 ∂₀m01 ∂₀m11 ∂₁m00 ∂₁m01 ∂₁m11), which is
two thirds of the bytes. M, which must stay positive, is not rounded.

Nodes are the pixels of the image, with a margin of one node around them unless the padding mode is circular.
"""

import triton
import triton.language as tl

from .geometry import INTERPRETED, axis_corners, cast_pairs_to_float32, multiply_add


@triton.jit
def axis_nodes(position, extent, last, PADDING: tl.constexpr):
    """Return the two nodes around a position along one axis, their weights, and the weights' derivatives.

    Positions are clamped to the margin, to just below the ``last`` node, so that the nodes are always adjacent.
    """
    if PADDING == "circular":
        return axis_corners(0, position, extent, PADDING)
    else:
        clamped = tl.minimum(tl.maximum(position, 0.0), last)
        lower = tl.floor(clamped)
        index, upper_weight = lower.to(tl.int32), clamped - lower
        slope = tl.where((position >= 0) & (position < extent - 1), 1.0, 0.0)
        return index, index + 1, 1 - upper_weight, upper_weight, -slope, slope


@triton.jit
def interpolation_nodes(y, x, nodes, last, PADDING: tl.constexpr):
    """Return the four nodes around a position, their weights, and the weights' derivatives along y and x."""
    y0, y1, wy0, wy1, vy0, vy1 = axis_nodes(y, nodes[0], last[0], PADDING)
    x0, x1, wx0, wx1, vx0, vx1 = axis_nodes(x, nodes[1], last[1], PADDING)
    width = nodes[1]
    corners = (y0 * width + x0, y0 * width + x1, y1 * width + x0, y1 * width + x1)
    weights = (wy0 * wx0, wy0 * wx1, wy1 * wx0, wy1 * wx1)
    along_y = (vy0 * wx0, vy0 * wx1, vy1 * wx0, vy1 * wx1)
    along_x = (wy0 * vx0, wy0 * vx1, wy1 * vx0, wy1 * vx1)
    return corners, weights, along_y, along_x


@triton.jit
def node_indices(nodes, SIZE: tl.constexpr):
    """Return the indices of the quads or octets of nodes in a plane: [BM, SIZE]."""
    return nodes[:, None] * SIZE + tl.arange(0, SIZE)[None, :]


@triton.jit
def node_pointers(plane, nodes, width, PADDING: tl.constexpr, SIZE: tl.constexpr):
    """Return pointers to the quads or octets of four nodes: [BM, SIZE] each."""
    first = plane + node_indices(nodes[0], SIZE)
    if PADDING == "circular":
        second, third = plane + node_indices(nodes[1], SIZE), plane + node_indices(nodes[2], SIZE)
        return first, second, third, plane + node_indices(nodes[3], SIZE)
    else:  # computed from one address, which is faster than four
        below = first + SIZE * width
        return first, first + SIZE, below, below + SIZE


@triton.jit
def interpolate_plane(plane, nodes, weights, width, PADDING: tl.constexpr, SIZE: tl.constexpr):
    """Return the interpolated quads or octets of a plane, in its dtype: [BM, SIZE]."""
    pointers = node_pointers(plane, nodes, width, PADDING, SIZE)
    DTYPE: tl.constexpr = tl.float32 if INTERPRETED else plane.dtype.element_ty
    value = weights[0].to(DTYPE)[:, None] * tl.load(pointers[0]).to(DTYPE)
    value = multiply_add(weights[1].to(DTYPE)[:, None], tl.load(pointers[1]).to(DTYPE), value)
    value = multiply_add(weights[2].to(DTYPE)[:, None], tl.load(pointers[2]).to(DTYPE), value)
    return multiply_add(weights[3].to(DTYPE)[:, None], tl.load(pointers[3]).to(DTYPE), value)


@triton.jit
def split_quad(quad):
    """Return the four components of quads [BM, 4]."""
    even, odd = tl.split(tl.reshape(quad, (quad.shape[0], 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    if INTERPRETED:  # copies: its atomics would read the memory behind the view
        first, second, third, fourth = first + 0.0, second + 0.0, third + 0.0, fourth + 0.0
    return first, second, third, fourth


@triton.jit
def join_quad(first, second, third, fourth):
    """Return quads [BM, 4] with these components."""
    pairs = tl.join(tl.join(first, third), tl.join(second, fourth))
    return tl.reshape(pairs, (first.shape[0], 4))


@triton.jit
def interpolate_field(field, nodes, weights, size, PADDING: tl.constexpr):
    """Return the interpolated local values of a field with (H, W) nodes."""
    plane, width = size[0] * size[1], size[1]
    m00, m01, m11, B = split_quad(interpolate_plane(field, nodes, weights, width, PADDING, 4))
    a00, a01, a11, o0 = split_quad(interpolate_plane(field + 4 * plane, nodes, weights, width, PADDING, 4))
    b00, b01, b11, o1 = split_quad(interpolate_plane(field + 8 * plane, nodes, weights, width, PADDING, 4))
    return m00, m01, m11, o0, o1, B, a00, a01, a11, b00, b01, b11


@triton.jit
def interpolate_rounded_field(field, octets, nodes, weights, size, PADDING: tl.constexpr):
    """Return the interpolated local values of a rounded field."""
    m00, m01, m11, o0 = split_quad(interpolate_plane(field, nodes, weights, size[1], PADDING, 4))
    octet = cast_pairs_to_float32(interpolate_plane(octets, nodes, weights, size[1], PADDING, 8))
    even, odd = tl.split(tl.reshape(octet, (octet.shape[0], 4, 2)))
    o1, a00, a11, b01 = split_quad(even)
    B, a01, b00, b11 = split_quad(odd)
    return m00, m01, m11, o0, o1, B, a00, a01, a11, b00, b01, b11


@triton.jit
def field_slopes(field, nodes, along_y, along_x, size, PADDING: tl.constexpr):
    """Return the derivatives of the three planes' quads along y, then along x: [BM, 4] each.

    Called next to ``interpolate_field``: both load the same nodes, which the compiler merges.
    """
    plane, width = size[0] * size[1], size[1]
    second, third = field + 4 * plane, field + 8 * plane
    return (
        interpolate_plane(field, nodes, along_y, width, PADDING, 4),
        interpolate_plane(second, nodes, along_y, width, PADDING, 4),
        interpolate_plane(third, nodes, along_y, width, PADDING, 4),
        interpolate_plane(field, nodes, along_x, width, PADDING, 4),
        interpolate_plane(second, nodes, along_x, width, PADDING, 4),
        interpolate_plane(third, nodes, along_x, width, PADDING, 4),
    )


@triton.jit
def scatter_field_gradient(grad_field, nodes, weights, g, size, valid, PADDING: tl.constexpr):
    """Add the gradients g of local values to the field's gradient; return them as quads."""
    quads = (join_quad(g[0], g[1], g[2], g[5]), join_quad(g[6], g[7], g[8], g[3]), join_quad(g[9], g[10], g[11], g[4]))
    for plane_number in tl.static_range(3):
        pointers = node_pointers(grad_field + 4 * plane_number * size[0] * size[1], nodes, size[1], PADDING, 4)
        for corner in tl.static_range(4):
            corner_gradient = weights[corner][:, None] * quads[plane_number]
            tl.atomic_add(pointers[corner], corner_gradient, mask=valid[:, None], sem="relaxed")
    return quads
