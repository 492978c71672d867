"""Wide layers on small maps: columns are gathered for a block of pixels at a time and multiplied by torch.

There reading the weights takes longer than any other step. So one product, on all threads, serves the pixels of several
images. Between products, kernels gather the columns and scatter their gradients, split into tasks. On larger maps the
tiles of many_channels.py are faster, which stay in the cache of a core.

A block is some images, or some pixels of one image. Its columns have one row per pixel, image by image. The rounding of
torch's products may depend on the number of threads.
"""

import contextlib
import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from . import many_channels
from .arguments import CpuArguments
from .halo import add_halo, fold_halo_gradient
from .matrix_product import multiply
from .partition import GradientBuffers, Needs, PixelRange, split
from .reorder import channels_first, samples_first
from .sampling import INDEX
from .strip import STRIP
from .threads import run_tasks
from .tiles import TileBuffers, TileLayout, make_buffers
from .tiling import DEFAULT, Tiling


def forward(args: CpuArguments, out: Tensor, bias: Tensor | None, tiling: Tiling = DEFAULT) -> None:
    """Write the result to out, (B, C_out, *out)."""
    call = _Call(args, tiling, backward=False)
    weight, buffer = call.weight_matrix(), call.new_columns()
    for block in call.blocks:
        columns = call.in_weight_order(call.gather(block, buffer))
        _pixels(out, block).copy_(multiply(columns, weight, bias).view(_pixels(out, block).shape))


def backward(args: CpuArguments, grad: Tensor, needs: Needs, tiling: Tiling = DEFAULT) -> tuple[Tensor | None, ...]:
    """Return the gradients of input, weight, modulation and params, None where not needed; grad (B, C_out, *out)."""
    call = _Call(args, tiling, backward=True)
    buffer, needs_columns = call.new_columns(), needs[0] or needs[2] or needs[3]
    transposed_weight = call.weight_matrix().t() if needs_columns else None
    gradients = _Gradients(call, needs)
    for block in call.blocks:
        rows = _pixels(grad, block).reshape(-1, grad.shape[1])
        if needs[1]:
            columns = call.in_weight_order(call.gather(block, buffer))
            gradients.add_to_weight(multiply(rows.t(), columns.t()))
        if transposed_weight is not None:
            gradients.scatter(block, call.in_gather_order(multiply(rows, transposed_weight)))
    return gradients.result()


def _pixels(y: Tensor, block: PixelRange) -> Tensor:
    """View the output, or its gradient, at the pixels of a block: [images, pixels, C_out]."""
    return y.flatten(2)[block.first : block.last, :, block.start : block.stop].transpose(1, 2)


class _Call:
    """The arrays and the blocks of one call."""

    def __init__(self, args: CpuArguments, tiling: Tiling, backward: bool) -> None:
        self.args, self.tiling = args, tiling
        self.x = add_halo(args, channels_last=True).movedim(1, -1).flatten(1, 3).numpy()
        self.params, self.modulation = args.params_and_modulation()
        self.stencil, self.geometry = args.stencil_rows(), args.geometry(backward)
        self.order = self.stencil[:, INDEX].astype(np.int64)
        channels, outputs = args.x.shape[1], args.weight.shape[0]
        self.row_values = len(self.stencil) * channels
        pixels = min(max(tiling.tile_values // self.row_values, tiling.min_tile_pixels), STRIP)
        self.layout = TileLayout(
            channels, channels // args.metric_groups, channels, outputs, args.run_length, False, False, pixels,
            len(self.stencil),
        )  # fmt: skip
        # Either the weights are copied in the order of the columns, or the columns in that of the weights.
        self.copies_columns = len(args.x) * args.pixels < outputs
        self.blocks = self._blocks()
        self._free: list[TileBuffers] = []

    def _blocks(self) -> list[PixelRange]:
        """Return blocks of equal size, as far as possible."""
        images, pixels = len(self.args.x), self.args.pixels
        rows = max(self.tiling.block_values // self.row_values, self.tiling.min_block_rows)
        if pixels <= rows:
            return [PixelRange(*ends, 0, pixels, 0) for ends in _cuts(images, rows // pixels)]
        return [PixelRange(b, b + 1, *ends, 0) for b in range(images) for ends in _cuts(pixels, rows)]

    def new_columns(self) -> Tensor:
        """Return a buffer for the columns of any block."""
        rows = max((block.last - block.first) * (block.stop - block.start) for block in self.blocks)
        return self.args.x.new_empty(rows * self.row_values)

    def gather(self, block: PixelRange, buffer: Tensor) -> Tensor:
        """Return the columns of a block, [rows, P, C], in the buffer."""
        columns = buffer.numpy()
        shared = (self.x, self.params, self.stencil, self.modulation, self.geometry, self.layout)

        def work(task: PixelRange) -> None:
            first_row = _first_row(block, task)
            with self.borrow_buffers() as buffers:
                many_channels.gather_block(buffers, *shared, columns[first_row * self.row_values :], *task[:4])

        run_tasks(work, self.tasks(block))
        rows = (block.last - block.first) * (block.stop - block.start)
        return buffer[: rows * self.row_values].view(rows, len(self.order), -1)

    @contextlib.contextmanager
    def borrow_buffers(self) -> Iterator[TileBuffers]:
        """Yield the buffers of a task, reused by later tasks."""
        if self._free:
            buffers = self._free.pop()
        else:
            buffers = make_buffers(self.geometry, self.layout, self.args.metric_groups, self.x.dtype)
        yield buffers
        self._free.append(buffers)

    def tasks(self, block: PixelRange) -> list[PixelRange]:
        """Split a block into tasks. Those of one image have different positions."""
        values = (block.last - block.first) * (block.stop - block.start) * self.row_values
        count = max(min(self.tiling.tasks, values // self.tiling.min_task_values), 1)
        return split(block[:2], block[2:4], count, self.tiling.min_range_pixels)

    def weight_matrix(self) -> Tensor:
        """Return the weights, [C_out, P·C], in the order of the columns that are multiplied."""
        weight = self.args.weight.flatten(2)
        if self.copies_columns:
            return weight.flatten(1)
        # A clone: storage that NumPy has exported cannot be resized, which sharded training does to parameters.
        return samples_first(weight.clone(memory_format=torch.contiguous_format), self.order).flatten(1)

    def in_weight_order(self, columns: Tensor) -> Tensor:
        """Return columns [rows, P, C] as a matrix in the order of ``weight_matrix``."""
        return (channels_first(columns, self.order) if self.copies_columns else columns).flatten(1)

    def in_gather_order(self, columns: Tensor) -> Tensor:
        """Return a matrix of columns in the order of ``weight_matrix`` as [rows, P, C], the inverse."""
        if self.copies_columns:
            return samples_first(columns.unflatten(1, (-1, len(self.order))), self.order)
        return columns.unflatten(1, (len(self.order), -1))

    def unpack_weight_gradient(self, grad: Tensor) -> Tensor:
        """Return a gradient of ``weight_matrix`` in the shape of the weights."""
        if not self.copies_columns:
            grad = channels_first(grad.unflatten(1, (len(self.order), -1)), self.order)
        return grad.view(self.args.weight.shape)


class _Gradients:
    """The gradients of a call, accumulated block by block."""

    def __init__(self, call: _Call, needs: Needs) -> None:
        self.call, self.needs, args = call, needs, call.args
        positions = 1 + max(task.position for block in call.blocks for task in call.tasks(block))
        self.image = GradientBuffers(call.x, positions if needs[0] else 0)
        self.weight: Tensor | None = None
        modulation = call.modulation
        self.modulation = args.x.new_empty(modulation.shape).numpy() if needs[2] else modulation[:, :, :0]
        # Geodesics read the field at any node. Other supports read it at the pixel, which belongs to one range only.
        self.shares_params = args.kind == "geodesic"
        self.params = GradientBuffers(call.params, (positions if self.shares_params else 1) if needs[3] else 0)

    def add_to_weight(self, grad: Tensor) -> None:
        """Add the gradient of the weight matrix from one block."""
        self.weight = grad if self.weight is None else self.weight.add_(grad)

    def scatter(self, block: PixelRange, columns: Tensor) -> None:
        """Accumulate the other gradients, given that of the columns of a block, [rows, P, C]."""
        call, grad_columns = self.call, columns.contiguous().view(-1).numpy()
        shared = (call.x, call.params, call.stencil, call.modulation, call.geometry, call.layout)

        def work(task: PixelRange) -> None:
            image = self.image.buffers(task.position)
            params = self.params.buffers(task.position if self.shares_params else 0)
            own = grad_columns[_first_row(block, task) * call.row_values :]
            with call.borrow_buffers() as buffers:
                many_channels.scatter_block(
                    buffers, *shared, own, self.needs[3], *image, self.modulation, *params, *task[:4]
                )

        run_tasks(work, call.tasks(block))

    def result(self) -> tuple[Tensor | None, ...]:
        """Return the gradients in the shapes of their tensors."""
        args, image, params = self.call.args, None, None
        if self.needs[0]:
            total = self.image.sum(1, sum(args.pitch) + 1)
            image = fold_halo_gradient(args, total.unflatten(1, args.size_with_halo).movedim(-1, 1))
        if self.needs[3] and args.params is not None:
            params = self.params.sum(2, args.nodes[1] + 2).view(args.params.shape)
        return (
            image,
            None if self.weight is None else self.call.unpack_weight_gradient(self.weight),
            torch.from_numpy(self.modulation).view(args.modulation.shape)
            if args.modulation is not None and self.needs[2]
            else None,
            params,
        )


def _first_row(block: PixelRange, task: PixelRange) -> int:
    return (task.first - block.first) * (block.stop - block.start) + task.start - block.start


def _cuts(total: int, largest: int) -> list[tuple[int, int]]:
    """Return the ends of nearly equal parts of a total that are at most ``largest``."""
    count = -(-total // largest)
    return list(itertools.pairwise([total * n // count for n in range(count + 1)]))
