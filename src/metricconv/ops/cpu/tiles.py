"""Tiles of samples, gathered as rows of channels: their layout in memory, and where their samples lie.

A tile is T consecutive output pixels of one image and some taps; it fits in the caches of one core. Where its samples
lie is written down once, tap by tap, and read by every kernel:

    address [taps, G, T]       of the first corner, in the image with its halo
    up      [taps, G, 3, T]    weights of the later corners along each axis
    follows [taps, G, 3, T]    how these follow the position
    side    [taps, G, 3, T]    of whole coordinates: see sides.py

These buffers, and the columns of samples, may be larger than the tile. In a volume a sample is gathered from two
sheets, each of which is handled as a plane.
"""

from typing import NamedTuple

import numpy as np

from .jit import inner
from .sampling import NUMBER


class Layout(NamedTuple):
    """How channels stand in memory: runs of ``span`` share a metric and a group of weights.

    The image is [addresses, C], columns are [groups, T, taps, per_group] and weights [groups, P · per_group,
    outs_per_group]. Where ``each`` channel has weights of its own, all are one group and weights are [1, P, C].
    """

    ins: int
    per_metric: int
    per_group: int
    outs_per_group: int
    span: int
    each: bool
    planar: bool  # whether output and its gradient are [C_out, N] instead of [N, C_out]
    size: int  # of a tile, in pixels, at most a strip
    depth: int  # and in taps


class Tile(NamedTuple):
    """Which pixels, and which taps."""

    pixel: int
    size: int
    tap: int
    depth: int


class Places(NamedTuple):
    """Where a tile's samples lie."""

    address: np.ndarray
    up: np.ndarray
    follows: np.ndarray
    side: np.ndarray


@inner
def corners(geometry, layout, address, sheet, channel):
    """Return where the four corners' channels start in an image [addresses · C], in one of its sheets."""
    # Unsigned: indices that numba need not ask the sign of.
    a = np.uint64((address + sheet * geometry.pitch[0]) * layout.ins + channel)
    right, down = np.uint64(layout.ins), np.uint64(geometry.pitch[1] * layout.ins)
    return a, a + right, a + down, a + down + right


@inner
def corner_weights(up_y, up_x, gain):
    """Return the four corners' weights, times the gain."""
    high, right = gain * up_y, gain * up_x
    both = high * up_x
    return gain - high - right + both, right - both, high - both, both


@inner
def fill_gains(modulation, taps, g, k, tile, gain):
    """Write what multiplies the samples of a tile at its k-th tap: 1 where nothing does."""
    gain[:] = 1
    if modulation.shape[1]:
        factor = modulation[g, np.intp(taps[tile.tap + k, NUMBER]), tile.pixel :]
        for i in range(tile.size):
            gain[i] = factor[i]


@inner
def first_column(layout, tile, k, channel):
    """Return where a channel of the tile's first pixel stands in its columns at the k-th tap."""
    group, inner = channel // layout.per_group, channel % layout.per_group
    return (group * tile.size * tile.depth + k) * layout.per_group + inner
