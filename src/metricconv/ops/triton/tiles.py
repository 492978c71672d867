"""Tile sizes and the choice between kernels: a small table instead of autotuning, so that a first call takes seconds.

Sizes are named as in the kernels: a tile has BM pixels, BN output channels and BK input channels. TW is the width
of a patch of pixels, or 0 for BM pixels in memory order. Gathering waits for memory. With at most ``maxnreg`` registers
per thread, more programs share a multiprocessor, and wait at the same time. ``itemsize`` is that of the image's dtype.
"""

import functools
import math
from typing import Any

import torch

from .forward_kernel import Channels
from .geometry import Dimensions

# Measured on an H200, which has 132 multiprocessors: see benchmarks/README.md.
# Programs of the kernel for the weights: 8 per multiprocessor. More would make the sum over their results expensive.
_PROGRAMS = 1056
# Elements of the im2col buffer, and the number of them per sample that keeps the GPU busy.
_IM2COL_ELEMENTS = 20 * 2**20
_BUSY_ELEMENTS = 2**19

# Compute capabilities with at least 163 KB of shared memory per program: data-center GPUs since Ampere. Others have 99.
_LARGE_SHARED_MEMORY = {(8, 0), (8, 7), (9, 0), (10, 0), (10, 3), (11, 0)}


@functools.cache
def has_large_shared_memory(device: torch.device) -> bool:
    """Return whether programs on the device may use 163 KB of shared memory."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) in _LARGE_SHARED_MEMORY


def power_of_2(n: int) -> int:
    """Return the smallest power of 2 that is at least n."""
    return 1 << (n - 1).bit_length()


def contraction(channels: Channels) -> str:
    """Return how samples are multiplied by the weights.

    "depthwise": each channel is a group of its own; "broadcast": without matrix products, which would be mostly padding
    for so few channels; "dot": by matrix products on the tensor cores.
    """
    if channels.ins_per_group == 1 and channels.outs_per_group == 1:
        return "depthwise"
    if power_of_2(channels.ins_per_group) * power_of_2(channels.outs_per_group) <= 16:
        return "broadcast"
    return "dot"


NO_WINDOW = {"WINDOW": "none", "WB": 1, "WH": 1, "WW": 1, "TILES": 1, "GATHER": "corners"}


def window(
    contraction: str, dims: Dimensions, padding_mode: str, dtype: torch.dtype, precision: str, large_shared_memory: bool
) -> str:
    """Return over which pixels a program sums the image's gradient (see window.py): "image", "patch" or "none".

    Whole images of up to 256 pixels; of up to 64 if products are in exact float32 or depthwise, where computing the
    window's weights takes longer than atomic additions, or if float32 weights do not fit in shared memory. Patches of
    larger images in half precision, if the outputs are so close that most samples lie in the window.
    """
    itemsize = dtype.itemsize
    exact = dtype == torch.float32 and precision == "ieee"
    largest = 256 if contraction == "dot" and not exact and (itemsize == 2 or large_shared_memory) else 64
    small = power_of_2(dims.height) * power_of_2(dims.width) <= largest
    if contraction != "broadcast" and padding_mode == "zeros" and small:
        return "image"
    return "patch" if contraction == "dot" and itemsize == 2 and not _sparse(dims) else "none"


def _sparse(dims: Dimensions) -> bool:
    """Return whether outputs are far apart, because of strides."""
    return 2 * dims.out_height * dims.out_width <= dims.height * dims.width


def _channel_block(channels: int, smallest: int, largest: int) -> int:
    """Return the size of channel blocks: the power of 2 that fits all channels, within bounds."""
    return min(max(power_of_2(channels), smallest), largest)


def _patch_width(dims: Dimensions, width: int) -> int:
    """Return TW: 0 for small images, where pixels in memory order are compact and waste nothing at borders."""
    return width if dims.out_width >= 48 and dims.out_height >= 8 else 0


def _few_channels(dims: Dimensions, channels: Channels, BM: int, num_warps: int) -> dict[str, Any]:
    """Return the tile for few channels, with one pixel per thread."""
    tile = {"BN": power_of_2(channels.outs_per_group), "BK": power_of_2(channels.run)}
    return {"BM": BM, **tile, "TW": _patch_width(dims, 16), "num_warps": num_warps, "num_stages": 1}


def forward_tile(
    contraction: str, kind: str, dims: Dimensions, channels: Channels, itemsize: int, large_shared_memory: bool
) -> dict[str, Any]:
    """Return the tile of the forward kernel."""
    if contraction == "broadcast":
        return _few_channels(dims, channels, 128, 4)
    # Gathered data should pass through the L1 cache. Triton's pipelining (num_stages > 1) bypasses it, so that it pays
    # only for large products.
    tile: dict[str, Any] = {"TW": _patch_width(dims, 8), "num_warps": 4, "num_stages": 1}
    if contraction == "depthwise":
        block = _channel_block(channels.run, 1, 64)
        return {**tile, "BM": min(max(2048 // block, 32), 128), "BN": block, "BK": block}
    BN = _channel_block(channels.outs_per_group, 16, 256)
    BK = _channel_block(channels.run, 16, 64 if itemsize == 2 else 32)
    if contraction == "im2col":
        return {**tile, "BM": 32, "BN": BK, "BK": BK}
    tile |= {"BM": 64, "BN": BN, "BK": BK}
    if BN <= 64:
        return tile | ({"maxnreg": 128} if itemsize == 2 else {})
    if BN == 128:  # all threads of a pixel read its deformable parameters: use few threads
        return {
            **tile,
            "BM": 64 if itemsize == 2 else 128,
            "num_warps": 4 if itemsize == 2 and kind == "deformable" else 8,
        }
    if not large_shared_memory:
        return {**tile, "num_warps": 8}
    if itemsize == 2 and channels.outs_per_group > 256:
        tile |= {"BM": 128, "BK": min(BK, 32)}
    return {**tile, "num_warps": 8, "num_stages": 3}


def geometry_with_weight(contraction: str, channels: Channels) -> bool:
    """Return whether the kernel for the weights computes the geometry's gradients: not if it would gather too often."""
    return contraction == "dot" and channels.outs_per_group <= 128


def backward_data_tile(
    contraction: str,
    dims: Dimensions,
    channels: Channels,
    itemsize: int,
    window: str,
    needs_geometry: bool,
    large_shared_memory: bool,
) -> dict[str, Any]:
    """Return the tile of the kernel for the image and, if needed, for the geometry."""
    if contraction == "broadcast":
        return _few_channels(dims, channels, 64, 2) | NO_WINDOW
    tile: dict[str, Any] = {"BM": 64, "TW": _patch_width(dims, 8), "num_warps": 4, "num_stages": 1}
    if contraction == "depthwise":
        BN = BK = _channel_block(channels.run, 16 if window != "none" else 1, 32)
        if window == "none":
            tile |= {"BM": min(512 // BK, 64), "num_warps": 4 if BK >= 16 else 2}
    elif itemsize == 2:
        BN = _channel_block(channels.outs_per_group, 16, 64 if window == "none" else 128)
        BK = _channel_block(channels.run, 16, 64)
    else:
        BN = _channel_block(channels.outs_per_group, 16, 64 if needs_geometry and window == "image" else 32)
        BK = _channel_block(channels.run, 16, 32 if needs_geometry else 64)
        tile["BM"] = 64 if needs_geometry else 128
    tile |= {"BN": BN, "BK": BK}
    if window == "none":
        return {**tile, **NO_WINDOW}
    if window in ("patch", "outliers"):
        return {**tile, "TW": 8, "WINDOW": window, "WB": 1, "WH": 16, "WW": 16, "TILES": 1, "GATHER": "corners"}
    height, width = power_of_2(dims.height), power_of_2(dims.width)
    if contraction == "dot" and itemsize == 2 and height * width <= 64:
        tile |= {"BK": _channel_block(channels.run, 16, 128), "num_warps": 8 if needs_geometry else 4}
    elif contraction == "dot" and height * width > 64:
        large = large_shared_memory if itemsize == 2 else not needs_geometry
        tile |= (
            {"BM": 128, "num_warps": 8}
            if large and (needs_geometry or itemsize == 4)
            else {"num_warps": 8 if needs_geometry else 4}
        )
    return {**tile, **_image_window(dims, tile["BM"])}


def backward_im2col_tile(
    dims: Dimensions, channels: Channels, itemsize: int, window: str, needs_geometry: bool, large_shared_memory: bool
) -> dict[str, Any]:
    """Return the tile of the same kernel if it reads the samples' gradients: fewer products, more free registers."""
    tile = backward_data_tile("dot", dims, channels, itemsize, window, needs_geometry, large_shared_memory)
    if itemsize == 4 or window in ("patch", "outliers"):
        return tile
    tile |= {"BM": 64, "BK": _channel_block(channels.run, 16, 64), "num_warps": 4, "num_stages": 3}
    if window == "none":  # atomic additions are slow: have many programs wait for them
        return {**tile, "BM": 16, "num_stages": 1}
    if power_of_2(dims.height) * power_of_2(dims.width) > 64:
        return {**tile, **_image_window(dims, 64), "num_warps": 8}
    return {**tile, **_image_window(dims, 64), "GATHER": "window"}


def _image_window(dims: Dimensions, BM: int) -> dict[str, Any]:
    """Return the options of a window of whole images: as many as fit in a tile, at least one."""
    height, width = power_of_2(dims.height), power_of_2(dims.width)
    images = max(BM // (height * width), 1)
    steps = math.ceil(images * dims.out_height * dims.out_width / BM)
    window = {"WINDOW": "image", "WB": images, "WH": height, "WW": width, "TILES": steps}
    return {"TW": 0, **window, "GATHER": "corners"}


def backward_weight_tile(
    contraction: str,
    dims: Dimensions,
    channels: Channels,
    itemsize: int,
    needs_geometry: bool,
    along_rays: bool,
    large_shared_memory: bool,
) -> dict[str, Any]:
    """Return the tile of the kernel for the weights and, if needed, for the geometry.

    ``along_rays`` states that samples move along one direction only.
    """
    if contraction == "broadcast":
        return _few_channels(dims, channels, 256, 4)
    tile: dict[str, Any] = {"BM": 64, "TW": _patch_width(dims, 8), "num_warps": 4, "num_stages": 1}
    if contraction == "depthwise":
        block = _channel_block(channels.run, 1, 32)
        return {**tile, "BM": min(4096 // block, 512), "BN": block, "BK": block, "num_warps": 8 if block >= 16 else 4}
    if itemsize == 4:
        largest = 64 if needs_geometry and not large_shared_memory else 128
        BN, BK = _channel_block(channels.outs_per_group, 16, largest), _channel_block(channels.run, 16, largest)
        # Without a limit ptxas may choose 32 registers if no number of registers avoids spilling.
        tile |= {"maxnreg": 255} if needs_geometry and BN * BK >= 4096 else {}
        return {**tile, "BN": BN, "BK": BK, "num_warps": 8 if BN * BK > 4096 else 4}
    BN = _channel_block(channels.outs_per_group, 16, 128 if needs_geometry else 256)
    BK = _channel_block(channels.run, 16, 128 if BN == 256 else 64)
    if not needs_geometry:
        tile |= {"BM": 128 if BN <= 64 else 64, "num_warps": 8}
    elif BN <= 64 or not along_rays:  # otherwise the branch for integer positions would use more
        tile |= {"maxnreg": 168}
    return {**tile, "BN": BN, "BK": BK}


def images_per_sum(dims: Dimensions, channels: Channels) -> int:
    """Return the number of images whose gradient is summed at once: a third of them, or enough to keep a GPU busy.

    Float32 sums need twice the memory of half precision. So the sums of a third of the images need a third of the
    memory of an output and a gradient. More parts would need less memory, but more launches.
    """
    programs = math.ceil(dims.out_height / 8) * math.ceil(dims.out_width / 8) * math.ceil(channels.ins / 64)
    return max(math.ceil(dims.batch / 3), math.ceil(_PROGRAMS / 2 / programs))


def im2col_images(dims: Dimensions, channels: Channels, itemsize: int) -> int:
    """Return the number of images per im2col buffer; 0 if a kernel that gathers and multiplies is faster.

    That is the case for few channels, if one image does not fit in the buffer, and if those that fit would leave the
    GPU idle. If outputs are far apart, programs share no gathered data, and fewer channels are enough.
    """
    enough = (64 if _sparse(dims) else 256) if itemsize == 2 else 128
    if min(channels.ins, channels.outs) < enough:
        return 0
    pixels = dims.out_height * dims.out_width
    images = min(_IM2COL_ELEMENTS // max(pixels * dims.samples * channels.ins, 1), dims.batch)
    return images if images * pixels * channels.ins >= _BUSY_ELEMENTS else 0


def tile_count(dims: Dimensions, BM: int, TW: int) -> int:
    """Return the number of tiles that cover the output."""
    if TW == 0:
        return math.ceil(dims.batch * dims.out_height * dims.out_width / BM)
    return dims.batch * math.ceil(dims.out_height / (BM // TW)) * math.ceil(dims.out_width / TW)


def weight_parts(tiles: int, blocks: int) -> int:
    """Return the number of parts into which the tiles are divided for the weights' gradient."""
    return max(1, min(tiles, _PROGRAMS // blocks))
