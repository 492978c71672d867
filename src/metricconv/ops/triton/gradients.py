"""Device functions of the backward kernels: gradients of samples and their positions, and how they are written."""

import triton
import triton.language as tl

from .forward_kernel import contract
from .geometry import axis_corners, corner_indices, load_corners, multiply_add, one_per_thread, widen_index
from .slopes import any_integer, integer_limits, is_movable, opposite_side_from_base


@triton.jit
def write_gradient(pointer, value, valid, WRITE: tl.constexpr):
    """Write a gradient that one program computes ("store"), or add it to those of other programs ("add")."""
    if WRITE == "add":
        tl.atomic_add(pointer, value, mask=valid, sem="relaxed")
    else:
        tl.store(pointer, value, mask=valid)


@triton.jit
def scatter(grad_x, start, row, channel, value, mask, scale, SCATTER: tl.constexpr):
    """Add [BM, BK] values to the image's gradient.

    "fixed" adds value · scale as 64-bit integers, whose sum does not depend on the order of the additions.
    """
    pointers = grad_x + ((start + row)[:, None] + channel[None, :])
    if SCATTER == "fixed":
        tl.atomic_add(pointers, (value * scale).to(tl.int64), mask=mask, sem="relaxed")
    else:
        tl.atomic_add(pointers, value, mask=mask, sem="relaxed")


@triton.jit
def scatter_corners(grad_x, start, corner_index, weights, channel, g, valid, in_range, scale, SCATTER: tl.constexpr):
    """Add g [BM, BK] times the corners' weights to the four corners. Zero-padded corners, of weight 0, are skipped."""
    for corner in tl.static_range(4):
        w = weights[corner]
        mask = (valid & (w != 0))[:, None] & in_range[None, :]
        scatter(grad_x, start, corner_index[corner], channel, w[:, None] * g, mask, scale, SCATTER)


@triton.jit
def load_upstream(grad_out, out_index, outs, mask, out_strides, CONTRACTION: tl.constexpr, INT64: tl.constexpr):
    """Return ∂L/∂y [BM, BN]; in float32 unless it is the factor of a matrix product."""
    gy = tl.load(
        grad_out + out_index[:, None] + widen_index(outs, INT64)[None, :] * out_strides.n, mask=mask, other=0.0
    )
    if CONTRACTION == "dot":
        return gy
    else:
        return gy.to(tl.float32)


@triton.jit
def sample_gradient(
    gy,  # ∂L/∂y [BM, BN] if one block has all output channels of a group, or if depthwise
    grad_out,
    out_index,
    weight,
    sample,
    group,
    in_group,
    c,
    valid,
    in_run,
    dims,
    channels,
    out_strides,
    CONTRACTION: tl.constexpr,
    PRECISION: tl.constexpr,
    INT64: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Return the gradient of sample j, g_j = Σ_o w_jo ∂L/∂y_o: [BM, BK]."""
    g = tl.zeros([BM, BK], tl.float32)
    if CONTRACTION == "depthwise":
        w = tl.load(weight + widen_index(c, INT64) * dims.samples + sample, mask=in_run, other=0.0)[None, :]  # [1, BK]
        return contract(g, gy, w, CONTRACTION, PRECISION)
    else:
        for k in tl.range(STEPS):
            inner = k * BN + tl.arange(0, BN)
            in_outs = inner < channels.outs_per_group
            outs = group * channels.outs_per_group + inner  # [BN]
            if STEPS == 1:
                block_gy = gy
            else:
                mask = valid[:, None] & in_outs[None, :]
                block_gy = load_upstream(grad_out, out_index, outs, mask, out_strides, CONTRACTION, INT64)  # [BM, BN]
            at = (widen_index(outs, INT64) * dims.samples + sample) * channels.ins_per_group
            pointers = weight + at[:, None] + in_group[None, :]
            w = tl.load(pointers, mask=in_outs[:, None] & in_run[None, :], other=0.0)  # [BN, BK]
            g = contract(g, block_gy, w, CONTRACTION, PRECISION)
        return g


@triton.jit
def position_gradient_in_cell(g, corners, weights, slopes, a, b, KIND: tl.constexpr, MODULATED: tl.constexpr):
    """Return the gradients of positions and modulation, Σ_c g ∂x/∂y, Σ_c g ∂x/∂x and Σ_c g x, given g [BM, BK].

    Samples of a ball move along their ray only. Their metric needs a single sum over channels, of the derivative in the
    direction (a, b), which is returned as a vector along the ray. The derivative is a combination of differences
    between corners, which are as precise in half precision as the corners are.
    """
    wy0, wy1, wx0, wx1 = weights
    vy0, vy1, vx0, vx1 = slopes
    if KIND == "ball" and not MODULATED:
        c00, c01 = a * vy0 * wx0 + b * wy0 * vx0, a * vy0 * wx1 + b * wy0 * vx1
        c10, c11 = a * vy1 * wx0 + b * wy1 * vx0, a * vy1 * wx1 + b * wy1 * vx1
        first = corners[0]
        slope = (c00 + c01 + c10 + c11).to(first.dtype)[:, None] * first  # not 0 only for zero-padded corners
        slope = multiply_add(c01.to(first.dtype)[:, None], corners[1] - first, slope)
        slope = multiply_add(c10.to(first.dtype)[:, None], corners[2] - first, slope)
        slope = multiply_add(c11.to(first.dtype)[:, None], corners[3] - first, slope)
        along = one_per_thread(tl.sum(g * slope.to(tl.float32), 1))
        return along * a, along * b, along
    else:
        q00 = one_per_thread(tl.sum(g * corners[0].to(tl.float32), 1))
        q01 = one_per_thread(tl.sum(g * corners[1].to(tl.float32), 1))
        q10 = one_per_thread(tl.sum(g * corners[2].to(tl.float32), 1))
        q11 = one_per_thread(tl.sum(g * corners[3].to(tl.float32), 1))
        above, below = wx0 * q00 + wx1 * q01, wx0 * q10 + wx1 * q11
        gradient_x = vx0 * (wy0 * q00 + wy1 * q10) + vx1 * (wy0 * q01 + wy1 * q11)
        return vy0 * above + vy1 * below, gradient_x, wy0 * above + wy1 * below


@triton.jit
def position_gradient(
    g,  # [BM, BK]
    corners,
    weights,
    slopes,
    x,
    start,
    along_y,  # (base, position), as for ``axis_corners``
    along_x,
    reference,  # (a, b, radius) of the sample
    offsets,  # (dy, dx)
    channel,
    in_range,
    dims,
    channels,
    sampling_grid,
    KIND: tl.constexpr,
    MODULATED: tl.constexpr,
    PADDING: tl.constexpr,
    INT64: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Return the same; at integer positions, the mean of both sides: see slopes.py."""
    a, b, r = reference
    gradient_y, gradient_x, gradient_m = position_gradient_in_cell(g, corners, weights, slopes, a, b, KIND, MODULATED)
    if KIND != "grid":
        limits = integer_limits(a, b, r, sampling_grid, KIND)
        movable = is_movable(offsets[0], offsets[1], sampling_grid, KIND)
        if any_integer(along_y[1], along_x[1], limits, movable):
            base_y, at_y = opposite_side_from_base(along_y[0], along_y[1], limits[0])
            base_x, at_x = opposite_side_from_base(along_x[0], along_x[1], limits[1])
            y0, y1, wy0, wy1, vy0, vy1 = axis_corners(base_y, at_y, dims.height, PADDING)
            x0, x1, wx0, wx1, vx0, vx1 = axis_corners(base_x, at_x, dims.width, PADDING)
            corner_index = corner_indices(y0, y1, x0, x1, dims, channels.ins, INT64)
            others = load_corners(x, start, corner_index, channel, in_range, EVEN)
            weights, slopes = (wy0, wy1, wx0, wx1), (vy0, vy1, vx0, vx1)
            other_y, other_x, _ = position_gradient_in_cell(g, others, weights, slopes, a, b, KIND, MODULATED)
            gradient_y, gradient_x = 0.5 * (gradient_y + other_y), 0.5 * (gradient_x + other_x)
    return gradient_y, gradient_x, gradient_m


@triton.jit
def write_parameter_gradients(
    field_pointers,
    drift_pointers,
    gradients,
    valid,
    steps,
    KIND: tl.constexpr,
    DRIFT: tl.constexpr,
    WRITE: tl.constexpr,
):
    """Write the gradients of p0 … p4, as many as the kind has per pixel."""
    if KIND == "ball" or KIND == "shifted" or KIND == "dilated":
        write_gradient(field_pointers, gradients[0], valid, WRITE)
    if KIND == "ball" or KIND == "shifted":
        write_gradient(field_pointers + steps[0], gradients[1], valid, WRITE)
    if KIND == "ball":
        write_gradient(field_pointers + steps[0] * 2, gradients[2], valid, WRITE)
        if DRIFT != "none":
            write_gradient(drift_pointers, gradients[3], valid, WRITE)
            write_gradient(drift_pointers + steps[1], gradients[4], valid, WRITE)
