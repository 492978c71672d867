"""The backward kernel for the weights, at times with the geometry. It computes the samples again."""

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
    offset,
    offset_gradient,
    place,
    reference_cell,
    tile_pixels,
    wide,
)
from .gradients import deposit, deposit_parameters, position_gradient


@triton.jit
def backward_weight_kernel(
    grad_out,  # [B, C_out, *out]
    x,  # [B, H, W, C]
    modulation,
    field,
    drift,
    table,
    weight,  # [C_out, P, C/groups]
    grad_weight,  # [parts, C_out, P, C/groups], float32
    grad_modulation,  # [B, G, P, *out], float32, as all that follow
    grad_field,  # [B, G, n, *out] or [B, G, P, 2, *out]
    grad_drift,  # [B, G, 2, *out]
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
    tiles,
    tiles_per_part,
    part_stride,
    KIND: tl.constexpr,
    PAIRED: tl.constexpr,  # a deformable field's two numbers lie side by side
    DRIFT: tl.constexpr,
    MODULATED: tl.constexpr,
    MODE: tl.constexpr,
    HOW: tl.constexpr,
    PRECISION: tl.constexpr,
    HUGE: tl.constexpr,
    EVEN: tl.constexpr,
    MOVES: tl.constexpr,  # "no", or how to deposit the gradients of field, drift and modulation; only if HOW is "dot"
    DEPOSIT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    TW: tl.constexpr,
    BLOCKS: tl.constexpr,  # blocks of input channels to a span
    STEPS: tl.constexpr,  # blocks of output channels to a group
):
    """∂L/∂w_j = Σ_o ∂L/∂y(o) m_j(o) x(centre + Δ_j(o)), for one tap, a block of channels and a part of the pixels.

    What is gathered for it serves the geometry too: the block's share of g_j = w_j ∂L/∂y meets the same corners, and
    the shares of all blocks and taps are added in memory.
    """
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

    if MOVES != "no":
        cells = (wide(outs, HUGE) * shape.samples + tap) * channels.ins_per_group
        w_at = weight + cells[:, None] + in_group[None, :]
        w = tl.load(w_at, mask=in_outs[:, None] & in_span[None, :], other=0.0)  # [BN, BK]
    a, b, r = reference_cell(tap, table, shape, lattice, KIND)
    for tile in range(part * tiles_per_part, tl.minimum((part + 1) * tiles_per_part, tiles)):
        image, row, column, live = tile_pixels(tile, shape, HUGE, BM, TW)
        field_at = place(image, metric, row, column, field_strides, HUGE)
        drift_at = place(image, metric, row, column, drift_strides, HUGE)
        p0, p1, p2, p3, p4 = load_parameters(
            field, field_at, field_strides, drift, drift_at, drift_strides, KIND, DRIFT
        )
        p0, p1 = load_tap(field, field_at, field_strides, tap, p0, p1, KIND, PAIRED, HUGE)
        dy, dx = offset(a, b, r, p0, p1, p2, p3, p4, KIND, DRIFT)
        start = image_start(image, shape, channels.ins, HUGE)
        centre_y = row * lattice.stride_y + lattice.origin_y
        centre_x = column * lattice.stride_x + lattice.origin_x
        y0, y1, wy0, wy1, vy0, vy1 = axis_corners(centre_y, lattice.half_y + dy, shape.height, MODE)
        x0, x1, wx0, wx1, vx0, vx1 = axis_corners(centre_x, lattice.half_x + dx, shape.width, MODE)
        modulation_at = place(image, metric, row, column, modulation_strides, HUGE)
        m = load_factor(modulation, modulation_at, modulation_strides, tap, MODULATED, HUGE)
        rows = corner_rows(y0, y1, x0, x1, shape, channels.ins, HUGE)
        corners = load_corners(x, start, rows, c, in_span, EVEN)
        value = blend(corners, (m * wy0, m * wy1, wx0, wx1), HOW)  # [BM, BK]
        out_at = place(image, tl.zeros_like(row), row, column, out_strides, HUGE)
        where = grad_out + out_at[:, None] + wide(outs, HUGE)[None, :] * out_strides.n
        gy = tl.load(where, mask=live[:, None] & in_outs[None, :], other=0.0)  # [BM, BN]
        if MOVES != "no":
            g = product(gy, w, tl.zeros([BM, BK], tl.float32), PRECISION)
            weights, slopes = (wy0, wy1, wx0, wx1), (vy0, vy1, vx0, vx1)
            along_y, along_x = (centre_y, lattice.half_y + dy), (centre_x, lattice.half_x + dx)
            to_y, to_x, to_m = position_gradient(
                g, corners, weights, slopes, x, start, along_y, along_x, (a, b, r), (dy, dx), c, in_span, shape,
                channels, lattice, KIND, MODULATED, MODE, HUGE, EVEN,
            )  # fmt: skip
            to_y, to_x = m * to_y, m * to_x
            to_field, to_drift = grad_field, grad_drift
            if KIND != "grid":
                to_field += place(image, metric, row, column, grad_field_strides, HUGE)
            if DRIFT:
                to_drift += place(image, metric, row, column, grad_drift_strides, HUGE)
            if KIND == "deformable":
                to_field += wide(tap, HUGE) * grad_field_strides.n
                deposit(to_field, to_y, live, MOVES)
                deposit(to_field + grad_field_strides.d, to_x, live, MOVES)
            elif KIND != "grid":
                gradients = offset_gradient(a, b, r, p0, p1, p2, p3, p4, to_y, to_x, KIND, DRIFT)
                steps = (grad_field_strides.n, grad_drift_strides.n)
                deposit_parameters(to_field, to_drift, gradients, live, steps, KIND, DRIFT, MOVES)
            if MODULATED:
                at = place(image, metric, row, column, grad_modulation_strides, HUGE)
                deposit(grad_modulation + at + wide(tap, HUGE) * grad_modulation_strides.n, to_m, live, MOVES)
        if HOW == "dot":
            acc = product(tl.trans(gy), value.to(gy.dtype), acc, PRECISION)
        elif HOW == "sum":
            acc += gy.to(tl.float32)[:, :, None] * value[:, None, :]
        else:
            acc += gy.to(tl.float32) * value

    first = grad_weight + part.to(tl.int64) * part_stride
    at = (wide(outs, HUGE) * shape.samples + tap) * channels.ins_per_group
    if HOW == "each":
        deposit(first + at, tl.sum(acc, 0), in_span, DEPOSIT)
    else:
        if HOW == "sum":
            acc = tl.sum(acc, 0)  # [BN, BK]
        where = first + at[:, None] + in_group[None, :]
        deposit(where, acc, in_outs[:, None] & in_span[None, :], DEPOSIT)
