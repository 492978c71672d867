"""Interpolation of one channel at the samples of a strip, and its adjoint; arrays are channels-first.

In a volume a sample is interpolated in two slices, each of which is treated like a 2-D image.
"""

import numpy as np

from .central_difference import neighbor_steps, outer_neighbor_step, slope_factors
from .jit import inlined, noalloc, optional
from .simd import SAMPLES_PER_VECTOR, interpolate_vector

# Rows of the buffer ``work``: the gradient of the modulation, summed over channels; for one channel the gradient of the
# sample, without modulation, and with modulation and slice weight; the sample's value in one slice, and in both.
GRAD_MODULATION, GRAD_SAMPLE, GRAD_READ, SLICE_VALUE, SAMPLE_VALUE = range(5)


@inlined
def corner_addresses(slice_offset, pitch, address):
    """Return the addresses of the four corners, unsigned: numba then omits the test for negative indices."""
    a = np.uint64(slice_offset) + np.uint64(address)
    return a, a + np.uint64(1), a + np.uint64(pitch), a + np.uint64(pitch) + np.uint64(1)


@inlined
def corner_weights(upper_y, upper_x, gain):
    """Return the interpolation weights of the four corners times the gain."""
    lower, right = gain * upper_y, gain * upper_x
    diagonal = lower * upper_x
    return gain - lower - right + diagonal, right - diagonal, lower - diagonal, diagonal


@noalloc
def interpolate(x, channel, slice_offset, pitch, address, upper_weight, value, n):
    """Interpolate between the four corners of each address. The last vector may exceed n within the buffer."""
    first = np.uint64(channel * x.shape[1] + slice_offset)
    for i in range(np.uint64(0), n, np.uint64(SAMPLES_PER_VECTOR)):
        interpolate_vector(x, first, np.uint64(pitch), address, upper_weight, value, i)


@optional
def interpolate_slices(volume, value, upper_slice, upper_weight, n):
    """Interpolate between two slices, in place."""
    for i in range(n):
        value[0, i] += upper_weight[0, i] * (upper_slice[0, i] - value[0, i])


@noalloc
def interpolate_backward(x, channel, slice_offset, pitch, address, upper_weight, work, grad_position, n):
    """Interpolate in a slice, and accumulate the gradient of the positions along y and x."""
    for i in range(n):
        a, b, c, d = corner_addresses(slice_offset, pitch, address[i])
        along_top, along_bottom = x[channel, b] - x[channel, a], x[channel, d] - x[channel, c]
        top = x[channel, a] + upper_weight[2, i] * along_top
        down = x[channel, c] + upper_weight[2, i] * along_bottom - top
        work[SLICE_VALUE, i] = top + upper_weight[1, i] * down
        grad_position[1, i] += work[GRAD_READ, i] * down
        grad_position[2, i] += work[GRAD_READ, i] * (along_top + upper_weight[1, i] * (along_bottom - along_top))


@noalloc
def interpolate_central_backward(x, channel, slice_offset, pitch, address, upper_weight, side, work, grad_position, n):
    """As ``interpolate_backward``, with central differences at integer coordinates."""
    for i in range(n):
        a, b, c, d = corner_addresses(slice_offset, pitch, address[i])
        along_top, along_bottom = x[channel, b] - x[channel, a], x[channel, d] - x[channel, c]
        top = x[channel, a] + upper_weight[2, i] * along_top
        down = x[channel, c] + upper_weight[2, i] * along_bottom - top
        work[SLICE_VALUE, i] = top + upper_weight[1, i] * down
        left, right = x[channel, a] + upper_weight[1, i] * (x[channel, c] - x[channel, a]), along_bottom - along_top
        right = along_top + upper_weight[1, i] * right
        row, column = np.uint64(outer_neighbor_step(side[1, i], pitch)), np.uint64(outer_neighbor_step(side[2, i], 1))
        beyond = x[channel, a + row] + upper_weight[2, i] * (x[channel, b + row] - x[channel, a + row])
        beside = x[channel, a + column] + upper_weight[1, i] * (x[channel, c + column] - x[channel, a + column])
        (inner_y, outer_y), (inner_x, outer_x) = slope_factors(side[1, i]), slope_factors(side[2, i])
        grad_position[1, i] += work[GRAD_READ, i] * (inner_y * down + outer_y * (beyond - top))
        grad_position[2, i] += work[GRAD_READ, i] * (inner_x * right + outer_x * (beside - left))


@noalloc
def fill_neighbor_addresses(geometry, address, upper_weight, side, neighbors, n):
    """Write the addresses [7, n] of the samples' pixels, and of those before and after along z, y and x."""
    half = upper_weight.dtype.type(0.5)
    first_axis = 1 if geometry.first_axis else 0  # a 1-D signal has a single row: no neighbors
    for i in range(n):
        neighbors[0, i] = address[i]
    for axis in range(geometry.first_axis, 3):
        pitch = np.int32(geometry.pitch[axis])
        for i in range(n):
            neighbors[0, i] += pitch if upper_weight[axis, i] >= half else np.int32(0)
    for axis in range(first_axis, 3):
        pitch = np.int32(geometry.pitch[axis])
        for i in range(n):
            back, ahead = neighbor_steps(side[axis, i], pitch)
            neighbors[1 + 2 * axis, i] = neighbors[0, i] - back
            neighbors[2 + 2 * axis, i] = neighbors[0, i] + ahead


@noalloc
def read_pixels_backward(x, channel, is_volume, neighbors, upper_weight, gain, work, value_row, grad_position, n):
    """Read samples that lie on pixels, and accumulate the gradient of their positions: central differences.

    Values are exact up to the square of the tolerance.
    """
    half = x.dtype.type(0.5)
    for i in range(n):
        central, grad_read = x[channel, np.uint64(neighbors[0, i])], half * work[GRAD_SAMPLE, i] * gain[i]
        above, below = x[channel, np.uint64(neighbors[3, i])], x[channel, np.uint64(neighbors[4, i])]
        left, right = x[channel, np.uint64(neighbors[5, i])], x[channel, np.uint64(neighbors[6, i])]
        grad_position[1, i] += grad_read * (below - above)
        grad_position[2, i] += grad_read * (right - left)
        work[value_row, i] = (
            central
            + interpolation_difference(upper_weight[1, i], above, central, below)
            + interpolation_difference(upper_weight[2, i], left, central, right)
        )
    if is_volume:
        for i in range(n):
            central, grad_read = x[channel, np.uint64(neighbors[0, i])], half * work[GRAD_SAMPLE, i] * gain[i]
            before, after = x[channel, np.uint64(neighbors[1, i])], x[channel, np.uint64(neighbors[2, i])]
            grad_position[0, i] += grad_read * (after - before)
            work[value_row, i] += interpolation_difference(upper_weight[0, i], before, central, after)


@inlined
def interpolation_difference(upper_weight, before, central, after):
    """Return the difference between a sample and the pixel next to it, given the upper corner's weight."""
    real = type(upper_weight)
    return (
        upper_weight * (after - central) if upper_weight < real(0.5) else (real(1) - upper_weight) * (before - central)
    )


@optional
def interpolate_slices_backward(volume, z_slice, gain, upper_weight, side, work, grad_position, n):
    """Interpolate between slices, and accumulate the gradient of the positions along z."""
    for i in range(n):
        slice_value, grad_read = work[SLICE_VALUE, i], work[GRAD_SAMPLE, i] * gain[i]
        work[SAMPLE_VALUE, i] = (
            work[SAMPLE_VALUE, i] + upper_weight[0, i] * (slice_value - work[SAMPLE_VALUE, i])
            if z_slice
            else slice_value
        )
        inner, outer = slope_factors(side[0, i])
        grad_position[0, i] += grad_read * slice_value * (inner if z_slice else -inner - outer)


@optional
def add_outer_slice_gradient(volume, x, channel, geometry, address, upper_weight, side, gain, work, grad_position, n):
    """Add to the gradient along z the part of the central difference that lies in the slice outside of the cell."""
    pitch = geometry.pitch[1]
    for i in range(n):
        a, b, c, d = corner_addresses(outer_neighbor_step(side[0, i], geometry.pitch[0]), pitch, address[i])
        top = x[channel, a] + upper_weight[2, i] * (x[channel, b] - x[channel, a])
        bottom = x[channel, c] + upper_weight[2, i] * (x[channel, d] - x[channel, c])
        _, outer = slope_factors(side[0, i])
        grad_position[0, i] += work[GRAD_SAMPLE, i] * gain[i] * outer * (top + upper_weight[1, i] * (bottom - top))


@noalloc
def scatter_gradient(work, grad_image, channel, slice_offset, pitch, address, upper_weight, n):
    """Add the gradient of each sample to the four corners of its cell."""
    for i in range(n):
        a, b, c, d = corner_addresses(slice_offset, pitch, address[i])
        bottom = work[GRAD_READ, i] * upper_weight[1, i]
        top = work[GRAD_READ, i] - bottom
        right_top, right_bottom = top * upper_weight[2, i], bottom * upper_weight[2, i]
        grad_image[channel, a] += top - right_top
        grad_image[channel, b] += right_top
        grad_image[channel, c] += bottom - right_bottom
        grad_image[channel, d] += right_bottom
