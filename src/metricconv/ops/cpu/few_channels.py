"""Kernels for few channels: samples are multiplied by their weights as they are read, strip by strip.

Samples are not stored, so memory does not grow with the kernel. Arrays are channels-first.
"""

from typing import NamedTuple

import numpy as np

from .central_difference import side_of
from .jit import kernel, noalloc
from .plane_interpolation import (
    GRAD_MODULATION,
    GRAD_READ,
    GRAD_SAMPLE,
    SAMPLE_VALUE,
    SLICE_VALUE,
    add_outer_slice_gradient,
    fill_neighbor_addresses,
    interpolate,
    interpolate_backward,
    interpolate_central_backward,
    interpolate_slices,
    interpolate_slices_backward,
    read_pixels_backward,
    scatter_gradient,
)
from .sampling import (
    INDEX,
    Geometry,
    StripBuffers,
    accumulate_position_gradient,
    backpropagate_direction,
    compute_addresses,
    direction_changes,
    load_centers,
    load_params,
    make_strip_buffers,
    prepare_direction,
)
from .strip import STRIP, add_scaled, extend_range, multiply_by_slice_weight

# Which coordinates of a strip's samples are integers: none, some, all.
OFF_LATTICE, MIXED, ON_LATTICE = range(3)


class ChannelGroups(NamedTuple):
    """The numbers of channels per metric and per weight group."""

    per_metric: int
    in_per_group: int
    out_per_group: int


class Buffers(NamedTuple):
    """Buffers of a strip: of its pixels, its samples (see sampling.py), and of one channel of these."""

    strip: StripBuffers
    address: np.ndarray  # [n]
    upper_weight: np.ndarray  # [3, n]
    weight_slope: np.ndarray  # [3, n]
    side: np.ndarray  # [3, n]
    value: np.ndarray  # [1, n]
    upper_slice: np.ndarray  # [1, n]
    gain: np.ndarray  # [n], 1 without modulation
    grad_position: np.ndarray  # [3, n]
    work: np.ndarray  # [5, n], see plane_interpolation.py
    neighbors: np.ndarray  # [7, n]


def make_buffers(geometry: Geometry, dtype: np.dtype) -> Buffers:
    """Return the buffers of any strip."""
    strip = make_strip_buffers(geometry, dtype)
    address, neighbors = np.zeros(STRIP, np.int32), np.zeros((7, STRIP), np.int32)
    value, upper_slice = np.zeros((1, STRIP), dtype), np.zeros((1, STRIP), dtype)
    weights, slopes, sides, grads = (np.zeros((3, STRIP), dtype) for _ in range(4))
    gain, work = np.ones(STRIP, dtype), np.zeros((5, STRIP), dtype)
    return Buffers(strip, address, weights, slopes, sides, value, upper_slice, gain, grads, work, neighbors)


@kernel
def forward(buffers, x, params, stencil, weight, modulation, geometry, groups, out, first, last, start, stop):
    """Add Σ_j w_j m_j x(center + Δ_j) to the output pixels start to stop of images first to last.

    x [B, C, addresses], params [B, G, n, N], stencil [P, 7], weight [C_out, C/groups, P], modulation [B, G, P or 0, N],
    out [B, C_out, N].
    """
    for b in range(first, last):
        forward_image(
            buffers, x[b], params[b], stencil, weight, modulation[b], geometry, groups, out[b], start, stop
        )  # fmt: skip


@noalloc
def forward_image(buffers, x, params, stencil, weight, modulation, geometry, groups, out, start, stop):
    """As ``forward``, for one image.

    x [C, addresses], params [G, n, N], stencil [P, 7], weight [C_out, C/groups, P], modulation [G, P or 0, N],
    out [C_out, N].
    """
    (center, pixel, pixel_term, paths), address, upper_weight, weight_slope, side = buffers[:5]
    value, upper_slice = buffers.value, buffers.upper_slice
    for begin in range(start, stop, STRIP):
        first, n = np.uint64(begin), np.uint64(STRIP if stop - begin > STRIP else stop - begin)
        load_centers(geometry, first, center, pixel, n)
        for group in range(params.shape[0]):
            group_params = params[group]
            load_params(geometry, group_params, pixel, paths, n)
            for t in range(stencil.shape[0]):
                if t == 0 or direction_changes(stencil, t):
                    prepare_direction(geometry, group_params, first, stencil, t, pixel, pixel_term, paths, n)
                compute_addresses(
                    geometry, group_params, first, stencil, t, center, pixel_term, paths, address, upper_weight,
                    weight_slope, side, n,
                )  # fmt: skip
                sample = np.intp(stencil[t, INDEX])
                for c in range(group * groups.per_metric, (group + 1) * groups.per_metric):
                    interpolate(x, c, 0, geometry.pitch[1], address, upper_weight, value, n)
                    if geometry.first_axis == 0:
                        interpolate(x, c, geometry.pitch[0], geometry.pitch[1], address, upper_weight, upper_slice, n)
                        interpolate_slices(geometry.volume, value, upper_slice, upper_weight, n)
                    if modulation.shape[1]:
                        for i in range(n):
                            value[0, i] *= modulation[group, sample, first + i]
                    first_out = c // groups.in_per_group * groups.out_per_group
                    channel_in_group = c % groups.in_per_group
                    for o in range(first_out, first_out + groups.out_per_group):
                        add_scaled(weight[o, channel_in_group, sample], value, 0, np.uint64(0), out, o, first, n)


@kernel
def backward(
    buffers, x, params, stencil, weight, modulation, geometry, groups, grad, needs_params_grad, grad_image,
    image_written, grad_weight, grad_modulation, grad_params, params_written, first, last, start, stop
):  # fmt: skip
    """Accumulate the gradients of the output pixels start to stop of images first to last.

    Empty gradient buffers are skipped. grad is [B, C_out, N]. grad_image [B, C, addresses] and grad_weight, like
    weight, are written by this task alone; the other gradients have the shapes of their tensors. ``image_written`` and
    ``params_written`` are extended to the addresses written.
    """
    for b in range(first, last):
        backward_image(
            buffers, x[b], params[b], stencil, weight, modulation[b], geometry, groups, grad[b], needs_params_grad,
            grad_image[b], image_written[b], grad_weight, grad_modulation[b], grad_params[b], params_written[b], start,
            stop,
        )  # fmt: skip


@noalloc
def backward_image(
    buffers, x, params, stencil, weight, modulation, geometry, groups, grad, needs_params_grad, grad_image,
    image_written, grad_weight, grad_modulation, grad_params, params_written, start, stop
):  # fmt: skip
    """As ``backward``, for one image."""
    (center, pixel, pixel_term, paths), address, upper_weight, weight_slope, side = buffers[:5]
    gain, grad_position, work, neighbors = buffers[7:]
    last = stencil.shape[0] - 1
    for begin in range(start, stop, STRIP):
        first, n = np.uint64(begin), np.uint64(STRIP if stop - begin > STRIP else stop - begin)
        load_centers(geometry, first, center, pixel, n)
        for group in range(params.shape[0]):
            group_params = params[group]
            load_params(geometry, group_params, pixel, paths, n)
            for t in range(last + 1):
                if t == 0 or direction_changes(stencil, t):
                    prepare_direction(geometry, group_params, first, stencil, t, pixel, pixel_term, paths, n)
                sides = compute_addresses(
                    geometry, group_params, first, stencil, t, center, pixel_term, paths, address, upper_weight,
                    weight_slope, side, n,
                )  # fmt: skip
                needs_lattice = needs_params_grad and sides > 0
                lattice = classify_lattice(geometry, upper_weight, n) if needs_lattice else OFF_LATTICE
                if lattice == ON_LATTICE:
                    fill_neighbor_addresses(geometry, address, upper_weight, side, neighbors, n)
                if grad_image.size:
                    extend_range(address, n, image_written)
                sample = np.intp(stencil[t, INDEX])
                if modulation.shape[1]:
                    for i in range(n):
                        gain[i] = modulation[group, sample, first + i]
                grad_position[:] = 0
                work[GRAD_MODULATION] = 0
                for c in range(group * groups.per_metric, (group + 1) * groups.per_metric):
                    channel_backward(
                        x, c, geometry, address, upper_weight, side, lattice, neighbors, gain, weight, sample, groups,
                        grad, first, grad_position, work, grad_weight, grad_image, n,
                    )  # fmt: skip
                if grad_modulation.shape[1]:
                    for i in range(n):
                        grad_modulation[group, sample, first + i] = work[GRAD_MODULATION, i]
                if needs_params_grad:
                    for axis in range(geometry.first_axis, 3):
                        for i in range(n):
                            grad_position[axis, i] *= weight_slope[axis, i]
                    accumulate_position_gradient(
                        geometry, first, stencil, t, pixel_term, paths, grad_position, grad_params[group], n
                    )
                    if t == last or direction_changes(stencil, t + 1):
                        backpropagate_direction(
                            geometry, group_params, first, stencil, t, pixel_term, paths, grad_params[group],
                            params_written, n,
                        )  # fmt: skip


@noalloc
def classify_lattice(geometry, upper_weight, n):
    """Return whether all (ON_LATTICE) or some (MIXED) coordinates of a strip's samples are integers."""
    count, tolerance = upper_weight.dtype.type(0), upper_weight.dtype.type(geometry.tolerance)
    for axis in range(geometry.first_axis, 3):
        for i in range(n):
            count += np.abs(side_of(upper_weight[axis, i], tolerance))
    return ON_LATTICE if count == (3 - geometry.first_axis) * n else MIXED


@noalloc
def channel_backward(
    x, c, geometry, address, upper_weight, side, lattice, neighbors, gain, weight, sample, groups, grad, first,
    grad_position, work, grad_weight, grad_image, n
):  # fmt: skip
    """Accumulate the gradients of position, modulation, weight and image from one channel c of one sample.

    The strip starts at ``first`` of grad [C_out, N]. grad_position is [3, n]; the rows of work [5, n] are listed in
    plane_interpolation.py.
    """
    first_out = c // groups.in_per_group * groups.out_per_group
    channel_in_group = c % groups.in_per_group
    is_volume = geometry.first_axis == 0
    pitch, column0, value_row = geometry.pitch[1], np.uint64(0), SAMPLE_VALUE if is_volume else SLICE_VALUE
    work[GRAD_SAMPLE] = 0
    for o in range(first_out, first_out + groups.out_per_group):
        add_scaled(weight[o, channel_in_group, sample], grad, o, first, work, GRAD_SAMPLE, column0, n)
    if lattice == ON_LATTICE:
        read_pixels_backward(x, c, is_volume, neighbors, upper_weight, gain, work, value_row, grad_position, n)
    for z_slice in range(2 if is_volume else 1):
        slice_offset = z_slice * geometry.pitch[0]
        for i in range(n):
            work[GRAD_READ, i] = work[GRAD_SAMPLE, i] * gain[i]
        if is_volume:
            multiply_by_slice_weight(z_slice, upper_weight, work[GRAD_READ], n)
        if lattice == OFF_LATTICE:
            interpolate_backward(x, c, slice_offset, pitch, address, upper_weight, work, grad_position, n)
        elif lattice == MIXED:
            interpolate_central_backward(x, c, slice_offset, pitch, address, upper_weight, side, work, grad_position, n)
        if grad_image.size:
            scatter_gradient(work, grad_image, c, slice_offset, pitch, address, upper_weight, n)
        if is_volume and lattice != ON_LATTICE:
            interpolate_slices_backward(geometry.volume, z_slice, gain, upper_weight, side, work, grad_position, n)
    if lattice == MIXED and is_volume:
        add_outer_slice_gradient(
            geometry.volume, x, c, geometry, address, upper_weight, side, gain, work, grad_position, n
        )
    for i in range(n):
        work[GRAD_MODULATION, i] += work[GRAD_SAMPLE, i] * work[value_row, i]
    if grad_weight.size:
        for i in range(n):
            work[value_row, i] *= gain[i]
        for o in range(first_out, first_out + groups.out_per_group):
            grad_weight[o, channel_in_group, sample] += row_dot(work, value_row, grad, o, first, n)


@noalloc
def row_dot(a, row, b, other, start, n):
    """Return the dot product of a row of a with a row of b, from column ``start`` on."""
    total = a.dtype.type(0)
    for i in range(n):
        total += a[row, i] * b[other, start + i]
    return total
