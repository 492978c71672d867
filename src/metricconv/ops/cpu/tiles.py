"""Tiles of samples in an im2col buffer: their memory layout and their sampling locations.

A tile is T consecutive output pixels of one image times some samples; it fits in the caches of one core. Its sampling
locations are computed once and read by every kernel:

    address      [samples, G, T]       of the lower corner, in the image with its halo
    upper_weight [samples, G, 3, T]    weights of the upper corners along each axis
    weight_slope [samples, G, 3, T]    their derivative by the position
    side         [samples, G, 3, T]    of integer coordinates, see central_difference.py

These buffers and the im2col buffer may be larger than the tile. In a volume a sample is interpolated in two slices,
each of which is treated like a 2-D image.
"""

from typing import NamedTuple

import numpy as np

from .jit import noalloc
from .products import make_blas_arguments
from .sampling import INDEX, Geometry, StripBuffers, make_strip_buffers
from .strip import STRIP


class TileLayout(NamedTuple):
    """Sizes of channel groups and of tiles.

    Runs of ``run_length`` consecutive channels share a metric and a weight group. The image is [addresses, C], the
    im2col buffer [groups, T, samples, in_per_group] and weights are [groups, P · in_per_group, out_per_group]. A
    depthwise convolution counts as one group, with weights [1, P, C].
    """

    in_channels: int
    per_metric: int
    in_per_group: int
    out_per_group: int
    run_length: int
    depthwise: bool
    channels_first: bool  # output and its gradient are [C_out, N], otherwise [N, C_out]
    tile_pixels: int  # most pixels of a tile, at most a strip
    tile_samples: int  # most samples of a tile


class Tile(NamedTuple):
    """The output pixels and the stencil rows of a tile."""

    first_pixel: int
    pixels: int
    first_sample: int
    samples: int


class SamplePositions(NamedTuple):
    """The sampling locations of a tile."""

    address: np.ndarray
    upper_weight: np.ndarray
    weight_slope: np.ndarray
    side: np.ndarray


class GradientBuffers(NamedTuple):
    """Buffers for the gradients of a tile's sampling locations."""

    position: np.ndarray  # [samples, G, 3, T]
    value: np.ndarray  # [T], values of one sample
    on_pixel: np.ndarray  # [T], whether they lie on a pixel
    slice_weight: np.ndarray  # [T], their weights in a slice
    total: np.ndarray  # [T, 4], dot products at their corners
    outer_total: np.ndarray  # [T, 4], and at the neighbors outside of their cells
    neighbors: np.ndarray  # [6], before and after a pixel along z, y and x
    starts: np.ndarray  # [6], where the channels of these start


class TileBuffers(NamedTuple):
    """All buffers of a task."""

    strip: StripBuffers
    positions: SamplePositions
    gain: np.ndarray  # [T]
    blas: tuple[np.ndarray, np.ndarray, np.ndarray]
    output: np.ndarray  # [T · C_out/groups]
    gradients: GradientBuffers


def make_buffers(geometry: Geometry, layout: TileLayout, metric_groups: int, dtype: np.dtype) -> TileBuffers:
    """Return the buffers for any tile."""
    addresses = layout.tile_samples, metric_groups, layout.tile_pixels
    shape = (*addresses[:2], 3, layout.tile_pixels)
    positions = SamplePositions(np.zeros(addresses, np.int32), *(np.zeros(shape, dtype) for _ in range(3)))
    value, slice_weight, gain = (np.zeros(STRIP, dtype) for _ in range(3))
    total, outer_total = (np.zeros((STRIP, 4), dtype) for _ in range(2))
    gradients = GradientBuffers(
        np.zeros(shape if geometry.backward else (0,) * 4, dtype), value, np.zeros(STRIP, np.bool_), slice_weight,
        total, outer_total, np.zeros(6, dtype), np.zeros(6, np.uint64),
    )  # fmt: skip
    output = np.zeros(layout.tile_pixels * layout.out_per_group, dtype)
    strip, blas = make_strip_buffers(geometry, dtype), make_blas_arguments(dtype)
    return TileBuffers(strip, positions, gain, blas, output, gradients)


@noalloc
def corner_channel_starts(geometry, layout, address, z_slice, channel):
    """Return where a channel of the four corners starts in an image [addresses · C], in one of its slices."""
    # Unsigned: numba then omits the test for negative indices.
    a = np.uint64((address + z_slice * geometry.pitch[0]) * layout.in_channels + channel)
    right, down = np.uint64(layout.in_channels), np.uint64(geometry.pitch[1] * layout.in_channels)
    return a, a + right, a + down, a + down + right


@noalloc
def fill_gain(modulation, stencil, g, k, tile, gain):
    """Write the modulation of the tile's k-th sample, or 1 if there is none."""
    gain[:] = 1
    if modulation.shape[1]:
        factor = modulation[g, np.intp(stencil[tile.first_sample + k, INDEX]), tile.first_pixel :]
        for i in range(tile.pixels):
            gain[i] = factor[i]


@noalloc
def column_index(layout, tile, k, channel):
    """Return the index in the im2col buffer of a channel of the tile's first pixel and k-th sample."""
    group, channel_in_group = channel // layout.in_per_group, channel % layout.in_per_group
    return (group * tile.pixels * tile.samples + k) * layout.in_per_group + channel_in_group
