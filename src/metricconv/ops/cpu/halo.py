"""The image with a halo of one pixel around it, and the gradient folded back from the halo.

The halo holds the values just past the border. Positions beyond it are clamped to it ("zeros", "border") or folded into
the image ("reflect", "circular"), so kernels never test whether a corner lies inside the image.
"""

import numpy as np
from torch import Tensor

from .arguments import CpuArguments
from .jit import kernel
from .threads import run_tasks

# Channels times pixels that share cache lines while they are transposed.
_BLOCK = 16
# Values that one task copies: fewer are not worth a thread.
_TASK_VALUES = 2**16


def add_halo(args: CpuArguments, channels_last: bool = False) -> Tensor:
    """Return the image with its halo, (B, C, *spatial); contiguous in memory, or channels-last."""
    x = args.x
    if channels_last:
        image = x.new_empty((x.shape[0], *args.size_with_halo, x.shape[1])).movedim(-1, 1)
    else:
        image = x.new_empty((*x.shape[:2], *args.size_with_halo))
    if channels_last and x.is_contiguous() and args.dim < 3:
        pixels, interior = x.flatten(2, 3).numpy(), image.movedim(1, -1)[:, 0].numpy()
        count = min(len(x), max(x.numel() // _TASK_VALUES, 1))
        edges = [len(x) * n // count for n in range(count + 1)]
        run_tasks(lambda n: copy_channels_last(pixels, interior, edges[n], edges[n + 1]), range(count))
    else:
        _interior(args, image).copy_(x)
    for axis in _halo_axes(args):
        for side, source in _halo_sources(args, image, axis):
            if args.padding_mode == "zeros":
                image.select(axis, side).zero_()
            else:
                image.select(axis, side).copy_(image.select(axis, source))
    return image


def fold_halo_gradient(args: CpuArguments, grad: Tensor) -> Tensor:
    """Return the gradient of the image, given that of the image with its halo, which may be overwritten."""
    if args.padding_mode != "zeros":
        for axis in reversed(_halo_axes(args)):
            for side, source in _halo_sources(args, grad, axis):
                grad.select(axis, source).add_(grad.select(axis, side))
    return _interior(args, grad).contiguous()


def _halo_axes(args: CpuArguments) -> tuple[int, ...]:
    return (2, 3, 4) if args.dim == 3 else (3, 4)


def _interior(args: CpuArguments, image: Tensor) -> Tensor:
    return image[:, :, slice(1, -1) if args.dim == 3 else slice(None), 1:-1, 1:-1]


def _halo_sources(args: CpuArguments, image: Tensor, axis: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the halo's two indices along an axis, each with the index whose values it repeats."""
    last = image.shape[axis] - 1
    if args.padding_mode == "circular":
        return (0, last - 1), (last, 1)
    inward = 2 if args.padding_mode == "reflect" and last > 2 else 1  # a single pixel is its own reflection
    return (0, inward), (last, last - inward)


@kernel
def copy_channels_last(source, target, first_image, last_image):
    """Copy images [B, C, H, W] to the interior of target [B, H + 2, W + 2, C]; torch's copy takes longer."""
    _, channels, height, width = source.shape
    for image in range(first_image, last_image):
        for y in range(np.uint64(height)):
            for first in range(0, width, _BLOCK):
                for c in range(np.uint64(channels)):
                    for x in range(np.uint64(first), np.uint64(first + _BLOCK if first + _BLOCK < width else width)):
                        target[image, y + np.uint64(1), x + np.uint64(1), c] = source[image, c, y, x]
