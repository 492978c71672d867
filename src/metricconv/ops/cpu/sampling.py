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
made in the arrays' own dtype: a Python number would widen float32 to float64. Lengths and starts of strips are
unsigned: numba need not ask the sign of an index. Rows are given by array and number, as making a view of each costs
more than many a loop.
"""

from typing import NamedTuple

import numpy as np

from ..._interpolation import FARTHEST
from ...metrics.base import SMALLEST_NORM
from . import geodesics, retrace
from .geodesics import STRIP, Flow
from .jit import compiled, inlined, inner
from .sides import side_of

GRID, BALL, GEODESIC, SHIFTED, DEFORMABLE, DILATED = range(6)

# Columns of the table of taps: cell or direction (z, y, x), radius, the sample's number j, that of its direction, and
# the length of its geodesic.
RADIUS, NUMBER, DIRECTION, LENGTH = range(3, 7)


class Geometry(NamedTuple):
    """What all pixels share: sizes, the output's centres o·stride + origin + half, what is done with far positions.

    They are brought onto the ring, or fold back into the image; folding, a mirror along some axes. A centre's whole
    pixels are kept apart from its half, and positions are counted from there: far from 0 they would lose fractions.
    """

    size: tuple[int, ...]  # three of each
    pitch: tuple[int, ...]  # from an address to the next along each axis, in the image with its ring
    out: tuple[int, ...]
    stride: tuple[int, ...]
    origin: tuple[int, ...]
    half: tuple[float, ...]
    first: int  # the first axis that there is
    kind: int
    folds: bool
    mirrors: tuple[bool, ...]
    backward: bool  # whether derivatives are to be taken
    tolerance: float  # see _interpolation.lattice_tolerance
    flow: Flow


@compiled
def make_strip(geometry, like):
    """Return room for what is known of a strip's pixels; rows may be longer than the strip.

    centre [3, n], whole pixels, in the image with its ring; pixel [2, n], row and column in the output; along [3, n],
    for a ball 1/F, √(aᵀMa) and the gradient of 1/F, for geodesics the displacement; and their paths.
    """
    shape = (3, STRIP)
    paths = geodesics.make_paths(geometry.flow, like)
    return np.empty(shape, like.dtype), np.empty((2, STRIP), like.dtype), np.zeros(shape, like.dtype), paths


@inner
def stand(geometry, start, centre, pixel, n):
    """Begin a strip of n output pixels from ``start`` on: write where they are in the image and in the output."""
    real, (_, rows, columns), (z0, y0, x0) = centre.dtype.type, geometry.out, geometry.origin
    y, x = np.intp(start) // columns, np.intp(start) % columns
    z, y = y // rows, y % rows
    for i in range(n):
        centre[0, i] = real(z * geometry.stride[0] + z0 + 1)
        centre[1, i] = real(y * geometry.stride[1] + y0 + 1)
        centre[2, i] = real(x * geometry.stride[2] + x0 + 1)
        pixel[0, i], pixel[1, i] = y, x
        x += 1
        if x == columns:
            y, x = y + 1, 0
        if y == rows:
            z, y = z + 1, 0


@inner
def turns(taps, t):
    """Return whether the t-th tap looks in another direction than the one before."""
    return taps[t, DIRECTION] != taps[t - 1, DIRECTION]


@inner
def aim(geometry, field, start, taps, t, pixel, along, paths, n):
    """Prepare for the taps in the direction of the t-th, for n pixels from ``start`` on; field [n, N], or the nodes."""
    if geometry.kind == BALL:
        fill_reach(geometry.first, field, start, taps, t, along, n)
    elif geometry.kind == GEODESIC:
        geodesics.trace(geometry.flow, field, taps[t, 1], taps[t, 2], taps[t, LENGTH], pixel, paths, n)


@inlined
def locate(geometry, field, start, taps, t, centre, along, paths, address, up, follows, side, n):
    """Write where the samples of the t-th tap lie: addresses [n], weights of the later corners along each axis [3, n].

    In the backward pass, also how weights follow positions [3, n]: 1, −1 in a mirror, 0 where they do not; and the
    sides of whole coordinates [3, n], see sides.py, of which it returns the number.
    """
    kind = geometry.kind
    if kind == GEODESIC:
        geodesics.displace(geometry.flow, taps[t, RADIUS], paths, along, n)
    if kind in (SHIFTED, DEFORMABLE, DILATED):
        return place(geometry, taps, t, centre, field, start, address, up, follows, side, n)
    return place(geometry, taps, t, centre, along, np.uint64(0), address, up, follows, side, n)


@inlined
def place(geometry, taps, t, centre, along, skip, address, up, follows, side, n):
    """Turn the positions of a tap, which follow the array ``along`` from ``skip`` on, into addresses and weights."""
    first = geometry.first
    if first == 1 and not geometry.folds:
        clamp_plane(geometry, taps, t, centre, along, skip, address, up, n)
    else:
        # A line is the middle one of three rows.
        fill(0 if first < 2 else geometry.pitch[1], address, n)
        if first == 2:
            up[1, :] = up.dtype.type(0)
        for axis in range(first, 3):
            if geometry.folds:
                fold(geometry, taps, t, centre, axis, along, skip, address, up, follows, n)
            else:
                clamp(geometry, taps, t, centre, axis, along, skip, address, up, n)
    sides = up.dtype.type(0)
    if geometry.backward:
        for axis in range(first, 3):
            if not geometry.folds:
                fill_inside(geometry, taps, t, centre, axis, along, skip, follows, n)
            count = fill_sides(geometry, taps, t, axis, up, follows, side, n)
            if count > 0 and not geometry.folds:
                double_outermost(geometry, taps, t, centre, axis, along, skip, side, n)
            sides += count
    return sides


@inlined
def offset_of(geometry, taps, t, axis):
    """Return where a tap looks along an axis, from a centre's whole pixels on.

    As a constant, a factor, and the row of the array that this multiplies.
    """
    a, zero, one = taps[t, axis], taps.dtype.type(0), taps.dtype.type(1)
    half, row = taps.dtype.type(geometry.half[axis]), row_of(geometry.kind, taps[t, NUMBER], geometry.first, axis)
    if geometry.kind == BALL:
        return half, taps[t, RADIUS] * a, row
    if geometry.kind == DILATED:
        return half, a, row
    return half if geometry.kind == GEODESIC else half + a, zero if geometry.kind == GRID else one, row


@inlined
def movable(geometry, taps, t, axis):
    """Return whether the coordinate of a tap's samples along an axis depends on the geometry's parameters."""
    _, factor, _ = offset_of(geometry, taps, t, axis)
    return factor != 0


@inlined
def row_of(kind, number, first, axis):
    """Return which row, of the field or of ``along``, holds what a tap's offset along an axis follows."""
    if kind in (BALL, DILATED):
        return 0
    if kind in (GRID, GEODESIC):
        return axis
    return axis - first + (np.intp(number) * (3 - first) if kind == DEFORMABLE else 0)


@inlined
def onto_ring(centre, p, size):
    """Bring a position along one axis onto the ring, beyond which all is as on it: return the cell, the weight there.

    Positions count from the centre on, cells from the ring's first pixel on. NaN becomes a cell like any other, and
    stays NaN in the weight.
    """
    real = type(p)
    last = real(size) - centre  # the last cell
    inside = -centre if p < -centre else p
    cell = np.floor(inside)
    cell = cell if cell < last else last
    weight = inside - cell
    return np.int32(centre + cell), real(1) if weight > real(1) else weight


@inlined
def clamp_plane(geometry, taps, t, centre, along, skip, address, up, n):
    """Bring positions in a plane onto the ring, along both axes at once."""
    (_, height, width), pitch = geometry.size, np.int32(geometry.pitch[1])
    constant_y, factor_y, row_y = offset_of(geometry, taps, t, 1)
    constant_x, factor_x, row_x = offset_of(geometry, taps, t, 2)
    for i in range(n):
        y, up[1, i] = onto_ring(centre[1, i], constant_y + factor_y * along[row_y, skip + i], height)
        x, up[2, i] = onto_ring(centre[2, i], constant_x + factor_x * along[row_x, skip + i], width)
        address[i] = y * pitch + x


@inner
def clamp(geometry, taps, t, centre, axis, along, skip, address, up, n):
    """Bring positions along one axis onto the ring."""
    size, pitch = geometry.size[axis], np.int32(geometry.pitch[axis])
    constant, factor, row = offset_of(geometry, taps, t, axis)
    for i in range(n):
        cell, up[axis, i] = onto_ring(centre[axis, i], constant + factor * along[row, skip + i], size)
        address[i] += cell * pitch


@inner
def fill_inside(geometry, taps, t, centre, axis, along, skip, follows, n):
    """Write 1 where a position lies in the image with its halo, else 0."""
    real = follows.dtype.type
    constant, factor, row = offset_of(geometry, taps, t, axis)
    zero, one, last = real(0), real(1), real(geometry.size[axis] + 1)
    slack = max(real(geometry.tolerance), zero)  # a negative tolerance switches central differences off, nothing else
    for i in range(n):
        p = centre[axis, i] + (constant + factor * along[row, skip + i])
        follows[axis, i] = one if p >= -slack and p <= last + slack else zero


@inner
def fill_sides(geometry, taps, t, axis, up, follows, side, n):
    """Write the sides of whole coordinates that have a derivative; return how many there are."""
    real, tolerance = up.dtype.type, up.dtype.type(geometry.tolerance)
    if not movable(geometry, taps, t, axis):
        side[axis, :] = real(0)
        return real(0)
    count = real(0)
    for i in range(n):
        whole = side_of(up[axis, i], tolerance) * np.abs(follows[axis, i])
        side[axis, i] = whole
        count += whole * whole
    return count


@inner
def double_outermost(geometry, taps, t, centre, axis, along, skip, side, n):
    """Double the sides of whole coordinates on the outermost line of the halo."""
    constant, factor, row = offset_of(geometry, taps, t, axis)
    half, one, two = side.dtype.type(0.5), side.dtype.type(1), side.dtype.type(2)
    end = side.dtype.type(geometry.size[axis]) + half
    for i in range(n):
        p = centre[axis, i] + (constant + factor * along[row, skip + i])
        side[axis, i] *= one if p > half and p < end else two


@inner
def fold(geometry, taps, t, centre, axis, along, skip, address, up, follows, n):
    """Bring positions along one axis into the image by whole periods, the second half of which may be mirrored."""
    real, step = up.dtype.type, np.int32(geometry.pitch[axis])
    size, mirrors = geometry.size[axis], geometry.mirrors[axis]
    constant, factor, row = offset_of(geometry, taps, t, axis)
    zero, one, farthest = real(0), real(1), real(FARTHEST)
    period = real(2 * (size - 1) if mirrors else size)
    turn = real(size - 1) if mirrors else period  # from here on the mirror image
    inverse, tolerance = one / period, real(geometry.tolerance)
    for i in range(n):
        p = constant + factor * along[row, skip + i]
        near = p if p > -farthest else -farthest
        near = near if near < farthest else farthest
        low = np.floor(near)
        fraction = near - low
        low += centre[axis, i]
        folded = low - one - period * np.floor((low - one) * inverse)
        folded = folded + period if folded < zero else folded  # where the quotient was rounded
        folded = folded - period if folded >= period else folded
        flipped = folded >= turn
        folded = period - one - folded if flipped else folded
        follows[axis, i] = (-one if flipped else one) if near == p else zero
        fraction = one - fraction if flipped else fraction
        up[axis, i] = fraction if p == p else p
        # The last cell of a circular image is its first one too, which has a neighbour after it.
        folded = -one if folded == turn - one and fraction >= one - tolerance and not mirrors else folded
        address[i] += (np.int32(folded) + np.int32(1)) * step


@inner
def touch(address, n, touched):
    """Widen the range of addresses that were written."""
    low, high = touched[0], touched[1]
    for i in range(n):
        low, high = min(low, address[i]), max(high, address[i])
    touched[0], touched[1] = low, high


@inner
def feel(geometry, start, taps, t, along, paths, slope, total, n):
    """Add what the gradient of a tap's positions, slope [3, n], says: to ``total``, like field, or until ``settle``."""
    kind, none = geometry.kind, np.uint64(0)
    if kind == GEODESIC:
        retrace.feel(geometry.flow, taps[t, RADIUS], paths, slope, n)
    for axis in range(geometry.first, 3):
        row = row_of(kind, taps[t, NUMBER], geometry.first, axis)
        if kind == BALL:
            add_scaled(taps[t, RADIUS] * taps[t, axis], slope, axis, none, along, row + 2, none, n)
        elif kind == DILATED:
            add_scaled(taps[t, axis], slope, axis, none, total, row, start, n)
        elif kind not in (GRID, GEODESIC):
            add_scaled(slope.dtype.type(1), slope, axis, none, total, row, start, n)


@inner
def settle(geometry, field, start, taps, t, along, paths, total, touched, n):
    """Carry what was felt in the direction of the t-th tap back to the numbers it follows from."""
    if geometry.kind == BALL:
        add_ball_gradient(geometry.first, start, taps, t, along, total, n)
    elif geometry.kind == GEODESIC:
        retrace.retrace(geometry.flow, field, taps[t, 1], taps[t, 2], taps[t, LENGTH], paths, total, touched, n)


@inner
def fill_reach(first, field, start, taps, t, along, n):
    """Write 1/F(u), with F = √(uᵀMu) + ωᵀu never too small to divide by, and √(uᵀMu)."""
    zero, two = along.dtype.type(0), along.dtype.type(2)
    u_z, u_y, u_x = taps[t, 0], taps[t, 1], taps[t, 2]
    # The rows of M_yy, M_yx, M_xx and ω_y, ω_x; a line has the last of each alone, and the others count for nothing.
    yy, yx, xx, y, x = ((3, 4, 5, 7, 8), (0, 1, 2, 3, 4), (0, 0, 0, 1, 1))[first]
    drifts = field.shape[0] > x
    for i in range(n):
        j = start + i
        square = u_y * u_y * field[yy, j] + two * u_y * u_x * field[yx, j] + u_x * u_x * field[xx, j]
        drift = u_y * field[y, j] + u_x * field[x, j] if drifts else zero
        if first == 0:
            square += u_z * u_z * field[0, j] + two * u_z * u_y * field[1, j] + two * u_z * u_x * field[2, j]
            drift += u_z * field[6, j] if drifts else zero
        along[0, i], along[1, i] = reach_of(square, drift)


@inlined
def reach_of(square, drift):
    """Return 1/F and √(uᵀMu)."""
    real = type(square)
    root = np.sqrt(real(0) if square <= real(0) else square)
    norm, smallest = root + drift, real(SMALLEST_NORM)
    return real(1) / (smallest if norm < smallest else norm), root


@inner
def add_ball_gradient(first, start, taps, t, along, total, n):
    """Add the derivative by M and ω; along [3, n] holds 1/F, √(uᵀMu) and the gradient of 1/F, which is then 0 again."""
    real, row, none = along.dtype.type, 0, np.uint64(0)
    farthest, zero, half, two = real(1 / SMALLEST_NORM), real(0), real(0.5), real(2)
    for i in range(n):
        felt = -along[2, i] * along[0, i] * along[0, i]
        along[2, i] = zero if along[0, i] >= farthest else felt
        along[1, i] = zero if along[1, i] <= zero else half * along[2, i] / along[1, i]
    for j in range(first, 3):
        for k in range(j, 3):
            factor = taps[t, j] * taps[t, k]
            add_scaled(factor if j == k else two * factor, along, 1, none, total, row, start, n)
            row += 1
    if row < total.shape[0]:
        for j in range(first, 3):
            add_scaled(taps[t, j], along, 2, none, total, row, start, n)
            row += 1
    along[2, :] = zero


@inner
def add_scaled(factor, value, row, skip, total, to, start, n):
    """Add a multiple of one row, from ``skip`` on, to another, from ``start`` on."""
    for i in range(n):
        total[to, start + i] += factor * value[row, skip + i]


@inner
def fill(value, to, n):
    """Write one number everywhere."""
    for i in range(n):
        to[i] = value


@inner
def weigh_sheet(sheet, up, share, n):
    """Multiply by the weight of a sheet, the first or the second of the two that a sample of a volume is read in."""
    for i in range(n):
        share[i] *= up[0, i] if sheet else share.dtype.type(1) - up[0, i]
