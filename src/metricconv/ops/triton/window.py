"""Scattering as a matrix product: a tile's gradient is summed in registers over a window of the image.

Sample p of a tile adds hat(w_y − y_p)·hat(w_x − x_p)·g_p to pixel w. With S [BW, BM] these weights, the gradient of the
window is Σ_taps S g on the tensor cores; it is written once, where plain scattering adds four corners for every tap.
A window of BW = WB·WH·WW pixels is either a patch of one image, around a patch of output pixels ("patch"), or WB whole
images ("image"), whose gradient then needs no addition in memory at all. Few samples leave a patch's window; a second
launch ("strays") adds those on their own, in the tiles where the first found any.

Over small images gathering is such a product too: with the window's pixels X [BW, BK] held, the samples are Sᵀ X, and
Q = g Xᵀ [BM, BW] is all that the places of samples have to be told of channels.
"""

import triton
import triton.language as tl

from .geometry import add_product, fold, narrow, one_each, wide
from .slopes import any_whole, may_move, other_side, tap_limits


@triton.jit
def image_pixels(first_image, step, shape, BM: tl.constexpr, WB: tl.constexpr):
    """Return (image, row, column, in range) of the step-th BM pixels of WB images."""
    plane = shape.out_height * shape.out_width
    pixel = step * BM + tl.arange(0, BM)
    image = first_image + pixel // plane
    live = (pixel < plane * WB) & (image < shape.batch)
    pixel = pixel % plane
    return tl.minimum(image, shape.batch - 1), pixel // shape.out_width, pixel % shape.out_width, live


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
    """Return S [BW, BM], for samples at (y, x) of a window, in image number ``image`` of it, times m.

    The weights are products of a row's and a column's, so few of them are computed, [WB·WH, BM] and [WW, BM]; these are
    rounded to the product's dtype before they meet, which halves the work of building S. Samples go two by two, as the
    tensor cores take them: then each thread builds its own part of S, and none goes through shared memory.
    """
    line = tl.arange(0, WB * WH)
    y = tl.where(inside, tl.where(x == x, y, x), -2.0)  # where no line is near; a NaN shows in an image's own rows
    x = tl.where(inside & (x == x), x, -2.0)
    rows = tl.join(hats(even(y), line % WH), hats(odd(y), line % WH))  # [WB·WH, BM / 2, 2]
    if MODULATED:
        rows *= tl.join(even(m), odd(m))[None, :, :]
    if WB > 1:
        own = tl.join(even(image)[None, :] == (line // WH)[:, None], odd(image)[None, :] == (line // WH)[:, None])
        rows = tl.where(own, rows, 0.0)
    columns = tl.join(hats(even(x), tl.arange(0, WW)), hats(odd(x), tl.arange(0, WW)))
    rows, columns = narrow(rows, DTYPE)[:, None, :, :], narrow(columns, DTYPE)[None, :, :, :]
    s = add_product(rows, columns, tl.zeros([WB * WH, WW, BM // 2, 2], DTYPE))
    return tl.reshape(s, (WB * WH * WW, BM))


@triton.jit
def window_pull(
    q,
    y,
    x,
    image,
    a,
    b,
    r,
    offsets,
    lattice,
    KIND: tl.constexpr,
    MODULATED: tl.constexpr,
    WB: tl.constexpr,
    WH: tl.constexpr,
    WW: tl.constexpr,
):
    """Return the gradients of positions and modulation as ``gradients.position_gradient`` does, from Q [BM, BW]."""
    if WB > 1:
        node = tl.arange(0, WB * WH * WW)
        q = tl.where(image[:, None] == (node // (WH * WW))[None, :], q, 0.0)
    to_y, to_x, to_m = pull_in_cell(q, y, x, a, b, KIND, MODULATED, WH, WW)
    if KIND != "grid":
        limits = tap_limits(a, b, r, lattice, KIND)
        if any_whole(y, x, limits, may_move(offsets[0], offsets[1], lattice, KIND)):
            y, x = other_side(y, limits[0]), other_side(x, limits[1])
            other_y, other_x, _ = pull_in_cell(q, y, x, a, b, KIND, MODULATED, WH, WW)
            to_y, to_x = 0.5 * (to_y + other_y), 0.5 * (to_x + other_x)
    return to_y, to_x, to_m


@triton.jit
def pull_in_cell(q, y, x, a, b, KIND: tl.constexpr, MODULATED: tl.constexpr, WH: tl.constexpr, WW: tl.constexpr):
    """Return the same with the slopes of the cells that contain the positions."""
    node = tl.arange(0, q.shape[1])
    hat_y, slope_y = hats_and_slopes(y, node // WW % WH)
    hat_x, slope_x = hats_and_slopes(x, node % WW)
    if KIND == "ball" and not MODULATED:
        along = one_each(tl.sum(q * ((a * slope_y) * hat_x + hat_y * (b * slope_x)), 1))
        return along * a, along * b, along
    else:
        to_y = one_each(tl.sum(q * (slope_y * hat_x), 1))
        to_x = one_each(tl.sum(q * (hat_y * slope_x), 1))
        return to_y, to_x, one_each(tl.sum(q * (hat_y * hat_x), 1))


@triton.jit
def hats_and_slopes(places, nodes):
    """Return the weights of nodes [n] at places [m] along an axis, and their derivatives: [m, n] each."""
    nodes, cells = nodes.to(tl.float32)[None, :], tl.floor(places)[:, None]
    slopes = (nodes == cells + 1).to(tl.float32) - (nodes == cells).to(tl.float32)
    return tl.maximum(1 - tl.abs(nodes - places[:, None]), 0.0), slopes


@triton.jit
def hats(places, nodes):
    """Return the weights of nodes [n] at places [m] along an axis: [n, m]; NaN at a place that is none."""
    height = 1 - tl.abs(places[None, :] - nodes[:, None].to(tl.float32))
    return tl.maximum(height, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def even(values):
    """Return every second of [BM] values, from the first on."""
    return tl.split(tl.reshape(values, (values.shape[0] // 2, 2)))[0]


@triton.jit
def odd(values):
    """Return every second of [BM] values, from the second on."""
    return tl.split(tl.reshape(values, (values.shape[0] // 2, 2)))[1]


@triton.jit
def window_rows(
    first_image,
    first_y,
    first_x,
    shape,
    MODE: tl.constexpr,
    HUGE: tl.constexpr,
    WB: tl.constexpr,
    WH: tl.constexpr,
    WW: tl.constexpr,
):
    """Return which row of an image (B·H·W, C) each pixel of the window is, [BW], and where it is one at all."""
    pixel = tl.arange(0, WB * WH * WW)
    image = first_image + pixel // (WH * WW)
    y, counts_y = fold(first_y + pixel // WW % WH, shape.height, MODE)
    x, counts_x = fold(first_x + pixel % WW, shape.width, MODE)
    row = (wide(image, HUGE) * shape.height + y) * shape.width + x
    return row, (counts_y * counts_x > 0) & (image < shape.batch)
