"""Where a strip of output pixels looks, tap by tap, and the chain rule back to the numbers it follows from.

A strip is a run of consecutive output pixels of one image. Images have three axes (z, y, x), of which a plane lacks the
first and a line the first two. Along each axis, the sample of a tap at reference cell a, or in direction a, lies at

    kind          offset                  numbers a pixel
    BALL          s·a / F                 M, ω: F = √(aᵀMa) + ωᵀa for the tap's unit direction; s is its radius
    GEODESIC      the path's              of the field's nodes, see geodesics.py
    SHIFTED       a + v                   v
    DEFORMABLE    a + v                   v for every tap
    DILATED       λ·a                     λ
    GRID          a

so that all are constant + factor·along, with ``along`` an array over the pixels. Taps in the same direction follow each
other: ``aim`` computes F, or traces geodesics, once for all of them, and ``settle`` takes derivatives once.

Images carry a ring of one pixel: what stands past the border is read there, or the position is folded back inside
first. So a sample is one address, that of the first of its corners, and one weight along each axis.

Every loop is over the pixels of a strip and free of branches, so that it becomes vector instructions. Constants are
made in the arrays' own dtype: a Python number would widen float32 to float64.
"""

from typing import NamedTuple

import numpy as np

from . import geodesics
from .geodesics import STRIP, Flow
from .jit import compiled

GRID, BALL, GEODESIC, SHIFTED, DEFORMABLE, DILATED = range(6)

# Columns of the table of taps: cell or direction (z, y, x), radius, the sample's number j, that of its direction, and
# the length of its geodesic.
RADIUS, NUMBER, DIRECTION, LENGTH = range(3, 7)

# As in metrics/base.py: no sample is farther than 1e6 pixels; and as in _interpolation.py: float32 has no fractions
# left beyond 2²³.
SMALLEST_NORM = 1e-6
FARTHEST = 2.0**23


class Geometry(NamedTuple):
    """What all pixels share: sizes, the output's centres o·stride + origin, and what is done with far positions.

    They are brought onto the ring, or fold back into the image; folding, a mirror along some axes.
    """

    size: tuple[int, int, int]
    pitch: tuple[int, int, int]  # from an address to the next along each axis, in the image with its ring
    out: tuple[int, int, int]
    stride: tuple[float, float, float]
    origin: tuple[float, float, float]
    first: int  # the first axis that there is
    kind: int
    folds: bool
    mirrors: tuple[bool, bool, bool]
    flow: Flow


class Strip(NamedTuple):
    """What is known of a strip's pixels; rows may be longer than the strip."""

    centre: np.ndarray  # [3, n]
    pixel: np.ndarray  # [2, n]: row and column in the output
    along: np.ndarray  # [3, n]: for a ball 1/F, √(aᵀMa) and its gradient; for geodesics the displacement
    paths: geodesics.Paths


@compiled
def make_strip(geometry, like):
    """Return room for a strip."""
    centre, pixel = np.empty((3, STRIP), like.dtype), np.empty((2, STRIP), like.dtype)
    return Strip(centre, pixel, np.zeros((3, STRIP), like.dtype), geodesics.make_paths(geometry.flow, like))


@compiled
def stand(geometry, start, strip, n):
    """Begin a strip of n output pixels from ``start`` on: write where they are in the output and in the input."""
    real, (_, rows, columns) = strip.centre.dtype.type, geometry.out
    y, x = start // columns, start % columns
    z, y = y // rows, y % rows
    for i in range(n):
        strip.centre[0, i] = real(z * geometry.stride[0] + geometry.origin[0])
        strip.centre[1, i] = real(y * geometry.stride[1] + geometry.origin[1])
        strip.centre[2, i] = real(x * geometry.stride[2] + geometry.origin[2])
        strip.pixel[0, i], strip.pixel[1, i] = y, x
        x += 1
        if x == columns:
            y, x = y + 1, 0
        if y == rows:
            z, y = z + 1, 0


@compiled
def turns(taps, t):
    """Return whether the t-th tap looks in another direction than the one before."""
    return taps[t, DIRECTION] != taps[t - 1, DIRECTION]


@compiled
def aim(geometry, field, start, taps, t, strip, n):
    """Prepare for the taps in the direction of the t-th, for n pixels from ``start`` on; field [n, N] or [nodes, 12]."""
    if geometry.kind == BALL:
        fill_reach(geometry.first, field, start, taps[t], strip.along[0, :n], strip.along[1, :n])
        strip.along[2, :n] = 0
    elif geometry.kind == GEODESIC:
        geodesics.trace(geometry.flow, field, taps[t, 1], taps[t, 2], taps[t, LENGTH], strip.pixel, strip.paths, n)


@compiled
def locate(geometry, field, start, taps, t, strip, address, up, follows, backward, n):
    """Write where the samples of the t-th tap lie: addresses [n], weights of the later corners along each axis [3, n].

    In the backward pass, also how weights follow positions [3, n]: 1, −1 in a mirror, 0 where they do not.
    """
    zero, one = up.dtype.type(0), up.dtype.type(1)
    first, kind, number = geometry.first, geometry.kind, np.intp(taps[t, NUMBER])
    for i in range(n):
        address[i] = 0 if first < 2 else geometry.pitch[1]  # a line is the middle one of three rows
    if first == 2:
        up[1, :n] = zero
    if kind == GEODESIC:
        geodesics.displace(geometry.flow, taps[t, RADIUS], strip.paths, strip.along, n)
    for axis in range(first, 3):
        constant, factor, along = taps[t, axis], zero, strip.along[axis]
        if kind == BALL:
            constant, factor, along = zero, taps[t, RADIUS] * taps[t, axis], strip.along[0]
        elif kind == GEODESIC:
            constant, factor = zero, one
        elif kind == DILATED:
            constant, factor, along = zero, taps[t, axis], field[0, start:]
        elif kind != GRID:
            factor, along = one, field[vector_row(kind, number, first, axis), start:]
        where = (strip.centre[axis], constant, factor, along)
        if geometry.folds:
            fold(where, geometry.size[axis], geometry.pitch[axis], geometry.mirrors[axis], address, up[axis], follows[axis], n)
        else:
            clamp(where, geometry.size[axis], geometry.pitch[axis], address, up[axis], n)
            if backward:
                fill_inside(where, geometry.size[axis], follows[axis], n)


@compiled
def vector_row(kind, number, first, axis):
    """Return which row of the field holds the component of a tap's vector along an axis."""
    return axis - first + (number * (3 - first) if kind == DEFORMABLE else 0)


@compiled
def clamp(where, extent, pitch, address, up, n):
    """Bring positions along one axis into the image with its ring: beyond, all is as on the ring."""
    centre, constant, factor, along = where
    real, step, last = up.dtype.type, np.int32(pitch), np.int32(extent)
    low, high, one = real(-1), real(extent), real(1)
    for i in range(n):
        p = centre[i] + (constant + factor * along[i])
        inside = p if p > low else low  # NaN becomes an address like any other
        inside = inside if inside < high else high
        cell = np.int32(inside + one)  # not negative: to cut the fraction off is to round down
        cell = cell if cell < last else last
        address[i] += cell * step
        up[i] = inside - (real(cell) - one) if p == p else p  # and stays NaN in the weight


@compiled
def fill_inside(where, extent, follows, n):
    """Write 1 where a position lies in the image with its ring, else 0."""
    centre, constant, factor, along = where
    real = follows.dtype.type
    low, high, zero, one = real(-1), real(extent), real(0), real(1)
    for i in range(n):
        p = centre[i] + (constant + factor * along[i])
        follows[i] = one if p >= low and p <= high else zero


@compiled
def fold(where, extent, pitch, mirrors, address, up, follows, n):
    """Bring positions along one axis into the image by whole periods, the second half of which may be mirrored."""
    centre, constant, factor, along = where
    real, step = up.dtype.type, np.int32(pitch)
    zero, one, farthest = real(0), real(1), real(FARTHEST)
    period = real(2 * (extent - 1) if mirrors else extent)
    turn = real(extent - 1) if mirrors else period  # from here on the mirror image
    inverse = one / period
    for i in range(n):
        p = centre[i] + (constant + factor * along[i])
        near = p if p > -farthest else -farthest
        near = near if near < farthest else farthest
        low = np.floor(near)
        fraction = near - low
        folded = low - period * np.floor(low * inverse)
        folded = folded + period if folded < zero else folded  # where the quotient was rounded
        folded = folded - period if folded >= period else folded
        flipped = folded >= turn
        folded = period - one - folded if flipped else folded
        address[i] += (np.int32(folded) + np.int32(1)) * step
        follows[i] = (-one if flipped else one) if near == p else zero
        fraction = one - fraction if flipped else fraction
        up[i] = fraction if p == p else p


@compiled
def touch(address, n, touched):
    """Widen the range of addresses that were written."""
    low, high = touched[0], touched[1]
    for i in range(n):
        low, high = min(low, address[i]), max(high, address[i])
    touched[0], touched[1] = low, high


@compiled
def feel(geometry, start, taps, t, strip, slope, total, n):
    """Add what the gradient of a tap's positions, slope [3, n], says: to ``total``, like field, or until ``settle``."""
    kind, number = geometry.kind, np.intp(taps[t, NUMBER])
    if kind == GEODESIC:
        geodesics.feel(geometry.flow, taps[t, RADIUS], strip.paths, slope, n)
    for axis in range(geometry.first, 3):
        if kind == BALL:
            add_scaled(taps[t, RADIUS] * taps[t, axis], slope[axis], strip.along[2], n)
        elif kind == DILATED:
            add_scaled(taps[t, axis], slope[axis], total[0, start:], n)
        elif kind == SHIFTED or kind == DEFORMABLE:
            row = vector_row(kind, number, geometry.first, axis)
            add_scaled(slope.dtype.type(1), slope[axis], total[row, start:], n)


@compiled
def settle(geometry, field, start, taps, t, strip, total, touched, n):
    """Carry what was felt in the direction of the t-th tap back to the numbers it follows from."""
    if geometry.kind == BALL:
        add_ball_gradient(geometry.first, start, taps[t], strip.along, total, n)
    elif geometry.kind == GEODESIC:
        geodesics.retrace(
            geometry.flow, field, taps[t, 1], taps[t, 2], taps[t, LENGTH], strip.paths, total, touched, n
        )


@compiled
def fill_reach(first, field, start, u, reach, root):
    """Write 1/F(u), with F = √(uᵀMu) + ωᵀu never too small to divide by, and √(uᵀMu)."""
    real, row = reach.dtype.type, 0
    zero, one, smallest = real(0), real(1), real(SMALLEST_NORM)
    reach[:] = zero
    for j in range(first, 3):
        for k in range(j, 3):
            add_scaled(u[j] * u[k] * real(1 if j == k else 2), field[row, start:], reach, reach.size)
            row += 1
    for i in range(reach.size):
        root[i] = np.sqrt(zero if reach[i] <= zero else reach[i])
        reach[i] = root[i]
    if row < field.shape[0]:
        for j in range(first, 3):
            add_scaled(u[j], field[row, start:], reach, reach.size)
            row += 1
    for i in range(reach.size):
        reach[i] = one / (smallest if reach[i] < smallest else reach[i])


@compiled
def add_ball_gradient(first, start, u, along, total, n):
    """Add the derivative by M and ω, given the gradient g of 1/F: along [3, n] holds 1/F, √(uᵀMu) and g."""
    real, row = along.dtype.type, 0
    reach, root, felt = along[0], along[1], along[2]
    farthest, zero, half = real(1 / SMALLEST_NORM), real(0), real(0.5)
    for i in range(n):
        felt[i] = zero if reach[i] >= farthest else -felt[i] * reach[i] * reach[i]
        root[i] = zero if root[i] <= zero else half * felt[i] / root[i]
    for j in range(first, 3):
        for k in range(j, 3):
            add_scaled(u[j] * u[k] * real(1 if j == k else 2), root, total[row, start:], n)
            row += 1
    if row < total.shape[0]:
        for j in range(first, 3):
            add_scaled(u[j], felt, total[row, start:], n)
            row += 1


@compiled
def add_scaled(factor, value, total, n):
    """Add a multiple in place."""
    for i in range(n):
        total[i] += factor * value[i]


@compiled
def weigh_sheet(sheet, up_z, share, n):
    """Multiply by the weight of a sheet, the first or the second of the two that a sample of a volume is read in."""
    for i in range(n):
        share[i] *= up_z[i] if sheet else share.dtype.type(1) - up_z[i]
