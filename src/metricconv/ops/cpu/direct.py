"""Few channels: samples are weighted as they are read, a strip of pixels at a time, plane by plane.

Nothing is kept between taps, so memory does not grow with the kernel. In a volume a sample is read in two sheets, of
which each is a plane's affair.
"""

from typing import NamedTuple

import numpy as np

from .cells import WIDE, interpolate
from .jit import compiled, inlined, inner
from .sampling import (
    NUMBER,
    STRIP,
    add_scaled,
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
from .sides import further, side_of, slope_factors, steps_around

# Rows of what the backward pass feels at a tap: the gradient of the modulation, summed over channels; for one channel
# that of samples, without and with modulation, and the samples, in one sheet of a volume and in all.
VALUE, PULL, FORCE, HERE, SAMPLE = range(5)

# Which coordinates of a strip's samples are whole: none, some, all.
OFF, MIXED, ON = range(3)


class Channels(NamedTuple):
    """How channels are shared out among metrics and weights."""

    per_metric: int
    per_group: int
    outs_per_group: int


@compiled
def forward(x, field, taps, weight, modulation, geometry, layout, out, start, stop):
    """Add Σ_j w_j m_j x(centre + Δ_j) to the pixels start … stop of one image's output.

    x [C, addresses], field [G, n, N], taps [P, 7], weight [C_out, C/groups, P], modulation [G, P or 0, N],
    out [C_out, N].
    """
    (centre, pixel, along, paths), (address, up, follows, side) = make_strip(geometry, x), make_places(x)
    value, later = np.empty((1, STRIP), x.dtype), np.empty((1, STRIP), x.dtype)
    for begin in range(start, stop, STRIP):
        first, n = np.uint64(begin), np.uint64(min(STRIP, stop - begin))
        stand(geometry, first, centre, pixel, n)
        for group in range(field.shape[0]):
            numbers = field[group]
            for t in range(taps.shape[0]):
                if t == 0 or turns(taps, t):
                    aim(geometry, numbers, first, taps, t, pixel, along, paths, n)
                locate(geometry, numbers, first, taps, t, centre, along, paths, address, up, follows, side, n)
                tap = np.intp(taps[t, NUMBER])
                for c in range(group * layout.per_metric, (group + 1) * layout.per_metric):
                    read(x, c, 0, geometry.pitch[1], address, up, value, n)
                    if geometry.first == 0:
                        read(x, c, geometry.pitch[0], geometry.pitch[1], address, up, later, n)
                        mix(value, later, up, n)
                    if modulation.shape[1]:
                        for i in range(n):
                            value[0, i] *= modulation[group, tap, first + i]
                    outs, inner = c // layout.per_group * layout.outs_per_group, c % layout.per_group
                    for o in range(outs, outs + layout.outs_per_group):
                        add_scaled(weight[o, inner, tap], value, 0, np.uint64(0), out, o, first, n)


@compiled
def backward(
    x, field, taps, weight, modulation, geometry, layout, grad, moving, window, touched, grad_weight, grad_modulation,
    grad_field, field_touched, start, stop
):  # fmt: skip
    """Add what the pixels start … stop of an image say about its data; a gradient without numbers is not wanted.

    grad [C_out, N]; window [C, addresses] and grad_weight like weight are this part's own, the others like their
    tensors. ``touched`` is widened to the addresses that the window was written at.
    """
    (centre, pixel, along, paths), (address, up, follows, side) = make_strip(geometry, x), make_places(x)
    gain, slope, felt = np.ones(STRIP, x.dtype), np.empty((3, STRIP), x.dtype), np.empty((5, STRIP), x.dtype)
    around, last = np.empty((7, STRIP), np.int32), taps.shape[0] - 1
    for begin in range(start, stop, STRIP):
        first, n = np.uint64(begin), np.uint64(min(STRIP, stop - begin))
        stand(geometry, first, centre, pixel, n)
        for group in range(field.shape[0]):
            numbers = field[group]
            for t in range(last + 1):
                if t == 0 or turns(taps, t):
                    aim(geometry, numbers, first, taps, t, pixel, along, paths, n)
                sides = locate(geometry, numbers, first, taps, t, centre, along, paths, address, up, follows, side, n)
                lattice = find_lattice(geometry, up, n) if moving and sides > 0 else OFF
                if lattice == ON:
                    find_neighbours(geometry, address, up, side, around, n)
                if window.size:
                    touch(address, n, touched)
                tap = np.intp(taps[t, NUMBER])
                if modulation.shape[1]:
                    for i in range(n):
                        gain[i] = modulation[group, tap, first + i]
                slope[:] = 0
                felt[VALUE] = 0
                for c in range(group * layout.per_metric, (group + 1) * layout.per_metric):
                    turn_back(
                        x, c, geometry, address, up, side, lattice, around, gain, weight, tap, layout, grad, first,
                        slope, felt, grad_weight, window, n,
                    )  # fmt: skip
                if grad_modulation.shape[1]:
                    for i in range(n):
                        grad_modulation[group, tap, first + i] = felt[VALUE, i]
                if moving:
                    for axis in range(geometry.first, 3):
                        for i in range(n):
                            slope[axis, i] *= follows[axis, i]
                    feel(geometry, first, taps, t, along, paths, slope, grad_field[group], n)
                    if t == last or turns(taps, t + 1):
                        settle(geometry, numbers, first, taps, t, along, paths, grad_field[group], field_touched, n)


@compiled
def make_places(like):
    """Return room for where a strip's samples lie: addresses, weights, how these follow, sides of whole coordinates."""
    return (
        np.zeros(STRIP, np.int32),
        np.empty((3, STRIP), like.dtype),
        np.empty((3, STRIP), like.dtype),
        np.zeros((3, STRIP), like.dtype),
    )


@inner
def find_lattice(geometry, up, n):
    """Return whether all coordinates of a strip's samples are whole (ON), or some (MIXED)."""
    whole, tolerance = up.dtype.type(0), up.dtype.type(geometry.tolerance)
    for axis in range(geometry.first, 3):
        for i in range(n):
            whole += np.abs(side_of(up[axis, i], tolerance))
    return ON if whole == (3 - geometry.first) * n else MIXED


@inner
def turn_back(
    x, c, geometry, address, up, side, lattice, around, gain, weight, tap, layout, grad, first, slope, felt,
    grad_weight, window, n
):  # fmt: skip
    """Add what a strip's samples of channel c at one tap say about positions, modulation, weights and image.

    The strip starts at ``first`` of grad [C_out, N]; slope [3, n] is the positions' gradient, felt [5, n] that of the
    modulation, and scratch.
    """
    outs, inner, solid = c // layout.per_group * layout.outs_per_group, c % layout.per_group, geometry.first == 0
    pitch, none, sample = geometry.pitch[1], np.uint64(0), SAMPLE if solid else HERE
    felt[PULL] = 0
    for o in range(outs, outs + layout.outs_per_group):
        add_scaled(weight[o, inner, tap], grad, o, first, felt, PULL, none, n)
    if lattice == ON:
        read_at_pixels(x, c, solid, around, up, gain, felt, sample, slope, n)
    for sheet in range(2 if solid else 1):
        skip = sheet * geometry.pitch[0]
        for i in range(n):
            felt[FORCE, i] = felt[PULL, i] * gain[i]
        if solid:
            weigh_sheet(sheet, up, felt[FORCE], n)
        if lattice == OFF:
            read_slopes(x, c, skip, pitch, address, up, felt, slope, n)
        elif lattice == MIXED:
            read_slopes_across(x, c, skip, pitch, address, up, side, felt, slope, n)
        if window.size:
            scatter(felt, window, c, skip, pitch, address, up, n)
        if solid and lattice != ON:
            join_sheet(sheet, gain, up, side, felt, slope, n)
    if lattice == MIXED and solid:
        add_further_sheet(x, c, geometry, address, up, side, gain, felt, slope, n)
    for i in range(n):
        felt[VALUE, i] += felt[PULL, i] * felt[sample, i]
    if grad_weight.size:
        for i in range(n):
            felt[sample, i] *= gain[i]
        for o in range(outs, outs + layout.outs_per_group):
            grad_weight[o, inner, tap] += dot(felt, sample, grad, o, first, n)


@inlined
def corners(skip, pitch, address):
    """Return the addresses of the four corners, unsigned: indices that numba need not ask the sign of."""
    a = np.uint64(skip) + np.uint64(address)
    return a, a + np.uint64(1), a + np.uint64(pitch), a + np.uint64(pitch) + np.uint64(1)


@inner
def read(x, channel, skip, pitch, address, up, value, n):
    """Interpolate between the four corners of each address, and of some more in the buffer that are no one's."""
    first = np.uint64(channel * x.shape[1] + skip)
    for i in range(np.uint64(0), n, np.uint64(WIDE)):
        interpolate(x, first, np.uint64(pitch), address, up, value, i)


@inner
def mix(value, later, up, n):
    """Interpolate between two sheets, in place."""
    for i in range(n):
        value[0, i] += up[0, i] * (later[0, i] - value[0, i])


@inner
def read_slopes(x, channel, skip, pitch, address, up, felt, slope, n):
    """Interpolate, and add what the gradient of samples says about positions in the plane."""
    for i in range(n):
        a, b, c, d = corners(skip, pitch, address[i])
        along_top, along_bottom = x[channel, b] - x[channel, a], x[channel, d] - x[channel, c]
        top = x[channel, a] + up[2, i] * along_top
        down = x[channel, c] + up[2, i] * along_bottom - top
        felt[HERE, i] = top + up[1, i] * down
        slope[1, i] += felt[FORCE, i] * down
        slope[2, i] += felt[FORCE, i] * (along_top + up[1, i] * (along_bottom - along_top))


@inner
def read_slopes_across(x, channel, skip, pitch, address, up, side, felt, slope, n):
    """As ``read_slopes``, with central differences across cells where a coordinate is whole."""
    for i in range(n):
        a, b, c, d = corners(skip, pitch, address[i])
        along_top, along_bottom = x[channel, b] - x[channel, a], x[channel, d] - x[channel, c]
        top = x[channel, a] + up[2, i] * along_top
        down = x[channel, c] + up[2, i] * along_bottom - top
        felt[HERE, i] = top + up[1, i] * down
        left, right = x[channel, a] + up[1, i] * (x[channel, c] - x[channel, a]), along_bottom - along_top
        right = along_top + up[1, i] * right
        row, column = np.uint64(further(side[1, i], pitch)), np.uint64(further(side[2, i], 1))
        beyond = x[channel, a + row] + up[2, i] * (x[channel, b + row] - x[channel, a + row])
        beside = x[channel, a + column] + up[1, i] * (x[channel, c + column] - x[channel, a + column])
        (inner_y, outer_y), (inner_x, outer_x) = slope_factors(side[1, i]), slope_factors(side[2, i])
        slope[1, i] += felt[FORCE, i] * (inner_y * down + outer_y * (beyond - top))
        slope[2, i] += felt[FORCE, i] * (inner_x * right + outer_x * (beside - left))


@inner
def find_neighbours(geometry, address, up, side, around, n):
    """Write the addresses [7, n] of the pixels that samples lie on, and of those before and after along z, y and x."""
    half, first = up.dtype.type(0.5), min(geometry.first, 1)  # a line has a single row, without neighbours
    for i in range(n):
        around[0, i] = address[i]
    for axis in range(geometry.first, 3):
        pitch = np.int32(geometry.pitch[axis])
        for i in range(n):
            around[0, i] += pitch if up[axis, i] >= half else np.int32(0)
    for axis in range(first, 3):
        pitch = np.int32(geometry.pitch[axis])
        for i in range(n):
            back, ahead = steps_around(side[axis, i], pitch)
            around[1 + 2 * axis, i] = around[0, i] - back
            around[2 + 2 * axis, i] = around[0, i] + ahead


@inner
def read_at_pixels(x, channel, solid, around, up, gain, felt, sample, slope, n):
    """Read samples that lie on pixels, and add what their gradient says about positions: central differences.

    Values are exact up to the square of the tolerance.
    """
    half = x.dtype.type(0.5)
    for i in range(n):
        own, force = x[channel, np.uint64(around[0, i])], half * felt[PULL, i] * gain[i]
        above, below = x[channel, np.uint64(around[3, i])], x[channel, np.uint64(around[4, i])]
        left, right = x[channel, np.uint64(around[5, i])], x[channel, np.uint64(around[6, i])]
        slope[1, i] += force * (below - above)
        slope[2, i] += force * (right - left)
        felt[sample, i] = own + excess(up[1, i], above, own, below) + excess(up[2, i], left, own, right)
    if solid:
        for i in range(n):
            own, force = x[channel, np.uint64(around[0, i])], half * felt[PULL, i] * gain[i]
            before, after = x[channel, np.uint64(around[1, i])], x[channel, np.uint64(around[2, i])]
            slope[0, i] += force * (after - before)
            felt[sample, i] += excess(up[0, i], before, own, after)


@inlined
def excess(up, before, own, after):
    """Return by how much a sample next to a pixel differs from it, given its weight of the later corner."""
    real = type(up)
    return up * (after - own) if up < real(0.5) else (real(1) - up) * (before - own)


@inner
def join_sheet(sheet, gain, up, side, felt, slope, n):
    """Interpolate between sheets, and add what the gradient of samples says about positions across them."""
    for i in range(n):
        here, force = felt[HERE, i], felt[PULL, i] * gain[i]
        felt[SAMPLE, i] = felt[SAMPLE, i] + up[0, i] * (here - felt[SAMPLE, i]) if sheet else here
        inner, outer = slope_factors(side[0, i])
        slope[0, i] += force * here * (inner if sheet else -inner - outer)


@inner
def add_further_sheet(x, channel, geometry, address, up, side, gain, felt, slope, n):
    """Add the part of the central difference across sheets that the neighbour outside of the cell has."""
    pitch = geometry.pitch[1]
    for i in range(n):
        a, b, c, d = corners(further(side[0, i], geometry.pitch[0]), pitch, address[i])
        top = x[channel, a] + up[2, i] * (x[channel, b] - x[channel, a])
        bottom = x[channel, c] + up[2, i] * (x[channel, d] - x[channel, c])
        _, outer = slope_factors(side[0, i])
        slope[0, i] += felt[PULL, i] * gain[i] * outer * (top + up[1, i] * (bottom - top))


@inner
def scatter(felt, window, channel, skip, pitch, address, up, n):
    """Add each pixel's gradient to the four corners of its sample."""
    for i in range(n):
        a, b, c, d = corners(skip, pitch, address[i])
        bottom = felt[FORCE, i] * up[1, i]
        top = felt[FORCE, i] - bottom
        right_top, right_bottom = top * up[2, i], bottom * up[2, i]
        window[channel, a] += top - right_top
        window[channel, b] += right_top
        window[channel, c] += bottom - right_bottom
        window[channel, d] += right_bottom


@inner
def dot(a, row, b, other, start, n):
    """Return the scalar product of one row with another, from ``start`` on."""
    total = a.dtype.type(0)
    for i in range(n):
        total += a[row, i] * b[other, start + i]
    return total
