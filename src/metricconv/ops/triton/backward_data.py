"""The backward kernel for the image and the geometry. It computes the samples again."""

import triton
import triton.language as tl

from .forward import product
from .geometry import (
    axis_corners,
    blend,
    corner_rows,
    image_start,
    load_corners,
    load_factor,
    load_parameters,
    load_tap,
    not_too_far,
    offset,
    offset_gradient,
    one_each,
    place,
    reference_cell,
    tile_pixels,
    wide,
)
from .gradients import (
    deposit,
    deposit_parameters,
    load_upstream,
    position_gradient,
    scatter,
    scatter_corners,
    tap_gradient,
)
from .window import image_pixels, window_pull, window_rows, window_weights


@triton.jit
def backward_data_kernel(
    grad_out,  # [B, C_out, *out]
    x,  # [B, H, W, C]
    weight,  # [C_out, P, C/groups]
    modulation,
    field,
    drift,
    table,
    grad_x,  # [B, H, W, C]: float32 to be added to, or int64; in the image's dtype where windows are whole images
    grad_modulation,  # [parts, B, G, P, *out], float32
    grad_field,  # [parts, B, G, n, *out] or [parts, B, G, P, 2, *out], float32
    grad_drift,  # [parts, B, G, 2, *out], float32
    columns,  # [B·out, P, C]: g_j, where it is known; then the samples m_j x_j in its place, to KEEP them
    strays,  # [programs]: 1 where a sample left its patch's window, else 0
    scale,  # [1], of the fixed-point sums
    shape,
    channels,
    lattice,
    field_strides,
    drift_strides,
    modulation_strides,
    out_strides,
    grad_field_strides,
    grad_drift_strides,
    grad_modulation_strides,
    part_strides,  # of grad_field, grad_drift, grad_modulation
    KIND: tl.constexpr,
    PAIRED: tl.constexpr,  # a deformable field's two numbers lie side by side
    DRIFT: tl.constexpr,
    MODULATED: tl.constexpr,
    MODE: tl.constexpr,
    HOW: tl.constexpr,
    PRECISION: tl.constexpr,
    HUGE: tl.constexpr,
    EVEN: tl.constexpr,  # BK divides the span
    SCATTER: tl.constexpr,  # "no", "store", "add", "fixed": whether and how the image's gradient gets into memory
    MOVES: tl.constexpr,  # "no", or how to deposit the gradients of field, drift and modulation
    KEEP: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    TW: tl.constexpr,
    BLOCKS: tl.constexpr,  # blocks of input channels to a span
    STEPS: tl.constexpr,  # blocks of output channels to a group
    WINDOW: tl.constexpr,  # "no", "patch", "strays", "image": see window.py
    WB: tl.constexpr,
    WH: tl.constexpr,
    WW: tl.constexpr,
    TILES: tl.constexpr,  # tiles of pixels to a window
    GATHER: tl.constexpr,  # "corners", or "window": samples are a product with the pixels of that too
):
    """Gradients of image, geometry and modulation, for a tile of BM pixels and a block of BK input channels.

    With g_j = Σ_o w_jo ∂L/∂y_o, the gradient of sample j: the image gets m_j g_j at the four corners by their weights,
    the position m_j g_j · ∂x, the modulation g_j · x. HOW says how g is found, or that it is "known": see backward.py.
    """
    blocks = channels.ins // channels.span * BLOCKS
    program = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    span = block // BLOCKS
    here = block % BLOCKS * BK + tl.arange(0, BK)
    in_span = here < channels.span
    c = span * channels.span + here  # [BK]
    group = span // channels.spans_per_group
    in_group = span % channels.spans_per_group * channels.span + here  # the channel's number in its group
    metric = span // channels.spans_per_metric
    part = (span % channels.spans_per_metric * BLOCKS + block % BLOCKS).to(tl.int64)
    factor = 1.0
    if SCATTER == "fixed":
        factor = tl.load(scale)

    first_image, first_y, first_x = program * 0, program * 0, program * 0
    if WINDOW == "image":
        first_image = program * WB
    if WINDOW == "patch" or WINDOW == "strays":  # the window reaches as far beyond the tile on either side
        across = (shape.out_width + TW - 1) // TW
        down = (shape.out_height + BM // TW - 1) // (BM // TW)
        first_image = program // (across * down)
        middle_y = (program // across % down * (BM // TW) + (BM // TW - 1) / 2) * lattice.stride_y + lattice.origin_y
        middle_x = (program % across * TW + (TW - 1) / 2) * lattice.stride_x + lattice.origin_x
        first_y = tl.floor(middle_y - (WH - 1) / 2).to(tl.int32)
        first_x = tl.floor(middle_x - (WW - 1) / 2).to(tl.int32)
    if (WINDOW == "patch" or WINDOW == "image") and SCATTER != "no":
        window = tl.zeros([WB * WH * WW, BK], tl.float32)
    if GATHER == "window":
        pixels, counts = window_rows(first_image, first_y, first_x, shape, MODE, HUGE, WB, WH, WW)
        held_at = x + (pixels * channels.ins)[:, None] + c[None, :]
        held = tl.load(held_at, mask=counts[:, None] & in_span[None, :], other=0.0)  # [BW, BK]

    tiles = TILES
    if WINDOW == "strays":
        tiles = tl.load(strays + tl.program_id(0))
    left = tl.zeros([BM], tl.int32)
    for t in tl.range(tiles):
        if WINDOW == "image":
            image, row, column, live = image_pixels(first_image, t, shape, BM, WB)
        else:
            image, row, column, live = tile_pixels(program, shape, HUGE, BM, TW)
        field_at = place(image, metric, row, column, field_strides, HUGE)
        drift_at = place(image, metric, row, column, drift_strides, HUGE)
        modulation_at = place(image, metric, row, column, modulation_strides, HUGE)
        out_at = place(image, tl.zeros_like(row), row, column, out_strides, HUGE)
        p0, p1, p2, p3, p4 = load_parameters(
            field, field_at, field_strides, drift, drift_at, drift_strides, KIND, DRIFT
        )
        to_field, to_drift = grad_field, grad_drift
        if MOVES != "no" and KIND != "grid":
            to_field = grad_field + place(image, metric, row, column, grad_field_strides, HUGE) + part * part_strides[0]
        if MOVES != "no" and DRIFT:
            to_drift = grad_drift + place(image, metric, row, column, grad_drift_strides, HUGE) + part * part_strides[1]
        if MOVES != "no" and MODULATED:
            to_modulation = grad_modulation + place(image, metric, row, column, grad_modulation_strides, HUGE)
            to_modulation += part * part_strides[2]
        if HOW == "known":
            pixel = (wide(image, HUGE) * shape.out_height + row) * shape.out_width + column
            column_at = columns + (pixel * shape.samples * channels.ins)[:, None] + c[None, :]  # [BM, BK]
        start = image_start(image, shape, channels.ins, HUGE)
        centre_y = row * lattice.stride_y + lattice.origin_y
        centre_x = column * lattice.stride_x + lattice.origin_x
        gy = p0  # loaded tap by tap, block by block
        if HOW == "each":
            gy = load_upstream(grad_out, out_at, c, live[:, None] & in_span[None, :], out_strides, HOW, HUGE)
        elif HOW != "known" and STEPS == 1:  # the same at every tap: loaded once
            inner = tl.arange(0, BN)
            mask = live[:, None] & (inner < channels.outs_per_group)[None, :]
            gy = load_upstream(grad_out, out_at, group * channels.outs_per_group + inner, mask, out_strides, HOW, HUGE)

        zero = tl.zeros_like(p0)
        g0, g1, g2, g3, g4 = zero, zero, zero, zero, zero
        p0, p1 = load_tap(field, field_at, field_strides, 0, p0, p1, KIND, PAIRED, HUGE)
        for tap in range(shape.samples):
            a, b, r = reference_cell(tap, table, shape, lattice, KIND)
            dy, dx = offset(a, b, r, p0, p1, p2, p3, p4, KIND, DRIFT)
            following = tl.minimum(tap + 1, shape.samples - 1)  # asked for early, so that it is there in time
            p0, p1 = load_tap(field, field_at, field_strides, following, p0, p1, KIND, PAIRED, HUGE)
            y0, y1, wy0, wy1, vy0, vy1 = axis_corners(centre_y, lattice.half_y + dy, shape.height, MODE)
            x0, x1, wx0, wx1, vx0, vx1 = axis_corners(centre_x, lattice.half_x + dx, shape.width, MODE)
            rows = corner_rows(y0, y1, x0, x1, shape, channels.ins, HUGE)
            m = load_factor(modulation, modulation_at, modulation_strides, tap, MODULATED, HUGE)

            if HOW == "known":
                here_at = column_at + tap * channels.ins
                g = tl.load(here_at, mask=live[:, None] & in_span[None, :], other=0.0).to(tl.float32)
            else:
                g = tap_gradient(
                    gy, grad_out, out_at, weight, tap, group, in_group, c, live, in_span, shape, channels, out_strides,
                    HOW, PRECISION, HUGE, BM, BN, BK, STEPS,
                )  # fmt: skip
            shares = (m * wy0 * wx0, m * wy0 * wx1, m * wy1 * wx0, m * wy1 * wx1)
            at_y = centre_y - first_y + not_too_far(lattice.half_y + dy)
            at_x = centre_x - first_x + not_too_far(lattice.half_x + dx)
            if WINDOW == "image" and KIND == "deformable":  # loaded once, and not for every layout that S needs
                at_y, at_x = one_each(at_y), one_each(at_x)
            inside = live
            if WINDOW == "patch" or WINDOW == "strays":
                inside = (at_y >= 0) & (at_y < WH - 1) & (at_x >= 0) & (at_x < WW - 1)
                stray = live & (inside == 0) & ((wy0 + wy1) * (wx0 + wx1) != 0)
                left = left | stray.to(tl.int32)
            if WINDOW == "no" and SCATTER != "no":
                scatter_corners(grad_x, start, rows, shares, c, g, live, in_span, factor, SCATTER)
            if WINDOW == "strays":
                scatter_corners(grad_x, start, rows, shares, c, g, stray, in_span, factor, SCATTER)
            if WINDOW == "patch" or WINDOW == "image":
                s = window_weights(
                    at_y, at_x, m, image - first_image, inside, MODULATED, x.dtype.element_ty, WB, WH, WW, BM
                )  # [BW, BM]
                if SCATTER != "no":
                    window = product(s, g.to(x.dtype.element_ty), window, PRECISION)

            if GATHER == "corners" and (MOVES != "no" or KEEP):
                corners = load_corners(x, start, rows, c, in_span, EVEN)
            if KEEP:
                if GATHER == "window":
                    value = product(tl.trans(s), held, tl.zeros([BM, BK], tl.float32), PRECISION)
                else:
                    value = blend(corners, (m * wy0, m * wy1, wx0, wx1), "keep")
                tl.store(here_at, value.to(x.dtype.element_ty), mask=live[:, None] & in_span[None, :])
            if MOVES != "no":
                if GATHER == "window":
                    q = tl.zeros([BM, WB * WH * WW], tl.float32)
                    q = product(g.to(x.dtype.element_ty), tl.trans(held), q, PRECISION)
                    within = image - first_image
                    to_y, to_x, to_m = window_pull(
                        q, at_y, at_x, within, a, b, r, (dy, dx), lattice, KIND, MODULATED, WB, WH, WW
                    )
                else:
                    weights, slopes = (wy0, wy1, wx0, wx1), (vy0, vy1, vx0, vx1)
                    along_y, along_x = (centre_y, lattice.half_y + dy), (centre_x, lattice.half_x + dx)
                    to_y, to_x, to_m = position_gradient(
                        g, corners, weights, slopes, x, start, along_y, along_x, (a, b, r), (dy, dx), c, in_span, shape,
                        channels, lattice, KIND, MODULATED, MODE, HUGE, EVEN,
                    )  # fmt: skip
                to_y, to_x = m * to_y, m * to_x
                if KIND == "deformable":
                    where = to_field + wide(tap, HUGE) * grad_field_strides.n
                    deposit(where, to_y, live, MOVES)
                    deposit(where + grad_field_strides.d, to_x, live, MOVES)
                elif KIND != "grid":
                    e0, e1, e2, e3, e4 = offset_gradient(a, b, r, p0, p1, p2, p3, p4, to_y, to_x, KIND, DRIFT)
                    g0, g1, g2, g3, g4 = g0 + e0, g1 + e1, g2 + e2, g3 + e3, g4 + e4
                if MODULATED:
                    deposit(to_modulation + wide(tap, HUGE) * grad_modulation_strides.n, to_m, live, MOVES)

        if MOVES != "no" and KIND != "grid" and KIND != "deformable":
            steps = (grad_field_strides.n, grad_drift_strides.n)
            deposit_parameters(to_field, to_drift, (g0, g1, g2, g3, g4), live, steps, KIND, DRIFT, MOVES)

    if (WINDOW == "patch" or WINDOW == "image") and SCATTER != "no":
        pixels, counts = window_rows(first_image, first_y, first_x, shape, MODE, HUGE, WB, WH, WW)
        mask = counts[:, None] & in_span[None, :]
        if SCATTER == "store":
            where = grad_x + (pixels * channels.ins)[:, None] + c[None, :]
            tl.store(where, window.to(grad_x.dtype.element_ty), mask=mask)
        else:
            scatter(grad_x, pixels * channels.ins, tl.zeros_like(pixels), c, window, mask, factor, SCATTER)
            tl.store(strays + tl.program_id(0), tl.max(left, 0))
