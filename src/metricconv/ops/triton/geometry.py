"""Sampling locations of a tile of pixels, computed in registers from compact parameters, and their derivatives.

A pixel has at most five parameters p0 … p4, independent of the number of samples:

    kind         p0     p1     p2     p3    p4     offset of the sample with reference position (a, b)
    ball         M_yy   M_yx   M_xx   ω_y   ω_x    radius·(a, b) / F(a, b), with (a, b) a unit direction: see ball_norm
    shifted      v_y    v_x                        (a, b) + v
    deformable   v_y    v_x   (per sample)         (a, b) + v
    dilated      λ                                 λ·(a, b)
    grid                                           (a, b)

The drift ω of a ball enters its norm not at all, linearly (Randers) or on one side (asymmetric quadratic).

All functions work elementwise on the [BM] pixels of a tile, in float32.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from ... import _compat
from ..._interpolation import FARTHEST as _FARTHEST
from ...metrics.base import SMALLEST_NORM as _SMALLEST_NORM

SMALLEST_NORM = tl.constexpr(_SMALLEST_NORM)
FARTHEST = tl.constexpr(_FARTHEST)

# Triton's interpreter multiplies the bit patterns of bfloat16 numbers: there, factors are converted to float32 first.
INTERPRETED = tl.constexpr(_compat.triton_interpreted())


class Dimensions(NamedTuple):
    """Dimensions of one operator call."""

    batch: int
    height: int
    width: int
    out_height: int
    out_width: int
    samples: int
    kernel_width: int
    height_magic: int  # factors and shifts that divide by out_height and out_width: see ``divide``
    height_shift: int
    width_magic: int
    width_shift: int


class SamplingGrid(NamedTuple):
    """Centers of the outputs, and the reference grid of the samples.

    Output o has its center at o·stride + origin + half, sample (i, j) its reference position at first + (i, j)·step.
    The fraction of a center, ``half``, is stored apart: a float32 far from 0 has few fractional bits.
    """

    stride_y: int
    stride_x: int
    origin_y: int
    origin_x: int
    half_y: float
    half_x: float
    first_y: float
    first_x: float
    step_y: float
    step_x: float


class Strides(NamedTuple):
    """Strides of a tensor (B, G, n, *out) or (B, G, P, d, *out); 0 broadcasts."""

    b: int
    g: int
    n: int
    d: int
    y: int
    x: int


@triton.jit
def widen_index(index, INT64: tl.constexpr):
    """Return an index that can be multiplied by a stride without overflow: 64 bits if a tensor has 2³¹ elements."""
    if INT64:
        return tl.full([], 0, tl.int64) + index
    else:
        return tl.full([], 0, tl.int32) + index


@triton.jit
def divide(n, d, magic, shift, INT64: tl.constexpr):
    """Return n // d for 0 ≤ n < 2³¹ by multiplication: ⌊2n·magic / 2³²⌋ / 2^shift with magic = ⌈2^{31+shift} / d⌉."""
    if INT64:
        return n // d
    else:
        factor = (tl.full([], 0, tl.int64) + magic).to(tl.uint32)
        return (tl.umulhi((2 * n).to(tl.uint32), factor) >> shift).to(tl.int32)


@triton.jit
def tile_pixels(tile, dims, INT64: tl.constexpr, BM: tl.constexpr, TW: tl.constexpr):
    """Return (image, row, column, valid) of a tile's pixels: [BM] each. Invalid pixels are clamped to the last one.

    With TW = 0 a tile is BM pixels in memory order, otherwise a patch of BM/TW × TW pixels of one image, whose samples
    share cache lines.
    """
    lane = tl.arange(0, BM)
    if TW == 0:
        pixel = widen_index(tile, INT64) * BM + lane
        count = widen_index(dims.out_height, INT64) * dims.out_width * dims.batch
        valid = pixel < count
        pixel = tl.minimum(pixel, count - 1)
        line = divide(pixel, dims.out_width, dims.width_magic, dims.width_shift, INT64)
        image = divide(line, dims.out_height, dims.height_magic, dims.height_shift, INT64)
        row, column = line - image * dims.out_height, pixel - line * dims.out_width
        return image.to(tl.int32), row.to(tl.int32), column.to(tl.int32), valid
    else:
        TH: tl.constexpr = BM // TW
        across = (dims.out_width + TW - 1) // TW
        down = (dims.out_height + TH - 1) // TH
        column = tile % across * TW + lane % TW
        row = tile // across % down * TH + lane // TW
        image = tl.zeros_like(lane) + tile // (across * down)
        valid = (column < dims.out_width) & (row < dims.out_height)
        return image, tl.minimum(row, dims.out_height - 1), tl.minimum(column, dims.out_width - 1), valid


@triton.jit
def pixel_index(image, group, row, column, strides, INT64: tl.constexpr):
    """Return the index of each pixel's first element in a tensor with these strides: [BM]."""
    start = widen_index(image, INT64) * strides.b + widen_index(group, INT64) * strides.g
    return start + widen_index(row, INT64) * strides.y + widen_index(column, INT64) * strides.x


@triton.jit
def load_parameters(field, index, strides, drift, drift_index, drift_strides, KIND: tl.constexpr, DRIFT: tl.constexpr):
    """Return p0 … p4 of each pixel; zeros for those that the kind does not have, or has per sample."""
    zero = tl.zeros_like(index).to(tl.float32)
    p0, p1, p2, p3, p4 = zero, zero, zero, zero, zero
    if KIND == "ball":
        p0 = tl.load(field + index)
        p1 = tl.load(field + index + strides.n)
        p2 = tl.load(field + index + strides.n * 2)
        if DRIFT != "none":
            p3 = tl.load(drift + drift_index)
            p4 = tl.load(drift + drift_index + drift_strides.n)
    if KIND == "shifted":
        p0 = tl.load(field + index)
        p1 = tl.load(field + index + strides.n)
    if KIND == "dilated":
        p0 = tl.load(field + index)
    return p0, p1, p2, p3, p4


@triton.jit
def load_vector(
    field, index, strides, sample, p0, p1, KIND: tl.constexpr, LOAD_PAIRS: tl.constexpr, INT64: tl.constexpr
):
    """Return p0 and p1 of a sample: a deformable support has them per sample, other kinds per pixel.

    LOAD_PAIRS states that both are adjacent in memory; they are then loaded as one 64-bit number.
    """
    if KIND == "deformable":
        index = index + widen_index(sample, INT64) * strides.n
        if LOAD_PAIRS:
            pair = tl.load((field + index).to(tl.pointer_type(tl.int64)))
            p0 = pair.to(tl.int32).to(tl.float32, bitcast=True)
            p1 = (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        else:
            p0 = tl.load(field + index)
            p1 = tl.load(field + index + strides.d)
    return p0, p1


@triton.jit
def load_modulation(modulation, index, strides, sample, MODULATED: tl.constexpr, INT64: tl.constexpr):
    """Return the modulation of a sample in float32, ones if there is none: [BM]."""
    if MODULATED:
        return tl.load(modulation + index + widen_index(sample, INT64) * strides.n).to(tl.float32)
    else:
        return tl.full(index.shape, 1.0, tl.float32)


@triton.jit
def reference_sample(sample, table, dims, sampling_grid, KIND: tl.constexpr):
    """Return (a, b, radius) of a sample: direction and radius in the stencil, or reference position and 1."""
    if KIND == "ball":
        return tl.load(table + 3 * sample), tl.load(table + 3 * sample + 1), tl.load(table + 3 * sample + 2)
    else:
        i = sample // dims.kernel_width
        j = sample - i * dims.kernel_width
        first_y, first_x = sampling_grid.first_y, sampling_grid.first_x
        return first_y + i * sampling_grid.step_y, first_x + j * sampling_grid.step_x, 1.0


@triton.jit
def ball_norm(a, b, p0, p1, p2, p3, p4, DRIFT: tl.constexpr):
    """Return F(u) of u = (a, b) before clamping, and the root in F, which is 0 where its argument is negative.

    With a linear drift F(u) = √(uᵀMu) + ωᵀu, with a one-sided drift F(u) = √(uᵀMu + (ωᵀu)₊²).
    """
    square = p0 * (a * a) + p1 * (2 * a * b) + p2 * (b * b)
    if DRIFT == "one-sided":
        along = positive_part(p3 * a + p4 * b)
        square += along * along
    root = tl.sqrt(tl.where(square <= 0, 0.0, square))
    norm = root
    if DRIFT == "linear":
        norm = root + (p3 * a + p4 * b)
    return norm, root


@triton.jit
def positive_part(value):
    """Return a number, or 0 if it is negative. NaN is preserved."""
    return tl.where(value < 0, 0.0, value)


@triton.jit
def clamp_norm(norm):
    """Return the norm, at least SMALLEST_NORM, so that it can be divided by. NaN is preserved."""
    return tl.where(norm < SMALLEST_NORM, SMALLEST_NORM, norm)


@triton.jit
def sample_offset(a, b, radius, p0, p1, p2, p3, p4, KIND: tl.constexpr, DRIFT: tl.constexpr):
    """Return the offset (dy, dx) of a sample from each pixel's center: [BM] each."""
    if KIND == "ball":
        norm, _ = ball_norm(a, b, p0, p1, p2, p3, p4, DRIFT)
        length = radius / clamp_norm(norm)
        return a * length, b * length
    elif KIND == "dilated":
        return p0 * a, p0 * b
    else:  # p0 and p1 of a grid are zeros
        return p0 + a, p1 + b


@triton.jit
def sample_offset_gradient(a, b, radius, p0, p1, p2, p3, p4, gy, gx, KIND: tl.constexpr, DRIFT: tl.constexpr):
    """Return the gradients of p0 … p4, given the gradient (gy, gx) of the offset. A clamped norm has none."""
    zero = tl.zeros_like(gy)
    if KIND == "ball":
        norm, root = ball_norm(a, b, p0, p1, p2, p3, p4, DRIFT)
        inverse = 1.0 / clamp_norm(norm)
        grad_norm = -radius * (a * gy + b * gx) * inverse * inverse
        grad_norm = tl.where(norm < SMALLEST_NORM, 0.0, grad_norm)
        grad_square = tl.where(root == 0, 0.0, 0.5 * grad_norm / tl.where(root == 0, 1.0, root))
        grad_drift = grad_norm
        if DRIFT == "one-sided":
            grad_drift = 2 * grad_square * positive_part(p3 * a + p4 * b)
        return grad_square * (a * a), grad_square * (2 * a * b), grad_square * (b * b), grad_drift * a, grad_drift * b
    elif KIND == "dilated":
        return a * gy + b * gx, zero, zero, zero, zero
    else:
        return gy, gx, zero, zero, zero


@triton.jit
def fold_index(index, extent, PADDING: tl.constexpr):
    """Return the pixel in [0, extent) that the padding mode assigns to an index, and its factor: 0 where it is padded
    with zeros, else 1.
    """
    pixel = tl.minimum(tl.maximum(index, 0), extent - 1)
    factor = tl.full(index.shape, 1.0, tl.float32)
    if PADDING == "zeros":
        factor = tl.where(pixel == index, 1.0, 0.0)
    if PADDING == "circular":
        pixel = index % extent
        pixel = tl.where(pixel < 0, pixel + extent, pixel)
    if PADDING == "reflect":
        period = tl.maximum(tl.full([], 2, tl.int32) * (extent - 1), 1)
        pixel = index % period
        pixel = tl.where(pixel < 0, pixel + period, pixel)
        pixel = tl.minimum(pixel, period - pixel)
        pixel = tl.minimum(pixel, extent - 1)  # a single pixel is its own reflection
    return pixel, factor


@triton.jit
def clamp_position(position):
    """Return a position that fits in an integer. NaN is preserved."""
    return tl.clamp(position, -FARTHEST, FARTHEST, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def axis_corners(base, position, extent, PADDING: tl.constexpr):
    """Return the two pixels around base + position along an axis, their weights, and the weights' derivatives."""
    clamped = tl.minimum(tl.maximum(position, -FARTHEST), FARTHEST)
    lower = tl.floor(clamped)
    upper_weight = tl.where(position == position, clamped - lower, position)  # NaN is preserved
    index = base + lower.to(tl.int32)
    i0, factor0 = fold_index(index, extent, PADDING)
    i1, factor1 = fold_index(index + 1, extent, PADDING)
    slope = tl.where(clamped == position, 1.0, 0.0)  # a clamped position has no derivative
    if PADDING != "zeros":  # nor one between a pixel and itself, where only rounding errors would be left
        slope = tl.where(i0 == i1, 0.0, slope)
    return i0, i1, (1 - upper_weight) * factor0, upper_weight * factor1, -factor0 * slope, factor1 * slope


@triton.jit
def image_start(image, dims, channels, INT64: tl.constexpr):
    """Return the index of the first element of each pixel's image in (B, H, W, C): [BM]."""
    return widen_index(image, INT64) * dims.height * dims.width * channels


@triton.jit
def corner_indices(y0, y1, x0, x1, dims, channels, INT64: tl.constexpr):
    """Return the indices of the first channel of the four corners in an image (H, W, C): [BM] each."""
    top, bottom = widen_index(y0, INT64) * dims.width, widen_index(y1, INT64) * dims.width
    return (top + x0) * channels, (top + x1) * channels, (bottom + x0) * channels, (bottom + x1) * channels


@triton.jit
def load_corner(x, start, corner, channel, in_range, EVEN: tl.constexpr):
    """Load the channels of one corner: [BM, BK]. EVEN states that all channels are in range."""
    pointers = x + ((start + corner)[:, None] + channel[None, :])
    if EVEN:
        value = tl.load(pointers)
    else:
        value = tl.load(pointers, mask=in_range[None, :], other=0.0)
    if INTERPRETED:
        value = value.to(tl.float32)
    return value


@triton.jit
def load_corners(x, start, corners, channel, in_range, EVEN: tl.constexpr):
    """Load the channels of the four corners, in the image's dtype: [BM, BK] each."""
    return (
        load_corner(x, start, corners[0], channel, in_range, EVEN),
        load_corner(x, start, corners[1], channel, in_range, EVEN),
        load_corner(x, start, corners[2], channel, in_range, EVEN),
        load_corner(x, start, corners[3], channel, in_range, EVEN),
    )


# Instructions for two half-precision numbers in one register: two fused multiply-adds, two conversions.
FMA_BFLOAT16 = tl.constexpr("fma.rn.bf16x2 $0, $1, $2, $3;")
FMA_FLOAT16 = tl.constexpr("fma.rn.f16x2 $0, $1, $2, $3;")
TO_BFLOAT16 = tl.constexpr("cvt.rn.bf16x2.f32 $0, $2, $1;")
FROM_BFLOAT16 = tl.constexpr("shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;")
TO_FLOAT16 = tl.constexpr("cvt.rn.f16x2.f32 $0, $2, $1;")


@triton.jit
def cast_pairs(values, DTYPE: tl.constexpr):
    """Return float32 numbers rounded to a dtype; to half precision in pairs, each packed in one register."""
    if INTERPRETED or tl.float32 == DTYPE:
        return values.to(DTYPE)
    elif tl.bfloat16 == DTYPE:
        return tl.inline_asm_elementwise(TO_BFLOAT16, "=r,r,r", [values], tl.bfloat16, True, 2)
    else:
        return tl.inline_asm_elementwise(TO_FLOAT16, "=r,r,r", [values], tl.float16, True, 2)


@triton.jit
def cast_pairs_to_float32(values):
    """Return float32 numbers of bfloat16 ones, converted in pairs, each packed in one register."""
    if INTERPRETED:
        return values.to(tl.float32)
    else:
        return tl.inline_asm_elementwise(FROM_BFLOAT16, "=r,=r,r", [values], tl.float32, True, 2)


@triton.jit
def multiply_add(a, b, total):
    """Return total + a b; in half precision in pairs, with one rounding."""
    if total.dtype == tl.float32:
        return total + a * b
    elif INTERPRETED:
        return (total.to(tl.float32) + a.to(tl.float32) * b.to(tl.float32)).to(total.dtype)
    elif total.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(FMA_BFLOAT16, "=r,r,r,r", [a, b, total], tl.bfloat16, True, 2)
    else:
        return tl.inline_asm_elementwise(FMA_FLOAT16, "=r,r,r,r", [a, b, total], tl.float16, True, 2)


@triton.jit
def interpolate(corners, weights, CONTRACTION: tl.constexpr):
    """Return the samples [BM, BK] interpolated from the channels of the four corners.

    In the image's dtype if they are factors of a matrix product, in float32 otherwise.
    """
    wy0, wy1, wx0, wx1 = weights
    DTYPE: tl.constexpr = corners[0].dtype if CONTRACTION == "dot" or CONTRACTION == "im2col" else tl.float32
    value = (wy0 * wx0).to(DTYPE)[:, None] * corners[0].to(DTYPE)
    value = multiply_add((wy0 * wx1).to(DTYPE)[:, None], corners[1].to(DTYPE), value)
    value = multiply_add((wy1 * wx0).to(DTYPE)[:, None], corners[2].to(DTYPE), value)
    return multiply_add((wy1 * wx1).to(DTYPE)[:, None], corners[3].to(DTYPE), value)


@triton.jit
def one_per_thread(values):
    """Return [BM] values in a layout with one value per thread, so that what follows is computed only once."""
    return tl.gather(values, tl.arange(0, values.shape[0]), 0)
