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
from .plans import Planes, Rows
from .threads import share

# Parts, enough for many threads; pixels that are worth a band; numbers in all parts' sums of weights, 64 MB in float32.
_PARTS = 16
_FEWEST_PIXELS = 256
_MOST_WEIGHTS = 2**24

Needs = tuple[bool, bool, bool, bool]  # the gradients of input, weight, modulation and field


class Band(NamedTuple):
    """A run of output pixels of one image, and its number there."""

    image: int
    start: int
    stop: int
    number: int


def forward(call: Call, out: Tensor) -> None:
    """Add to out, (B, C_out, *out), laid out as ``call.lays_rows`` says."""
    plan = _plan(call, out)
    field, modulation = call.fields()
    taps, geometry = call.taps(), call.geometry(backward=False)

    def work(part: list[Band]) -> None:
        with plan.lend() as lent:
            for b, start, stop, _ in part:
                shared = (plan.x[b], field[b], taps, plan.weight, modulation[b], geometry, plan.layout)
                plan.forward(*lent, *shared, plan.y[b], start, stop)

    share(work, _cut(call, _PARTS))


def backward(call: Call, grad: Tensor, needs: Needs) -> tuple[Tensor | None, ...]:
    """Return the gradients that are needed of input, weight, modulation and field; grad (B, C_out, *out)."""
    plan = _plan(call, grad)
    field, modulation = call.fields()
    taps, geometry = call.taps(), call.geometry(backward=True)
    parts = _cut(call, max(min(_PARTS, _MOST_WEIGHTS // max(plan.weight.size, 1)), 1))
    bands = 1 + max(band.number for part in parts for band in part)
    image = _Windows(plan.x, bands if needs[0] else 0)
    weights = np.zeros((len(parts), *(plan.weight.shape if needs[1] else (0,) * plan.weight.ndim)), plan.x.dtype)
    to_modulation = np.empty_like(modulation) if needs[2] else modulation[:, :, :0]
    # Geodesics look the field up where they will, all else at the pixel itself, and no pixel is in two bands.
    roams = call.kind == "geodesic"
    numbers = _Windows(field, (bands if roams else 1) if needs[3] else 0)

    def work(number: int) -> None:
        with plan.lend() as lent:
            for band in parts[number]:
                b, start, stop, n = band
                shared = (plan.x[b], field[b], taps, plan.weight, modulation[b], geometry, plan.layout)
                own = (*image.of(n, b), weights[number], to_modulation[b], *numbers.of(n if roams else 0, b))
                plan.backward(*lent, *shared, plan.y[b], needs[3], *own, start, stop)

    share(work, range(len(parts)))
    to_field = numbers.total(2, call.nodes[1] + 2) if needs[3] else None
    return (
        plan.image(image.total(plan.axis, sum(call.pitch) + 1)) if needs[0] else None,
        plan.unordered(weights.sum(0)) if needs[1] else None,
        torch.from_numpy(to_modulation).view(call.modulation.shape)
        if call.modulation is not None and needs[2]
        else None,
        to_field.view(call.field.shape) if call.field is not None and to_field is not None else None,
    )


class _Windows:
    """Room for sums [B, …] to which every band of an image adds where it likes: each in a window of its own.

    Only what is written to becomes memory. Windows are added up where they were touched. Without any windows, nothing
    is wanted.
    """

    def __init__(self, like: np.ndarray, count: int) -> None:
        self._windows = np.zeros((count, *like.shape), like.dtype)
        self._touched = np.full((max(count, 1), len(like), 2), (2**31 - 1, -1), np.int32)
        self._nothing = np.zeros((0,) * (like.ndim - 1), like.dtype)

    def of(self, number: int, image: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a band's window, and the range of addresses that it touched."""
        window = self._windows[number, image] if len(self._windows) else self._nothing
        return window, self._touched[number if len(self._windows) else 0, image]

    def total(self, axis: int, corners: int) -> Tensor:
        """Return the sum; addresses run along ``axis``, and what was touched ends so many after the last of them."""
        total = self._windows[0]
        for window, ranges in zip(self._windows[1:], self._touched[1:], strict=True):
            for image, (low, high) in enumerate(ranges):
                where = (image, *[slice(None)] * (axis - 1), slice(int(low), int(high) + corners))
                total[where] += window[where]
        return torch.from_numpy(total)


def _plan(call: Call, y: Tensor) -> Planes | Rows:
    return Rows(call, y) if call.in_rows else Planes(call, y)


def _cut(call: Call, parts: int) -> list[list[Band]]:
    """Cut the output into about as many parts: whole images, or each image into bands."""
    batch, pixels = call.x.shape[0], call.pixels
    if batch >= parts:
        edges = [batch * part // parts for part in range(parts + 1)]
        return [[Band(b, 0, pixels, 0) for b in range(*ends)] for ends in itertools.pairwise(edges)]
    count = max(min(math.ceil(parts / batch), pixels // _FEWEST_PIXELS), 1)
    edges = [pixels * band // count for band in range(count + 1)]
    return [[Band(b, edges[n], edges[n + 1], n)] for b in range(batch) for n in range(count)]
