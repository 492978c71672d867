"""Few channels: samples are weighted as they are read, a strip of pixels at a time, plane by plane.

Nothing is kept between taps, so memory does not grow with the kernel. A task is a band of one image's output pixels;
bands are cut by the problem's size alone, each writes what no other does, and sums over bands are taken in their
order: the result does not depend on the number of threads.
"""

from typing import NamedTuple

import numpy as np

from .jit import compiled
from .sampling import add_offset_gradient, fill_centres, look, place, touch

# Pixels a strip: its dozen buffers fill half of the first cache, and steps from tap to tap are few.
STRIP = 512


class Channels(NamedTuple):
    """How channels are shared out among metrics and weights."""

    per_metric: int
    per_group: int
    outs_per_group: int


@compiled
def forward(x, field, taps, weight, modulation, geometry, channels, out, image, start, stop):
    """Add Σ_j w_j m_j x(centre + Δ_j) to the pixels start … stop of an image's output.

    x [B, C, plane], field [B, G, n, N], taps [P, 5], weight [C_out, C/groups, P], modulation [B, G, P or 0, N],
    out [B, C_out, N].
    """
    for first in range(start, stop, STRIP):
        last = min(first + STRIP, stop)
        real, cells, address, up_y, up_x = strip_buffers(x, last - first)
        value, unused = np.empty_like(up_y), np.empty_like(up_y)
        fill_centres(geometry, first, real[0], real[1])
        for group in range(field.shape[1]):
            for t in range(taps.shape[0]):
                look(geometry, field[image, group], first, taps, t, t == 0, real, last - first)
                place(geometry, real[3], real[4], cells, address, up_y, up_x, False, unused, unused)
                tap = np.intp(taps[t, 3])
                for c in range(group * channels.per_metric, (group + 1) * channels.per_metric):
                    read(x[image, c], geometry.width + 2, address, up_y, up_x, value)
                    if modulation.shape[2]:
                        scale(value, modulation[image, group, tap, first:last])
                    outs, inner = c // channels.per_group * channels.outs_per_group, c % channels.per_group
                    for o in range(outs, outs + channels.outs_per_group):
                        add_scaled(weight[o, inner, tap], value, out[image, o, first:last])


@compiled
def backward(
    x, field, taps, weight, modulation, geometry, channels, grad, moving, window, touched, grad_weight,
    grad_modulation, grad_field, image, start, stop
):  # fmt: skip
    """Add what the pixels start … stop of an image say about its data; a gradient without numbers is not wanted.

    grad [B, C_out, N]; window [C, plane] and grad_weight like weight are this part's own, the others like their
    tensors. ``touched`` is widened to the addresses that the window was written at.
    """
    for first in range(start, stop, STRIP):
        last = min(first + STRIP, stop)
        real, cells, address, up_y, up_x = strip_buffers(x, last - first)
        moves_y, moves_x, gain = np.empty_like(up_y), np.empty_like(up_y), np.ones_like(up_y)
        found = np.empty((5, last - first), x.dtype)
        fill_centres(geometry, first, real[0], real[1])
        for group in range(field.shape[1]):
            for t in range(taps.shape[0]):
                look(geometry, field[image, group], first, taps, t, t == 0, real, last - first)
                place(geometry, real[3], real[4], cells, address, up_y, up_x, moving, moves_y, moves_x)
                if window.size:
                    touch(address, touched)
                tap = np.intp(taps[t, 3])
                if modulation.shape[2]:
                    gain[:] = modulation[image, group, tap, first:last]
                found[:3] = 0
                for c in range(group * channels.per_metric, (group + 1) * channels.per_metric):
                    turn_back(
                        x[image, c], geometry.width + 2, address, up_y, up_x, gain, weight, tap, channels, c,
                        grad[image], first, found, grad_weight, window,
                    )  # fmt: skip
                if grad_modulation.shape[2]:
                    grad_modulation[image, group, tap, first:last] = found[2]
                if moving:
                    scale(found[0], moves_y)
                    scale(found[1], moves_x)
                    add_offset_gradient(
                        geometry.kind, field[image, group], first, taps, t, real[2], found[0], found[1],
                        grad_field[image, group],
                    )  # fmt: skip


@compiled
def strip_buffers(like, n):
    """Return room for what ``look`` and ``place`` write about a strip."""
    return (
        np.empty((5, n), like.dtype), np.empty((2, n), np.int32), np.empty(n, np.int32), np.empty(n, like.dtype),
        np.empty(n, like.dtype),
    )  # fmt: skip


@compiled
def turn_back(
    plane, pitch, address, up_y, up_x, gain, weight, tap, channels, c, grad, first, found, grad_weight, window
):  # fmt: skip
    """Add what a strip's samples of channel c at one tap say about positions, modulation, weights and image.

    grad [C_out, N] is the image's, the strip starts at ``first``; found [5, n] holds the gradients of positions (y, x)
    and of the modulation, and scratch.
    """
    outs, inner, last = c // channels.per_group * channels.outs_per_group, c % channels.per_group, first + gain.size
    pull, value = found[3], found[4]
    pull[:] = 0
    for o in range(outs, outs + channels.outs_per_group):
        add_scaled(weight[o, inner, tap], grad[o, first:last], pull)
    read_slopes(plane, pitch, address, up_y, up_x, gain, pull, value, found[0], found[1], found[2])
    if grad_weight.size:
        scale(value, gain)
        for o in range(outs, outs + channels.outs_per_group):
            grad_weight[o, inner, tap] += dot(value, grad[o, first:last])
    if window.size:
        scale(pull, gain)
        scatter(pull, pitch, address, up_y, up_x, window[c])


@compiled
def read(plane, pitch, address, up_y, up_x, value):
    """Interpolate between the four corners of each address."""
    a, b, c, d = plane[0:], plane[1:], plane[pitch:], plane[pitch + 1 :]
    for i in range(value.size):
        k = np.uint64(address[i])  # unsigned: an index that numba need not ask the sign of
        top = a[k] + up_x[i] * (b[k] - a[k])
        bottom = c[k] + up_x[i] * (d[k] - c[k])
        value[i] = top + up_y[i] * (bottom - top)


@compiled
def read_slopes(plane, pitch, address, up_y, up_x, gain, pull, value, gy, gx, to_gain):
    """Interpolate, and add what the gradient ``pull`` says about positions and modulation."""
    a, b, c, d = plane[0:], plane[1:], plane[pitch:], plane[pitch + 1 :]
    for i in range(value.size):
        k = np.uint64(address[i])
        along_top, along_bottom = b[k] - a[k], d[k] - c[k]
        top = a[k] + up_x[i] * along_top
        down = c[k] + up_x[i] * along_bottom - top
        value[i] = top + up_y[i] * down
        felt = pull[i] * gain[i]
        gy[i] += felt * down
        gx[i] += felt * (along_top + up_y[i] * (along_bottom - along_top))
        to_gain[i] += pull[i] * value[i]


@compiled
def scatter(pull, pitch, address, up_y, up_x, plane):
    """Add each pixel's gradient to the four corners of its sample."""
    a, b, c, d = plane[0:], plane[1:], plane[pitch:], plane[pitch + 1 :]
    for i in range(pull.size):
        k = np.uint64(address[i])
        bottom = pull[i] * up_y[i]
        top = pull[i] - bottom
        right_top, right_bottom = top * up_x[i], bottom * up_x[i]
        a[k] += top - right_top
        b[k] += right_top
        c[k] += bottom - right_bottom
        d[k] += right_bottom


@compiled
def scale(value, factor):
    """Multiply in place."""
    for i in range(value.size):
        value[i] *= factor[i]


@compiled
def add_scaled(factor, value, total):
    """Add a multiple in place."""
    for i in range(value.size):
        total[i] += factor * value[i]


@compiled
def dot(a, b):
    """Return Σ a_i b_i."""
    total = a.dtype.type(0)
    for i in range(a.size):
        total += a[i] * b[i]
    return total
