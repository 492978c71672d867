"""Many channels: samples are gathered as rows of channels into a tile, which a matrix product contracts.

A tile is T consecutive output pixels of one image and some taps; it fits in the caches of one core. Where its samples
lie is written down once, tap by tap, and read by every kernel:

    address [taps, G, T]       of the upper left corner, in the plane of the image with its ring
    places  [4, taps, G, T]    weights of the lower and of the right corners; how these follow the position

These buffers, and the columns of samples, may be larger than the tile.
"""

from typing import NamedTuple

import numpy as np

from .blas import product, product_scratch
from .jit import compiled
from .sampling import BALL, add_offset_gradient, fill_centres, fill_reach, look, place, touch, turns


class Layout(NamedTuple):
    """How channels stand in memory: runs of ``span`` share a metric and a group of weights.

    The image is [B, plane, C], columns are [groups, T, taps, per_group] and weights [groups, P · per_group,
    outs_per_group]. Where ``each`` channel has weights of its own, all are one group and weights are [1, P, C].
    """

    ins: int
    per_metric: int
    per_group: int
    outs_per_group: int
    span: int
    each: bool
    pitch: int  # from a row of the plane to the next
    size: int  # of a tile, in pixels
    depth: int  # and in taps


class Tile(NamedTuple):
    """Which pixels of which image, and which taps."""

    image: int
    pixel: int
    size: int
    tap: int
    depth: int


@compiled
def forward(gemm, columns, x, field, taps, weight, modulation, geometry, layout, out, image, start, stop):
    """Add Σ_j w_j m_j x(centre + Δ_j) to the pixels start … stop of an image's output.

    ``gemm`` is the address of the BLAS's product, ``columns`` room for those of any tile; out [B, N, C_out].
    """
    address, places = buffers(x, field, layout)
    scratch = product_scratch(x)
    for pixel in range(start, stop, layout.size):
        for tap in range(0, taps.shape[0], layout.depth):
            tile = Tile(image, pixel, min(layout.size, stop - pixel), tap, min(layout.depth, taps.shape[0] - tap))
            locate(field, taps, geometry, False, address, places, tile)
            gather(x, modulation, taps, layout, address, places, columns, tile)
            contract(gemm, scratch, columns, weight, layout, out[image], tile)


@compiled
def backward(
    gemm, columns, x, field, taps, weight, modulation, geometry, layout, grad, moves, window, touched, grad_weight,
    grad_modulation, grad_field, image, start, stop
):  # fmt: skip
    """Add what the pixels start … stop of an image say about its data; a gradient without numbers is not wanted.

    grad [B, N, C_out]; window [plane, C] and grad_weight like weight are this part's own, the others like their
    tensors. ``touched`` is widened to the addresses that the window was written at.
    """
    address, places = buffers(x, field, layout)
    slope = np.empty((2, *address.shape), x.dtype)
    scratch = product_scratch(x)
    turns_back = moves or grad_modulation.shape[2] > 0
    for pixel in range(start, stop, layout.size):
        for tap in range(0, taps.shape[0], layout.depth):
            tile = Tile(image, pixel, min(layout.size, stop - pixel), tap, min(layout.depth, taps.shape[0] - tap))
            locate(field, taps, geometry, turns_back, address, places, tile)
            if grad_weight.size:
                gather(x, modulation, taps, layout, address, places, columns, tile)
                contract_weight(gemm, scratch, columns, grad[image], layout, grad_weight, tile)
            if window.size or turns_back:  # nobody needs the columns any more: their gradient takes their place
                spread(gemm, scratch, grad[image], weight, layout, columns, tile)
            if window.size:
                scatter(columns, modulation, taps, layout, address, places, window, touched, tile)
            if turns_back:
                slopes(x, columns, modulation, taps, layout, address, places, slope, grad_modulation, tile)
            if moves:
                follow(field, taps, geometry, slope, grad_field, tile)


@compiled
def buffers(x, field, layout):
    """Return room for where the samples of any tile lie."""
    shape = (layout.depth, field.shape[1], layout.size)
    return np.empty(shape, np.int32), np.empty((4, *shape), x.dtype)


@compiled
def locate(field, taps, geometry, moving, address, places, tile):
    """Write down where a tile's samples lie."""
    n = tile.size
    real = np.empty((5, n), places.dtype)
    cells = np.empty((2, n), np.int32)
    fill_centres(geometry, tile.pixel, real[0], real[1])
    for g in range(address.shape[1]):
        for k in range(tile.depth):
            look(geometry, field[tile.image, g], tile.pixel, taps, tile.tap + k, k == 0, real, n)
            place(
                geometry, real[3], real[4], cells, address[k, g, :n], places[0, k, g, :n], places[1, k, g, :n], moving,
                places[2, k, g, :n], places[3, k, g, :n],
            )  # fmt: skip


@compiled
def corners(layout, address, channel):
    """Return where the four corners' channels start in an image [plane · C]."""
    # Unsigned: indices that numba need not ask the sign of.
    a = np.uint64(address * layout.ins + channel)
    right, down = np.uint64(layout.ins), np.uint64(layout.pitch * layout.ins)
    return a, a + right, a + down, a + down + right


@compiled
def corner_weights(up_y, up_x, gain):
    """Return the four corners' weights, times the modulation."""
    high, right = gain * up_y, gain * up_x
    both = high * up_x
    return gain - high - right + both, right - both, high - both, both


@compiled
def fill_gains(modulation, taps, k, g, tile, gain):
    """Write what multiplies the samples of a tile at its k-th tap: 1 where nothing does."""
    if modulation.shape[2]:
        gain[:] = modulation[tile.image, g, np.intp(taps[tile.tap + k, 3]), tile.pixel : tile.pixel + tile.size]
    else:
        gain[:] = 1


@compiled
def first_column(layout, tile, k, channel):
    """Return where a channel of the tile's first pixel stands in its columns at the k-th tap."""
    group, inner = channel // layout.per_group, channel % layout.per_group
    return (group * tile.size * tile.depth + k) * layout.per_group + inner


@compiled
def gather(x, modulation, taps, layout, address, places, columns, tile):
    """Write the modulated samples of a tile into its columns."""
    image, span, step = x[tile.image].reshape(-1), np.uint64(layout.span), tile.depth * layout.per_group
    gain = np.empty(tile.size, x.dtype)
    for k in range(tile.depth):
        for channel in range(0, layout.ins, layout.span):
            g = channel // layout.per_metric
            fill_gains(modulation, taps, k, g, tile, gain)
            first = first_column(layout, tile, k, channel)
            where, up_y, up_x = address[k, g], places[0, k, g], places[1, k, g]
            for i in range(tile.size):
                a, b, c, d = corners(layout, where[i], channel)
                wa, wb, wc, wd = corner_weights(up_y[i], up_x[i], gain[i])
                to = np.uint64(first + i * step)
                for j in range(span):
                    columns[to + j] = image[a + j] * wa + image[b + j] * wb + image[c + j] * wc + image[d + j] * wd


@compiled
def scatter(grad_columns, modulation, taps, layout, address, places, window, touched, tile):
    """Add the gradients of a tile's samples to their corners, and widen the range of addresses touched."""
    image, span, step = window.reshape(-1), np.uint64(layout.span), tile.depth * layout.per_group
    gain = np.empty(tile.size, window.dtype)
    for k in range(tile.depth):
        for channel in range(0, layout.ins, layout.span):
            g = channel // layout.per_metric
            fill_gains(modulation, taps, k, g, tile, gain)
            first = first_column(layout, tile, k, channel)
            where, up_y, up_x = address[k, g], places[0, k, g], places[1, k, g]
            touch(where[: tile.size], touched)
            for i in range(tile.size):
                a, b, c, d = corners(layout, where[i], channel)
                wa, wb, wc, wd = corner_weights(up_y[i], up_x[i], gain[i])
                of = np.uint64(first + i * step)
                for j in range(span):
                    pull = grad_columns[of + j]
                    image[a + j] += wa * pull
                    image[b + j] += wb * pull
                    image[c + j] += wc * pull
                    image[d + j] += wd * pull


@compiled
def add_dots(image, grad_columns, span, corner, of, total):
    """Add Σ_c ∂L/∂column · x over a run of channels, at each of the four corners, to total [4]."""
    zero = image.dtype.type(0)
    sa, sb, sc, sd = zero, zero, zero, zero
    a, b, c, d = corner
    for j in range(np.uint64(span)):
        pull = grad_columns[of + j]
        sa += pull * image[a + j]
        sb += pull * image[b + j]
        sc += pull * image[c + j]
        sd += pull * image[d + j]
    total[0] += sa
    total[1] += sb
    total[2] += sc
    total[3] += sd


@compiled
def slopes(x, grad_columns, modulation, taps, layout, address, places, slope, grad_modulation, tile):
    """Write into slope [2, taps, G, T] what the gradients of samples say about their positions, and of modulation."""
    image, n, step = x[tile.image].reshape(-1), tile.size, tile.depth * layout.per_group
    gain, total = np.empty(n, x.dtype), np.empty((n, 4), x.dtype)
    for k in range(tile.depth):
        for g in range(address.shape[1]):
            total[:] = 0
            for channel in range(g * layout.per_metric, (g + 1) * layout.per_metric, layout.span):
                first = first_column(layout, tile, k, channel)
                for i in range(n):
                    corner = corners(layout, address[k, g, i], channel)
                    add_dots(image, grad_columns, layout.span, corner, np.uint64(first + i * step), total[i])
            fill_gains(modulation, taps, k, g, tile, gain)
            fill_slopes(total, gain, places[:, k, g], slope[:, k, g])
            if grad_modulation.shape[2]:
                tap = np.intp(taps[tile.tap + k, 3])
                grad_modulation[tile.image, g, tap, tile.pixel : tile.pixel + n] = total[:, 0]


@compiled
def fill_slopes(total, gain, places, slope):
    """Turn sums at the corners into the gradients of positions; the first becomes that of the modulation."""
    for i in range(gain.size):
        a, b, c, d = total[i, 0], total[i, 1], total[i, 2], total[i, 3]
        y1, x1 = places[0, i], places[1, i]
        across, twist = b - a, (d - c) - (b - a)
        down = (c - a) + x1 * twist
        slope[0, i] = gain[i] * down * places[2, i]
        slope[1, i] = gain[i] * (across + y1 * twist) * places[3, i]
        total[i, 0] = a + x1 * across + y1 * down


@compiled
def follow(field, taps, geometry, slope, grad_field, tile):
    """Add what the slopes of a tile say about the pixels' numbers."""
    n = tile.size
    reach = np.empty(n, slope.dtype)
    for g in range(slope.shape[2]):
        numbers, total = field[tile.image, g], grad_field[tile.image, g]
        for k in range(tile.depth):
            t = tile.tap + k
            if geometry.kind == BALL and (k == 0 or turns(taps, t)):
                fill_reach(numbers, tile.pixel, taps[t, 0], taps[t, 1], reach)
            gy, gx = slope[0, k, g, :n], slope[1, k, g, :n]
            add_offset_gradient(geometry.kind, numbers, tile.pixel, taps, t, reach, gy, gx, total)


@compiled
def contract(gemm, scratch, columns, weight, layout, out, tile):
    """Add a tile's columns, times their weights, to out [N, C_out]."""
    if layout.each:
        weigh_each(columns, weight[0, tile.tap : tile.tap + tile.depth], out[tile.pixel : tile.pixel + tile.size])
        return
    inner, outs, pitch = tile.depth * layout.per_group, layout.outs_per_group, out.shape[1]
    for group in range(weight.shape[0]):
        a = columns[group * tile.size * inner :]
        b = weight[group, tile.tap * layout.per_group :].reshape(-1)
        c = out.reshape(-1)[tile.pixel * pitch + group * outs :]
        product(gemm, scratch, a, inner, 0, b, outs, 0, 1, c, pitch, tile.size, outs, inner)


@compiled
def contract_weight(gemm, scratch, columns, grad, layout, total, tile):
    """Add what a tile's columns and the output's gradient [N, C_out] say about the weights."""
    if layout.each:
        sum_each(columns, grad[tile.pixel : tile.pixel + tile.size], total[0, tile.tap : tile.tap + tile.depth])
        return
    inner, outs, pitch = tile.depth * layout.per_group, layout.outs_per_group, grad.shape[1]
    for group in range(total.shape[0]):
        a = columns[group * tile.size * inner :]
        b = grad.reshape(-1)[tile.pixel * pitch + group * outs :]
        c = total[group, tile.tap * layout.per_group :].reshape(-1)
        product(gemm, scratch, a, inner, 1, b, pitch, 0, 1, c, outs, inner, outs, tile.size)


@compiled
def spread(gemm, scratch, grad, weight, layout, columns, tile):
    """Write the gradient of a tile's columns."""
    if layout.each:
        spread_each(grad[tile.pixel : tile.pixel + tile.size], weight[0, tile.tap : tile.tap + tile.depth], columns)
        return
    inner, outs, pitch = tile.depth * layout.per_group, layout.outs_per_group, grad.shape[1]
    for group in range(weight.shape[0]):
        a = grad.reshape(-1)[tile.pixel * pitch + group * outs :]
        b = weight[group, tile.tap * layout.per_group :].reshape(-1)
        c = columns[group * tile.size * inner :]
        product(gemm, scratch, a, pitch, 0, b, outs, 1, 0, c, inner, tile.size, inner, outs)


@compiled
def weigh_each(columns, weight, total):
    """Add Σ_t w[t, c] columns[i, t, c] to total [T, C]: each channel with weights of its own."""
    depth, channels = weight.shape
    for i in range(total.shape[0]):
        row = total[i]
        for k in range(depth):
            of, factor = np.uint64((i * depth + k) * channels), weight[k]
            for j in range(np.uint64(channels)):
                row[j] += columns[of + j] * factor[j]


@compiled
def spread_each(grad, weight, grad_columns):
    """Write ∂L/∂columns[i, t, c] = w[t, c] ∂L/∂y[i, c]; grad [T, C]."""
    depth, channels = weight.shape
    for i in range(grad.shape[0]):
        row = grad[i]
        for k in range(depth):
            to, factor = np.uint64((i * depth + k) * channels), weight[k]
            for j in range(np.uint64(channels)):
                grad_columns[to + j] = row[j] * factor[j]


@compiled
def sum_each(columns, grad, total):
    """Add Σ_i columns[i, t, c] ∂L/∂y[i, c] to total [taps, C]."""
    depth, channels = total.shape
    for i in range(grad.shape[0]):
        row = grad[i]
        for k in range(depth):
            of, sums = np.uint64((i * depth + k) * channels), total[k]
            for j in range(np.uint64(channels)):
                sums[j] += columns[of + j] * row[j]
