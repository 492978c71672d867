"""The output cut into parts that are computed side by side, and the sums of what the parts found.

Parts are cut by the problem's size alone and their findings are added in their order, so that no result depends on the
number of threads.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .launch import Call

# Parts, enough for many threads; pixels that are worth a band; numbers in all parts' sums of weights, 64 MB in float32.
PARTS = 16
_FEWEST_PIXELS = 256
_MOST_WEIGHTS = 2**24

Needs = tuple[bool, bool, bool, bool]  # the gradients of input, weight, modulation and field
Gradients = tuple[Tensor | None, ...]


class Band(NamedTuple):
    """A run of output pixels of one image, and its number there."""

    image: int
    start: int
    stop: int
    number: int


def cut(call: Call, parts: int) -> list[list[Band]]:
    """Cut the output into about as many parts: whole images, or each image into bands."""
    batch, pixels = call.x.shape[0], call.pixels
    if batch >= parts:
        edges = [batch * part // parts for part in range(parts + 1)]
        return [[Band(b, 0, pixels, 0) for b in range(*ends)] for ends in itertools.pairwise(edges)]
    count = max(min(math.ceil(parts / batch), pixels // _FEWEST_PIXELS), 1)
    edges = [pixels * band // count for band in range(count + 1)]
    return [[Band(b, edges[n], edges[n + 1], n)] for b in range(batch) for n in range(count)]


class Sums:
    """The gradients of one call while its parts add to them; without numbers where one is not needed.

    A band adds to the image's gradient in a window of its own, of which only what is written to becomes memory. Windows
    are added up where they were touched.

    Args:
        call, needs: the call, and which gradients it needs.
        image: the image with its ring as kernels see it, addresses along ``axis``.
        weight: the weights as kernels see them.
    """

    def __init__(self, call: Call, needs: Needs, image: np.ndarray, axis: int, weight: np.ndarray) -> None:
        self.call, self.needs, self.axis = call, needs, axis
        limit = max(min(PARTS, _MOST_WEIGHTS // max(weight.size, 1)), 1)
        self.parts = cut(call, limit)
        bands = 1 + max(band.number for part in self.parts for band in part)
        self.windows = np.zeros((bands, *(image.shape if needs[0] else (len(image), 0, 0))), image.dtype)
        self.touched = np.full((bands, len(image), 2), (2**31 - 1, -1), np.int32)
        self.weights = np.zeros((len(self.parts), *(weight.shape if needs[1] else (0,) * weight.ndim)), image.dtype)
        field, modulation = call.fields()
        self.modulation = np.empty_like(modulation) if needs[2] else modulation[:, :, :0]
        self.field = np.zeros_like(field)

    def window(self, band: Band) -> tuple[np.ndarray, np.ndarray]:
        """Return where a band adds to its image's gradient, and the range of addresses that it touched."""
        return self.windows[band.number, band.image], self.touched[band.number, band.image]

    def image(self) -> Tensor:
        """Return the gradient of the image with its ring, (B, C, H + 2, W + 2)."""
        total = self.windows[0]
        corners = self.call.x.shape[3] + 4  # from an address to the last of its four corners, and one
        for window, ranges in zip(self.windows[1:], self.touched[1:], strict=True):
            for image, (low, high) in enumerate(ranges):
                where = (image, *[slice(None)] * (self.axis - 1), slice(int(low), int(high) + corners))
                total[where] += window[where]
        size = (self.call.x.shape[2] + 2, self.call.x.shape[3] + 2)
        return torch.from_numpy(total).unflatten(self.axis, size).movedim((self.axis, self.axis + 1), (2, 3))

    def weight(self) -> Tensor:
        """Return the gradient of the weights, as kernels see them."""
        total = self.weights[0]
        for part in self.weights[1:]:
            total += part
        return torch.from_numpy(total)

    def numbers(self) -> Gradients:
        """Return the gradients of modulation and field."""
        return tuple(
            None if like is None or not needed else torch.from_numpy(found).view(like.shape)
            for found, like, needed in (
                (self.modulation, self.call.modulation, self.needs[2]),
                (self.field, self.call.field, self.needs[3]),
            )
        )
