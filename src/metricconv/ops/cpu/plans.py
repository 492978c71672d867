"""What all parts of a call share, laid out as kernels take it: planes for few channels, rows for many."""

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from . import direct, rows, tiles
from .geodesics import STRIP
from .launch import Call, with_ring, without_ring
from .products import gemm_address
from .sampling import NUMBER

# Numbers in the columns of a tile, half a MB in float32: well within a core's second cache. The most of them a pixel,
# and the fewest pixels; the most are a strip.
_TILE = 2**17
_LONGEST_ROW = 4096
_FEWEST_PIXELS = 32


class Planes:
    """x [B, C, addresses], weight [C_out, C/groups, P], y [B, C_out, N]: the output, or its gradient."""

    axis = 2  # of the addresses in x

    def __init__(self, call: Call, y: Tensor) -> None:
        ins, outs = call.x.shape[1], call.weight.shape[0]
        self.y = y.contiguous().flatten(2).numpy()
        self.call, self.forward, self.backward = call, direct.forward, direct.backward
        self.layout = direct.Channels(ins // call.metric_groups, ins // call.groups, outs // call.groups)
        self.x = with_ring(call).flatten(2).numpy()
        self.weight = _own(call.weight.flatten(2)).numpy()

    @contextlib.contextmanager
    def lend(self) -> Iterator[tuple[()]]:
        """Lend a part what kernels take first: nothing."""
        yield ()

    def image(self, grad: Tensor) -> Tensor:
        """Return the gradient of the image in its own shape."""
        return without_ring(self.call, grad.unflatten(2, self.call.ringed))

    def unordered(self, weight: np.ndarray) -> Tensor:
        """Return the gradient of the weights in their own shape."""
        return torch.from_numpy(weight).view(self.call.weight.shape)


class Rows:
    """x [B, addresses, C], weight [groups, P · C/groups, C_out/groups] in the order of taps, y [B, N, C_out].

    Where products write y they do so as [B, C_out, N] too, if it is laid out like this.
    """

    axis = 1

    def __init__(self, call: Call, y: Tensor) -> None:
        self.call, self.forward, self.backward = call, rows.forward, rows.backward
        self.order = torch.from_numpy(call.taps()[:, NUMBER].astype(np.int64))
        planar = y.is_contiguous() and not call.channel_by_channel
        self.y = y.flatten(2).numpy() if planar else y.movedim(1, -1).contiguous().flatten(1, 3).numpy()
        self.layout = self._layout(planar)
        self.x = with_ring(call, rows=True).movedim(1, -1).flatten(1, 3).numpy()
        self.weight = self._ordered().numpy()
        self._spare: list[np.ndarray] = []

    @contextlib.contextmanager
    def lend(self) -> Iterator[tuple[int, np.ndarray]]:
        """Lend a part what kernels take first: BLAS, and columns, made as often as parts run side by side."""
        size = self.layout.size * self.layout.depth * self.layout.ins
        columns = self._spare.pop() if self._spare else np.empty(size, self.x.dtype)
        yield gemm_address(self.call.x.dtype), columns
        self._spare.append(columns)

    def image(self, grad: Tensor) -> Tensor:
        """Return the gradient of the image in its own shape."""
        return without_ring(self.call, grad.unflatten(1, self.call.ringed).movedim(-1, 1))

    def unordered(self, weight: np.ndarray) -> Tensor:
        """Return the gradient of the weights in their own order and shape."""
        found = torch.from_numpy(weight)
        if self.layout.each:
            by_tap = found.permute(2, 0, 1)
        else:
            by_tap = found.unflatten(1, (-1, self.layout.per_group)).permute(0, 3, 2, 1).flatten(0, 1)
        ordered = torch.empty_like(by_tap, memory_format=torch.contiguous_format)
        ordered[:, :, self.order] = by_tap
        return ordered.view(self.call.weight.shape)

    def _layout(self, planar: bool) -> tiles.Layout:
        call, ins, outs = self.call, self.call.x.shape[1], self.call.weight.shape[0]
        each = call.channel_by_channel
        groups = 1 if each else call.groups
        depth = min(len(self.order), max(_LONGEST_ROW // ins, 1))
        size = min(max(_TILE // (depth * ins), _FEWEST_PIXELS), STRIP)
        per_metric = ins // call.metric_groups
        return tiles.Layout(ins, per_metric, ins // groups, outs // groups, call.span, each, planar, size, depth)

    def _ordered(self) -> Tensor:
        """Return the weights in the order of taps; [1, P, C] where each channel has its own."""
        weight = self.call.weight.flatten(2)  # [C_out, C/groups, P]
        if not torch.equal(self.order, torch.arange(len(self.order), device="cpu")):
            weight = weight[:, :, self.order]
        if self.layout.each:
            return _own(weight.permute(1, 2, 0))
        return _own(weight.unflatten(0, (self.call.groups, -1)).permute(0, 3, 2, 1).flatten(1, 2))


def _own(weight: Tensor) -> Tensor:
    """Return a copy: memory that an array has seen cannot be resized, as those who shard parameters do."""
    return weight.clone(memory_format=torch.contiguous_format)
