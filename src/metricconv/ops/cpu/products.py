"""The many-channel way: every part of the output by ``rows``."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import launch, ring, rows
from .bands import PARTS, Band, Gradients, Needs, Sums, cut
from .blas import gemm_address
from .launch import Call
from .threads import share

# Numbers in the columns of a tile, 1 MB in float32: half of a core's second cache. The most of them a pixel, and the
# fewest and the most pixels.
_TILE = 2**18
_LONGEST_ROW = 4096
_PIXELS = (32, 256)


def forward(call: Call, out: Tensor) -> None:
    """Add to out, (B, N, C_out), contiguous."""
    plan, total = _Plan(call), out.numpy()

    def work(part: list[Band]) -> None:
        with plan.arguments() as common:
            for band in part:
                rows.forward(*common, total, band.image, band.start, band.stop)

    share(work, cut(call, PARTS))


def backward(call: Call, grad: Tensor, needs: Needs) -> Gradients:
    """Return the gradients that are needed of input, weight, modulation and field; grad (B, C_out, N)."""
    plan = _Plan(call)
    sums = Sums(call, needs, plan.x, 1, plan.weight)
    upstream = grad.transpose(1, 2).contiguous().numpy()

    def work(number: int) -> None:
        with plan.arguments() as common:
            for band in sums.parts[number]:
                own = (*sums.window(band), sums.weights[number], sums.modulation, sums.field)
                rows.backward(*common, upstream, needs[3], *own, band.image, band.start, band.stop)

    share(work, range(len(sums.parts)))
    return (
        ring.without(call, sums.image()) if needs[0] else None,
        plan.unordered(sums.weight()) if needs[1] else None,
        *sums.numbers(),
    )


class _Plan:
    """What all parts of a call share, laid out as the kernels take it."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.taps = launch.taps(call)
        self.order = torch.from_numpy(self.taps[:, 3].astype(np.int64))
        self.layout = self._layout()
        self.field, self.modulation = call.fields()
        self.x = ring.as_rows(call)
        self.weight = self._ordered().numpy()
        self._spare: list[np.ndarray] = []

    @contextlib.contextmanager
    def arguments(self) -> Iterator[tuple[Any, ...]]:
        """Lend a part what both kernels take first: as many columns are made as parts run side by side."""
        layout, gemm = self.layout, gemm_address(self.call.x.dtype)
        size = layout.size * layout.depth * layout.ins
        columns = self._spare.pop() if self._spare else np.empty(size, self.x.dtype)
        fields = (self.x, self.field, self.taps, self.weight, self.modulation)
        yield gemm, columns, *fields, self.call.geometry(), layout
        self._spare.append(columns)

    def _layout(self) -> rows.Layout:
        call, ins, outs = self.call, self.call.x.shape[1], self.call.weight.shape[0]
        each = call.channel_by_channel
        groups = 1 if each else call.groups
        depth = min(len(self.taps), max(_LONGEST_ROW // ins, 1))
        fewest, most = _PIXELS
        size = min(max(_TILE // (depth * ins), fewest), most)
        per_metric, pitch = ins // call.metric_groups, call.x.shape[3] + 2
        return rows.Layout(ins, per_metric, ins // groups, outs // groups, call.span, each, pitch, size, depth)

    def _ordered(self) -> Tensor:
        """Return the weights in the order of taps: [groups, P · C/groups, C_out/groups], or [1, P, C]."""
        weight = self.call.weight.flatten(2)[:, :, self.order]  # [C_out, C/groups, P]
        if self.layout.each:
            return weight.permute(1, 2, 0).contiguous()
        return weight.unflatten(0, (self.call.groups, -1)).permute(0, 3, 2, 1).flatten(1, 2).contiguous()

    def unordered(self, weight: Tensor) -> Tensor:
        """Return the gradient of the weights in their own order and shape."""
        if self.layout.each:
            by_tap = weight.permute(2, 0, 1)
        else:
            by_tap = weight.unflatten(1, (-1, self.layout.per_group)).permute(0, 3, 2, 1).flatten(0, 1)
        found = torch.empty_like(by_tap, memory_format=torch.contiguous_format)
        found[:, :, self.order] = by_tap
        return found.view(self.call.weight.shape)
