"""The backward kernels: one for the image and the geometry, one for the weights. Both compute the samples again."""

import triton
import triton.language as tl

from .forward import contract, product, sample
from .geometry import (
    FARTHEST,
    axis_corners,
    corner_rows,
    image_start,
    load_corner,
    load_parameters,
    load_tap,
    offset,
    offset_gradient,
    place,
    reference_cell,
    tile_pixels,
    wide,
)
from .window import image_pixels, window_rows, window_weights


@triton.jit
def deposit(pointer, value, live, HOW: tl.constexpr):
    """Write a gradient that is this program's alone ("store"), or add it to what others found ("add")."""
    if HOW == "add":
        tl.atomic_add(pointer, value, mask=live, sem="relaxed")
    else:
        tl.store(pointer, value, mask=live)


@triton.jit
def scatter(grad_x, start, row, channel, value, mask, scale, HOW: tl.constexpr):
    """Add [BM, BK] values to the image's gradient.

    "fixed" adds integers, whose sum does not depend on the order of the additions: value · scale in 64 bits.
    """
    where = grad_x + ((start + row)[:, None] + channel[None, :])
    if HOW == "fixed":
        tl.atomic_add(where, (value * scale).to(tl.int64), mask=mask, sem="relaxed")
    else:
        tl.atomic_add(where, value, mask=mask, sem="relaxed")


@triton.jit
def scatter_corners(grad_x, start, rows, weights, channel, g, live, in_range, scale, HOW: tl.constexpr):
    """Add g [BM, BK] at the four corners by their weights; a corner that does not count (zero padding) is left out."""
    for corner in tl.static_range(4):
        w = weights[corner]
        mask = (live & (w != 0))[:, None] & in_range[None, :]
        scatter(grad_x, start, rows[corner], channel, w[:, None] * g, mask, scale, HOW)


@triton.jit
def load_upstream(grad_out, out_at, outs, mask, out_strides, HOW: tl.constexpr, HUGE: tl.constexpr):
    """Load ∂L/∂y [BM, BN]; in float32 where it does not go to the tensor cores."""
    gy = tl.load(grad_out + out_at[:, None] + wide(outs, HUGE)[None, :] * out_strides.n, mask=mask, other=0.0)
    if HOW == "dot":
        return gy
    else:
        return gy.to(tl.float32)


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
    DRIFT: tl.constexpr,
    MODULATED: tl.constexpr,
    MODE: tl.constexpr,
    HOW: tl.constexpr,
    PRECISION: tl.constexpr,
    HUGE: tl.constexpr,
    EVEN: tl.constexpr,  # BK divides the span
    SCATTER: tl.constexpr,  # "no", "add", "fixed": whether and how the image's gradient is summed in memory
    MOVES: tl.constexpr,  # the gradients of field, drift and modulation are wanted
    DEPOSIT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    TW: tl.constexpr,
    BLOCKS: tl.constexpr,  # blocks of input channels to a span
    STEPS: tl.constexpr,  # blocks of output channels to a group
    WINDOW: tl.constexpr,  # "no", "patch", "image": see window.py
    WB: tl.constexpr,
    WH: tl.constexpr,
    WW: tl.constexpr,
    TILES: tl.constexpr,  # tiles of pixels to a window
):
    """Gradients of image, geometry and modulation, for a tile of BM pixels and a block of BK input channels.

    With g_j = Σ_o w_jo ∂L/∂y_o, the gradient of sample j: the image gets m_j g_j at the four corners by their weights,
    the position m_j g_j · ∂x, the modulation g_j · x.
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
    part = wide(span % channels.spans_per_metric * BLOCKS + block % BLOCKS, HUGE)
    factor = 1.0
    if SCATTER == "fixed":
        factor = tl.load(scale)

    first_image, first_y, first_x = program * 0, program * 0, program * 0
    if WINDOW == "image":
        first_image = program * WB
    if WINDOW == "patch":  # the window reaches as far beyond the tile on either side
        across = (shape.out_width + TW - 1) // TW
        down = (shape.out_height + BM // TW - 1) // (BM // TW)
        first_image = program // (across * down)
        middle_y = (program // across % down * (BM // TW) + (BM // TW - 1) / 2) * lattice.stride_y + lattice.origin_y
        middle_x = (program % across * TW + (TW - 1) / 2) * lattice.stride_x + lattice.origin_x
        first_y = tl.floor(middle_y - (WH - 1) / 2).to(tl.int32)
        first_x = tl.floor(middle_x - (WW - 1) / 2).to(tl.int32)
    if WINDOW != "no":
        window = tl.zeros([WB * WH * WW, BK], tl.float32)

    for t in tl.range(TILES):
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
        if MOVES and KIND != "grid":
            to_field = grad_field + place(image, metric, row, column, grad_field_strides, HUGE) + part * part_strides[0]
        if MOVES and DRIFT:
            to_drift = grad_drift + place(image, metric, row, column, grad_drift_strides, HUGE) + part * part_strides[1]
        if MOVES and MODULATED:
            to_modulation = grad_modulation + place(image, metric, row, column, grad_modulation_strides, HUGE)
            to_modulation += part * part_strides[2]
        start = image_start(image, shape, channels.ins, HUGE)
        centre_y = row * lattice.stride_y + lattice.origin_y
        centre_x = column * lattice.stride_x + lattice.origin_x
        inner = tl.arange(0, BN)
        if HOW == "each":
            gy = load_upstream(grad_out, out_at, c, live[:, None] & in_span[None, :], out_strides, HOW, HUGE)
        elif STEPS == 1:  # the same at every tap: loaded once
            mask = live[:, None] & (inner < channels.outs_per_group)[None, :]
            gy = load_upstream(grad_out, out_at, group * channels.outs_per_group + inner, mask, out_strides, HOW, HUGE)

        zero = tl.zeros_like(p0)
        g0, g1, g2, g3, g4 = zero, zero, zero, zero, zero
        for tap in range(shape.samples):
            a, b, r = reference_cell(tap, table, shape, lattice, KIND)
            p0, p1 = load_tap(field, field_at, field_strides, tap, p0, p1, KIND, HUGE)
            dy, dx = offset(a, b, r, p0, p1, p2, p3, p4, KIND, DRIFT)
            y0, y1, wy0, wy1, vy0, vy1 = axis_corners(centre_y + dy, shape.height, MODE)
            x0, x1, wx0, wx1, vx0, vx1 = axis_corners(centre_x + dx, shape.width, MODE)
            rows = corner_rows(y0, y1, x0, x1, shape, channels.ins, HUGE)
            m = tl.full([BM], 1.0, tl.float32)
            if MODULATED:
                m = tl.load(modulation + modulation_at + wide(tap, HUGE) * modulation_strides.n).to(tl.float32)

            g = tl.zeros([BM, BK], tl.float32)
            if HOW == "each":
                w = tl.load(weight + wide(c, HUGE) * shape.samples + tap, mask=in_span, other=0.0)[None, :]  # [1, BK]
                g = contract(g, gy, w, HOW, PRECISION)
            else:
                for k in tl.range(STEPS):
                    some = k * BN + inner
                    in_outs = some < channels.outs_per_group
                    outs = group * channels.outs_per_group + some  # [BN]
                    if STEPS > 1:
                        mask = live[:, None] & in_outs[None, :]
                        gy = load_upstream(grad_out, out_at, outs, mask, out_strides, HOW, HUGE)  # [BM, BN]
                    at = (wide(outs, HUGE) * shape.samples + tap) * channels.ins_per_group
                    where = weight + at[:, None] + in_group[None, :]
                    w = tl.load(where, mask=in_outs[:, None] & in_span[None, :], other=0.0)  # [BN, BK]
                    g = contract(g, gy, w, HOW, PRECISION)

            if MOVES:
                q00 = tl.sum(g * load_corner(x, start, rows[0], c, in_span, EVEN), 1)  # [BM]
                q01 = tl.sum(g * load_corner(x, start, rows[1], c, in_span, EVEN), 1)
                q10 = tl.sum(g * load_corner(x, start, rows[2], c, in_span, EVEN), 1)
                q11 = tl.sum(g * load_corner(x, start, rows[3], c, in_span, EVEN), 1)
                to_y = m * (vy0 * (wx0 * q00 + wx1 * q01) + vy1 * (wx0 * q10 + wx1 * q11))
                to_x = m * (vx0 * (wy0 * q00 + wy1 * q10) + vx1 * (wy0 * q01 + wy1 * q11))
                if KIND == "deformable":
                    where = to_field + wide(tap, HUGE) * grad_field_strides.n
                    deposit(where, to_y, live, DEPOSIT)
                    deposit(where + grad_field_strides.d, to_x, live, DEPOSIT)
                elif KIND != "grid":
                    e0, e1, e2, e3, e4 = offset_gradient(a, b, r, p0, p1, p2, p3, p4, to_y, to_x, KIND, DRIFT)
                    g0, g1, g2, g3, g4 = g0 + e0, g1 + e1, g2 + e2, g3 + e3, g4 + e4
                if MODULATED:
                    to_m = wy0 * (wx0 * q00 + wx1 * q01) + wy1 * (wx0 * q10 + wx1 * q11)
                    deposit(to_modulation + wide(tap, HUGE) * grad_modulation_strides.n, to_m, live, DEPOSIT)

            weights = (m * wy0 * wx0, m * wy0 * wx1, m * wy1 * wx0, m * wy1 * wx1)
            if WINDOW == "no":
                if SCATTER != "no":
                    scatter_corners(grad_x, start, rows, weights, c, g, live, in_span, factor, SCATTER)
            else:
                at_y = tl.minimum(tl.maximum(centre_y + dy, -FARTHEST), FARTHEST) - first_y
                at_x = tl.minimum(tl.maximum(centre_x + dx, -FARTHEST), FARTHEST) - first_x
                inside = live
                if WINDOW == "patch":
                    inside = (at_y >= 0) & (at_y < WH - 1) & (at_x >= 0) & (at_x < WW - 1)
                s = window_weights(
                    at_y, at_x, m, image - first_image, inside, x.dtype.element_ty, WB, WH, WW, BM
                )  # [BW, BM]
                window = product(s, g.to(x.dtype.element_ty), window, PRECISION)
                if WINDOW == "patch":  # what leaves the window is added on its own
                    stray = live & (inside == 0) & ((wy0 + wy1) * (wx0 + wx1) != 0)
                    if tl.max(stray.to(tl.int32), 0) > 0:
                        scatter_corners(grad_x, start, rows, weights, c, g, stray, in_span, factor, SCATTER)

        if MOVES:
            if KIND == "ball" or KIND == "shifted" or KIND == "dilated":
                deposit(to_field, g0, live, DEPOSIT)
            if KIND == "ball" or KIND == "shifted":
                deposit(to_field + grad_field_strides.n, g1, live, DEPOSIT)
            if KIND == "ball":
                deposit(to_field + grad_field_strides.n * 2, g2, live, DEPOSIT)
                if DRIFT:
                    deposit(to_drift, g3, live, DEPOSIT)
                    deposit(to_drift + grad_drift_strides.n, g4, live, DEPOSIT)

    if WINDOW != "no":
        pixels, counts = window_rows(first_image, first_y, first_x, shape, MODE, HUGE, WB, WH, WW)
        mask = counts[:, None] & in_span[None, :]
        if WINDOW == "image":
            where = grad_x + (pixels * channels.ins)[:, None] + c[None, :]
            tl.store(where, window.to(grad_x.dtype.element_ty), mask=mask)
        else:
            scatter(grad_x, pixels * channels.ins, tl.zeros_like(pixels), c, window, mask, factor, SCATTER)


@triton.jit
def backward_weight_kernel(
    grad_out,  # [B, C_out, *out]
    x,  # [B, H, W, C]
    modulation,
    field,
    drift,
    table,
    grad_weight,  # [parts, C_out, P, C/groups], float32
    shape,
    channels,
    lattice,
    field_strides,
    drift_strides,
    modulation_strides,
    out_strides,
    tiles,
    tiles_per_part,
    part_stride,
    KIND: tl.constexpr,
    DRIFT: tl.constexpr,
    MODULATED: tl.constexpr,
    MODE: tl.constexpr,
    HOW: tl.constexpr,
    PRECISION: tl.constexpr,
    HUGE: tl.constexpr,
    EVEN: tl.constexpr,
    DEPOSIT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    TW: tl.constexpr,
    BLOCKS: tl.constexpr,  # blocks of input channels to a span
    STEPS: tl.constexpr,  # blocks of output channels to a group
):
    """∂L/∂w_j = Σ_o ∂L/∂y(o) m_j(o) x(centre + Δ_j(o)), for one tap, a block of channels and a part of the pixels."""
    # Programs side by side share the part, so what one gathers the next finds in cache.
    blocks = channels.ins // channels.span * BLOCKS * STEPS * shape.samples
    part = tl.program_id(0) // blocks
    rest = tl.program_id(0) % blocks
    tap = rest // (blocks // shape.samples)
    rest = rest % (blocks // shape.samples)
    block = rest // STEPS
    span = block // BLOCKS
    here = block % BLOCKS * BK + tl.arange(0, BK)
    in_span = here < channels.span
    c = span * channels.span + here  # [BK]
    group = span // channels.spans_per_group
    in_group = span % channels.spans_per_group * channels.span + here
    metric = span // channels.spans_per_metric
    if HOW == "each":
        outs, in_outs = c, in_span
        acc = tl.zeros([BM, BK], tl.float32)
    else:
        inner = rest % STEPS * BN + tl.arange(0, BN)
        in_outs = inner < channels.outs_per_group
        outs = group * channels.outs_per_group + inner  # [BN]
        if HOW == "dot":
            acc = tl.zeros([BN, BK], tl.float32)
        else:
            acc = tl.zeros([BM, BN, BK], tl.float32)

    a, b, r = reference_cell(tap, table, shape, lattice, KIND)
    for tile in range(part * tiles_per_part, tl.minimum((part + 1) * tiles_per_part, tiles)):
        image, row, column, live = tile_pixels(tile, shape, HUGE, BM, TW)
        field_at = place(image, metric, row, column, field_strides, HUGE)
        drift_at = place(image, metric, row, column, drift_strides, HUGE)
        p0, p1, p2, p3, p4 = load_parameters(
            field, field_at, field_strides, drift, drift_at, drift_strides, KIND, DRIFT
        )
        p0, p1 = load_tap(field, field_at, field_strides, tap, p0, p1, KIND, HUGE)
        dy, dx = offset(a, b, r, p0, p1, p2, p3, p4, KIND, DRIFT)
        start = image_start(image, shape, channels.ins, HUGE)
        centre_y = row * lattice.stride_y + lattice.origin_y
        centre_x = column * lattice.stride_x + lattice.origin_x
        y0, y1, wy0, wy1, _, _ = axis_corners(centre_y + dy, shape.height, MODE)
        x0, x1, wx0, wx1, _, _ = axis_corners(centre_x + dx, shape.width, MODE)
        if MODULATED:
            at = place(image, metric, row, column, modulation_strides, HUGE) + wide(tap, HUGE) * modulation_strides.n
            m = tl.load(modulation + at).to(tl.float32)
            wy0, wy1 = wy0 * m, wy1 * m
        rows = corner_rows(y0, y1, x0, x1, shape, channels.ins, HUGE)
        value = sample(x, start, rows, (wy0, wy1, wx0, wx1), c, in_span, EVEN)  # [BM, BK]
        out_at = place(image, tl.zeros_like(row), row, column, out_strides, HUGE)
        where = grad_out + out_at[:, None] + wide(outs, HUGE)[None, :] * out_strides.n
        gy = tl.load(where, mask=live[:, None] & in_outs[None, :], other=0.0)  # [BM, BN]
        if HOW == "dot":
            acc = product(tl.trans(gy), value.to(gy.dtype), acc, PRECISION)
        elif HOW == "sum":
            acc += gy.to(tl.float32)[:, :, None] * value[:, None, :]
        else:
            acc += gy.to(tl.float32) * value

    first = grad_weight + wide(part, HUGE) * part_stride
    at = (wide(outs, HUGE) * shape.samples + tap) * channels.ins_per_group
    if HOW == "each":
        deposit(first + at, tl.sum(acc, 0), in_span, DEPOSIT)
    else:
        if HOW == "sum":
            acc = tl.sum(acc, 0)  # [BN, BK]
        where = first + at[:, None] + in_group[None, :]
        deposit(where, acc, in_outs[:, None] & in_span[None, :], DEPOSIT)
