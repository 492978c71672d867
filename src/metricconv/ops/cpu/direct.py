"""Few channels: samples are weighted as they are read, a strip of pixels at a time, plane by plane.

Nothing is kept between taps, so memory does not grow with the kernel. In a volume a sample is read in two sheets, of
which each is a plane's affair.
"""

from typing import NamedTuple

import numpy as np

from .jit import compiled
from .sampling import NUMBER, STRIP, add_scaled, aim, feel, locate, make_strip, settle, stand, touch, turns, weigh_sheet


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
    strip, (address, up, follows) = make_strip(geometry, x), make_places(x)
    value, later = np.empty(STRIP, x.dtype), np.empty(STRIP, x.dtype)
    for first in range(start, stop, STRIP):
        n = min(STRIP, stop - first)
        stand(geometry, first, strip, n)
        for group in range(field.shape[0]):
            for t in range(taps.shape[0]):
                if t == 0 or turns(taps, t):
                    aim(geometry, field[group], first, taps, t, strip, n)
                locate(geometry, field[group], first, taps, t, strip, address, up, follows, False, n)
                tap = np.intp(taps[t, NUMBER])
                for c in range(group * layout.per_metric, (group + 1) * layout.per_metric):
                    read(x[c], geometry.pitch[1], address, up, value, n)
                    if geometry.first == 0:
                        read(x[c, geometry.pitch[0] :], geometry.pitch[1], address, up, later, n)
                        mix(value, later, up[0], n)
                    if modulation.shape[1]:
                        scale(value, modulation[group, tap, first:], n)
                    outs, inner = c // layout.per_group * layout.outs_per_group, c % layout.per_group
                    for o in range(outs, outs + layout.outs_per_group):
                        add_scaled(weight[o, inner, tap], value, out[o, first:], n)


@compiled
def backward(
    x, field, taps, weight, modulation, geometry, layout, grad, moving, window, touched, grad_weight, grad_modulation,
    grad_field, field_touched, start, stop
):  # fmt: skip
    """Add what the pixels start … stop of an image say about its data; a gradient without numbers is not wanted.

    grad [C_out, N]; window [C, addresses] and grad_weight like weight are this part's own, the others like their
    tensors. ``touched`` is widened to the addresses that the window was written at.
    """
    strip, (address, up, follows) = make_strip(geometry, x), make_places(x)
    gain, slope, felt = np.ones(STRIP, x.dtype), np.empty((3, STRIP), x.dtype), np.empty((5, STRIP), x.dtype)
    last = taps.shape[0] - 1
    for first in range(start, stop, STRIP):
        n = min(STRIP, stop - first)
        stand(geometry, first, strip, n)
        for group in range(field.shape[0]):
            for t in range(last + 1):
                if t == 0 or turns(taps, t):
                    aim(geometry, field[group], first, taps, t, strip, n)
                locate(geometry, field[group], first, taps, t, strip, address, up, follows, True, n)
                if window.size:
                    touch(address, n, touched)
                tap = np.intp(taps[t, NUMBER])
                if modulation.shape[1]:
                    copy(modulation[group, tap, first:], gain, n)
                slope[:] = 0
                felt[0] = 0
                for c in range(group * layout.per_metric, (group + 1) * layout.per_metric):
                    turn_back(
                        x[c], geometry, address, up, gain, weight, tap, layout, c, grad, first, slope, felt,
                        grad_weight, window, n,
                    )  # fmt: skip
                if grad_modulation.shape[1]:
                    copy(felt[0], grad_modulation[group, tap, first:], n)
                if moving:
                    for axis in range(geometry.first, 3):
                        scale(slope[axis], follows[axis], n)
                    feel(geometry, first, taps, t, strip, slope, grad_field[group], n)
                    if t == last or turns(taps, t + 1):
                        settle(geometry, field[group], first, taps, t, strip, grad_field[group], field_touched, n)


@compiled
def make_places(like):
    """Return room for where a strip's samples lie: addresses, weights, how these follow."""
    return np.empty(STRIP, np.int32), np.empty((3, STRIP), like.dtype), np.empty((3, STRIP), like.dtype)


@compiled
def turn_back(
    plane, geometry, address, up, gain, weight, tap, layout, c, grad, first, slope, felt, grad_weight, window, n
):  # fmt: skip
    """Add what a strip's samples of channel c at one tap say about positions, modulation, weights and image.

    The strip starts at ``first`` of grad [C_out, N]; slope [3, n] is the positions' gradient, felt [5, n] that of the
    modulation, and scratch.
    """
    outs, inner, solid = c // layout.per_group * layout.outs_per_group, c % layout.per_group, geometry.first == 0
    pull, force, here = felt[1], felt[2], felt[3]
    value = felt[4] if solid else here
    pull[:] = 0
    for o in range(outs, outs + layout.outs_per_group):
        add_scaled(weight[o, inner, tap], grad[o, first:], pull, n)
    for sheet in range(2 if solid else 1):
        skip = sheet * geometry.pitch[0]
        for i in range(n):
            force[i] = pull[i] * gain[i]
        if solid:
            weigh_sheet(sheet, up[0], force, n)
        read_slopes(plane[skip:], geometry.pitch[1], address, up, force, here, slope, n)
        if window.size:
            scatter(force, geometry.pitch[1], address, up, window[c, skip:], n)
        if solid:
            join_sheet(sheet, pull, gain, up[0], here, value, slope[0], n)
    for i in range(n):
        felt[0, i] += pull[i] * value[i]
    if grad_weight.size:
        scale(value, gain, n)
        for o in range(outs, outs + layout.outs_per_group):
            grad_weight[o, inner, tap] += dot(value, grad[o, first:], n)


@compiled
def read(plane, pitch, address, up, value, n):
    """Interpolate between the four corners of each address."""
    a, b, c, d = plane[0:], plane[1:], plane[pitch:], plane[pitch + 1 :]
    up_y, up_x = up[1], up[2]
    for i in range(n):
        k = np.uint64(address[i])  # unsigned: an index that numba need not ask the sign of
        top = a[k] + up_x[i] * (b[k] - a[k])
        bottom = c[k] + up_x[i] * (d[k] - c[k])
        value[i] = top + up_y[i] * (bottom - top)


@compiled
def mix(value, later, up_z, n):
    """Interpolate between two sheets, in place."""
    for i in range(n):
        value[i] += up_z[i] * (later[i] - value[i])


@compiled
def read_slopes(plane, pitch, address, up, force, value, slope, n):
    """Interpolate, and add what the gradient ``force`` says about positions in the plane."""
    a, b, c, d = plane[0:], plane[1:], plane[pitch:], plane[pitch + 1 :]
    up_y, up_x, to_y, to_x = up[1], up[2], slope[1], slope[2]
    for i in range(n):
        k = np.uint64(address[i])
        along_top, along_bottom = b[k] - a[k], d[k] - c[k]
        top = a[k] + up_x[i] * along_top
        down = c[k] + up_x[i] * along_bottom - top
        value[i] = top + up_y[i] * down
        to_y[i] += force[i] * down
        to_x[i] += force[i] * (along_top + up_y[i] * (along_bottom - along_top))


@compiled
def join_sheet(sheet, pull, gain, up_z, here, value, to_z, n):
    """Interpolate between sheets, and add what the gradient of samples says about positions across them."""
    for i in range(n):
        value[i] = value[i] + up_z[i] * (here[i] - value[i]) if sheet else here[i]
        to_z[i] += pull[i] * gain[i] * (here[i] if sheet else -here[i])


@compiled
def scatter(force, pitch, address, up, plane, n):
    """Add each pixel's gradient to the four corners of its sample."""
    a, b, c, d = plane[0:], plane[1:], plane[pitch:], plane[pitch + 1 :]
    up_y, up_x = up[1], up[2]
    for i in range(n):
        k = np.uint64(address[i])
        bottom = force[i] * up_y[i]
        top = force[i] - bottom
        right_top, right_bottom = top * up_x[i], bottom * up_x[i]
        a[k] += top - right_top
        b[k] += right_top
        c[k] += bottom - right_bottom
        d[k] += right_bottom


@compiled
def scale(value, factor, n):
    """Multiply in place."""
    for i in range(n):
        value[i] *= factor[i]


@compiled
def copy(value, to, n):
    """Copy."""
    for i in range(n):
        to[i] = value[i]


@compiled
def dot(a, b, n):
    """Return Σ a_i b_i."""
    total = a.dtype.type(0)
    for i in range(n):
        total += a[i] * b[i]
    return total
