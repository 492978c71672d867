"""The backward kernel for the image and the geometry. It recomputes the sampling locations and the samples."""

import triton
import triton.language as tl

from .forward_kernel import product
from .geometry import (
    axis_corners,
    clamp_position,
    corner_indices,
    image_start,
    interpolate,
    load_corners,
    load_modulation,
    load_parameters,
    load_vector,
    one_per_thread,
    pixel_index,
    reference_sample,
    sample_offset,
    sample_offset_gradient,
    tile_pixels,
    widen_index,
)
from .gradients import (
    load_upstream,
    position_gradient,
    sample_gradient,
    scatter,
    scatter_corners,
    write_gradient,
    write_parameter_gradients,
)
from .window import image_pixels, window_indices, window_position_gradient, window_weights


@triton.jit
def backward_data_kernel(
    grad_out,  # [B, C_out, *out]
    x,  # [B, H, W, C]
    weight,  # [C_out, P, C/groups]
    modulation,
    field,
    drift,
    table,
    grad_x,  # [B, H, W, C]: a sum in float32 or int64; in the image's dtype if windows are whole images
    grad_modulation,  # [parts, B, G, P, *out], float32
    grad_field,  # [parts, B, G, n, *out] or [parts, B, G, P, 2, *out], float32
    grad_drift,  # [parts, B, G, 2, *out], float32
    im2col,  # [B·out, P, C]: g_j if CONTRACTION is "im2col"; replaced by the samples m_j x_j if STORE_SAMPLES
    outlier_tiles,  # [programs]: 1 for tiles with samples outside their window, else 0
    scale,  # [1], of the fixed-point sums
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
    part_strides,  # of grad_field, grad_drift, grad_modulation
    KIND: tl.constexpr,
    LOAD_PAIRS: tl.constexpr,  # load both displacement components of a deformable sample as one number
    DRIFT: tl.constexpr,
    MODULATED: tl.constexpr,
    PADDING: tl.constexpr,
    CONTRACTION: tl.constexpr,
    PRECISION: tl.constexpr,
    INT64: tl.constexpr,
    EVEN: tl.constexpr,  # BK divides the run
    SCATTER: tl.constexpr,  # how to write the image's gradient: "none", "store", "add", "fixed" (point)
    GEOMETRY: tl.constexpr,  # how to write the gradients of field, drift and modulation: "none", "store", "add"
    STORE_SAMPLES: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    TW: tl.constexpr,
    BLOCKS: tl.constexpr,  # blocks of input channels per run
    STEPS: tl.constexpr,  # blocks of output channels per group
    WINDOW: tl.constexpr,  # "none", "patch", "outliers", "image": see window.py
    WB: tl.constexpr,
    WH: tl.constexpr,
    WW: tl.constexpr,
    TILES: tl.constexpr,  # tiles of pixels per window
    GATHER: tl.constexpr,  # samples are interpolated from "corners", or a product with the pixels of the "window"
):
    """Write the gradients of image, geometry and modulation for a tile of BM pixels and a block of BK input channels.

    With g_j = Σ_o w_jo ∂L/∂y_o, the gradient of sample j: the four corners in the image get m_j g_j times their
    weights, the position gets m_j g_j · ∂x, the modulation g_j · x. With CONTRACTION "im2col", g_j is read from there.
    """
    blocks = channels.ins // channels.run * BLOCKS
    program = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    run = block // BLOCKS
    channel_in_run = block % BLOCKS * BK + tl.arange(0, BK)
    in_run = channel_in_run < channels.run
    c = run * channels.run + channel_in_run  # [BK]
    group = run // channels.runs_per_group
    in_group = run % channels.runs_per_group * channels.run + channel_in_run  # index of the channel in its group
    metric = run // channels.runs_per_metric
    part = (run % channels.runs_per_metric * BLOCKS + block % BLOCKS).to(tl.int64)
    factor = 1.0
    if SCATTER == "fixed":
        factor = tl.load(scale)

    first_image, first_y, first_x = program * 0, program * 0, program * 0
    if WINDOW == "image":
        first_image = program * WB
    if WINDOW == "patch" or WINDOW == "outliers":  # the tile is in the middle of its window
        across = (dims.out_width + TW - 1) // TW
        down = (dims.out_height + BM // TW - 1) // (BM // TW)
        first_image = program // (across * down)
        middle_y = (
            program // across % down * (BM // TW) + (BM // TW - 1) / 2
        ) * sampling_grid.stride_y + sampling_grid.origin_y
        middle_x = (program % across * TW + (TW - 1) / 2) * sampling_grid.stride_x + sampling_grid.origin_x
        first_y = tl.floor(middle_y - (WH - 1) / 2).to(tl.int32)
        first_x = tl.floor(middle_x - (WW - 1) / 2).to(tl.int32)
    if (WINDOW == "patch" or WINDOW == "image") and SCATTER != "none":
        window = tl.zeros([WB * WH * WW, BK], tl.float32)
    if GATHER == "window":
        pixels, in_image = window_indices(first_image, first_y, first_x, dims, PADDING, INT64, WB, WH, WW)
        window_pointers = x + (pixels * channels.ins)[:, None] + c[None, :]
        window_pixels = tl.load(window_pointers, mask=in_image[:, None] & in_run[None, :], other=0.0)  # [BW, BK]

    tiles = TILES
    if WINDOW == "outliers":
        tiles = tl.load(outlier_tiles + tl.program_id(0))
    has_outlier = tl.zeros([BM], tl.int32)
    for t in tl.range(tiles):
        if WINDOW == "image":
            image, row, column, valid = image_pixels(first_image, t, dims, BM, WB)
        else:
            image, row, column, valid = tile_pixels(program, dims, INT64, BM, TW)
        field_index = pixel_index(image, metric, row, column, field_strides, INT64)
        drift_index = pixel_index(image, metric, row, column, drift_strides, INT64)
        modulation_index = pixel_index(image, metric, row, column, modulation_strides, INT64)
        out_index = pixel_index(image, tl.zeros_like(row), row, column, out_strides, INT64)
        p0, p1, p2, p3, p4 = load_parameters(
            field, field_index, field_strides, drift, drift_index, drift_strides, KIND, DRIFT
        )
        field_pointers, drift_pointers, modulation_pointers = grad_field, grad_drift, grad_modulation
        if GEOMETRY != "none" and KIND != "grid":
            field_pointers += pixel_index(image, metric, row, column, grad_field_strides, INT64)
            field_pointers += part * part_strides[0]
        if GEOMETRY != "none" and DRIFT != "none":
            drift_pointers += pixel_index(image, metric, row, column, grad_drift_strides, INT64)
            drift_pointers += part * part_strides[1]
        if GEOMETRY != "none" and MODULATED:
            modulation_pointers += pixel_index(image, metric, row, column, grad_modulation_strides, INT64)
            modulation_pointers += part * part_strides[2]
        if CONTRACTION == "im2col":
            pixel = (widen_index(image, INT64) * dims.out_height + row) * dims.out_width + column
            im2col_pointers = im2col + (pixel * dims.samples * channels.ins)[:, None] + c[None, :]  # [BM, BK]
        start = image_start(image, dims, channels.ins, INT64)
        center_y = row * sampling_grid.stride_y + sampling_grid.origin_y
        center_x = column * sampling_grid.stride_x + sampling_grid.origin_x
        gy = p0  # replaced, or loaded per sample and block
        if CONTRACTION == "depthwise":
            gy = load_upstream(
                grad_out, out_index, c, valid[:, None] & in_run[None, :], out_strides, CONTRACTION, INT64
            )
        elif CONTRACTION != "im2col" and STEPS == 1:  # the same for all samples
            inner = tl.arange(0, BN)
            mask = valid[:, None] & (inner < channels.outs_per_group)[None, :]
            gy = load_upstream(
                grad_out, out_index, group * channels.outs_per_group + inner, mask, out_strides, CONTRACTION, INT64
            )

        zero = tl.zeros_like(p0)
        g0, g1, g2, g3, g4 = zero, zero, zero, zero, zero
        p0, p1 = load_vector(field, field_index, field_strides, 0, p0, p1, KIND, LOAD_PAIRS, INT64)
        for sample in range(dims.samples):
            a, b, r = reference_sample(sample, table, dims, sampling_grid, KIND)
            dy, dx = sample_offset(a, b, r, p0, p1, p2, p3, p4, KIND, DRIFT)
            next_sample = tl.minimum(sample + 1, dims.samples - 1)  # loaded early, to hide the latency
            p0, p1 = load_vector(field, field_index, field_strides, next_sample, p0, p1, KIND, LOAD_PAIRS, INT64)
            y0, y1, wy0, wy1, vy0, vy1 = axis_corners(center_y, sampling_grid.half_y + dy, dims.height, PADDING)
            x0, x1, wx0, wx1, vx0, vx1 = axis_corners(center_x, sampling_grid.half_x + dx, dims.width, PADDING)
            corner_index = corner_indices(y0, y1, x0, x1, dims, channels.ins, INT64)
            m = load_modulation(modulation, modulation_index, modulation_strides, sample, MODULATED, INT64)

            if CONTRACTION == "im2col":
                sample_pointers = im2col_pointers + sample * channels.ins
                g = tl.load(sample_pointers, mask=valid[:, None] & in_run[None, :], other=0.0).to(tl.float32)
            else:
                g = sample_gradient(
                    gy, grad_out, out_index, weight, sample, group, in_group, c, valid, in_run, dims, channels,
                    out_strides, CONTRACTION, PRECISION, INT64, BM, BN, BK, STEPS,
                )  # fmt: skip
            corner_weights = (m * wy0 * wx0, m * wy0 * wx1, m * wy1 * wx0, m * wy1 * wx1)
            at_y = center_y - first_y + clamp_position(sampling_grid.half_y + dy)
            at_x = center_x - first_x + clamp_position(sampling_grid.half_x + dx)
            if WINDOW == "image" and KIND == "deformable":  # otherwise loaded in each layout that S needs
                at_y, at_x = one_per_thread(at_y), one_per_thread(at_x)
            inside = valid
            if WINDOW == "patch" or WINDOW == "outliers":
                inside = (at_y >= 0) & (at_y < WH - 1) & (at_x >= 0) & (at_x < WW - 1)
                outlier = valid & (inside == 0) & ((wy0 + wy1) * (wx0 + wx1) != 0)
                has_outlier = has_outlier | outlier.to(tl.int32)
            if WINDOW == "none" and SCATTER != "none":
                scatter_corners(grad_x, start, corner_index, corner_weights, c, g, valid, in_run, factor, SCATTER)
            if WINDOW == "outliers":
                scatter_corners(grad_x, start, corner_index, corner_weights, c, g, outlier, in_run, factor, SCATTER)
            if WINDOW == "patch" or WINDOW == "image":
                s = window_weights(
                    at_y, at_x, m, image - first_image, inside, MODULATED, x.dtype.element_ty, WB, WH, WW, BM
                )  # [BW, BM]
                if SCATTER != "none":
                    window = product(s, g.to(x.dtype.element_ty), window, PRECISION)

            if GATHER == "corners" and (GEOMETRY != "none" or STORE_SAMPLES):
                corners = load_corners(x, start, corner_index, c, in_run, EVEN)
            if STORE_SAMPLES:
                if GATHER == "window":
                    value = product(tl.trans(s), window_pixels, tl.zeros([BM, BK], tl.float32), PRECISION)
                else:
                    value = interpolate(corners, (m * wy0, m * wy1, wx0, wx1), "im2col")
                tl.store(sample_pointers, value.to(x.dtype.element_ty), mask=valid[:, None] & in_run[None, :])
            if GEOMETRY != "none":
                if GATHER == "window":
                    q = tl.zeros([BM, WB * WH * WW], tl.float32)
                    q = product(g.to(x.dtype.element_ty), tl.trans(window_pixels), q, PRECISION)
                    image_in_window = image - first_image
                    gradient_y, gradient_x, gradient_m = window_position_gradient(
                        q, at_y, at_x, image_in_window, a, b, r, (dy, dx), sampling_grid, KIND, MODULATED, WB, WH, WW
                    )
                else:
                    weights, slopes = (wy0, wy1, wx0, wx1), (vy0, vy1, vx0, vx1)
                    along_y, along_x = (center_y, sampling_grid.half_y + dy), (center_x, sampling_grid.half_x + dx)
                    gradient_y, gradient_x, gradient_m = position_gradient(
                        g, corners, weights, slopes, x, start, along_y, along_x, (a, b, r), (dy, dx), c, in_run, dims,
                        channels, sampling_grid, KIND, MODULATED, PADDING, INT64, EVEN,
                    )  # fmt: skip
                gradient_y, gradient_x = m * gradient_y, m * gradient_x
                if KIND == "deformable":
                    pointers = field_pointers + widen_index(sample, INT64) * grad_field_strides.n
                    write_gradient(pointers, gradient_y, valid, GEOMETRY)
                    write_gradient(pointers + grad_field_strides.d, gradient_x, valid, GEOMETRY)
                elif KIND != "grid":
                    e0, e1, e2, e3, e4 = sample_offset_gradient(
                        a, b, r, p0, p1, p2, p3, p4, gradient_y, gradient_x, KIND, DRIFT
                    )
                    g0, g1, g2, g3, g4 = g0 + e0, g1 + e1, g2 + e2, g3 + e3, g4 + e4
                if MODULATED:
                    pointers = modulation_pointers + widen_index(sample, INT64) * grad_modulation_strides.n
                    write_gradient(pointers, gradient_m, valid, GEOMETRY)

        if GEOMETRY != "none" and KIND != "grid" and KIND != "deformable":
            steps = (grad_field_strides.n, grad_drift_strides.n)
            write_parameter_gradients(
                field_pointers, drift_pointers, (g0, g1, g2, g3, g4), valid, steps, KIND, DRIFT, GEOMETRY
            )

    if (WINDOW == "patch" or WINDOW == "image") and SCATTER != "none":
        pixels, in_image = window_indices(first_image, first_y, first_x, dims, PADDING, INT64, WB, WH, WW)
        mask = in_image[:, None] & in_run[None, :]
        if SCATTER == "store":
            pointers = grad_x + (pixels * channels.ins)[:, None] + c[None, :]
            tl.store(pointers, window.to(grad_x.dtype.element_ty), mask=mask)
        else:
            scatter(grad_x, pixels * channels.ins, tl.zeros_like(pixels), c, window, mask, factor, SCATTER)
            tl.store(outlier_tiles + tl.program_id(0), tl.max(has_outlier, 0))
