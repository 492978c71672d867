"""The output split into tasks for threads, and the sums of the gradients that tasks return.

The split depends on the problem size alone and gradients are added in a fixed order, so results do not depend on the
number of threads.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .arguments import CpuArguments
from .layouts import ChannelsFirst, ChannelsLast
from .threads import run_tasks
from .tiling import DEFAULT, Tiling

Needs = tuple[bool, bool, bool, bool]  # the gradients of input, weight, modulation and params


class PixelRange(NamedTuple):
    """Consecutive output pixels of one image, and the position of this range among those of the image."""

    image: int
    start: int
    stop: int
    position: int


def forward(args: CpuArguments, out: Tensor, tiling: Tiling = DEFAULT) -> None:
    """Add the result to out, (B, C_out, *out), whose layout is ``args.writes_channels_last``."""
    layout = _layout(args, out, tiling)
    params, modulation = args.params_and_modulation()
    stencil, geometry = args.stencil_rows(), args.geometry(backward=False)

    def work(task: list[PixelRange]) -> None:
        with layout.borrow_buffers() as buffers:
            for b, start, stop, _ in task:
                shared = (layout.x[b], params[b], stencil, layout.weight, modulation[b], geometry, layout.kernel_layout)
                layout.forward(*buffers, *shared, layout.y[b], start, stop)

    run_tasks(work, _split(args, tiling.tasks, tiling.min_range_pixels))


def backward(args: CpuArguments, grad: Tensor, needs: Needs, tiling: Tiling = DEFAULT) -> tuple[Tensor | None, ...]:
    """Return the gradients of input, weight, modulation and params, None where not needed; grad (B, C_out, *out)."""
    layout = _layout(args, grad, tiling)
    params, modulation = args.params_and_modulation()
    stencil, geometry = args.stencil_rows(), args.geometry(backward=True)
    count = min(tiling.tasks, tiling.max_weight_sums // max(layout.weight.size, 1))
    tasks = _split(args, max(count, 1), tiling.min_range_pixels)
    ranges = 1 + max(pixel_range.position for task in tasks for pixel_range in task)
    grad_image = _GradientBuffers(layout.x, ranges if needs[0] else 0)
    weight_shape = layout.weight.shape if needs[1] else (0,) * layout.weight.ndim
    grad_weight = np.zeros((len(tasks), *weight_shape), layout.x.dtype)
    grad_modulation = args.x.new_empty(modulation.shape).numpy() if needs[2] else modulation[:, :, :0]
    # Geodesics read the field at any node. Other supports read it at the pixel, which belongs to one range only.
    is_geodesic = args.kind == "geodesic"
    grad_params = _GradientBuffers(params, (ranges if is_geodesic else 1) if needs[3] else 0)

    def work(index: int) -> None:
        with layout.borrow_buffers() as buffers:
            for pixel_range in tasks[index]:
                b, start, stop, n = pixel_range
                shared = (layout.x[b], params[b], stencil, layout.weight, modulation[b], geometry, layout.kernel_layout)
                image, params_buffer = grad_image.buffer(n, b), grad_params.buffer(n if is_geodesic else 0, b)
                gradients = (*image, grad_weight[index], grad_modulation[b], *params_buffer)
                layout.backward(*buffers, *shared, layout.y[b], needs[3], *gradients, start, stop)

    run_tasks(work, range(len(tasks)))
    total_params = grad_params.sum(2, args.nodes[1] + 2) if needs[3] else None
    return (
        layout.unpack_image_gradient(grad_image.sum(layout.address_axis, sum(args.pitch) + 1)) if needs[0] else None,
        layout.unpack_weight_gradient(grad_weight.sum(0)) if needs[1] else None,
        torch.from_numpy(grad_modulation).view(args.modulation.shape)
        if args.modulation is not None and needs[2]
        else None,
        total_params.view(args.params.shape) if args.params is not None and total_params is not None else None,
    )


class _GradientBuffers:
    """Zero-initialized gradient buffers [B, …], one per pixel range of an image, and their sum.

    The operating system allocates only the pages that are written, and only the written range of a buffer is added to
    the sum. With a count of 0 the buffers are empty: the gradient is not needed.
    """

    def __init__(self, like: np.ndarray, count: int) -> None:
        self._buffers = np.zeros((count, *like.shape), like.dtype)
        self._written = np.full((max(count, 1), len(like), 2), (2**31 - 1, -1), np.int32)
        self._empty = np.zeros((0,) * (like.ndim - 1), like.dtype)

    def buffer(self, index: int, image: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the buffer of a pixel range, and the range of addresses written to it (first, last)."""
        buffer = self._buffers[index, image] if len(self._buffers) else self._empty
        return buffer, self._written[index if len(self._buffers) else 0, image]

    def sum(self, axis: int, extra: int) -> Tensor:
        """Return the sum of all buffers.

        Args:
            axis: the axis of the addresses.
            extra: the number of values written from the last recorded address on.
        """
        total = self._buffers[0]
        for buffer, ranges in zip(self._buffers[1:], self._written[1:], strict=True):
            for image, (low, high) in enumerate(ranges):
                index = (image, *[slice(None)] * (axis - 1), slice(int(low), int(high) + extra))
                total[index] += buffer[index]
        return torch.from_numpy(total)


def _layout(args: CpuArguments, y: Tensor, tiling: Tiling) -> ChannelsFirst | ChannelsLast:
    return ChannelsLast(args, y, tiling) if args.uses_columns else ChannelsFirst(args, y)


def _split(args: CpuArguments, count: int, min_range_pixels: int) -> list[list[PixelRange]]:
    """Split the output into about ``count`` tasks: whole images, or pixel ranges of each image."""
    batch, pixels = args.x.shape[0], args.pixels
    if batch >= count:
        edges = [batch * task // count for task in range(count + 1)]
        return [[PixelRange(b, 0, pixels, 0) for b in range(*ends)] for ends in itertools.pairwise(edges)]
    per_image = max(min(math.ceil(count / batch), pixels // min_range_pixels), 1)
    edges = [pixels * n // per_image for n in range(per_image + 1)]
    return [[PixelRange(b, edges[n], edges[n + 1], n)] for b in range(batch) for n in range(per_image)]
