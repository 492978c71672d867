"""What the gradients of a tile's samples say about their positions and about modulation.

Interpolation is linear in the pixels around a sample, so both follow from scalar products of the sample's gradient with
the channels of these pixels. Most samples need them at the corners of their cell, in a volume in two sheets. A sample
that lies on a pixel, as all do at the start of a converted layer, needs the neighbours of that pixel instead.
"""

import numpy as np

from .jit import compiled, inlined, inner
from .sampling import NUMBER, STRIP, weigh_sheet
from .sides import further, side_of, slope_factors, steps_around
from .tiles import corners, fill_gains, first_column


@compiled
def slopes(x, grad_columns, modulation, taps, geometry, layout, places, slope, grad_modulation, tile):
    """Write the gradients of positions into slope, like places.up, and those of modulation if they are wanted."""
    image, n = x.reshape(-1), np.uint64(tile.size)
    gain, value, on_pixel = np.empty(STRIP, x.dtype), np.empty(STRIP, x.dtype), np.empty(STRIP, np.bool_)
    for k in range(tile.depth):
        for g in range(places.address.shape[1]):
            fill_gains(modulation, taps, g, k, tile, gain)
            pixels = find_pixels(geometry, places.up[k, g], on_pixel, n)
            if pixels < tile.size:
                slopes_in_cells(image, grad_columns, geometry, layout, places, tile, k, g, on_pixel, gain, value, slope)
            if pixels > 0:
                slopes_at_pixels(
                    image, grad_columns, geometry, layout, places, tile, k, g, on_pixel, gain, value, slope,
                    grad_modulation.shape[1] > 0,
                )  # fmt: skip
            follows = places.follows[k, g]
            for axis in range(geometry.first, 3):
                for i in range(n):
                    slope[k, g, axis, i] *= follows[axis, i]
            if grad_modulation.shape[1]:
                tap = np.intp(taps[tile.tap + k, NUMBER])
                for i in range(tile.size):
                    grad_modulation[g, tap, tile.pixel + i] = value[i]


@inner
def find_pixels(geometry, up, on_pixel, n):
    """Write which samples lie on a pixel, and return how many do."""
    tolerance = up.dtype.type(geometry.tolerance)
    for i in range(n):
        on_pixel[i] = True
    for axis in range(geometry.first, 3):
        for i in range(n):
            on_pixel[i] = on_pixel[i] and side_of(up[axis, i], tolerance) != 0
    count = 0
    for i in range(n):
        count += on_pixel[i]
    return count


@compiled
def slopes_at_pixels(
    image, grad_columns, geometry, layout, places, tile, k, g, on_pixel, gain, value, slope, modulated
):  # fmt: skip
    """Write slopes and values of the samples that lie on a pixel: central differences of its neighbours.

    The value is wanted for modulation alone. It is exact up to the square of the tolerance.
    """
    up, side, step = places.up[k, g], places.side[k, g], tile.depth * layout.per_group
    around = np.empty(6, image.dtype)  # before and after the pixel along z, y and x
    zero, half = image.dtype.type(0), image.dtype.type(0.5)
    for i in range(tile.size):
        if not on_pixel[i]:
            continue
        around[:] = 0
        own, pixel = zero, nearest(geometry, places.address[k, g, i], up, i)
        for channel in range(g * layout.per_metric, (g + 1) * layout.per_metric, layout.span):
            of = np.uint64(first_column(layout, tile, k, channel) + i * step)
            at = np.int64(pixel) * layout.ins + channel
            for axis in range(geometry.first, 3):
                if side[axis, i] != 0:
                    back, ahead = steps_around(side[axis, i], geometry.pitch[axis] * layout.ins)
                    before, after = two_dots(image, grad_columns, layout.span, at - back, at + ahead, of)
                    around[2 * axis] += before
                    around[2 * axis + 1] += after
            if modulated:
                own += two_dots(image, grad_columns, layout.span, at, at, of)[0]
        value[i] = own
        for axis in range(geometry.first, 3):
            before, after = around[2 * axis], around[2 * axis + 1]
            past = up[axis, i] if up[axis, i] < half else up[axis, i] - image.dtype.type(1)
            slope[k, g, axis, i] = half * gain[i] * (after - before)
            if side[axis, i] != 0:
                value[i] += past * (after - own) if past > zero else past * (own - before)


@inlined
def nearest(geometry, address, up, i):
    """Return the address of the pixel nearest to a sample, given that of its first corner."""
    for axis in range(geometry.first, 3):
        address += np.int32(geometry.pitch[axis]) if up[axis, i] >= up.dtype.type(0.5) else np.int32(0)
    return address


@inner
def two_dots(image, grad_columns, span, a, b, of):
    """Return Σ_c ∂L/∂column · x over a run of channels, at two pixels."""
    first, second, a, b = image.dtype.type(0), image.dtype.type(0), np.uint64(a), np.uint64(b)
    for j in range(np.uint64(span)):
        pull = grad_columns[of + j]
        first += pull * image[a + j]
        second += pull * image[b + j]
    return first, second


@inner
def add_dots(image, grad_columns, span, corner, of, total):
    """Add Σ_c ∂L/∂column · x over a run of channels, at each of four corners, to total [4]."""
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
def slopes_in_cells(image, grad_columns, geometry, layout, places, tile, k, g, on_pixel, gain, value, slope):
    """Write slopes and values of all other samples, from the corners of their cells.

    Where some coordinate is whole, the neighbours beyond the cell along that axis belong to the central difference.
    """
    up, side, step, n = places.up[k, g], places.side[k, g], tile.depth * layout.per_group, np.uint64(tile.size)
    solid, share = geometry.first == 0, np.empty(STRIP, image.dtype)
    total, beyond = np.empty((STRIP, 4), image.dtype), np.zeros((STRIP, 4), image.dtype)
    for sheet in range(2 if solid else 1):
        total[:] = 0
        beyond[:] = 0
        for channel in range(g * layout.per_metric, (g + 1) * layout.per_metric, layout.span):
            first = first_column(layout, tile, k, channel)
            for i in range(tile.size):
                if not on_pixel[i]:
                    corner, of = corners(geometry, layout, places.address[k, g, i], sheet, channel), first + i * step
                    add_dots(image, grad_columns, layout.span, corner, np.uint64(of), total[i])
                    if side[1, i] != 0 or side[2, i] != 0:
                        corner = further_corners(layout, geometry, corner, side[1, i], side[2, i])
                        add_dots(image, grad_columns, layout.span, corner, np.uint64(of), beyond[i])
        share[:] = 1
        if solid:
            weigh_sheet(sheet, up, share, n)
        fill_slopes(sheet, total, beyond, gain, share, up, side, value, slope[k, g], n)
    if solid:
        add_further_sheet(image, grad_columns, geometry, layout, places, tile, k, g, on_pixel, gain, slope)


@inner
def further_corners(layout, geometry, corner, side_y, side_x):
    """Return the neighbours beyond a cell along y, two, and along x, two; corners of the cell where there are none."""
    a, b, c, _ = corner
    row = np.uint64(further(side_y, geometry.pitch[1] * layout.ins))
    column = np.uint64(further(side_x, layout.ins))
    return a + row, b + row, a + column, c + column


@inner
def fill_slopes(sheet, total, beyond, gain, share, up, side, value, slope, n):
    """Turn sums at the corners of one sheet, and beyond them, into the gradients of positions [3, n] and of modulation,
    and add those of the sheet before.
    """
    zero = gain.dtype.type(0)
    for i in range(n):
        a, b, c, d = total[i, 0], total[i, 1], total[i, 2], total[i, 3]
        across, twist = b - a, (d - c) - (b - a)
        down, right = (c - a) + up[2, i] * twist, across + up[1, i] * twist
        top, left = a + up[2, i] * across, a + up[1, i] * (c - a)
        below = beyond[i, 0] + up[2, i] * (beyond[i, 1] - beyond[i, 0])
        beside = beyond[i, 2] + up[1, i] * (beyond[i, 3] - beyond[i, 2])
        here, force = top + up[1, i] * down, gain[i] * share[i]
        inner_z, outer_z = slope_factors(side[0, i])
        inner_y, outer_y = slope_factors(side[1, i])
        inner_x, outer_x = slope_factors(side[2, i])
        slope[0, i] = slope[0, i] + gain[i] * here * inner_z if sheet else -gain[i] * here * (inner_z + outer_z)
        slope[1, i] = force * (inner_y * down + outer_y * (below - top)) + (slope[1, i] if sheet else zero)
        slope[2, i] = force * (inner_x * right + outer_x * (beside - left)) + (slope[2, i] if sheet else zero)
        value[i] = share[i] * here + (value[i] if sheet else zero)


@compiled
def add_further_sheet(image, grad_columns, geometry, layout, places, tile, k, g, on_pixel, gain, slope):
    """Add the part of the central difference across sheets that the sheet beyond the cell has."""
    up, side, step = places.up[k, g], places.side[k, g], tile.depth * layout.per_group
    total = np.empty(4, image.dtype)
    for i in range(tile.size):
        if side[0, i] == 0 or on_pixel[i]:
            continue
        total[:] = 0
        sheet = further(side[0, i], 1)
        for channel in range(g * layout.per_metric, (g + 1) * layout.per_metric, layout.span):
            corner = corners(geometry, layout, places.address[k, g, i], sheet, channel)
            first = first_column(layout, tile, k, channel)
            add_dots(image, grad_columns, layout.span, corner, np.uint64(first + i * step), total)
        top = total[0] + up[2, i] * (total[1] - total[0])
        bottom = total[2] + up[2, i] * (total[3] - total[2])
        _, outer = slope_factors(side[0, i])
        slope[k, g, 0, i] += gain[i] * outer * (top + up[1, i] * (bottom - top))
