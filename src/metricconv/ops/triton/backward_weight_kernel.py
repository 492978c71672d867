"""The backward kernel for the weights and, optionally, the geometry. It recomputes the samples."""

import triton
import triton.language as tl

from .forward_kernel import product
from .geometry import (
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
    sample_offset_gradient,
    tile_pixels,
    widen_index,
)
from .gradients import position_gradient, write_gradient, write_parameter_gradients


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
    dims,
    channels,
    sampling_grid,
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
    LOAD_PAIRS: tl.constexpr,  # load both displacement components of a deformable sample as one number
    DRIFT: tl.constexpr,
    MODULATED: tl.constexpr,
    PADDING: tl.constexpr,
    CONTRACTION: tl.constexpr,
    PRECISION: tl.constexpr,
    INT64: tl.constexpr,
    EVEN: tl.constexpr,
    GEOMETRY: tl.constexpr,  # how to write those of field, drift and modulation; not "none" only for CONTRACTION "dot"
    WRITE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    TW: tl.constexpr,
    BLOCKS: tl.constexpr,  # blocks of input channels per run
    STEPS: tl.constexpr,  # blocks of output channels per group
):
    """Write ∂L/∂w_j = Σ_o ∂L/∂y(o) m_j(o) x(center + Δ_j(o)) for a sample, a block of channels, a part of the pixels.

    The gathered corners serve the geometry too: they are multiplied by the block's contribution to g_j = w_j ∂L/∂y, and
    the gradients of all blocks and samples are added atomically.
    """
    # Consecutive programs work on the same part of the pixels, so that they find each other's data in the cache.
    blocks = channels.ins // channels.run * BLOCKS * STEPS * dims.samples
    part = tl.program_id(0) // blocks
    rest = tl.program_id(0) % blocks
    sample = rest // (blocks // dims.samples)
    rest = rest % (blocks // dims.samples)
    block = rest // STEPS
    run = block // BLOCKS
    channel_in_run = block % BLOCKS * BK + tl.arange(0, BK)
    in_run = channel_in_run < channels.run
    c = run * channels.run + channel_in_run  # [BK]
    group = run // channels.runs_per_group
    in_group = run % channels.runs_per_group * channels.run + channel_in_run
    metric = run // channels.runs_per_metric
    if CONTRACTION == "depthwise":
        outs, in_outs = c, in_run
        acc = tl.zeros([BM, BK], tl.float32)
    else:
        inner = rest % STEPS * BN + tl.arange(0, BN)
        in_outs = inner < channels.outs_per_group
        outs = group * channels.outs_per_group + inner  # [BN]
        if CONTRACTION == "dot":
            acc = tl.zeros([BN, BK], tl.float32)
        else:
            acc = tl.zeros([BM, BN, BK], tl.float32)

    if GEOMETRY != "none":
        weight_index = (widen_index(outs, INT64) * dims.samples + sample) * channels.ins_per_group
        weight_pointers = weight + weight_index[:, None] + in_group[None, :]
        w = tl.load(weight_pointers, mask=in_outs[:, None] & in_run[None, :], other=0.0)  # [BN, BK]
    a, b, r = reference_sample(sample, table, dims, sampling_grid, KIND)
    for tile in range(part * tiles_per_part, tl.minimum((part + 1) * tiles_per_part, tiles)):
        image, row, column, valid = tile_pixels(tile, dims, INT64, BM, TW)
        field_index = pixel_index(image, metric, row, column, field_strides, INT64)
        drift_index = pixel_index(image, metric, row, column, drift_strides, INT64)
        p0, p1, p2, p3, p4 = load_parameters(
            field, field_index, field_strides, drift, drift_index, drift_strides, KIND, DRIFT
        )
        p0, p1 = load_vector(field, field_index, field_strides, sample, p0, p1, KIND, LOAD_PAIRS, INT64)
        dy, dx = sample_offset(a, b, r, p0, p1, p2, p3, p4, KIND, DRIFT)
        start = image_start(image, dims, channels.ins, INT64)
        center_y = row * sampling_grid.stride_y + sampling_grid.origin_y
        center_x = column * sampling_grid.stride_x + sampling_grid.origin_x
        y0, y1, wy0, wy1, vy0, vy1 = axis_corners(center_y, sampling_grid.half_y + dy, dims.height, PADDING)
        x0, x1, wx0, wx1, vx0, vx1 = axis_corners(center_x, sampling_grid.half_x + dx, dims.width, PADDING)
        modulation_index = pixel_index(image, metric, row, column, modulation_strides, INT64)
        m = load_modulation(modulation, modulation_index, modulation_strides, sample, MODULATED, INT64)
        corner_index = corner_indices(y0, y1, x0, x1, dims, channels.ins, INT64)
        corners = load_corners(x, start, corner_index, c, in_run, EVEN)
        value = interpolate(corners, (m * wy0, m * wy1, wx0, wx1), CONTRACTION)  # [BM, BK]
        out_index = pixel_index(image, tl.zeros_like(row), row, column, out_strides, INT64)
        out_pointers = grad_out + out_index[:, None] + widen_index(outs, INT64)[None, :] * out_strides.n
        gy = tl.load(out_pointers, mask=valid[:, None] & in_outs[None, :], other=0.0)  # [BM, BN]
        if GEOMETRY != "none":
            g = product(gy, w, tl.zeros([BM, BK], tl.float32), PRECISION)
            weights, slopes = (wy0, wy1, wx0, wx1), (vy0, vy1, vx0, vx1)
            along_y, along_x = (center_y, sampling_grid.half_y + dy), (center_x, sampling_grid.half_x + dx)
            gradient_y, gradient_x, gradient_m = position_gradient(
                g, corners, weights, slopes, x, start, along_y, along_x, (a, b, r), (dy, dx), c, in_run, dims,
                channels, sampling_grid, KIND, MODULATED, PADDING, INT64, EVEN,
            )  # fmt: skip
            gradient_y, gradient_x = m * gradient_y, m * gradient_x
            field_pointers, drift_pointers, modulation_pointers = grad_field, grad_drift, grad_modulation
            if KIND != "grid":
                field_pointers += pixel_index(image, metric, row, column, grad_field_strides, INT64)
            if DRIFT != "none":
                drift_pointers += pixel_index(image, metric, row, column, grad_drift_strides, INT64)
            if KIND == "deformable":
                field_pointers += widen_index(sample, INT64) * grad_field_strides.n
                write_gradient(field_pointers, gradient_y, valid, GEOMETRY)
                write_gradient(field_pointers + grad_field_strides.d, gradient_x, valid, GEOMETRY)
            elif KIND != "grid":
                gradients = sample_offset_gradient(a, b, r, p0, p1, p2, p3, p4, gradient_y, gradient_x, KIND, DRIFT)
                steps = (grad_field_strides.n, grad_drift_strides.n)
                write_parameter_gradients(
                    field_pointers, drift_pointers, gradients, valid, steps, KIND, DRIFT, GEOMETRY
                )
            if MODULATED:
                modulation_pointers += pixel_index(image, metric, row, column, grad_modulation_strides, INT64)
                modulation_pointers += widen_index(sample, INT64) * grad_modulation_strides.n
                write_gradient(modulation_pointers, gradient_m, valid, GEOMETRY)
        if CONTRACTION == "dot":
            acc = product(tl.trans(gy), value.to(gy.dtype), acc, PRECISION)
        elif CONTRACTION == "broadcast":
            acc += gy.to(tl.float32)[:, :, None] * value[:, None, :]
        else:
            acc += gy.to(tl.float32) * value

    first = grad_weight + part.to(tl.int64) * part_stride
    index = (widen_index(outs, INT64) * dims.samples + sample) * channels.ins_per_group
    if CONTRACTION == "depthwise":
        write_gradient(first + index, tl.sum(acc, 0), in_run, WRITE)
    else:
        if CONTRACTION == "broadcast":
            acc = tl.sum(acc, 0)  # [BN, BK]
        pointers = first + index[:, None] + in_group[None, :]
        write_gradient(pointers, acc, in_outs[:, None] & in_run[None, :], WRITE)
