"""Gradients of sampling locations and modulation, from the gradients of a tile's samples.

Interpolation is linear in the pixels around a sample, so both follow from dot products of the sample's gradient with
the channels of these pixels. Most samples need the corners of their cell, in a volume in two slices. A sample on a
pixel, as are all in a newly converted layer, needs the neighbors of that pixel instead.
"""

import numpy as np

from .central_difference import neighbor_steps, outer_neighbor_step, side_of, slope_factors
from .jit import inlined, noalloc, optional
from .sampling import INDEX
from .simd import channel_dots
from .strip import multiply_by_slice_weight
from .tiles import column_index, corner_channel_starts, fill_gain


@noalloc
def fill_position_gradients(
    x, grad_columns, modulation, stencil, geometry, layout, positions, gain, gradients, grad_modulation, tile
):
    """Write gradients.position, shaped like positions.upper_weight, and of modulation unless that is empty."""
    image, n = x.reshape(-1), np.uint64(tile.pixels)
    grad_position, value, on_pixel = gradients.position, gradients.value, gradients.on_pixel
    for k in range(tile.samples):
        for g in range(positions.address.shape[1]):
            fill_gain(modulation, stencil, g, k, tile, gain)
            marked = mark_samples_on_pixels(geometry, positions.upper_weight[k, g], on_pixel, n)
            if marked < tile.pixels:
                gradients_in_cells(image, grad_columns, geometry, layout, positions, tile, k, g, gain, gradients)
            if marked > 0:
                gradients_at_pixels(
                    image, grad_columns, geometry, layout, positions, tile, k, g, gain, gradients,
                    grad_modulation.shape[1] > 0,
                )  # fmt: skip
            weight_slope = positions.weight_slope[k, g]
            for axis in range(geometry.first_axis, 3):
                for i in range(n):
                    grad_position[k, g, axis, i] *= weight_slope[axis, i]
            if grad_modulation.shape[1]:
                sample = np.intp(stencil[tile.first_sample + k, INDEX])
                for i in range(tile.pixels):
                    grad_modulation[g, sample, tile.first_pixel + i] = value[i]


@noalloc
def mark_samples_on_pixels(geometry, upper_weight, on_pixel, n):
    """Write which samples lie on a pixel; return their number."""
    tolerance = upper_weight.dtype.type(geometry.tolerance)
    for i in range(n):
        on_pixel[i] = True
    for axis in range(geometry.first_axis, 3):
        for i in range(n):
            on_pixel[i] = on_pixel[i] and side_of(upper_weight[axis, i], tolerance) != 0
    count = 0
    for i in range(n):
        count += on_pixel[i]
    return count


@noalloc
def gradients_at_pixels(image, grad_columns, geometry, layout, positions, tile, k, g, gain, gradients, modulated):
    """Write the gradients of samples that lie on a pixel: central differences of its neighbors.

    ``value``, the gradient of the modulation, is exact up to the square of the tolerance.
    """
    upper_weight = positions.upper_weight[k, g]
    side = positions.side[k, g]
    row_length = tile.samples * layout.in_per_group
    neighbors, starts = gradients.neighbors, gradients.starts
    grad_position, value, on_pixel = gradients.position, gradients.value, gradients.on_pixel
    zero, half = image.dtype.type(0), image.dtype.type(0.5)
    for i in range(tile.pixels):
        if not on_pixel[i]:
            continue
        neighbors[:] = 0
        central, pixel = zero, nearest_pixel(geometry, positions.address[k, g, i], upper_weight, i)
        for channel in range(g * layout.per_metric, (g + 1) * layout.per_metric, layout.run_length):
            column = np.uint64(column_index(layout, tile, k, channel) + i * row_length)
            at = np.int64(pixel) * layout.in_channels + channel
            starts[:] = np.uint64(at)
            for axis in range(geometry.first_axis, 3):
                back, ahead = neighbor_steps(side[axis, i], geometry.pitch[axis] * layout.in_channels)
                starts[2 * axis], starts[2 * axis + 1] = np.uint64(at - back), np.uint64(at + ahead)
            plane = starts[2], starts[3], starts[4], starts[5]
            add_dots(image, grad_columns, layout.run_length, plane, column, neighbors[2:])
            if modulated or geometry.first_axis == 0:
                a = np.uint64(at)
                before, after, value_here, _ = channel_dots(
                    image, (starts[0], starts[1], a, a), grad_columns, column, np.uint64(layout.run_length)
                )
                neighbors[0] += before
                neighbors[1] += after
                central += value_here
        value[i] = central
        for axis in range(geometry.first_axis, 3):
            before, after = neighbors[2 * axis], neighbors[2 * axis + 1]
            signed_distance = (
                upper_weight[axis, i] if upper_weight[axis, i] < half else upper_weight[axis, i] - image.dtype.type(1)
            )
            grad_position[k, g, axis, i] = half * gain[i] * (after - before)
            if side[axis, i] != 0:
                value[i] += (
                    signed_distance * (after - central)
                    if signed_distance > zero
                    else signed_distance * (central - before)
                )


@inlined
def nearest_pixel(geometry, address, upper_weight, i):
    """Return the address of the pixel nearest to a sample, given that of its lower corner."""
    for axis in range(geometry.first_axis, 3):
        address += (
            np.int32(geometry.pitch[axis]) if upper_weight[axis, i] >= upper_weight.dtype.type(0.5) else np.int32(0)
        )
    return address


@noalloc
def add_dots(image, grad_columns, run_length, starts, column, total):
    """Add Σ_c ∂L/∂column · x over a run of channels, at each of four pixels, to total [4]."""
    a, b, c, d = channel_dots(image, starts, grad_columns, column, np.uint64(run_length))
    total[0] += a
    total[1] += b
    total[2] += c
    total[3] += d


@noalloc
def gradients_in_cells(image, grad_columns, geometry, layout, positions, tile, k, g, gain, gradients):
    """Write the gradients of all other samples, from the corners of their cells.

    At an integer coordinate, the neighbors outside of the cell along that axis belong to the central difference.
    """
    upper_weight = positions.upper_weight[k, g]
    side = positions.side[k, g]
    row_length = tile.samples * layout.in_per_group
    n = np.uint64(tile.pixels)
    is_volume, slice_weight = geometry.first_axis == 0, gradients.slice_weight
    total, outer_total, on_pixel = gradients.total, gradients.outer_total, gradients.on_pixel
    for z_slice in range(2 if is_volume else 1):
        total[:] = 0
        outer_total[:] = 0
        for channel in range(g * layout.per_metric, (g + 1) * layout.per_metric, layout.run_length):
            first = column_index(layout, tile, k, channel)
            for i in range(tile.pixels):
                if not on_pixel[i]:
                    corner = corner_channel_starts(geometry, layout, positions.address[k, g, i], z_slice, channel)
                    column = first + i * row_length
                    add_dots(image, grad_columns, layout.run_length, corner, np.uint64(column), total[i])
                    if side[1, i] != 0 or side[2, i] != 0:
                        corner = outer_corners(layout, geometry, corner, side[1, i], side[2, i])
                        add_dots(image, grad_columns, layout.run_length, corner, np.uint64(column), outer_total[i])
        slice_weight[:] = 1
        if is_volume:
            multiply_by_slice_weight(z_slice, upper_weight, slice_weight, n)
        combine_corner_dots(
            z_slice, total, outer_total, gain, slice_weight, upper_weight, side, gradients.value,
            gradients.position[k, g], n,
        )  # fmt: skip
    if is_volume:
        add_outer_slice_dots(
            geometry.volume, image, grad_columns, geometry, layout, positions, tile, k, g, gain, gradients
        )


@noalloc
def outer_corners(layout, geometry, corner, side_y, side_x):
    """Return the neighbors outside of a cell: two along y, two along x; corners of the cell if there are none."""
    a, b, c, _ = corner
    down = np.uint64(outer_neighbor_step(side_y, geometry.pitch[1] * layout.in_channels))
    right = np.uint64(outer_neighbor_step(side_x, layout.in_channels))
    return a + down, b + down, a + right, c + right


@noalloc
def combine_corner_dots(z_slice, total, outer_total, gain, slice_weight, upper_weight, side, value, grad_position, n):
    """Compute the gradients of positions [3, n] and of modulation from the dot products at the corners of one slice.

    The results of the lower slice are added to those of the upper one.
    """
    zero = gain.dtype.type(0)
    for i in range(n):
        a, b, c, d = total[i, 0], total[i, 1], total[i, 2], total[i, 3]
        across, mixed = b - a, (d - c) - (b - a)
        down, right = (c - a) + upper_weight[2, i] * mixed, across + upper_weight[1, i] * mixed
        top, left = a + upper_weight[2, i] * across, a + upper_weight[1, i] * (c - a)
        outer_row = outer_total[i, 0] + upper_weight[2, i] * (outer_total[i, 1] - outer_total[i, 0])
        outer_column = outer_total[i, 2] + upper_weight[1, i] * (outer_total[i, 3] - outer_total[i, 2])
        slice_value, weight = top + upper_weight[1, i] * down, gain[i] * slice_weight[i]
        inner_z, outer_z = slope_factors(side[0, i])
        inner_y, outer_y = slope_factors(side[1, i])
        inner_x, outer_x = slope_factors(side[2, i])
        grad_position[0, i] = (
            grad_position[0, i] + gain[i] * slice_value * inner_z
            if z_slice
            else -gain[i] * slice_value * (inner_z + outer_z)
        )
        grad_position[1, i] = weight * (inner_y * down + outer_y * (outer_row - top)) + (
            grad_position[1, i] if z_slice else zero
        )
        grad_position[2, i] = weight * (inner_x * right + outer_x * (outer_column - left)) + (
            grad_position[2, i] if z_slice else zero
        )
        value[i] = slice_weight[i] * slice_value + (value[i] if z_slice else zero)


@optional
def add_outer_slice_dots(volume, image, grad_columns, geometry, layout, positions, tile, k, g, gain, gradients):
    """Add to the gradient along z the part of the central difference that lies in the slice outside of the cell."""
    upper_weight = positions.upper_weight[k, g]
    side = positions.side[k, g]
    row_length = tile.samples * layout.in_per_group
    total, on_pixel, grad_position = gradients.neighbors[:4], gradients.on_pixel, gradients.position
    for i in range(tile.pixels):
        if side[0, i] == 0 or on_pixel[i]:
            continue
        total[:] = 0
        z_slice = outer_neighbor_step(side[0, i], 1)
        for channel in range(g * layout.per_metric, (g + 1) * layout.per_metric, layout.run_length):
            corner = corner_channel_starts(geometry, layout, positions.address[k, g, i], z_slice, channel)
            first = column_index(layout, tile, k, channel)
            add_dots(image, grad_columns, layout.run_length, corner, np.uint64(first + i * row_length), total)
        top = total[0] + upper_weight[2, i] * (total[1] - total[0])
        bottom = total[2] + upper_weight[2, i] * (total[3] - total[2])
        _, outer = slope_factors(side[0, i])
        grad_position[k, g, 0, i] += gain[i] * outer * (top + upper_weight[1, i] * (bottom - top))
