"""Where a strip of output pixels looks, tap by tap, and the chain rule back to the numbers it follows from.

A strip is a run of consecutive output pixels of one image. A pixel holds at most five numbers p0 … p4, whatever the
number of samples, or two for each sample:

    kind         p0     p1     p2     p3    p4     offset of the sample at reference cell (a, b) of radius s
    BALL         M_yy   M_yx   M_xx   ω_y   ω_x    s·(a, b) / F(a, b), with (a, b) a unit direction
    SHIFTED      v_y    v_x                        (a, b) + v
    DEFORMABLE   v_y    v_x   (of this tap)        (a, b) + v
    DILATED      λ                                 λ·(a, b)
    GRID                                           (a, b)

Images carry a ring of one pixel: what stands past the border is read there, or the position is brought inside first.
So a sample is one address, that of the upper left of its four corners, and one weight along each axis.

Every loop is over the pixels of a strip and free of branches, so that it becomes vector instructions. Constants are
made in the arrays' own dtype: a Python number would widen float32 to float64.
"""

from typing import NamedTuple

import numpy as np

from .jit import compiled

GRID, BALL, SHIFTED, DEFORMABLE, DILATED = range(5)

# As in metrics/base.py: no sample is farther than 1e6 pixels; and as in _interpolation.py: float32 has no fractions
# left beyond 2²³.
SMALLEST_NORM = 1e-6
FARTHEST = 2.0**23


class Geometry(NamedTuple):
    """What all pixels share: sizes, the output's centres o·stride + origin, and what is done with far positions.

    They are brought onto the ring, or fold back into the image; folding, a mirror along either axis.
    """

    height: int
    width: int
    columns: int
    stride_y: float
    stride_x: float
    origin_y: float
    origin_x: float
    kind: int
    folds: bool
    mirrors_y: bool
    mirrors_x: bool


@compiled
def fill_centres(geometry, start, cy, cx):
    """Write the centres, in the input, of the output pixels from ``start`` on."""
    real = cy.dtype.type
    row, column = start // geometry.columns, start % geometry.columns
    for i in range(cy.size):
        cy[i] = real(row * geometry.stride_y + geometry.origin_y)
        cx[i] = real(column * geometry.stride_x + geometry.origin_x)
        column += 1
        if column == geometry.columns:
            row, column = row + 1, 0


@compiled
def fill_reach(field, start, a, b, reach):
    """Write 1 / F(a, b), with F = √(uᵀMu) + ωᵀu never too small to divide by; field [3 or 5, N]."""
    real, stop = reach.dtype.type, start + reach.size
    aa, ab, bb, zero, one = real(a * a), real(2) * a * b, real(b * b), real(0), real(1)
    smallest = real(SMALLEST_NORM)
    m0, m1, m2 = field[0, start:stop], field[1, start:stop], field[2, start:stop]
    for i in range(reach.size):
        square = m0[i] * aa + m1[i] * ab + m2[i] * bb
        reach[i] = np.sqrt(zero if square <= zero else square)
    if field.shape[0] == 5:
        w0, w1 = field[3, start:stop], field[4, start:stop]
        for i in range(reach.size):
            reach[i] += w0[i] * a + w1[i] * b
    for i in range(reach.size):
        norm = reach[i]
        reach[i] = one / (smallest if norm < smallest else norm)


@compiled
def turns(taps, t):
    """Return whether the t-th tap looks in another direction than the one before."""
    return taps[t, 4] != taps[t - 1, 4]


@compiled
def fill_positions(kind, field, start, taps, t, cy, cx, reach, py, px):
    """Write where the sample of the t-th tap lies, for pixels from ``start`` on; ``reach`` is that of its direction."""
    a, b, s = taps[t, 0], taps[t, 1], taps[t, 2]
    stop = start + py.size
    if kind == BALL:
        ay, bx = a * s, b * s
        for i in range(py.size):
            py[i] = cy[i] + ay * reach[i]
            px[i] = cx[i] + bx * reach[i]
    elif kind == DILATED:
        scale = field[0, start:stop]
        for i in range(py.size):
            py[i] = cy[i] + a * scale[i]
            px[i] = cx[i] + b * scale[i]
    elif kind == GRID:
        for i in range(py.size):
            py[i] = cy[i] + a
            px[i] = cx[i] + b
    else:
        first = 2 * np.intp(taps[t, 3]) if kind == DEFORMABLE else 0
        vy, vx = field[first, start:stop], field[first + 1, start:stop]
        for i in range(py.size):
            py[i] = cy[i] + (vy[i] + a)
            px[i] = cx[i] + (vx[i] + b)


@compiled
def look(geometry, field, first, taps, t, fresh, real, n):
    """Write the positions of the t-th tap's samples, of n pixels from ``first`` on, into a strip's buffers.

    real [5 or more, n]: centres (y, x), the reach in the tap's direction, positions (y, x). The reach is kept from the
    tap before where that looked in the same direction, unless this is the first tap.
    """
    if geometry.kind == BALL and (fresh or turns(taps, t)):
        fill_reach(field, first, taps[t, 0], taps[t, 1], real[2, :n])
    fill_positions(
        geometry.kind, field, first, taps, t, real[0, :n], real[1, :n], real[2, :n], real[3, :n], real[4, :n]
    )


@compiled
def place(geometry, py, px, cells, address, up_y, up_x, moving, moves_y, moves_x):
    """Turn positions into addresses in a plane with its ring, and weights; cells [2, n] is scratch.

    Written are the address of the upper left corner, the weights of the lower and of the right corners and, if
    ``moving``, how these follow the position: 1, −1 in a mirror, 0 where they do not.
    """
    if geometry.folds:
        y, x, pitch = cells[0, : py.size], cells[1, : py.size], np.int32(geometry.width + 2)
        fold(py, geometry.height, geometry.mirrors_y, y, up_y, moves_y)
        fold(px, geometry.width, geometry.mirrors_x, x, up_x, moves_x)
        for i in range(py.size):
            address[i] = y[i] * pitch + x[i]
        return
    clamp(geometry, py, px, address, up_y, up_x)
    if moving:
        fill_inside(py, geometry.height, moves_y)
        fill_inside(px, geometry.width, moves_x)


@compiled
def clamp(geometry, py, px, address, up_y, up_x):
    """Bring positions into the image with its ring: beyond, all is as on the ring."""
    real = up_y.dtype.type
    one, height, width = real(1), real(geometry.height), real(geometry.width)
    last_y, last_x, pitch = np.int32(geometry.height), np.int32(geometry.width), np.int32(geometry.width + 2)
    for i in range(py.size):
        y = py[i] if py[i] > -one else -one  # NaN becomes an address like any other
        x = px[i] if px[i] > -one else -one
        y = y if y < height else height
        x = x if x < width else width
        row, column = np.int32(y + one), np.int32(x + one)  # not negative: to cut the fraction off is to round down
        row = row if row < last_y else last_y
        column = column if column < last_x else last_x
        address[i] = row * pitch + column
        up_y[i] = y - (real(row) - one) if py[i] == py[i] else py[i]  # and stays NaN in the weight
        up_x[i] = x - (real(column) - one) if px[i] == px[i] else px[i]


@compiled
def fill_inside(position, extent, moves):
    """Write 1 where a position lies in the image with its ring, else 0."""
    real = moves.dtype.type
    for i in range(position.size):
        moves[i] = real(1) if position[i] >= real(-1) and position[i] <= real(extent) else real(0)


@compiled
def fold(position, extent, mirrors, cell, up, moves):
    """Bring positions along one axis into the image by whole periods, the second half of which is mirrored."""
    real = up.dtype.type
    zero, one, farthest = real(0), real(1), real(FARTHEST)
    period = real(2 * (extent - 1) if mirrors else extent)
    turn = real(extent - 1) if mirrors else period  # from here on the mirror image
    inverse = one / period
    for i in range(position.size):
        p = position[i]
        near = p if p > -farthest else -farthest
        near = near if near < farthest else farthest
        low = np.floor(near)
        fraction = near - low
        folded = low - period * np.floor(low * inverse)
        folded = folded + period if folded < zero else folded  # where the quotient was rounded
        folded = folded - period if folded >= period else folded
        flipped = folded >= turn
        folded = period - one - folded if flipped else folded
        cell[i] = np.int32(folded) + np.int32(1)
        moves[i] = (-one if flipped else one) if near == p else zero
        fraction = one - fraction if flipped else fraction
        up[i] = fraction if p == p else p


@compiled
def touch(address, touched):
    """Widen the range of addresses that were written."""
    low, high = touched[0], touched[1]
    for i in range(address.size):
        low, high = min(low, address[i]), max(high, address[i])
    touched[0], touched[1] = low, high


@compiled
def add_offset_gradient(kind, field, start, taps, t, reach, gy, gx, total):
    """Add what the gradient (gy, gx) of a tap's positions says about the pixels' numbers; total like field."""
    a, b, s = taps[t, 0], taps[t, 1], taps[t, 2]
    stop = start + gy.size
    if kind == BALL:
        add_ball_gradient(field, start, a, b, s, reach, gy, gx, total)
    elif kind == DILATED:
        scale = total[0, start:stop]
        for i in range(gy.size):
            scale[i] += a * gy[i] + b * gx[i]
    elif kind != GRID:
        first = 2 * np.intp(taps[t, 3]) if kind == DEFORMABLE else 0
        vy, vx = total[first, start:stop], total[first + 1, start:stop]
        for i in range(gy.size):
            vy[i] += gy[i]
            vx[i] += gx[i]


@compiled
def add_ball_gradient(field, start, a, b, s, reach, gy, gx, total):
    """Add the derivative of s·(a, b) / F by M and ω; it overwrites ``gy``."""
    real, stop = reach.dtype.type, start + gy.size
    aa, ab, bb, zero, one, half = real(a * a), real(2) * a * b, real(b * b), real(0), real(1), real(0.5)
    farthest = one / real(SMALLEST_NORM)
    ay, bx = -s * a, -s * b
    m0, m1, m2 = field[0, start:stop], field[1, start:stop], field[2, start:stop]
    t0, t1, t2 = total[0, start:stop], total[1, start:stop], total[2, start:stop]
    for i in range(gy.size):
        to_norm = (ay * gy[i] + bx * gx[i]) * reach[i] * reach[i]
        to_norm = zero if reach[i] >= farthest else to_norm
        square = m0[i] * aa + m1[i] * ab + m2[i] * bb
        root = np.sqrt(one if square <= zero else square)
        to_square = zero if square <= zero else half * to_norm / root
        t0[i] += to_square * aa
        t1[i] += to_square * ab
        t2[i] += to_square * bb
        gy[i] = to_norm
    if field.shape[0] == 5:
        t3, t4 = total[3, start:stop], total[4, start:stop]
        for i in range(gy.size):
            t3[i] += gy[i] * a
            t4[i] += gy[i] * b
