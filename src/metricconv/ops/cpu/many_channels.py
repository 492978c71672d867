"""Kernels for many channels: the samples of a tile are gathered into an im2col buffer and multiplied by gemm.

Arrays are channels-last.
"""

import numpy as np

from .jit import kernel, noalloc
from .plane_interpolation import corner_weights
from .position_gradients import fill_position_gradients
from .products import accumulate_weight_gradient, columns_gradient, multiply_columns
from .sampling import (
    accumulate_position_gradient,
    backpropagate_direction,
    compute_addresses,
    direction_changes,
    load_centers,
    load_params,
    prepare_direction,
)
from .simd import CHANNELS_PER_VECTOR, blend_channels, scatter_channels
from .strip import extend_range, multiply_by_slice_weight
from .tiles import Tile, column_index, corner_channel_starts, fill_gain


@kernel
def forward(
    gemm, columns, buffers, x, params, stencil, weight, modulation, geometry, layout, out, first, last, start, stop
):
    """Add Σ_j w_j m_j x(center + Δ_j) to the output pixels start to stop of images first to last.

    ``gemm`` is the address of the BLAS matrix product, ``columns`` the im2col buffer, ``buffers`` those of tiles.py; x
    [B, addresses, C], params [B, G, n, N], stencil [P, 7], modulation [B, G, P or 0, N], out [B, N, C_out] or, if
    ``layout.channels_first``, [B, C_out, N].
    """
    for b in range(first, last):
        forward_image(
            gemm, columns, buffers, x[b], params[b], stencil, weight, modulation[b], geometry, layout, out[b], start,
            stop,
        )  # fmt: skip


@noalloc
def forward_image(gemm, columns, buffers, x, params, stencil, weight, modulation, geometry, layout, out, start, stop):
    """As ``forward``, for one image."""
    strip, positions, gain, blas, output, _ = buffers
    pixels = balanced_size(stop - start, layout.tile_pixels)
    samples = balanced_size(stencil.shape[0], layout.tile_samples)
    for first_pixel in range(start, stop, pixels):
        for first_sample in range(0, stencil.shape[0], samples):
            tile = clipped_tile(first_pixel, pixels, stop, first_sample, samples, stencil.shape[0])
            compute_sample_positions(geometry, params, stencil, strip, positions, tile)
            gather_columns(x, modulation, stencil, geometry, layout, positions, gain, columns, tile)
            multiply_columns(gemm, blas, columns, weight, layout, output, out, tile)


@kernel
def backward(
    gemm, columns, buffers, x, params, stencil, weight, modulation, geometry, layout, grad, needs_params_grad,
    grad_image, image_written, grad_weight, grad_modulation, grad_params, params_written, first, last, start, stop
):  # fmt: skip
    """Accumulate the gradients of the output pixels start to stop of images first to last.

    Empty gradient buffers are skipped. grad is like out. grad_image [B, addresses, C] and grad_weight, like weight, are
    written by this task alone; the other gradients have the shapes of their tensors. ``image_written`` and
    ``params_written`` are extended to the addresses written.
    """
    for b in range(first, last):
        backward_image(
            gemm, columns, buffers, x[b], params[b], stencil, weight, modulation[b], geometry, layout, grad[b],
            needs_params_grad, grad_image[b], image_written[b], grad_weight, grad_modulation[b], grad_params[b],
            params_written[b], start, stop,
        )  # fmt: skip


@noalloc
def backward_image(
    gemm, columns, buffers, x, params, stencil, weight, modulation, geometry, layout, grad, needs_params_grad,
    grad_image, image_written, grad_weight, grad_modulation, grad_params, params_written, start, stop
):  # fmt: skip
    """As ``backward``, for one image."""
    strip, positions, gain, blas, _, gradients = buffers
    needs_position_grad = needs_params_grad or grad_modulation.shape[1] > 0
    pixels = balanced_size(stop - start, layout.tile_pixels)
    samples = balanced_size(stencil.shape[0], layout.tile_samples)
    for first_pixel in range(start, stop, pixels):
        for first_sample in range(0, stencil.shape[0], samples):
            tile = clipped_tile(first_pixel, pixels, stop, first_sample, samples, stencil.shape[0])
            compute_sample_positions(geometry, params, stencil, strip, positions, tile)
            if grad_weight.size:
                gather_columns(x, modulation, stencil, geometry, layout, positions, gain, columns, tile)
                accumulate_weight_gradient(gemm, blas, columns, grad, layout, grad_weight, tile)
            if grad_image.size or needs_position_grad:  # overwrites the columns
                columns_gradient(gemm, blas, grad, weight, layout, columns, tile)
            if grad_image.size:
                scatter_columns_gradient(
                    columns, modulation, stencil, geometry, layout, positions, gain, grad_image, image_written, tile
                )
            if needs_position_grad:
                fill_position_gradients(
                    x, columns, modulation, stencil, geometry, layout, positions, gain, gradients, grad_modulation, tile
                )
            if needs_params_grad:
                accumulate_params_gradient(
                    geometry, params, stencil, strip, gradients.position, grad_params, params_written, tile
                )


@kernel
def gather_block(buffers, x, params, stencil, modulation, geometry, layout, columns, first, last, start, stop):
    """Write the samples of the output pixels start to stop of images first to last into columns, one row per pixel.

    x [B, addresses, C], params [B, G, n, N], stencil [P, 7], modulation [B, G, P or 0, N], columns [rows · P · C].
    """
    strip, positions, gain = buffers.strip, buffers.positions, buffers.gain
    row_length, samples = stencil.shape[0] * layout.in_channels, stencil.shape[0]
    pixels = balanced_size(stop - start, layout.tile_pixels)
    for image in range(first, last):
        for first_pixel in range(start, stop, pixels):
            tile = clipped_tile(first_pixel, pixels, stop, 0, samples, samples)
            row = (image - first) * (stop - start) + first_pixel - start
            compute_sample_positions(geometry, params[image], stencil, strip, positions, tile)
            gather_columns(
                x[image], modulation[image], stencil, geometry, layout, positions, gain,
                columns[row * row_length :], tile,
            )  # fmt: skip


@kernel
def scatter_block(
    buffers, x, params, stencil, modulation, geometry, layout, grad_columns, needs_params_grad, grad_image,
    image_written, grad_modulation, grad_params, params_written, first, last, start, stop
):  # fmt: skip
    """Accumulate the gradients of images, modulation and params from those of the samples, as in ``gather_block``."""
    strip, positions, gain, gradients = buffers.strip, buffers.positions, buffers.gain, buffers.gradients
    needs_position_grad = needs_params_grad or grad_modulation.shape[2] > 0
    row_length, samples = stencil.shape[0] * layout.in_channels, stencil.shape[0]
    pixels = balanced_size(stop - start, layout.tile_pixels)
    for image in range(first, last):
        for first_pixel in range(start, stop, pixels):
            tile = clipped_tile(first_pixel, pixels, stop, 0, samples, samples)
            row = (image - first) * (stop - start) + first_pixel - start
            columns = grad_columns[row * row_length :]
            compute_sample_positions(geometry, params[image], stencil, strip, positions, tile)
            if grad_image.size:
                scatter_columns_gradient(
                    columns, modulation[image], stencil, geometry, layout, positions, gain, grad_image[image],
                    image_written[image], tile
                )  # fmt: skip
            if needs_position_grad:
                fill_position_gradients(
                    x[image], columns, modulation[image], stencil, geometry, layout, positions, gain, gradients,
                    grad_modulation[image], tile
                )  # fmt: skip
            if needs_params_grad:
                accumulate_params_gradient(
                    geometry, params[image], stencil, strip, gradients.position, grad_params[image],
                    params_written[image], tile
                )  # fmt: skip


@noalloc
def balanced_size(total, largest):
    """Return the size of nearly equal parts of a total that are at most ``largest``."""
    count = (total + largest - 1) // largest
    return (total + count - 1) // count


@noalloc
def clipped_tile(first_pixel, pixels, last_pixel, first_sample, samples, last_sample):
    """Return a tile of these sizes, or what remains before the last pixel and sample (exclusive)."""
    pixels_left, samples_left = last_pixel - first_pixel, last_sample - first_sample
    pixels = pixels if pixels < pixels_left else pixels_left
    samples = samples if samples < samples_left else samples_left
    return Tile(first_pixel, pixels, first_sample, samples)


@noalloc
def compute_sample_positions(geometry, params, stencil, strip, positions, tile):
    """Write the sampling locations of a tile."""
    first, n = np.uint64(tile.first_pixel), np.uint64(tile.pixels)
    center, pixel, pixel_term, paths = strip
    load_centers(geometry, first, center, pixel, n)
    for g in range(params.shape[0]):
        load_params(geometry, params[g], pixel, paths, n)
        for k in range(tile.samples):
            t = tile.first_sample + k
            if k == 0 or direction_changes(stencil, t):
                prepare_direction(geometry, params[g], first, stencil, t, pixel, pixel_term, paths, n)
            compute_addresses(
                geometry, params[g], first, stencil, t, center, pixel_term, paths, positions.address[k, g],
                positions.upper_weight[k, g], positions.weight_slope[k, g], positions.side[k, g], n,
            )  # fmt: skip


@noalloc
def accumulate_params_gradient(geometry, params, stencil, strip, grad_position, grad_params, params_written, tile):
    """Add the gradient of the support parameters, given that of a tile's sampling locations."""
    first, n, last = np.uint64(tile.first_pixel), np.uint64(tile.pixels), tile.first_sample + tile.samples - 1
    _, pixel, pixel_term, paths = strip
    for g in range(params.shape[0]):
        load_params(geometry, params[g], pixel, paths, n)
        for k in range(tile.samples):
            t = tile.first_sample + k
            if k == 0 or direction_changes(stencil, t):
                prepare_direction(geometry, params[g], first, stencil, t, pixel, pixel_term, paths, n)
            accumulate_position_gradient(
                geometry, first, stencil, t, pixel_term, paths, grad_position[k, g], grad_params[g], n
            )
            if t == last or direction_changes(stencil, t + 1):
                backpropagate_direction(
                    geometry, params[g], first, stencil, t, pixel_term, paths, grad_params[g], params_written, n
                )


@noalloc
def gather_columns(x, modulation, stencil, geometry, layout, positions, gain, columns, tile):
    """Write the modulated samples of a tile into the im2col buffer."""
    vector_end = np.uint64(layout.run_length - layout.run_length % CHANNELS_PER_VECTOR)
    image, run_length, row_length = x.reshape(-1), np.uint64(layout.run_length), tile.samples * layout.in_per_group
    n = np.uint64(tile.pixels)
    for k in range(tile.samples):
        for channel in range(0, layout.in_channels, layout.run_length):
            g, first = channel // layout.per_metric, column_index(layout, tile, k, channel)
            address = positions.address[k, g]
            upper_y = positions.upper_weight[k, g, 1]
            upper_x = positions.upper_weight[k, g, 2]
            for z_slice in range(2 if geometry.first_axis == 0 else 1):
                fill_gain(modulation, stencil, g, k, tile, gain)
                if geometry.first_axis == 0:
                    multiply_by_slice_weight(z_slice, positions.upper_weight[k, g], gain, n)
                for i in range(tile.pixels):
                    a, b, c, d = corner_channel_starts(geometry, layout, address[i], z_slice, channel)
                    wa, wb, wc, wd = corner_weights(upper_y[i], upper_x[i], gain[i])
                    target = np.uint64(first + i * row_length)
                    if z_slice == 0:
                        for j in range(np.uint64(0), vector_end, np.uint64(CHANNELS_PER_VECTOR)):
                            blend_channels(image, (a + j, b + j, c + j, d + j), (wa, wb, wc, wd), columns, target + j)
                        for j in range(vector_end, run_length):
                            columns[target + j] = (
                                image[a + j] * wa + image[b + j] * wb + image[c + j] * wc + image[d + j] * wd
                            )
                    else:
                        for j in range(run_length):
                            columns[target + j] += (
                                image[a + j] * wa + image[b + j] * wb + image[c + j] * wc + image[d + j] * wd
                            )


@noalloc
def scatter_columns_gradient(
    grad_columns, modulation, stencil, geometry, layout, positions, gain, grad_image, image_written, tile
):
    """Add the gradients of a tile's samples to their corners, and extend the range of addresses written."""
    image = grad_image.reshape(-1)
    run_length = np.uint64(layout.run_length)
    row_length = tile.samples * layout.in_per_group
    n = np.uint64(tile.pixels)
    for k in range(tile.samples):
        for channel in range(0, layout.in_channels, layout.run_length):
            g, first = channel // layout.per_metric, column_index(layout, tile, k, channel)
            address = positions.address[k, g]
            upper_y = positions.upper_weight[k, g, 1]
            upper_x = positions.upper_weight[k, g, 2]
            extend_range(address, n, image_written)
            for z_slice in range(2 if geometry.first_axis == 0 else 1):
                fill_gain(modulation, stencil, g, k, tile, gain)
                if geometry.first_axis == 0:
                    multiply_by_slice_weight(z_slice, positions.upper_weight[k, g], gain, n)
                for i in range(tile.pixels):
                    a, b, c, d = corner_channel_starts(geometry, layout, address[i], z_slice, channel)
                    wa, wb, wc, wd = corner_weights(upper_y[i], upper_x[i], gain[i])
                    source = np.uint64(first + i * row_length)
                    scatter_channels(image, (a, b, c, d), (wa, wb, wc, wd), grad_columns, source, run_length)
