"""How work is cut: a small table by shape class instead of autotuning, so that a first call compiles once, in seconds.

Sizes are those of the kernels: BM pixels, BN output channels, BK input channels to a tile; TW the width of a patch of
pixels (0: BM pixels in memory order). Gathering waits for memory: with maxnreg registers to a thread, more programs
share a multiprocessor and do so at the same time.
"""

import functools
import math
from typing import Any

import torch

from .forward import Channels
from .geometry import Shape

# Measured on an H200, which has 132 multiprocessors: see benchmarks/README.md.
# Tiles of a part are summed in registers: enough parts to fill the GPU, 8 a multiprocessor, and few enough to keep the
# sum cheap.
_PROGRAMS = 1056
# How many numbers are kept at a time, of samples or their gradients; and how many of each tap fill the GPU.
_WORKSPACE = 20 * 2**20
_BUSY = 2**19

# Those whose programs may have 163 KB of shared memory or more: Ampere to Blackwell in data centres. Others have 99 KB.
_ROOMY = {(8, 0), (8, 7), (9, 0), (10, 0), (10, 3), (11, 0)}


@functools.cache
def roomy(device: torch.device) -> bool:
    """Return whether programs have much shared memory there."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) in _ROOMY


def power_of_2(n: int) -> int:
    """Return the smallest power of 2 that is at least n."""
    return 1 << (n - 1).bit_length()


def contraction(channels: Channels) -> str:
    """Return how channels meet their weights.

    "each": every channel is its own group, no sum at all; "sum": so few that a matrix product would be mostly padding;
    "dot": on the tensor cores.
    """
    if channels.ins_per_group == 1 and channels.outs_per_group == 1:
        return "each"
    if power_of_2(channels.ins_per_group) * power_of_2(channels.outs_per_group) <= 16:
        return "sum"
    return "dot"


NO_WINDOW = {"WINDOW": "no", "WB": 1, "WH": 1, "WW": 1, "TILES": 1, "GATHER": "corners"}


def window(how: str, shape: Shape, padding_mode: str, size: int, exact: bool, roomy: bool) -> str:
    """Return over what the image's gradient is summed in registers (see window.py): "image", "patch" or "no".

    Whole images of up to 256 pixels (64 where products are exact float32, or channel by channel: building the weights
    then costs more than adding in memory; or where float32 weights of so many would not fit); patches of larger ones
    where a product is cheap, in half precision, and where samples lie close enough not to leave them.
    """
    largest = 256 if how == "dot" and not exact and (size == 2 or roomy) else 64
    if how != "sum" and padding_mode == "zeros" and power_of_2(shape.height) * power_of_2(shape.width) <= largest:
        return "image"
    return "patch" if how == "dot" and size == 2 and not _sparse(shape) else "no"


def _sparse(shape: Shape) -> bool:
    """Return whether outputs are far apart, as strides leave them."""
    return 2 * shape.out_height * shape.out_width <= shape.height * shape.width


def _block(channels: int, smallest: int, largest: int) -> int:
    """Return the block of channels that covers them with the least padding."""
    return min(max(power_of_2(channels), smallest), largest)


def _patch(shape: Shape, wide: int) -> int:
    """Return the patch's width: small images are as compact in memory order, without waste at their borders."""
    return wide if shape.out_width >= 48 and shape.out_height >= 8 else 0


def _few(shape: Shape, channels: Channels, BM: int, num_warps: int) -> dict[str, Any]:
    """Return tiles with a pixel to a lane, for few channels."""
    sizes = {"BN": power_of_2(channels.outs_per_group), "BK": power_of_2(channels.span)}
    return {"BM": BM, **sizes, "TW": _patch(shape, 16), "num_warps": num_warps, "num_stages": 1}


def forward(how: str, kind: str, shape: Shape, channels: Channels, size: int, roomy: bool) -> dict[str, Any]:
    """Return the forward kernel's tiles; ``size`` is the bytes of a number."""
    if how == "sum":
        return _few(shape, channels, 128, 4)
    # Gathered numbers go through the first-level cache, which Triton's pipelining (num_stages > 1) goes around: it pays
    # only where the product is large.
    sizes: dict[str, Any] = {"TW": _patch(shape, 8), "num_warps": 4, "num_stages": 1}
    if how == "each":
        block = _block(channels.span, 1, 64)
        return {**sizes, "BM": min(max(2048 // block, 32), 128), "BN": block, "BK": block}
    BN = _block(channels.outs_per_group, 16, 256)
    BK = _block(channels.span, 16, 64 if size == 2 else 32)
    if how == "keep":
        return {**sizes, "BM": 32, "BN": BK, "BK": BK}
    sizes |= {"BM": 64, "BN": BN, "BK": BK}
    if BN <= 64:
        return sizes | ({"maxnreg": 128} if size == 2 else {})
    if BN == 128:  # a deformable support's numbers are read for every tap, by all who share a pixel: let it be few
        return {**sizes, "BM": 64 if size == 2 else 128, "num_warps": 4 if size == 2 and kind == "deformable" else 8}
    if not roomy:
        return {**sizes, "num_warps": 8}
    if size == 2 and channels.outs_per_group > 256:
        sizes |= {"BM": 128, "BK": min(BK, 32)}
    return {**sizes, "num_warps": 8, "num_stages": 3}


def geometry_with_weights(how: str, channels: Channels) -> bool:
    """Return whether one kernel finds the gradients of weights and geometry: not if it gathered again too often."""
    return how == "dot" and channels.outs_per_group <= 128


def backward_data(
    how: str, shape: Shape, channels: Channels, size: int, window: str, moves: bool, roomy: bool
) -> dict[str, Any]:
    """Return the tiles of the kernel for the image, and for the geometry if it ``moves``."""
    if how == "sum":
        return _few(shape, channels, 64, 2) | NO_WINDOW
    sizes: dict[str, Any] = {"BM": 64, "TW": _patch(shape, 8), "num_warps": 4, "num_stages": 1}
    if how == "each":
        BN = BK = _block(channels.span, 16 if window != "no" else 1, 32)
        if window == "no":
            sizes |= {"BM": min(512 // BK, 64), "num_warps": 4 if BK >= 16 else 2}
    elif size == 2:
        BN = _block(channels.outs_per_group, 16, 64 if window == "no" else 128)
        BK = _block(channels.span, 16, 64)
    else:
        BN = _block(channels.outs_per_group, 16, 64 if moves and window == "image" else 32)
        BK = _block(channels.span, 16, 32 if moves else 64)
        sizes["BM"] = 64 if moves else 128
    sizes |= {"BN": BN, "BK": BK}
    if window == "no":
        return {**sizes, **NO_WINDOW}
    if window in ("patch", "strays"):
        return {**sizes, "TW": 8, "WINDOW": window, "WB": 1, "WH": 16, "WW": 16, "TILES": 1, "GATHER": "corners"}
    height, width = power_of_2(shape.height), power_of_2(shape.width)
    if how == "dot" and size == 2 and height * width <= 64:
        sizes |= {"BK": _block(channels.span, 16, 128), "num_warps": 8 if moves else 4}
    elif how == "dot" and height * width > 64:
        large = roomy if size == 2 else not moves
        sizes |= {"BM": 128, "num_warps": 8} if large and (moves or size == 4) else {"num_warps": 8 if moves else 4}
    return {**sizes, **_image(shape, sizes["BM"])}


def backward_columns(
    shape: Shape, channels: Channels, size: int, window: str, moves: bool, roomy: bool
) -> dict[str, Any]:
    """Return the tiles of the same kernel where the samples' gradients are known: products are few, registers free."""
    sizes = backward_data("dot", shape, channels, size, window, moves, roomy)
    if size == 4 or window in ("patch", "strays"):
        return sizes
    sizes |= {"BM": 64, "BK": _block(channels.span, 16, 64), "num_warps": 4, "num_stages": 3}
    if window == "no":  # corners are added in memory, which takes long: let many programs wait for it
        return {**sizes, "BM": 16, "num_stages": 1}
    if power_of_2(shape.height) * power_of_2(shape.width) > 64:
        return {**sizes, **_image(shape, 64), "num_warps": 8}
    return {**sizes, **_image(shape, 64), "GATHER": "window"}


def _image(shape: Shape, BM: int) -> dict[str, Any]:
    """Return the window of as many whole images as a tile has pixels for, or of one."""
    height, width = power_of_2(shape.height), power_of_2(shape.width)
    images = max(BM // (height * width), 1)
    steps = math.ceil(images * shape.out_height * shape.out_width / BM)
    window = {"WINDOW": "image", "WB": images, "WH": height, "WW": width, "TILES": steps}
    return {"TW": 0, **window, "GATHER": "corners"}


def backward_weight(
    how: str, shape: Shape, channels: Channels, size: int, moves: bool, rays: bool, roomy: bool
) -> dict[str, Any]:
    """Return the tiles of the kernel for the weights, and for the geometry if it ``moves``, samples along ``rays``."""
    if how == "sum":
        return _few(shape, channels, 256, 4)
    sizes: dict[str, Any] = {"BM": 64, "TW": _patch(shape, 8), "num_warps": 4, "num_stages": 1}
    if how == "each":
        block = _block(channels.span, 1, 32)
        return {**sizes, "BM": min(4096 // block, 512), "BN": block, "BK": block, "num_warps": 8 if block >= 16 else 4}
    if size == 4:
        largest = 64 if moves and not roomy else 128
        BN, BK = _block(channels.outs_per_group, 16, largest), _block(channels.span, 16, largest)
        # Without a limit ptxas may settle for 32 registers where no number of them is enough.
        sizes |= {"maxnreg": 255} if moves and BN * BK >= 4096 else {}
        return {**sizes, "BN": BN, "BK": BK, "num_warps": 8 if BN * BK > 4096 else 4}
    BN = _block(channels.outs_per_group, 16, 128 if moves else 256)
    BK = _block(channels.span, 16, 128 if BN == 256 else 64)
    if not moves:
        sizes |= {"BM": 128 if BN <= 64 else 64, "num_warps": 8}
    elif BN <= 64 or not rays:  # without rays, samples on the lattice alone would use more
        sizes |= {"maxnreg": 168}
    return {**sizes, "BN": BN, "BK": BK}


def images_at_a_time(shape: Shape, channels: Channels) -> int:
    """Return how many images' gradients are summed at once: a third of them, or enough to keep a GPU busy.

    Sums in float32 take twice the room of what they are rounded to, so that a third of them take a third of the room of
    an output and a gradient. More parts would take less, but every part costs some launches.
    """
    programs = math.ceil(shape.out_height / 8) * math.ceil(shape.out_width / 8) * math.ceil(channels.ins / 64)
    return max(math.ceil(shape.batch / 3), math.ceil(_PROGRAMS / 2 / programs))


def images_by_columns(shape: Shape, channels: Channels, size: int) -> int:
    """Return for how many images at a time all samples, or their gradients, are kept; 0 where gathering is faster.

    That is so where channels are few; where one image's do not fit; where those that fit would leave the GPU idle.
    Where outputs are far apart, what is gathered for one serves no other, and fewer channels are enough.
    """
    enough = (64 if _sparse(shape) else 256) if size == 2 else 128
    if min(channels.ins, channels.outs) < enough:
        return 0
    pixels = shape.out_height * shape.out_width
    images = min(_WORKSPACE // max(pixels * shape.samples * channels.ins, 1), shape.batch)
    return images if images * pixels * channels.ins >= _BUSY else 0


def count(shape: Shape, BM: int, TW: int) -> int:
    """Return the number of tiles that cover the output."""
    if TW == 0:
        return math.ceil(shape.batch * shape.out_height * shape.out_width / BM)
    return shape.batch * math.ceil(shape.out_height / (BM // TW)) * math.ceil(shape.out_width / TW)


def parts(tiles: int, blocks: int) -> int:
    """Return into how many parts the pixels are cut for the weight's gradient."""
    return max(1, min(tiles, _PROGRAMS // blocks))
