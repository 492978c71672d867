"""The forward kernel: gather, blend and contract, without ever writing an offset or a column to memory.

Or gather and blend alone: where the product is most of the work, samples are kept, for a library to contract.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from .geometry import (
    INTERPRETED,
    axis_corners,
    blend,
    corner_rows,
    image_start,
    load_corners,
    load_factor,
    load_parameters,
    load_tap,
    offset,
    place,
    reference_cell,
    tile_pixels,
    wide,
)


class Channels(NamedTuple):
    """How channels are shared out.

    A span is a run of input channels that share both a group of weights and a metric: every block of channels that a
    program handles lies in one span, so each pixel has one geometry there.
    """

    ins: int
    outs: int
    ins_per_group: int
    outs_per_group: int
    span: int
    spans_per_group: int
    spans_per_metric: int


@triton.jit
def product(a, b, acc, PRECISION: tl.constexpr):
    """Return acc + a b, on the tensor cores."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision=PRECISION)
    else:
        return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def contract(acc, a, w, HOW: tl.constexpr, PRECISION: tl.constexpr):
    """Add a [BM, BK] times w [BK, BN] to acc [BM, BN]; or channel by channel, a times w [1, BN]."""
    if HOW == "dot":
        return product(a.to(w.dtype), w, acc, PRECISION)
    elif HOW == "sum":
        return acc + tl.sum(a[:, :, None] * w.to(tl.float32)[None, :, :], 1)
    else:
        return acc + a * w.to(tl.float32)


@triton.jit
def forward_kernel(
    x,  # [B, H, W, C]
    weight,  # [C_out, P, C/groups]
    bias,  # [C_out]
    modulation,  # [B, G, P, *out]
    field,  # [B, G, n, *out] or [B, G, P, 2, *out]
    drift,  # [B, G, 2, *out]
    table,  # [P, 3]
    out,  # [B, C_out, *out]
    shape,
    channels,
    lattice,
    field_strides,
    drift_strides,
    modulation_strides,
    out_strides,
    KIND: tl.constexpr,
    PAIRED: tl.constexpr,  # a deformable field's two numbers lie side by side
    DRIFT: tl.constexpr,
    MODULATED: tl.constexpr,
    BIASED: tl.constexpr,
    MODE: tl.constexpr,
    HOW: tl.constexpr,
    PRECISION: tl.constexpr,
    HUGE: tl.constexpr,
    EVEN: tl.constexpr,  # BK divides the span
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    TW: tl.constexpr,
    BLOCKS: tl.constexpr,  # blocks of output channels to a group; channel by channel, to a span
    STEPS: tl.constexpr,  # blocks of input channels to a span
):
    """y(o) = bias + Σ_j w_j m_j x(centre + Δ_j) for a tile of BM pixels and a block of BN output channels.

    With HOW "keep", m_j x(centre + Δ_j) themselves for a block of BN channels, in ``out`` [B·out, P, C].
    """
    # All blocks of a tile run side by side, so that what one gathers the next finds in cache.
    ALONE: tl.constexpr = HOW == "each" or HOW == "keep"  # channel by channel
    if ALONE:
        blocks = channels.ins // channels.span * BLOCKS
    else:
        blocks = channels.outs // channels.outs_per_group * BLOCKS
    tile = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    image, row, column, live = tile_pixels(tile, shape, HUGE, BM, TW)
    group = block // BLOCKS
    inner = block % BLOCKS * BN + tl.arange(0, BN)
    if ALONE:  # the block lies in one span
        in_outs = inner < channels.span
        outs = group * channels.span + inner  # [BN]
        first_span = group
        spans = 1
    else:
        in_outs = inner < channels.outs_per_group
        outs = group * channels.outs_per_group + inner
        first_span = group * channels.spans_per_group
        spans = channels.spans_per_group

    centre_y = row * lattice.stride_y + lattice.origin_y
    centre_x = column * lattice.stride_x + lattice.origin_x
    start = image_start(image, shape, channels.ins, HUGE)
    acc = tl.zeros([BM, BN], tl.float32)
    for s in range(spans):
        metric = (first_span + s) // channels.spans_per_metric
        field_at = place(image, metric, row, column, field_strides, HUGE)
        drift_at = place(image, metric, row, column, drift_strides, HUGE)
        modulation_at = place(image, metric, row, column, modulation_strides, HUGE)
        p0, p1, p2, p3, p4 = load_parameters(
            field, field_at, field_strides, drift, drift_at, drift_strides, KIND, DRIFT
        )
        p0, p1 = load_tap(field, field_at, field_strides, 0, p0, p1, KIND, PAIRED, HUGE)
        next_m = load_factor(modulation, modulation_at, modulation_strides, 0, MODULATED, HUGE)
        for tap in range(shape.samples):
            a, b, r = reference_cell(tap, table, shape, lattice, KIND)
            dy, dx = offset(a, b, r, p0, p1, p2, p3, p4, KIND, DRIFT)
            m = next_m
            following = tl.minimum(tap + 1, shape.samples - 1)  # asked for early, so that it is there in time
            p0, p1 = load_tap(field, field_at, field_strides, following, p0, p1, KIND, PAIRED, HUGE)
            next_m = load_factor(modulation, modulation_at, modulation_strides, following, MODULATED, HUGE)
            y0, y1, wy0, wy1, _, _ = axis_corners(centre_y, lattice.half_y + dy, shape.height, MODE)
            x0, x1, wx0, wx1, _, _ = axis_corners(centre_x, lattice.half_x + dx, shape.width, MODE)
            rows = corner_rows(y0, y1, x0, x1, shape, channels.ins, HUGE)
            for k in tl.range(STEPS):
                if ALONE:
                    here, in_span = inner, in_outs
                else:
                    here = k * BK + tl.arange(0, BK)
                    in_span = here < channels.span
                c = (first_span + s) * channels.span + here  # [BK]
                corners = load_corners(x, start, rows, c, in_span, EVEN)
                value = blend(corners, (m * wy0, m * wy1, wx0, wx1), HOW)  # [BM, BK]
                at = wide(outs, HUGE) * shape.samples + tap
                if HOW == "keep":
                    pixel = (wide(image, HUGE) * shape.out_height + row) * shape.out_width + column
                    to = ((pixel * shape.samples + tap) * channels.ins)[:, None] + c[None, :]
                    tl.store(out + to, value.to(out.dtype.element_ty), mask=live[:, None] & in_span[None, :])
                elif HOW == "each":
                    w = tl.load(weight + at, mask=in_outs, other=0.0)[None, :]  # [1, BN]
                    acc = contract(acc, value, w, HOW, PRECISION)
                else:
                    where = weight + (at * channels.ins_per_group + s * channels.span)[None, :] + here[:, None]
                    w = tl.load(where, mask=in_span[:, None] & in_outs[None, :], other=0.0)  # [BK, BN]
                    acc = contract(acc, value, w, HOW, PRECISION)

    if BIASED:
        acc += tl.load(bias + outs, mask=in_outs, other=0.0).to(tl.float32)[None, :]
    if HOW != "keep":
        pixel = place(image, tl.zeros_like(row), row, column, out_strides, HUGE)
        to = pixel[:, None] + wide(outs, HUGE)[None, :] * out_strides.n
        tl.store(out + to, acc.to(out.dtype.element_ty), mask=live[:, None] & in_outs[None, :])
