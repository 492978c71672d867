"""Sums of the image's gradient in registers, over a window of the image, by matrix products.

Sample p of a tile adds hat(w_y − y_p)·hat(w_x − x_p)·g_p to pixel w. With S [BW, BM] these weights, the gradient of the
window is Σ_j S g_j, computed on the tensor cores. It is written once, while scattering adds to four corners per sample.
A window of BW = WB·WH·WW pixels is either a patch of one image, around a patch of output pixels ("patch"), or WB whole
images ("image"), whose gradient then needs no atomic additions. A few samples lie outside the window of their patch. A
second launch ("outliers") adds these, in the tiles where the first found any.

In small images, samples are computed by such a product too: with the window's pixels X [BW, BK] they are Sᵀ X, and
their positions' gradients depend on the channels only through Q = g Xᵀ [BM, BW].
"""

import triton
import triton.language as tl

from .geometry import cast_pairs, fold_index, multiply_add, one_per_thread, widen_index
from .slopes import any_integer, integer_limits, is_movable, opposite_side


@triton.jit
def image_pixels(first_image, step, dims, BM: tl.constexpr, WB: tl.constexpr):
    """Return (image, row, column, valid) of the step-th BM pixels of WB images."""
    plane = dims.out_height * dims.out_width
    pixel = step * BM + tl.arange(0, BM)
    image = first_image + pixel // plane
    valid = (pixel < plane * WB) & (image < dims.batch)
    pixel = pixel % plane
    return tl.minimum(image, dims.batch - 1), pixel // dims.out_width, pixel % dims.out_width, valid


@triton.jit
def window_weights(
    y,
    x,
    m,
    image,
    inside,
    MODULATED: tl.constexpr,
    DTYPE: tl.constexpr,
    WB: tl.constexpr,
    WH: tl.constexpr,
    WW: tl.constexpr,
    BM: tl.constexpr,
):
    """Return S [BW, BM] times m, for samples at (y, x) in image ``image`` of a window.

    A weight is the product of a row's and a column's, [WB·WH, BM] and [WW, BM]. Both are rounded to the dtype of S
    before they are multiplied, which halves the work. Samples are processed in pairs, as in the tensor cores' layout,
    so that each thread computes its own part of S, and nothing passes through shared memory.
    """
    row = tl.arange(0, WB * WH)
    y = tl.where(inside, tl.where(x == x, y, x), -2.0)  # -2: far from all pixels; NaN is preserved
    x = tl.where(inside & (x == x), x, -2.0)
    rows = tl.join(hats(even(y), row % WH), hats(odd(y), row % WH))  # [WB·WH, BM / 2, 2]
    if MODULATED:
        rows *= tl.join(even(m), odd(m))[None, :, :]
    if WB > 1:
        same_image = tl.join(even(image)[None, :] == (row // WH)[:, None], odd(image)[None, :] == (row // WH)[:, None])
        rows = tl.where(same_image, rows, 0.0)
    columns = tl.join(hats(even(x), tl.arange(0, WW)), hats(odd(x), tl.arange(0, WW)))
    rows, columns = cast_pairs(rows, DTYPE)[:, None, :, :], cast_pairs(columns, DTYPE)[None, :, :, :]
    s = multiply_add(rows, columns, tl.zeros([WB * WH, WW, BM // 2, 2], DTYPE))
    return tl.reshape(s, (WB * WH * WW, BM))


@triton.jit
def window_position_gradient(
    q,
    y,
    x,
    image,
    a,
    b,
    r,
    offsets,
    sampling_grid,
    KIND: tl.constexpr,
    MODULATED: tl.constexpr,
    WB: tl.constexpr,
    WH: tl.constexpr,
    WW: tl.constexpr,
):
    """Return the gradients of positions and modulation, as ``gradients.position_gradient`` does, from Q [BM, BW]."""
    if WB > 1:
        pixel = tl.arange(0, WB * WH * WW)
        q = tl.where(image[:, None] == (pixel // (WH * WW))[None, :], q, 0.0)
    gradient_y, gradient_x, gradient_m = window_gradient_in_cell(q, y, x, a, b, KIND, MODULATED, WH, WW)
    if KIND != "grid":
        limits = integer_limits(a, b, r, sampling_grid, KIND)
        if any_integer(y, x, limits, is_movable(offsets[0], offsets[1], sampling_grid, KIND)):
            y, x = opposite_side(y, limits[0]), opposite_side(x, limits[1])
            other_y, other_x, _ = window_gradient_in_cell(q, y, x, a, b, KIND, MODULATED, WH, WW)
            gradient_y, gradient_x = 0.5 * (gradient_y + other_y), 0.5 * (gradient_x + other_x)
    return gradient_y, gradient_x, gradient_m


@triton.jit
def window_gradient_in_cell(
    q, y, x, a, b, KIND: tl.constexpr, MODULATED: tl.constexpr, WH: tl.constexpr, WW: tl.constexpr
):
    """Return the same, with the slopes in the cells that contain the positions."""
    pixel = tl.arange(0, q.shape[1])
    hat_y, slope_y = hats_and_slopes(y, pixel // WW % WH)
    hat_x, slope_x = hats_and_slopes(x, pixel % WW)
    if KIND == "ball" and not MODULATED:
        along = one_per_thread(tl.sum(q * ((a * slope_y) * hat_x + hat_y * (b * slope_x)), 1))
        return along * a, along * b, along
    else:
        gradient_y = one_per_thread(tl.sum(q * (slope_y * hat_x), 1))
        gradient_x = one_per_thread(tl.sum(q * (hat_y * slope_x), 1))
        return gradient_y, gradient_x, one_per_thread(tl.sum(q * (hat_y * hat_x), 1))


@triton.jit
def hats_and_slopes(positions, pixels):
    """Return the interpolation weights of pixels [n] at positions [m] along an axis, and their slopes: [m, n] each."""
    pixels, lower = pixels.to(tl.float32)[None, :], tl.floor(positions)[:, None]
    slopes = (pixels == lower + 1).to(tl.float32) - (pixels == lower).to(tl.float32)
    return tl.maximum(1 - tl.abs(pixels - positions[:, None]), 0.0), slopes


@triton.jit
def hats(positions, pixels):
    """Return the interpolation weights of pixels [n] at positions [m] along an axis: [n, m]. NaN is preserved."""
    height = 1 - tl.abs(positions[None, :] - pixels[:, None].to(tl.float32))
    return tl.maximum(height, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def even(values):
    """Return elements 0, 2, 4, … of [BM] values."""
    return tl.split(tl.reshape(values, (values.shape[0] // 2, 2)))[0]


@triton.jit
def odd(values):
    """Return elements 1, 3, 5, … of [BM] values."""
    return tl.split(tl.reshape(values, (values.shape[0] // 2, 2)))[1]


@triton.jit
def window_indices(
    first_image,
    first_y,
    first_x,
    dims,
    PADDING: tl.constexpr,
    INT64: tl.constexpr,
    WB: tl.constexpr,
    WH: tl.constexpr,
    WW: tl.constexpr,
):
    """Return the index of each pixel of the window in (B, H, W), and whether it is a pixel of an image: [BW] each."""
    pixel = tl.arange(0, WB * WH * WW)
    image = first_image + pixel // (WH * WW)
    y, factor_y = fold_index(first_y + pixel // WW % WH, dims.height, PADDING)
    x, factor_x = fold_index(first_x + pixel % WW, dims.width, PADDING)
    row = (widen_index(image, INT64) * dims.height + y) * dims.width + x
    return row, (factor_y * factor_x > 0) & (image < dims.batch)
