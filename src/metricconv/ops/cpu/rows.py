"""Many channels: samples are gathered as rows of channels into a tile, which a matrix product contracts."""

import numpy as np

from .jit import compiled, inner
from .nodes import WIDE, mix_channels
from .products import contract, contract_weight, product_scratch, spread
from .sampling import STRIP, aim, feel, locate, make_strip, settle, stand, touch, turns, weigh_sheet
from .slopes import slopes
from .tiles import Places, Tile, corner_weights, corners, fill_gains, first_column


@compiled
def forward(gemm, columns, x, field, taps, weight, modulation, geometry, layout, out, start, stop):
    """Add Σ_j w_j m_j x(centre + Δ_j) to the pixels start … stop of one image's output.

    ``gemm`` is the address of the BLAS's product, ``columns`` room for those of any tile; x [addresses, C], field
    [G, n, N], taps [P, 7], modulation [G, P or 0, N], out [N, C_out] or, if the layout is planar, [C_out, N].
    """
    strip, places, scratch = make_strip(geometry, x), make_places(x, field, layout), product_scratch(x)
    room = np.empty(layout.size * layout.outs_per_group, x.dtype)
    size, depth = evenly(stop - start, layout.size), evenly(taps.shape[0], layout.depth)
    for pixel in range(start, stop, size):
        for tap in range(0, taps.shape[0], depth):
            tile = Tile(pixel, min(size, stop - pixel), tap, min(depth, taps.shape[0] - tap))
            survey(geometry, field, taps, strip, places, tile)
            gather(x, modulation, taps, geometry, layout, places, columns, tile)
            contract(gemm, scratch, columns, weight, layout, room, out, tile)


@compiled
def backward(
    gemm, columns, x, field, taps, weight, modulation, geometry, layout, grad, moving, window, touched, grad_weight,
    grad_modulation, grad_field, field_touched, start, stop
):  # fmt: skip
    """Add what the pixels start … stop of an image say about its data; a gradient without numbers is not wanted.

    grad like out; window [addresses, C] and grad_weight like weight are this part's own, the others like their
    tensors. ``touched`` is widened to the addresses that the window was written at.
    """
    strip, places, scratch = make_strip(geometry, x), make_places(x, field, layout), product_scratch(x)
    slope = np.empty(places.up.shape, x.dtype)
    turns_back = moving or grad_modulation.shape[1] > 0
    size, depth = evenly(stop - start, layout.size), evenly(taps.shape[0], layout.depth)
    for pixel in range(start, stop, size):
        for tap in range(0, taps.shape[0], depth):
            tile = Tile(pixel, min(size, stop - pixel), tap, min(depth, taps.shape[0] - tap))
            survey(geometry, field, taps, strip, places, tile)
            if grad_weight.size:
                gather(x, modulation, taps, geometry, layout, places, columns, tile)
                contract_weight(gemm, scratch, columns, grad, layout, grad_weight, tile)
            if window.size or turns_back:  # nobody needs the columns any more: their gradient takes their place
                spread(gemm, scratch, grad, weight, layout, columns, tile)
            if window.size:
                scatter(columns, modulation, taps, geometry, layout, places, window, touched, tile)
            if turns_back:
                slopes(x, columns, modulation, taps, geometry, layout, places, slope, grad_modulation, tile)
            if moving:
                follow(geometry, field, taps, strip, slope, grad_field, field_touched, tile)


@inner
def evenly(total, most):
    """Return the size of parts, at most so large, that are as good as equal."""
    count = (total + most - 1) // most
    return (total + count - 1) // count


@compiled
def make_places(like, field, layout):
    """Return room for where the samples of any tile lie."""
    shape = (layout.depth, field.shape[0], 3, layout.size)
    return Places(
        np.empty((layout.depth, field.shape[0], layout.size), np.int32),
        np.empty(shape, like.dtype),
        np.empty(shape, like.dtype),
        np.zeros(shape, like.dtype),
    )


@inner
def survey(geometry, field, taps, strip, places, tile):
    """Write down where a tile's samples lie."""
    first, n = np.uint64(tile.pixel), np.uint64(tile.size)
    centre, pixel, along, paths = strip
    stand(geometry, first, centre, pixel, n)
    for g in range(field.shape[0]):
        for k in range(tile.depth):
            t = tile.tap + k
            if k == 0 or turns(taps, t):
                aim(geometry, field[g], first, taps, t, pixel, along, paths, n)
            locate(
                geometry, field[g], first, taps, t, centre, along, paths, places.address[k, g], places.up[k, g],
                places.follows[k, g], places.side[k, g], n,
            )  # fmt: skip


@inner
def follow(geometry, field, taps, strip, slope, grad_field, touched, tile):
    """Add what the slopes of a tile say about the pixels' numbers."""
    first, n, last = np.uint64(tile.pixel), np.uint64(tile.size), tile.tap + tile.depth - 1
    _, pixel, along, paths = strip
    for g in range(field.shape[0]):
        for k in range(tile.depth):
            t = tile.tap + k
            if k == 0 or turns(taps, t):
                aim(geometry, field[g], first, taps, t, pixel, along, paths, n)
            feel(geometry, first, taps, t, along, paths, slope[k, g], grad_field[g], n)
            if t == last or turns(taps, t + 1):
                settle(geometry, field[g], first, taps, t, along, paths, grad_field[g], touched, n)


@compiled
def gather(x, modulation, taps, geometry, layout, places, columns, tile):
    """Write the modulated samples of a tile into its columns."""
    whole = np.uint64(layout.span - layout.span % WIDE)
    image, span, step = x.reshape(-1), np.uint64(layout.span), tile.depth * layout.per_group
    gain, n = np.empty(STRIP, x.dtype), np.uint64(tile.size)
    for k in range(tile.depth):
        for channel in range(0, layout.ins, layout.span):
            g, first = channel // layout.per_metric, first_column(layout, tile, k, channel)
            where, up_y, up_x = places.address[k, g], places.up[k, g, 1], places.up[k, g, 2]
            for sheet in range(2 if geometry.first == 0 else 1):
                fill_gains(modulation, taps, g, k, tile, gain)
                if geometry.first == 0:
                    weigh_sheet(sheet, places.up[k, g], gain, n)
                for i in range(tile.size):
                    a, b, c, d = corners(geometry, layout, where[i], sheet, channel)
                    wa, wb, wc, wd = corner_weights(up_y[i], up_x[i], gain[i])
                    to = np.uint64(first + i * step)
                    if sheet == 0:
                        for j in range(np.uint64(0), whole, np.uint64(WIDE)):
                            mix_channels(image, (a + j, b + j, c + j, d + j), (wa, wb, wc, wd), columns, to + j)
                        for j in range(whole, span):
                            columns[to + j] = (
                                image[a + j] * wa + image[b + j] * wb + image[c + j] * wc + image[d + j] * wd
                            )
                    else:
                        for j in range(span):
                            columns[to + j] += (
                                image[a + j] * wa + image[b + j] * wb + image[c + j] * wc + image[d + j] * wd
                            )


@compiled
def scatter(grad_columns, modulation, taps, geometry, layout, places, window, touched, tile):
    """Add the gradients of a tile's samples to their corners, and widen the range of addresses touched."""
    image, span, step = window.reshape(-1), np.uint64(layout.span), tile.depth * layout.per_group
    gain, n = np.empty(STRIP, window.dtype), np.uint64(tile.size)
    for k in range(tile.depth):
        for channel in range(0, layout.ins, layout.span):
            g, first = channel // layout.per_metric, first_column(layout, tile, k, channel)
            where, up_y, up_x = places.address[k, g], places.up[k, g, 1], places.up[k, g, 2]
            touch(where, n, touched)
            for sheet in range(2 if geometry.first == 0 else 1):
                fill_gains(modulation, taps, g, k, tile, gain)
                if geometry.first == 0:
                    weigh_sheet(sheet, places.up[k, g], gain, n)
                for i in range(tile.size):
                    a, b, c, d = corners(geometry, layout, where[i], sheet, channel)
                    wa, wb, wc, wd = corner_weights(up_y[i], up_x[i], gain[i])
                    of = np.uint64(first + i * step)
                    for j in range(span):
                        pull = grad_columns[of + j]
                        image[a + j] += wa * pull
                        image[b + j] += wb * pull
                        image[c + j] += wc * pull
                        image[d + j] += wd * pull
