"""Sampling locations of a strip of output pixels, and the gradient of the support parameters they depend on.

Images have three axes (z, y, x); a 2-D image lacks the first, a 1-D signal the first two. Along each axis the offset of
a sample with reference cell or direction a is

    kind          offset        support parameters per pixel
    BALL          s·a / F       M, ω: F is the norm of the unit direction a, s the sample's radius: see tangent_ball.py
    GEODESIC      of the path   none; the field is a table of nodes, see geodesics.py
    SHIFTED       a + v         v
    DEFORMABLE    a + v         v for every sample
    DILATED       λ·a           λ
    GRID          a             none

so each is constant + factor·pixel_term, where ``pixel_term`` is a row of an array with one value per pixel. Samples in
the same direction follow each other: ``prepare_direction`` computes F, or traces geodesics, once for all of them, and
``backpropagate_direction`` takes the derivative once.

The image has a halo of one pixel, to which a position is clamped unless it is folded back into the image. So a sample
is given by the address of the lower corner of its cell and the weight of the upper corner along each axis.

Every loop runs over the pixels of a strip and has no branches, so that LLVM vectorizes it. Constants have the dtype of
the arrays, as a Python float would promote float32 to float64. Lengths and starts of strips are unsigned, which spares
numba the test for negative indices.
"""

from typing import NamedTuple

import numpy as np

from ..._interpolation import FARTHEST
from . import geodesics, geodesics_backward
from .central_difference import side_of
from .geodesics import FlowSettings
from .jit import inlined, noalloc, optional
from .strip import STRIP, add_scaled, fill
from .tangent_ball import add_ball_gradient, fill_inverse_norm

# The offsets of the last three depend on params directly. (numba would compile a function for each ``in``.)
GRID, BALL, GEODESIC, SHIFTED, DEFORMABLE, DILATED = range(6)

# Columns of the stencil: cell or direction (z, y, x), radius (of a geodesic: fraction of the path), the sample's index
# j, the index of its direction, and the length of its geodesic.
RADIUS, INDEX, DIRECTION, LENGTH = range(3, 7)


class Geometry(NamedTuple):
    """Constants that all pixels share, three of each: sizes, output centers o·stride + origin + half, border handling.

    Far positions are clamped to the halo or folded into the image, with a mirror along some axes. The integer part of a
    center is kept apart from its half, and offsets are relative to it: large coordinates would lose their fractions.
    """

    size: tuple[int, ...]
    pitch: tuple[int, ...]  # distance between neighbors along each axis, in the image with its halo
    out: tuple[int, ...]
    stride: tuple[int, ...]
    origin: tuple[int, ...]
    half: tuple[float, ...]
    first_axis: int  # first existing axis: 0 in 3-D, 1 in 2-D, 2 in 1-D
    kind: int
    one_sided: bool  # how ω enters the norm of a ball: see tangent_ball.py
    folds: bool
    mirrors: tuple[bool, ...]  # empty if no axis folds
    volume: tuple[bool, ...]  # empty for images and signals, so that functions for volumes are not compiled
    backward: bool  # whether gradients are computed
    tolerance: float  # see _interpolation.lattice_tolerance
    flow: FlowSettings | tuple[()]  # empty if there are no geodesics


class StripBuffers(NamedTuple):
    """Buffers of a strip's pixels."""

    center: np.ndarray  # [3, n], integer part, in the image with its halo
    pixel: np.ndarray  # [2, n], row and column in the output
    pixel_term: np.ndarray  # [3, n], of a ball 1/F, a part of F, and the gradient of 1/F; of geodesics the displacement
    paths: geodesics.Paths | tuple[()]


def make_strip_buffers(geometry: Geometry, dtype: np.dtype) -> StripBuffers:
    """Return the buffers of any strip."""
    paths = geodesics.make_paths(geometry.flow, dtype) if geometry.flow else ()
    return StripBuffers(np.empty((3, STRIP), dtype), np.empty((2, STRIP), dtype), np.zeros((3, STRIP), dtype), paths)


@noalloc
def load_centers(geometry, start, center, pixel, n):
    """Write the centers and the output rows and columns of n output pixels from ``start`` on."""
    real, (_, rows, columns), (z0, y0, x0) = center.dtype.type, geometry.out, geometry.origin
    y, x = np.intp(start) // columns, np.intp(start) % columns
    z, y = y // rows, y % rows
    for i in range(n):
        center[0, i] = real(z * geometry.stride[0] + z0 + 1)
        center[1, i] = real(y * geometry.stride[1] + y0 + 1)
        center[2, i] = real(x * geometry.stride[2] + x0 + 1)
        pixel[0, i], pixel[1, i] = y, x
        x += 1
        if x == columns:
            y, x = y + 1, 0
        if y == rows:
            z, y = z + 1, 0


@noalloc
def load_params(geometry, params, pixel, paths, n):
    """Load what the directions of n pixels share; params [n, N] or nodes."""
    geodesics.load_metric(geometry.flow, params, pixel, paths, n)


@noalloc
def direction_changes(stencil, t):
    """Return whether the sample of stencil row t has another direction than the one before."""
    return stencil[t, DIRECTION] != stencil[t - 1, DIRECTION]


@noalloc
def prepare_direction(geometry, params, start, stencil, t, pixel, pixel_term, paths, n):
    """Compute the terms of the direction of stencil row t for n pixels from ``start`` on; params [n, N] or nodes."""
    if geometry.kind == BALL:
        fill_inverse_norm(geometry.first_axis, geometry.one_sided, params, start, stencil, t, pixel_term, n)
    elif geometry.kind == GEODESIC:
        geodesics.trace(geometry.flow, params, stencil[t, 1], stencil[t, 2], stencil[t, LENGTH], pixel, paths, n)


@inlined
def compute_addresses(
    geometry, params, start, stencil, t, center, pixel_term, paths, address, upper_weight, weight_slope, side, n
):
    """Write the addresses [n] and the upper corners' weights [3, n] of the samples of stencil row t.

    In the backward pass, also write the derivative of the weights by the position [3, n], which is 1, −1 if mirrored or
    0 if clamped, and the sides of integer coordinates [3, n] (see central_difference.py). Returns the number of the
    latter.
    """
    kind = geometry.kind
    if kind == GEODESIC:
        geodesics.fill_displacement(geometry.flow, stencil[t, RADIUS], paths, pixel_term, n)
    if kind >= SHIFTED:
        return positions_to_addresses(
            geometry, stencil, t, center, params, start, address, upper_weight, weight_slope, side, n
        )
    return positions_to_addresses(
        geometry, stencil, t, center, pixel_term, np.uint64(0), address, upper_weight, weight_slope, side, n
    )


@inlined
def positions_to_addresses(
    geometry, stencil, t, center, pixel_term, term_start, address, upper_weight, weight_slope, side, n
):
    """As ``compute_addresses``, for offsets that depend on the array ``pixel_term`` from ``term_start`` on."""
    first_axis = geometry.first_axis
    if first_axis == 1 and not geometry.folds:
        clamp_plane(geometry, stencil, t, center, pixel_term, term_start, address, upper_weight, n)
    else:
        # A 1-D signal is the middle of three rows: the other two are its halo.
        fill(0 if first_axis < 2 else geometry.pitch[1], address, n)
        if first_axis == 2:
            upper_weight[1, :] = upper_weight.dtype.type(0)
        for axis in range(first_axis, 3):
            if geometry.folds:
                fold(
                    geometry.mirrors, geometry, stencil, t, center, axis, pixel_term, term_start, address,
                    upper_weight, weight_slope, n,
                )  # fmt: skip
            else:
                clamp(geometry, stencil, t, center, axis, pixel_term, term_start, address, upper_weight, n)
    sides = upper_weight.dtype.type(0)
    if geometry.backward:
        for axis in range(first_axis, 3):
            if not geometry.folds:
                fill_clamp_slope(geometry, stencil, t, center, axis, pixel_term, term_start, weight_slope, n)
            count = fill_sides(geometry, stencil, t, axis, upper_weight, weight_slope, side, n)
            if count > 0 and not geometry.folds:
                double_sides_at_halo(geometry, stencil, t, center, axis, pixel_term, term_start, side, n)
            sides += count
    return sides


@inlined
def offset_terms(geometry, stencil, t, axis):
    """Return the offset along an axis of the sample of stencil row t, relative to the integer part of the center.

    It is given as a constant, a factor, and the row of the array that the factor multiplies.
    """
    a, zero, one = stencil[t, axis], stencil.dtype.type(0), stencil.dtype.type(1)
    half = stencil.dtype.type(geometry.half[axis])
    row = term_row(geometry.kind, stencil[t, INDEX], geometry.first_axis, axis)
    if geometry.kind == BALL:
        return half, stencil[t, RADIUS] * a, row
    if geometry.kind == DILATED:
        return half, a, row
    return half if geometry.kind == GEODESIC else half + a, zero if geometry.kind == GRID else one, row


@inlined
def is_variable(geometry, stencil, t, axis):
    """Return whether the samples' coordinate along an axis depends on the support parameters."""
    _, factor, _ = offset_terms(geometry, stencil, t, axis)
    return factor != 0


@inlined
def term_row(kind, index, first_axis, axis):
    """Return the row of params, or of pixel_term, that the offset of sample ``index`` along an axis depends on."""
    if kind == SHIFTED:
        return axis - first_axis
    if kind == DEFORMABLE:
        return axis - first_axis + np.intp(index) * (3 - first_axis)
    if kind == GRID:
        return axis
    return axis if kind == GEODESIC else 0


@inlined
def clamp_to_halo(center, position, size):
    """Clamp a position along one axis to the halo; return the cell index and the upper corner's weight.

    Positions are relative to the center, cells to the first line of the halo. For NaN the cell is valid and the weight
    NaN.
    """
    real = type(position)
    last = real(size) - center  # the last cell
    inside = -center if position < -center else position
    cell = np.floor(inside)
    cell = cell if cell < last else last
    weight = inside - cell
    return np.int32(center + cell), real(1) if weight > real(1) else weight


@inlined
def clamp_plane(geometry, stencil, t, center, pixel_term, term_start, address, upper_weight, n):
    """Write addresses and weights of positions in a plane, clamped to the halo along both axes at once."""
    (_, height, width), pitch = geometry.size, np.int32(geometry.pitch[1])
    constant_y, factor_y, row_y = offset_terms(geometry, stencil, t, 1)
    constant_x, factor_x, row_x = offset_terms(geometry, stencil, t, 2)
    for i in range(n):
        y, upper_weight[1, i] = clamp_to_halo(
            center[1, i], constant_y + factor_y * pixel_term[row_y, term_start + i], height
        )
        x, upper_weight[2, i] = clamp_to_halo(
            center[2, i], constant_x + factor_x * pixel_term[row_x, term_start + i], width
        )
        address[i] = y * pitch + x


@noalloc
def clamp(geometry, stencil, t, center, axis, pixel_term, term_start, address, upper_weight, n):
    """Write the weights along one axis of positions clamped to the halo, and add to the addresses."""
    size, pitch = geometry.size[axis], np.int32(geometry.pitch[axis])
    constant, factor, row = offset_terms(geometry, stencil, t, axis)
    for i in range(n):
        cell, upper_weight[axis, i] = clamp_to_halo(
            center[axis, i], constant + factor * pixel_term[row, term_start + i], size
        )
        address[i] += cell * pitch


@noalloc
def fill_clamp_slope(geometry, stencil, t, center, axis, pixel_term, term_start, weight_slope, n):
    """Write 1 where a position lies in the image with its halo, else 0."""
    real = weight_slope.dtype.type
    constant, factor, row = offset_terms(geometry, stencil, t, axis)
    zero, one, last = real(0), real(1), real(geometry.size[axis] + 1)
    slack = (
        real(geometry.tolerance) if geometry.tolerance > 0 else zero
    )  # a negative tolerance switches central differences off, nothing else
    for i in range(n):
        position = center[axis, i] + (constant + factor * pixel_term[row, term_start + i])
        weight_slope[axis, i] = one if position >= -slack and position <= last + slack else zero


@noalloc
def fill_sides(geometry, stencil, t, axis, upper_weight, weight_slope, side, n):
    """Write the sides of integer coordinates that have a derivative; return their number."""
    real, tolerance = upper_weight.dtype.type, upper_weight.dtype.type(geometry.tolerance)
    if not is_variable(geometry, stencil, t, axis):
        side[axis, :] = real(0)
        return real(0)
    count = real(0)
    for i in range(n):
        value = side_of(upper_weight[axis, i], tolerance) * np.abs(weight_slope[axis, i])
        side[axis, i] = value
        count += value * value
    return count


@noalloc
def double_sides_at_halo(geometry, stencil, t, center, axis, pixel_term, term_start, side, n):
    """Double the sides of integer coordinates on the outermost line of the halo."""
    constant, factor, row = offset_terms(geometry, stencil, t, axis)
    half, one, two = side.dtype.type(0.5), side.dtype.type(1), side.dtype.type(2)
    end = side.dtype.type(geometry.size[axis]) + half
    for i in range(n):
        position = center[axis, i] + (constant + factor * pixel_term[row, term_start + i])
        side[axis, i] *= one if position > half and position < end else two


@optional
def fold(
    mirrors_of_axes, geometry, stencil, t, center, axis, pixel_term, term_start, address, upper_weight, weight_slope, n
):
    """Write the weights along one axis of positions folded into the image, and add to the addresses."""
    real, step = upper_weight.dtype.type, np.int32(geometry.pitch[axis])
    size, mirrors = geometry.size[axis], mirrors_of_axes[axis]
    constant, factor, row = offset_terms(geometry, stencil, t, axis)
    zero, one, farthest = real(0), real(1), real(FARTHEST)
    period = real(2 * (size - 1) if mirrors else size)
    mirror_start = real(size - 1) if mirrors else period  # beyond it lies the mirror image
    inverse, tolerance = one / period, real(geometry.tolerance)
    for i in range(n):
        position = constant + factor * pixel_term[row, term_start + i]
        clamped = position if position > -farthest else -farthest
        clamped = clamped if clamped < farthest else farthest
        low = np.floor(clamped)
        fraction = clamped - low
        low += center[axis, i]
        folded = low - one - period * np.floor((low - one) * inverse)
        folded = folded + period if folded < zero else folded  # the quotient may be rounded
        folded = folded - period if folded >= period else folded
        flipped = folded >= mirror_start
        folded = period - one - folded if flipped else folded
        weight_slope[axis, i] = (-one if flipped else one) if clamped == position else zero
        fraction = one - fraction if flipped else fraction
        upper_weight[axis, i] = fraction if position == position else position
        # The last cell of a circular image equals the cell before its first, which has an outer neighbor in memory.
        folded = -one if folded == mirror_start - one and fraction >= one - tolerance and not mirrors else folded
        address[i] += (np.int32(folded) + np.int32(1)) * step


@noalloc
def accumulate_position_gradient(geometry, start, stencil, t, pixel_term, paths, grad_position, grad_params, n):
    """Add the gradient [3, n] of the sampling locations of stencil row t to that of the terms they depend on.

    That is grad_params, or a buffer of the direction, which ``backpropagate_direction`` reads.
    """
    kind, column0 = geometry.kind, np.uint64(0)
    if kind == GEODESIC:
        geodesics_backward.accumulate_sample_gradient(geometry.flow, stencil[t, RADIUS], paths, grad_position, n)
    for axis in range(geometry.first_axis, 3):
        row = term_row(kind, stencil[t, INDEX], geometry.first_axis, axis)
        if kind == BALL:
            add_scaled(
                stencil[t, RADIUS] * stencil[t, axis], grad_position, axis, column0, pixel_term, row + 2, column0, n
            )
        elif kind == DILATED:
            add_scaled(stencil[t, axis], grad_position, axis, column0, grad_params, row, start, n)
        elif kind >= SHIFTED:
            add_scaled(grad_position.dtype.type(1), grad_position, axis, column0, grad_params, row, start, n)


@noalloc
def backpropagate_direction(geometry, params, start, stencil, t, pixel_term, paths, grad_params, written, n):
    """Backpropagate from the terms of the direction of stencil row t to the support parameters or nodes."""
    if geometry.kind == BALL:
        add_ball_gradient(geometry.first_axis, geometry.one_sided, start, stencil, t, pixel_term, grad_params, n)
    elif geometry.kind == GEODESIC:
        geodesics_backward.trace_backward(
            geometry.flow, params, stencil[t, 1], stencil[t, 2], stencil[t, LENGTH], paths, grad_params, written, n
        )
