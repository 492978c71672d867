"""The arrays that all tasks of a call share, in the layout of the kernels: channels-first or channels-last."""

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ... import _compat
from . import few_channels, many_channels, tiles
from .arguments import CpuArguments
from .halo import add_halo, fold_halo_gradient
from .sampling import INDEX, Geometry
from .strip import STRIP
from .tiling import Tiling


class ChannelsFirst:
    """Arrays for few_channels.py, which needs no buffers.

    x [B, C, addresses], weight [C_out, C/groups, P], y [B, C_out, N], which is the output or its gradient.
    """

    address_axis = 2  # in x

    def __init__(self, args: CpuArguments, y: Tensor) -> None:
        in_channels, out_channels = args.x.shape[1], args.weight.shape[0]
        self.y = y.contiguous().flatten(2).numpy()
        self.args, self.forward, self.backward = args, few_channels.forward, few_channels.backward
        self.kernel_layout = few_channels.ChannelGroups(
            in_channels // args.metric_groups, in_channels // args.groups, out_channels // args.groups
        )
        self.x = add_halo(args).flatten(2).numpy()
        self.weight = _copied(args.weight.flatten(2)).numpy()
        self._free: list[few_channels.Buffers] = []

    @contextlib.contextmanager
    def borrow_buffers(self, geometry: Geometry) -> Iterator[tuple[few_channels.Buffers]]:
        """Yield the first argument of the kernels: buffers, reused by later tasks."""
        buffers = self._free.pop() if self._free else few_channels.make_buffers(geometry, self.x.dtype)
        yield (buffers,)
        self._free.append(buffers)

    def unpack_image_gradient(self, grad: Tensor) -> Tensor:
        """Return the gradient of the image in its own shape."""
        return fold_halo_gradient(self.args, grad.unflatten(2, self.args.size_with_halo))

    def unpack_weight_gradient(self, weight: np.ndarray) -> Tensor:
        """Return the gradient of the weights in their own shape."""
        return torch.from_numpy(weight).view(self.args.weight.shape)


class ChannelsLast:
    """Arrays for many_channels.py.

    x [B, addresses, C], weight [groups, P · C/groups, C_out/groups] in the order of the stencil rows, y [B, N, C_out],
    or [B, C_out, N] where the output is contiguous and not depthwise.
    """

    address_axis = 1

    def __init__(self, args: CpuArguments, y: Tensor, tiling: Tiling) -> None:
        self.args, self.forward, self.backward = args, many_channels.forward, many_channels.backward
        self.order = torch.from_numpy(args.stencil_rows()[:, INDEX].astype(np.int64))
        channels_first = y.is_contiguous() and not args.depthwise
        self.y = y.flatten(2).numpy() if channels_first else y.movedim(1, -1).contiguous().flatten(1, 3).numpy()
        self.kernel_layout = self._tile_layout(channels_first, tiling)
        self.x = add_halo(args, channels_last=True).movedim(1, -1).flatten(1, 3).numpy()
        self.weight = self._ordered_weight().numpy()
        self._free: list[tuple[np.ndarray, tiles.TileBuffers]] = []

    @contextlib.contextmanager
    def borrow_buffers(self, geometry: Geometry) -> Iterator[tuple[int, np.ndarray, tiles.TileBuffers]]:
        """Yield the first arguments of the kernels: the address of gemm, an im2col buffer, and further buffers.

        Later tasks reuse the buffers.
        """
        free = self._free.pop() if self._free else self._new_buffers(geometry)
        yield _compat.gemm_address(self.args.x.dtype), *free
        self._free.append(free)

    def _new_buffers(self, geometry: Geometry) -> tuple[np.ndarray, tiles.TileBuffers]:
        layout, x = self.kernel_layout, self.args.x
        columns = x.new_empty(layout.tile_pixels * layout.tile_samples * layout.in_channels).numpy()
        return columns, tiles.make_buffers(geometry, layout, self.args.metric_groups, columns.dtype)

    def unpack_image_gradient(self, grad: Tensor) -> Tensor:
        """Return the gradient of the image in its own shape."""
        return fold_halo_gradient(self.args, grad.unflatten(1, self.args.size_with_halo).movedim(-1, 1))

    def unpack_weight_gradient(self, weight: np.ndarray) -> Tensor:
        """Return the gradient of the weights in their own order and shape."""
        grad = torch.from_numpy(weight)
        if self.kernel_layout.depthwise:
            by_sample = grad.permute(2, 0, 1)
        else:
            by_sample = grad.unflatten(1, (-1, self.kernel_layout.in_per_group)).permute(0, 3, 2, 1).flatten(0, 1)
        ordered = torch.empty_like(by_sample, memory_format=torch.contiguous_format)
        ordered[:, :, self.order] = by_sample
        return ordered.view(self.args.weight.shape)

    def _tile_layout(self, channels_first: bool, tiling: Tiling) -> tiles.TileLayout:
        args, in_channels, out_channels = self.args, self.args.x.shape[1], self.args.weight.shape[0]
        depthwise = args.depthwise
        groups = 1 if depthwise else args.groups
        samples = min(len(self.order), max(tiling.max_row_values // in_channels, 1))
        pixels = min(max(tiling.tile_values // (samples * in_channels), tiling.min_tile_pixels), STRIP)
        per_metric = in_channels // args.metric_groups
        return tiles.TileLayout(
            in_channels, per_metric, in_channels // groups, out_channels // groups, args.run_length, depthwise,
            channels_first, pixels, samples,
        )  # fmt: skip

    def _ordered_weight(self) -> Tensor:
        """Return the weights in the order of the stencil rows; [1, P, C] if depthwise."""
        weight = self.args.weight.flatten(2)  # [C_out, C/groups, P]
        if not torch.equal(self.order, torch.arange(len(self.order), device="cpu")):
            weight = weight[:, :, self.order]
        if self.kernel_layout.depthwise:
            return _copied(weight.permute(1, 2, 0))
        return _copied(weight.unflatten(0, (self.args.groups, -1)).permute(0, 3, 2, 1).flatten(1, 2))


def _copied(weight: Tensor) -> Tensor:
    """Return a copy: storage that NumPy has exported cannot be resized, which sharded training does to parameters."""
    return weight.clone(memory_format=torch.contiguous_format)
