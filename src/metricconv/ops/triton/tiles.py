"""How work is cut: a small table by shape class instead of autotuning, so that a first call compiles once, in seconds.

Sizes are those of the kernels: BM pixels, BN output channels, BK input channels to a tile; TW the width of a patch of
pixels (0: BM pixels in memory order).
"""

import math
from typing import Any

from .forward import Channels
from .geometry import Lattice, Shape

# Tiles of a part are summed in registers: enough parts to fill the largest GPU, few enough to keep the sum cheap.
_PROGRAMS = 528


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


NO_WINDOW = {"WINDOW": "no", "WB": 1, "WH": 1, "WW": 1, "TILES": 1}


def window(how: str, shape: Shape, lattice: Lattice, padding_mode: str, exact: bool) -> str:
    """Return "image", "patch" or "no".

    A whole image of at most 256 pixels is a window; else a patch, while samples are not expected to leave it (a ball
    may: its samples outside are added one by one). Exact float32 products are too slow for a large window.
    """
    if how == "sum" or (exact and shape.height * shape.width > 64):
        return "no"
    if padding_mode == "zeros" and power_of_2(shape.height) * power_of_2(shape.width) <= 256:
        return "image"
    near = max(-lattice.first_y, -lattice.first_x) <= 3 and lattice.stride_y == lattice.stride_x == 1
    return "patch" if near and not exact else "no"


def _block(channels: int, smallest: int, largest: int) -> int:
    """Return the block of channels that covers them with the least padding."""
    return min(max(power_of_2(channels), smallest), largest)


def _patch(shape: Shape, wide: int) -> int:
    """Return the patch's width: small images are as compact in memory order, without waste at their borders."""
    return wide if shape.out_width >= 48 and shape.out_height >= 8 else 0


def forward(how: str, shape: Shape, channels: Channels, size: int) -> dict[str, Any]:
    """Return the forward kernel's tiles; ``size`` is the bytes of a number."""
    if how == "each":
        block = _block(channels.span, 1, 64)
        pixels = min(max(4096 // block, 16), 128)
        return {"BM": pixels, "BN": block, "BK": block, "TW": _patch(shape, 8), "num_warps": 4, "num_stages": 1}
    if how == "sum":
        sizes = {"BN": power_of_2(channels.outs_per_group), "BK": power_of_2(channels.span)}
        return {"BM": 128, **sizes, "TW": _patch(shape, 16), "num_warps": 4, "num_stages": 1}
    BN = _block(channels.outs_per_group, 16, 256 if size == 2 else 128)
    BK = _block(channels.span, 16, 64 if size == 2 else 32)
    BM = 64 if BN > 128 else 128
    return {"BM": BM, "BN": BN, "BK": BK, "TW": _patch(shape, 16), "num_warps": 4 if BM * BN <= 8192 else 8, "num_stages": 1}


def backward_data(how: str, shape: Shape, channels: Channels, size: int, window: str) -> dict[str, Any]:
    """Return the tiles of the kernel for image and geometry."""
    if how == "sum":
        sizes = {"BN": power_of_2(channels.outs_per_group), "BK": power_of_2(channels.span)}
        return {"BM": 128, **sizes, "TW": _patch(shape, 16), **NO_WINDOW, "num_warps": 4, "num_stages": 1}
    if how == "each":
        BN = BK = _block(channels.span, 16 if window != "no" else 1, 32)
    else:
        BN = _block(channels.outs_per_group, 16, 128 if size == 2 else 32)
        BK = _block(channels.span, 16, 64)
    sizes = {"BM": 64, "BN": BN, "BK": BK, "num_warps": 4, "num_stages": 1}
    if window == "no":
        return {**sizes, "TW": _patch(shape, 8), **NO_WINDOW}
    if window == "patch":
        return {**sizes, "TW": 8, "WINDOW": "patch", "WB": 1, "WH": 16, "WW": 16, "TILES": 1, "num_warps": 8}
    height, width = power_of_2(shape.height), power_of_2(shape.width)
    images = max(64 // (height * width), 1)
    steps = math.ceil(images * shape.out_height * shape.out_width / 64)
    warps = 8 if height * width > 64 else 4
    return {
        **sizes, "TW": 0, "WINDOW": "image", "WB": images, "WH": height, "WW": width, "TILES": steps, "num_warps": warps
    }


def backward_weight(how: str, shape: Shape, channels: Channels, size: int) -> dict[str, Any]:
    """Return the tiles of the kernel for the weights."""
    if how == "each":
        block = _block(channels.span, 1, 32)
        return {"BM": 64, "BN": block, "BK": block, "TW": _patch(shape, 8), "num_warps": 4, "num_stages": 1}
    if how == "sum":
        sizes = {"BN": power_of_2(channels.outs_per_group), "BK": power_of_2(channels.span)}
        return {"BM": 256, **sizes, "TW": _patch(shape, 16), "num_warps": 4, "num_stages": 1}
    BN = _block(channels.outs_per_group, 16, 128 if size == 2 else 64)
    BK = _block(channels.span, 16, 64 if size == 2 else 32)
    return {"BM": 64, "BN": BN, "BK": BK, "TW": _patch(shape, 8), "num_warps": 4, "num_stages": 1}


def count(shape: Shape, BM: int, TW: int) -> int:
    """Return the number of tiles that cover the output."""
    if TW == 0:
        return math.ceil(shape.batch * shape.out_height * shape.out_width / BM)
    return shape.batch * math.ceil(shape.out_height / (BM // TW)) * math.ceil(shape.out_width / TW)


def parts(tiles: int, blocks: int) -> int:
    """Return into how many parts the pixels are cut for the weight's gradient."""
    return max(1, min(tiles, _PROGRAMS // blocks))
