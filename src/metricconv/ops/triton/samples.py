"""The kernel that keeps samples: where a matrix product is most of the work, a library takes it from there."""

import triton
import triton.language as tl

from .geometry import (
    axis_corners,
    blend,
    corner_rows,
    image_start,
    load_corners,
    load_parameters,
    load_tap,
    offset,
    place,
    reference_cell,
    tile_pixels,
    wide,
)


@triton.jit
def samples_kernel(
    x,  # [B, H, W, C]
    modulation,  # [B, G, P, *out]
    field,  # [B, G, n, *out] or [B, G, P, 2, *out]
    drift,  # [B, G, 2, *out]
    table,  # [P, 3]
    columns,  # [B·out, P, C]
    shape,
    channels,
    lattice,
    field_strides,
    drift_strides,
    modulation_strides,
    KIND: tl.constexpr,
    PAIRED: tl.constexpr,  # a deformable field's two numbers lie side by side
    DRIFT: tl.constexpr,
    MODULATED: tl.constexpr,
    MODE: tl.constexpr,
    HOW: tl.constexpr,
    PRECISION: tl.constexpr,
    HUGE: tl.constexpr,
    EVEN: tl.constexpr,  # BK divides the span
    BM: tl.constexpr,
    BK: tl.constexpr,
    TW: tl.constexpr,
    BLOCKS: tl.constexpr,  # blocks of channels to a span
):
    """Write m_j x(centre + Δ_j), all samples of a tile of BM pixels and a block of BK channels."""
    blocks = channels.ins // channels.span * BLOCKS
    tile = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    image, row, column, live = tile_pixels(tile, shape, HUGE, BM, TW)
    span = block // BLOCKS
    inner = block % BLOCKS * BK + tl.arange(0, BK)
    in_span = inner < channels.span
    c = span * channels.span + inner  # [BK]
    metric = span // channels.spans_per_metric
    centre_y = row * lattice.stride_y + lattice.origin_y
    centre_x = column * lattice.stride_x + lattice.origin_x
    start = image_start(image, shape, channels.ins, HUGE)
    field_at = place(image, metric, row, column, field_strides, HUGE)
    drift_at = place(image, metric, row, column, drift_strides, HUGE)
    modulation_at = place(image, metric, row, column, modulation_strides, HUGE)
    pixel = (wide(image, HUGE) * shape.out_height + row) * shape.out_width + column
    to = columns + (pixel * shape.samples * channels.ins)[:, None] + c[None, :]  # [BM, BK]
    mask = live[:, None] & in_span[None, :]
    p0, p1, p2, p3, p4 = load_parameters(field, field_at, field_strides, drift, drift_at, drift_strides, KIND, DRIFT)
    p0, p1 = load_tap(field, field_at, field_strides, 0, p0, p1, KIND, PAIRED, HUGE)
    for tap in range(shape.samples):
        a, b, r = reference_cell(tap, table, shape, lattice, KIND)
        dy, dx = offset(a, b, r, p0, p1, p2, p3, p4, KIND, DRIFT)
        following = tl.minimum(tap + 1, shape.samples - 1)  # asked for early, so that it is there in time
        p0, p1 = load_tap(field, field_at, field_strides, following, p0, p1, KIND, PAIRED, HUGE)
        y0, y1, wy0, wy1, _, _ = axis_corners(centre_y + dy, shape.height, MODE)
        x0, x1, wx0, wx1, _, _ = axis_corners(centre_x + dx, shape.width, MODE)
        if MODULATED:
            m = tl.load(modulation + modulation_at + wide(tap, HUGE) * modulation_strides.n).to(tl.float32)
            wy0, wy1 = wy0 * m, wy1 * m
        corners = load_corners(x, start, corner_rows(y0, y1, x0, x1, shape, channels.ins, HUGE), c, in_span, EVEN)
        value = blend(corners, (wy0, wy1, wx0, wx1), HOW)
        tl.store(to + tap * channels.ins, value.to(columns.dtype.element_ty), mask=mask)
