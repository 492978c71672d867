"""The forward kernel: gathers samples and multiplies them by the weights, without storing offsets or samples.

For wide layers, where most of the work is the product, it only writes the samples to the im2col buffer.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from .geometry import (
    INTERPRETED,
    axis_corners,
    corner_indices,
    image_start,
    interpolate,
    load_corners,
    load_modulation,
    load_parameters,
    load_vector,
    pixel_index,
    reference_sample,
    sample_offset,
    tile_pixels,
    widen_index,
)


class Channels(NamedTuple):
    """Grouping of channels.

    A run is a range of input channels that share both a weight group and a metric. Every block of channels that a
    program handles lies in one run, so that it needs one set of sampling locations per pixel.
    """

    ins: int
    outs: int
    ins_per_group: int
    outs_per_group: int
    run: int  # channels per run
    runs_per_group: int
    runs_per_metric: int


@triton.jit
def product(a, b, acc, PRECISION: tl.constexpr):
    """Return the matrix product acc + a b, computed on the tensor cores."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision=PRECISION)
    else:
        return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def contract(acc, a, w, CONTRACTION: tl.constexpr, PRECISION: tl.constexpr):
    """Return acc [BM, BN] + a [BM, BK] w [BK, BN]; for depthwise convolutions acc + a * w elementwise, w [1, BN]."""
    if CONTRACTION == "dot":
        return product(a.to(w.dtype), w, acc, PRECISION)
    elif CONTRACTION == "broadcast":
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
    dims,
    channels,
    sampling_grid,
    field_strides,
    drift_strides,
    modulation_strides,
    out_strides,
    KIND: tl.constexpr,
    LOAD_PAIRS: tl.constexpr,  # load both displacement components of a deformable sample as one number
    DRIFT: tl.constexpr,  # how it enters the norm of a ball: "none", "linear" or "one-sided"
    MODULATED: tl.constexpr,
    BIASED: tl.constexpr,
    PADDING: tl.constexpr,
    CONTRACTION: tl.constexpr,
    PRECISION: tl.constexpr,
    INT64: tl.constexpr,
    EVEN: tl.constexpr,  # BK divides the run
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    TW: tl.constexpr,
    BLOCKS: tl.constexpr,  # blocks of output channels per group; if channelwise, per run
    STEPS: tl.constexpr,  # blocks of input channels per run
):
    """Write y(o) = bias + Σ_j w_j m_j x(center + Δ_j) for a tile of BM pixels and a block of BN output channels.

    With CONTRACTION "im2col", write the samples m_j x(center + Δ_j) of a block of BN channels to ``out`` [B·out, P, C].
    """
    # Consecutive programs compute the blocks of one tile, so that they find each other's data in the cache.
    CHANNELWISE: tl.constexpr = CONTRACTION == "depthwise" or CONTRACTION == "im2col"
    if CHANNELWISE:
        blocks = channels.ins // channels.run * BLOCKS
    else:
        blocks = channels.outs // channels.outs_per_group * BLOCKS
    tile = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    image, row, column, valid = tile_pixels(tile, dims, INT64, BM, TW)
    group = block // BLOCKS
    inner = block % BLOCKS * BN + tl.arange(0, BN)
    if CHANNELWISE:  # the block lies in one run
        in_outs = inner < channels.run
        outs = group * channels.run + inner  # [BN]
        first_run = group
        runs = 1
    else:
        in_outs = inner < channels.outs_per_group
        outs = group * channels.outs_per_group + inner
        first_run = group * channels.runs_per_group
        runs = channels.runs_per_group

    center_y = row * sampling_grid.stride_y + sampling_grid.origin_y
    center_x = column * sampling_grid.stride_x + sampling_grid.origin_x
    start = image_start(image, dims, channels.ins, INT64)
    acc = tl.zeros([BM, BN], tl.float32)
    for s in range(runs):
        metric = (first_run + s) // channels.runs_per_metric
        field_index = pixel_index(image, metric, row, column, field_strides, INT64)
        drift_index = pixel_index(image, metric, row, column, drift_strides, INT64)
        modulation_index = pixel_index(image, metric, row, column, modulation_strides, INT64)
        p0, p1, p2, p3, p4 = load_parameters(
            field, field_index, field_strides, drift, drift_index, drift_strides, KIND, DRIFT
        )
        p0, p1 = load_vector(field, field_index, field_strides, 0, p0, p1, KIND, LOAD_PAIRS, INT64)
        next_m = load_modulation(modulation, modulation_index, modulation_strides, 0, MODULATED, INT64)
        for sample in range(dims.samples):
            a, b, r = reference_sample(sample, table, dims, sampling_grid, KIND)
            dy, dx = sample_offset(a, b, r, p0, p1, p2, p3, p4, KIND, DRIFT)
            m = next_m
            next_sample = tl.minimum(sample + 1, dims.samples - 1)  # loaded early, to hide the latency
            p0, p1 = load_vector(field, field_index, field_strides, next_sample, p0, p1, KIND, LOAD_PAIRS, INT64)
            next_m = load_modulation(modulation, modulation_index, modulation_strides, next_sample, MODULATED, INT64)
            y0, y1, wy0, wy1, _, _ = axis_corners(center_y, sampling_grid.half_y + dy, dims.height, PADDING)
            x0, x1, wx0, wx1, _, _ = axis_corners(center_x, sampling_grid.half_x + dx, dims.width, PADDING)
            corner_index = corner_indices(y0, y1, x0, x1, dims, channels.ins, INT64)
            for k in tl.range(STEPS):
                if CHANNELWISE:
                    inner_k, in_run = inner, in_outs
                else:
                    inner_k = k * BK + tl.arange(0, BK)
                    in_run = inner_k < channels.run
                c = (first_run + s) * channels.run + inner_k  # [BK]
                corners = load_corners(x, start, corner_index, c, in_run, EVEN)
                value = interpolate(corners, (m * wy0, m * wy1, wx0, wx1), CONTRACTION)  # [BM, BK]
                weight_index = widen_index(outs, INT64) * dims.samples + sample
                if CONTRACTION == "im2col":
                    pixel = (widen_index(image, INT64) * dims.out_height + row) * dims.out_width + column
                    out_index = ((pixel * dims.samples + sample) * channels.ins)[:, None] + c[None, :]
                    tl.store(out + out_index, value.to(out.dtype.element_ty), mask=valid[:, None] & in_run[None, :])
                elif CONTRACTION == "depthwise":
                    w = tl.load(weight + weight_index, mask=in_outs, other=0.0)[None, :]  # [1, BN]
                    acc = contract(acc, value, w, CONTRACTION, PRECISION)
                else:
                    weight_index = weight_index * channels.ins_per_group + s * channels.run
                    pointers = weight + weight_index[None, :] + inner_k[:, None]
                    w = tl.load(pointers, mask=in_run[:, None] & in_outs[None, :], other=0.0)  # [BK, BN]
                    acc = contract(acc, value, w, CONTRACTION, PRECISION)

    if BIASED:
        acc += tl.load(bias + outs, mask=in_outs, other=0.0).to(tl.float32)[None, :]
    if CONTRACTION != "im2col":
        pixel = pixel_index(image, tl.zeros_like(row), row, column, out_strides, INT64)
        out_index = pixel[:, None] + widen_index(outs, INT64)[None, :] * out_strides.n
        tl.store(out + out_index, acc.to(out.dtype.element_ty), mask=valid[:, None] & in_outs[None, :])
