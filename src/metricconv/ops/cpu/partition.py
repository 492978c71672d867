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
    """Consecutive output pixels of images first … last − 1, and the position of this range among those of an image."""

    first: int
    last: int
    start: int
    stop: int
    position: int


def forward(args: CpuArguments, out: Tensor, tiling: Tiling = DEFAULT) -> None:
    """Add the result to out, (B, C_out, *out), whose layout is ``args.writes_channels_last``."""
    layout = _layout(args, out, tiling)
    params, modulation = args.params_and_modulation()
    geometry = args.geometry(backward=False)
    shared = (layout.x, params, args.stencil_rows(), layout.weight, modulation, geometry, layout.kernel_layout)

    def work(task: PixelRange) -> None:
        with layout.borrow_buffers(geometry) as buffers:
            layout.forward(*buffers, *shared, layout.y, *task[:4])

    run_tasks(work, split((0, len(args.x)), (0, args.pixels), tiling.tasks, tiling.min_range_pixels))


def backward(args: CpuArguments, grad: Tensor, needs: Needs, tiling: Tiling = DEFAULT) -> tuple[Tensor | None, ...]:
    """Return the gradients of input, weight, modulation and params, None where not needed; grad (B, C_out, *out)."""
    layout = _layout(args, grad, tiling)
    params, modulation = args.params_and_modulation()
    geometry = args.geometry(backward=True)
    shared = (layout.x, params, args.stencil_rows(), layout.weight, modulation, geometry, layout.kernel_layout)
    count = min(tiling.tasks, tiling.max_weight_sums // max(layout.weight.size, 1))
    tasks = split((0, len(args.x)), (0, args.pixels), max(count, 1), tiling.min_range_pixels)
    ranges = 1 + max(task.position for task in tasks)
    grad_image = GradientBuffers(layout.x, ranges if needs[0] else 0)
    weight_shape = layout.weight.shape if needs[1] else (0,) * layout.weight.ndim
    grad_weight = np.zeros((len(tasks), *weight_shape), layout.x.dtype)
    grad_modulation = args.x.new_empty(modulation.shape).numpy() if needs[2] else modulation[:, :, :0]
    # Geodesics read the field at any node. Other supports read it at the pixel, which belongs to one range only.
    is_geodesic = args.kind == "geodesic"
    grad_params = GradientBuffers(params, (ranges if is_geodesic else 1) if needs[3] else 0)

    def work(index: int) -> None:
        with layout.borrow_buffers(geometry) as buffers:
            n = tasks[index].position
            image, params_buffer = grad_image.buffers(n), grad_params.buffers(n if is_geodesic else 0)
            gradients = (*image, grad_weight[index], grad_modulation, *params_buffer)
            layout.backward(*buffers, *shared, layout.y, needs[3], *gradients, *tasks[index][:4])

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


class GradientBuffers:
    """Zero-initialized gradient buffers [B, …], one per pixel range of an image, and their sum.

    The operating system allocates only the pages that are written, and only the written range of a buffer is added to
    the sum. With a count of 0 the buffers are empty: the gradient is not needed.
    """

    def __init__(self, like: np.ndarray, count: int) -> None:
        self._buffers = np.zeros((count, *like.shape), like.dtype)
        self._written = np.full((max(count, 1), len(like), 2), (2**31 - 1, -1), np.int32)
        self._empty = np.zeros((len(like), *(0,) * (like.ndim - 1)), like.dtype)

    def buffers(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the buffers of all images for a pixel range, and the addresses (first, last) written to them."""
        return (self._buffers[index], self._written[index]) if len(self._buffers) else (self._empty, self._written[0])

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


def split(images: tuple[int, int], pixels: tuple[int, int], count: int, min_range_pixels: int) -> list[PixelRange]:
    """Split pixels of some images into about ``count`` ranges: of whole images, or ranges of each image."""
    (first, last), (start, stop) = images, pixels
    if last - first >= count:
        edges = [first + (last - first) * task // count for task in range(count + 1)]
        return [PixelRange(*ends, start, stop, 0) for ends in itertools.pairwise(edges)]
    size = stop - start
    per_image = max(min(math.ceil(count / (last - first)), size // min_range_pixels), 1)
    edges = [start + size * n // per_image for n in range(per_image + 1)]
    return [PixelRange(b, b + 1, edges[n], edges[n + 1], n) for b in range(first, last) for n in range(per_image)]
