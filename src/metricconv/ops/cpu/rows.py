"""Many channels: samples are gathered as rows of channels into a tile, which a matrix product contracts.

A tile is T consecutive output pixels of one image and some taps; it fits in the caches of one core. Where its samples
lie is written down once, tap by tap, and read by every kernel:

    address [taps, G, T]       of the first corner, in the image with its ring
    up      [taps, G, 3, T]    weights of the later corners along each axis
    follows [taps, G, 3, T]    how these follow the position
    side    [taps, G, 3, T]    of whole coordinates: see sides.py

These buffers, and the columns of samples, may be larger than the tile. In a volume a sample is gathered from two
sheets, of which each is a plane's affair.
"""

from typing import NamedTuple

import numpy as np

from .jit import compiled, inner
from .nodes import WIDE, mix_channels
from .products import contract, contract_weight, product_scratch, spread
from .sampling import (
    NUMBER,
    STRIP,
    aim,
    feel,
    locate,
    make_strip,
    settle,
    stand,
    touch,
    turns,
    weigh_sheet,
)
from .sides import further, slope_factors


class Layout(NamedTuple):
    """How channels stand in memory: runs of ``span`` share a metric and a group of weights.

    The image is [addresses, C], columns are [groups, T, taps, per_group] and weights [groups, P · per_group,
    outs_per_group]. Where ``each`` channel has weights of its own, all are one group and weights are [1, P, C].
    """

    ins: int
    per_metric: int
    per_group: int
    outs_per_group: int
    span: int
    each: bool
    planar: bool  # whether output and its gradient are [C_out, N] instead of [N, C_out]
    size: int  # of a tile, in pixels, at most a strip
    depth: int  # and in taps


class Tile(NamedTuple):
    """Which pixels, and which taps."""

    pixel: int
    size: int
    tap: int
    depth: int


class Places(NamedTuple):
    """Where a tile's samples lie."""

    address: np.ndarray
    up: np.ndarray
    follows: np.ndarray
    side: np.ndarray


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


@inner
def corners(geometry, layout, address, sheet, channel):
    """Return where the four corners' channels start in an image [addresses · C], in one of its sheets."""
    # Unsigned: indices that numba need not ask the sign of.
    a = np.uint64((address + sheet * geometry.pitch[0]) * layout.ins + channel)
    right, down = np.uint64(layout.ins), np.uint64(geometry.pitch[1] * layout.ins)
    return a, a + right, a + down, a + down + right


@inner
def corner_weights(up_y, up_x, gain):
    """Return the four corners' weights, times the gain."""
    high, right = gain * up_y, gain * up_x
    both = high * up_x
    return gain - high - right + both, right - both, high - both, both


@inner
def fill_gains(modulation, taps, g, k, tile, gain):
    """Write what multiplies the samples of a tile at its k-th tap: 1 where nothing does."""
    gain[:] = 1
    if modulation.shape[1]:
        factor = modulation[g, np.intp(taps[tile.tap + k, NUMBER]), tile.pixel :]
        for i in range(tile.size):
            gain[i] = factor[i]


@inner
def first_column(layout, tile, k, channel):
    """Return where a channel of the tile's first pixel stands in its columns at the k-th tap."""
    group, inner = channel // layout.per_group, channel % layout.per_group
    return (group * tile.size * tile.depth + k) * layout.per_group + inner


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


@inner
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
def slopes(x, grad_columns, modulation, taps, geometry, layout, places, slope, grad_modulation, tile):
    """Write into slope, like places.up, what the gradients of samples say about positions; and that of modulation."""
    image, n, step, solid = x.reshape(-1), np.uint64(tile.size), tile.depth * layout.per_group, geometry.first == 0
    gain, share, value = np.empty(STRIP, x.dtype), np.empty(STRIP, x.dtype), np.empty(STRIP, x.dtype)
    total, outer = np.empty((STRIP, 4), x.dtype), np.empty((STRIP, 4), x.dtype)
    for k in range(tile.depth):
        for g in range(places.address.shape[1]):
            up, side, found = places.up[k, g], places.side[k, g], slope[k, g]
            fill_gains(modulation, taps, g, k, tile, gain)
            for sheet in range(2 if solid else 1):
                total[:] = 0
                outer[:] = 0
                for channel in range(g * layout.per_metric, (g + 1) * layout.per_metric, layout.span):
                    first = first_column(layout, tile, k, channel)
                    for i in range(tile.size):
                        corner = corners(geometry, layout, places.address[k, g, i], sheet, channel)
                        of = np.uint64(first + i * step)
                        if side[1, i] == 0 and side[2, i] == 0:
                            add_dots(image, grad_columns, layout.span, corner, of, total[i])
                        elif side[1, i] != 0 and side[2, i] != 0:
                            add_cross(image, grad_columns, layout, geometry, corner, side[:, i], of, total[i], outer[i])
                        else:
                            add_dots(image, grad_columns, layout.span, corner, of, total[i])
                            beyond = outer_corners(layout, geometry, corner, side[:, i])
                            add_dots(image, grad_columns, layout.span, beyond, of, outer[i])
                share[:] = 1
                if solid:
                    weigh_sheet(sheet, up, share, n)
                fill_slopes(sheet, total, outer, gain, share, up, side, value, found, n)
            if solid:
                add_further_sheet(image, grad_columns, layout, geometry, tile, k, g, places, gain, found)
            follows = places.follows[k, g]
            for axis in range(geometry.first, 3):
                for i in range(n):
                    found[axis, i] *= follows[axis, i]
            if grad_modulation.shape[1]:
                tap = np.intp(taps[tile.tap + k, NUMBER])
                for i in range(tile.size):
                    grad_modulation[g, tap, tile.pixel + i] = value[i]


@inner
def outer_corners(layout, geometry, corner, side):
    """Return the neighbours outside of a cell, where a coordinate is whole: two beyond it along y, two along x.

    Off the lattice these are corners of the cell, and do not count.
    """
    a, b, c, _ = corner
    row = np.uint64(further(side[1], geometry.pitch[1] * layout.ins))
    column = np.uint64(further(side[2], layout.ins))
    return a + row, b + row, a + column, c + column


@inner
def add_cross(image, grad_columns, layout, geometry, corner, side, of, total, outer):
    """Add the dot products of a sample on a pixel: at the pixel and its four neighbours, and not at the fourth corner.

    That one has no weight. Its product is set to what makes the interpolation linear.
    """
    zero = image.dtype.type(0)
    here, along_y, along_x, beyond, beside = zero, zero, zero, zero, zero
    y, x = 2 if side[1] > 0 else 0, 1 if side[2] > 0 else 0  # the pixel is corner y + x of the cell
    own, below, right = corner[y + x], corner[2 - y + x], corner[y + 1 - x]
    outside = outer_corners(layout, geometry, corner, side)
    above, left = outside[x], outside[2 + y // 2]
    for j in range(np.uint64(layout.span)):
        pull = grad_columns[of + j]
        here += pull * image[own + j]
        along_y += pull * image[below + j]
        along_x += pull * image[right + j]
        beyond += pull * image[above + j]
        beside += pull * image[left + j]
    total[y + x] += here
    total[2 - y + x] += along_y
    total[y + 1 - x] += along_x
    total[3 - y - x] += along_y + along_x - here
    outer[0] += beyond
    outer[1] += beyond
    outer[2] += beside
    outer[3] += beside


@inner
def fill_slopes(sheet, total, outer, gain, share, up, side, value, slope, n):
    """Turn sums at the corners of one sheet into the gradients of positions [3, n] and of modulation, and add those of
    the sheet before.
    """
    zero = gain.dtype.type(0)
    for i in range(n):
        a, b, c, d = total[i, 0], total[i, 1], total[i, 2], total[i, 3]
        across, twist = b - a, (d - c) - (b - a)
        down, right = (c - a) + up[2, i] * twist, across + up[1, i] * twist
        top, left = a + up[2, i] * across, a + up[1, i] * (c - a)
        beyond = outer[i, 0] + up[2, i] * (outer[i, 1] - outer[i, 0])
        beside = outer[i, 2] + up[1, i] * (outer[i, 3] - outer[i, 2])
        here, force = top + up[1, i] * down, gain[i] * share[i]
        inner_z, outer_z = slope_factors(side[0, i])
        inner_y, outer_y = slope_factors(side[1, i])
        inner_x, outer_x = slope_factors(side[2, i])
        slope[0, i] = slope[0, i] + gain[i] * here * inner_z if sheet else -gain[i] * here * (inner_z + outer_z)
        slope[1, i] = force * (inner_y * down + outer_y * (beyond - top)) + (slope[1, i] if sheet else zero)
        slope[2, i] = force * (inner_x * right + outer_x * (beside - left)) + (slope[2, i] if sheet else zero)
        value[i] = share[i] * here + (value[i] if sheet else zero)


@compiled
def add_further_sheet(image, grad_columns, layout, geometry, tile, k, g, places, gain, slope):
    """Add the part of the central difference across sheets that the neighbour outside of the cell has."""
    up, side, step = places.up[k, g], places.side[k, g], tile.depth * layout.per_group
    total = np.empty(4, image.dtype)
    for i in range(tile.size):
        if side[0, i] == 0:
            continue
        total[:] = 0
        sheet = 2 if side[0, i] > 0 else -1
        for channel in range(g * layout.per_metric, (g + 1) * layout.per_metric, layout.span):
            corner = corners(geometry, layout, places.address[k, g, i], sheet, channel)
            first = first_column(layout, tile, k, channel)
            add_dots(image, grad_columns, layout.span, corner, np.uint64(first + i * step), total)
        top = total[0] + up[2, i] * (total[1] - total[0])
        bottom = total[2] + up[2, i] * (total[3] - total[2])
        _, outer = slope_factors(side[0, i])
        slope[0, i] += gain[i] * outer * (top + up[1, i] * (bottom - top))
