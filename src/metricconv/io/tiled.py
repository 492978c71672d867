"""Reading and writing of images larger than memory in tiles: zarr, TIFF and .npy (the extra ``large``)."""

import contextlib
import dataclasses
import math
import platform
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import tifffile
import zarr
from numpy.typing import NDArray

from .._errors import UserError
from .._files import writing
from . import images, tiff
from .image_data import ImageData, channel_axis_of
from .images import check_dtype, check_finite_pixels, check_opacity, check_output, is_zarr

__all__ = [
    "MAX_TILES",
    "SUFFIXES",
    "TIFF_TILE_STEP",
    "check_blocks",
    "check_format",
    "check_paths",
    "open_image",
    "write",
]

SUFFIXES = (".zarr", ".tif", ".tiff", ".npy")
# Maximum chunk size in bytes; chunks are decoded whole.
_MAX_CHUNK_BYTES = 2**30
# Maximum number of chunks of a file, each of which is decoded on its own.
_MAX_BLOCKS = 2**20
# Maximum number of tiles to filter: scheduling takes milliseconds for each.
MAX_TILES = 2**16
# The sides of TIFF tiles are multiples of this.
TIFF_TILE_STEP = 16


def check_paths(source: Path, output: Path, *, force: bool) -> None:
    """Check that an image can be read from ``source`` and written to ``output`` in tiles."""
    for path in filter(is_zarr, (source, output)):
        _restore(path)
    check_output(output, force=force, inputs=(source,))
    if source.resolve() in output.resolve().parents:
        raise UserError(f"{output}: is inside the input {source}")
    if output.resolve() in source.resolve().parents:
        raise UserError(f"{output}: contains the input {source}")
    if not is_zarr(output) and output.suffix.lower() not in SUFFIXES:
        raise UserError(f"{output}: tiles can only be written to {', '.join(SUFFIXES)}")
    if is_zarr(output):
        _check_replaceable(output)


def check_format(path: Path, image: ImageData) -> None:
    """Check that an image can be written in the format of the suffix, in tiles."""
    images.check_format(path, image, SUFFIXES)
    if len(image.spatial) != 2 and path.suffix.lower() in (".tif", ".tiff") and not is_zarr(path):
        raise UserError(f"{path}: tiles of a volume can only be written to .zarr or .npy")


def open_image(path: Path, axes: str | None, stack: contextlib.ExitStack, tile: int) -> ImageData:
    """Open an image as dask arrays, without reading its pixels; ``stack`` closes its file.

    Their blocks are chunks of the file, several at once if chunks are smaller than tiles: each block takes milliseconds
    to schedule.
    """
    images.check_input(path)
    suffix = path.suffix.lower()
    if not is_zarr(path) and suffix not in SUFFIXES:
        raise UserError(f"{path}: tiles can only be read from {', '.join(SUFFIXES)}")
    try:
        with images.hidden_warnings():
            image = _open(path, axes, stack, tile)
    except UserError:
        raise
    except Exception as error:  # decoders raise many kinds of errors on broken files
        raise _unreadable(path, error) from error
    check_dtype(path, image.pixels.dtype)
    if len(image.spatial) not in (2, 3):
        raise UserError(f"{path}: shape {image.pixels.shape} is neither an image nor a volume")
    if not image.pixels.size:
        raise UserError(f"{path}: is empty")
    opacity = image.opacity
    if opacity is not None:
        opacity = opacity.map_blocks(_checked_opacity, path, dtype=opacity.dtype)
    pixels = image.pixels.map_blocks(_checked_finite, path, dtype=image.pixels.dtype)
    return dataclasses.replace(image, pixels=pixels, opacity=opacity)


def _open(path: Path, axes: str | None, stack: contextlib.ExitStack, tile: int) -> ImageData:
    if is_zarr(path):
        # An absolute path, as workers of a cluster have other working folders.
        pixels = _from_zarr(path, zarr.open(path.resolve(), mode="r"), tile)
        return ImageData(pixels, channel_axis_of(pixels.shape, axes, path))
    if path.suffix.lower() == ".npy":
        pixels = da.from_array(np.load(path, mmap_mode="r", allow_pickle=False))
        return ImageData(pixels, channel_axis_of(pixels.shape, axes, path))
    series = tiff.only_series(path, stack.enter_context(tifffile.TiffFile(path)))
    channels = tiff.channel_axis(path, series, axes)
    store = stack.enter_context(series.aszarr(level=0))
    return tiff.to_image_data(series, _from_zarr(path, zarr.open(store, mode="r"), tile), channels)


def _checked_finite(pixels: NDArray[Any], path: Path) -> NDArray[Any]:
    check_finite_pixels(path, pixels)
    return pixels


def _checked_opacity(opacity: NDArray[Any], path: Path) -> NDArray[Any]:
    check_opacity(path, opacity)
    return opacity


def _from_zarr(path: Path, opened: Any, tile: int) -> da.Array:
    if isinstance(opened, zarr.Group):
        inside = ", ".join(f"{path}/{name}" for name in sorted(opened.array_keys())) or "none"
        raise UserError(f"{path}: is a group, expected one of its arrays: {inside}")
    chunk = int(np.prod(opened.chunks, dtype=object)) * opened.dtype.itemsize
    if chunk > _MAX_CHUNK_BYTES:
        raise UserError(f"{path}: chunks {opened.chunks} have {chunk / 2**30:.1f} GB each, expected at most 1 GB")
    check_blocks(path, opened.shape, opened.chunks)
    return da.from_array(_FileArray(path, opened), _blocks(opened.shape, opened.chunks, tile))


def _blocks(shape: tuple[int, ...], chunks: tuple[int, ...], tile: int) -> tuple[int, ...]:
    """Return the size of blocks of several chunks, at most ``tile`` along an axis and tile × tile pixels together."""
    block = list(chunks)
    for axis, (n, chunk) in enumerate(zip(shape, chunks, strict=True)):
        block[axis] = chunk * max(1, min(-(-n // chunk), tile // chunk, tile**2 // math.prod(block)))
    return tuple(block)


def check_blocks(path: Path, shape: tuple[int, ...], block: Sequence[int], most: int = _MAX_BLOCKS) -> None:
    """Check that an array can be split into blocks of this size, before a task graph of them is built."""
    count = math.prod(-(-n // size) for n, size in zip(shape, block, strict=True))
    if count > most:
        sizes = " × ".join(map(str, block))
        raise UserError(f"{path}: shape {shape} has {count:.2g} blocks of {sizes}, expected at most {most}")


class _FileArray:
    """A zarr array whose read errors name its file."""

    def __init__(self, path: Path, array: zarr.Array[Any]) -> None:
        self.path, self.array = path, array
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    def __getitem__(self, index: Any) -> Any:
        try:
            return self.array[index]
        except Exception as error:  # decoders raise many kinds of errors on broken files
            raise _unreadable(self.path, error) from error


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: cannot be read in tiles ({str(error) or type(error).__name__})")


def write(path: Path, image: ImageData, tile: int) -> None:
    """Compute the dask arrays of an image and write them; tiles of a TIFF have at most tile × tile pixels."""
    if is_zarr(path):
        _write_zarr(path, image.pixels)
    elif path.suffix.lower() == ".npy":
        _write_npy(path, image.pixels)
    else:
        _write_tiff(path, image, tile)


def _check_replaceable(path: Path) -> None:
    """Check that an existing folder is empty or a zarr array: groups and other folders are not replaced."""
    if not path.exists() or not any(path.iterdir()):
        return
    try:
        zarr.open_array(path, mode="r")
    except Exception as error:  # zarr raises many kinds of errors
        raise UserError(f"{path}: is a group or another folder, not a zarr array; it is not overwritten") from error


def _write_zarr(path: Path, array: da.Array) -> None:
    """Write an array to a temporary folder, which replaces ``path`` when complete."""
    temporary, backup = _temporary_paths(path)
    _clean_up(path)
    # A folder of its own for each run: workers may still write tiles of an interrupted one.
    store = temporary / secrets.token_hex(4)
    store.mkdir(parents=True)
    try:
        chunks = tuple(sizes[0] for sizes in array.chunks)
        written = zarr.create_array(store, shape=array.shape, chunks=chunks, dtype=array.dtype)
        target: Any = _StoredArray(path, store, written)
        da.store(array, target, lock=False)  # each tile is a chunk
        if path.exists():
            path.resolve().rename(backup)
        store.rename(path.resolve())
    finally:
        _restore(path)
        _clean_up(path)


class _StoredArray:
    """A zarr array that is written only where its folder exists: on workers that share a file system with the client.

    Otherwise a worker would create the folder on its own disk, and its tiles would be missing from the result.
    """

    def __init__(self, path: Path, folder: Path, array: zarr.Array[Any]) -> None:
        self.path, self.folder, self.array = path, folder, array
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    def __setitem__(self, index: Any, values: NDArray[Any]) -> None:
        if not self.folder.exists():
            raise UserError(f"{self.path}: the worker on {platform.node()} cannot find {self.folder}")
        self.array[index] = values


def _temporary_paths(path: Path) -> tuple[Path, Path]:
    """Return the folder that a store is written in, and that of the store it replaces until then."""
    path = path.resolve()
    return path.with_name(f".{path.name}.part"), path.with_name(f".{path.name}.old")


def _restore(path: Path) -> None:
    """Restore the store that an interrupted run, perhaps an earlier one, renamed and did not replace."""
    _, backup = _temporary_paths(path)
    if backup.exists() and not path.exists():
        backup.rename(path.resolve())


def _clean_up(path: Path) -> None:
    """Delete temporary folders of a store: an incomplete one, and one that has been replaced."""
    temporary, backup = _temporary_paths(path)
    shutil.rmtree(temporary, ignore_errors=True)
    if backup.exists() and path.exists():
        backup.rename(temporary)  # atomic, so that a half-deleted backup is never restored
        shutil.rmtree(temporary, ignore_errors=True)


def _write_npy(path: Path, array: da.Array) -> None:
    with writing(path) as temporary:
        mapped = np.lib.format.open_memmap(temporary, mode="w+", dtype=array.dtype, shape=array.shape)
        da.store(array, mapped, lock=False)
        mapped.flush()


def _write_tiff(path: Path, image: ImageData, tile: int) -> None:
    array: da.Array = image.interleaved()
    # Tiles are padded to full size: larger ones than the image would take memory, and exceed the limits of the format.
    tile = min(tile, math.ceil(max(array.shape[:2]) / TIFF_TILE_STEP) * TIFF_TILE_STEP)
    with writing(path) as temporary:
        tifffile.imwrite(
            temporary,
            _tiff_tiles(array, tile),
            shape=array.shape,
            dtype=array.dtype,
            tile=(tile, tile),
            bigtiff=array.nbytes > 2**31,
            **tiff.write_options(image),
        )


def _tiff_tiles(array: da.Array, tile: int) -> Iterator[NDArray[Any]]:
    """Compute one row of tiles at a time; yield tiles padded to full size."""
    for top in range(0, array.shape[0], tile):
        row = array[top : top + tile].compute()
        for left in range(0, array.shape[1], tile):
            block = row[:, left : left + tile]
            padding = [(0, tile - n) for n in block.shape[:2]] + [(0, 0)] * (block.ndim - 2)
            yield np.ascontiguousarray(np.pad(block, padding))
