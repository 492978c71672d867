"""Pictures larger than memory: zarr arrays and TIFFs, filtered tile by tile (the extra ``large``)."""

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import tifffile
import zarr
from numpy.typing import NDArray

from .._errors import UserError
from .._files import writing
from . import tiff
from .image_data import Picture, channel_axis_of, to_depth
from .images import check_finite, check_numbers, check_opacity, check_result, is_zarr

SUFFIXES = (".zarr", ".tif", ".tiff", ".npy")
# No chunk of a file may be larger than this, in bytes: it is decoded whole.
_MAX_CHUNK = 2**30
# TIFF's tiles are whole multiples of this.
_TIFF_STEP = 16


def _open(path: Path, axes: str | None, opened: contextlib.ExitStack) -> Picture:
    """Open a picture of dask's arrays, to be closed with ``opened``, without reading its pixels."""
    if not path.exists():
        raise UserError(f"{path}: no such file")
    suffix = path.suffix.lower()
    if not is_zarr(path) and suffix not in SUFFIXES:
        raise UserError(f"{path}: tiles are read from {', '.join(SUFFIXES)}")
    try:
        if is_zarr(path):
            image = _from_zarr(path, zarr.open(path, mode="r"))
            picture = Picture(image, channel_axis_of(image.shape, axes, path))
        elif suffix == ".npy":
            image = da.from_array(np.load(path, mmap_mode="r", allow_pickle=False))
            picture = Picture(image, channel_axis_of(image.shape, axes, path))
        else:
            series = tiff.only_series(path, opened.enter_context(tifffile.TiffFile(path)))
            channels = tiff.channel_axis(path, series, axes)
            store = opened.enter_context(series.aszarr(level=0))
            picture = tiff.picture(series, _from_zarr(path, zarr.open(store, mode="r")), channels)
    except UserError:
        raise
    except Exception as error:  # as many ways to be broken as there are files
        raise _unreadable(path, error) from error
    check_numbers(path, picture.pixels.dtype)
    if len(picture.spatial) not in (2, 3):
        raise UserError(f"{path}: an array of shape {picture.pixels.shape} is neither an image nor a volume")
    if not picture.pixels.size:
        raise UserError(f"{path}: is empty")
    opacity = picture.opacity
    if opacity is not None:
        opacity = opacity.map_blocks(_weights, path, dtype=opacity.dtype)
    pixels = picture.pixels.map_blocks(_finite, path, dtype=picture.pixels.dtype)
    return dataclasses.replace(picture, pixels=pixels, opacity=opacity)


def _finite(pixels: NDArray[Any], path: Path) -> NDArray[Any]:
    check_finite(path, pixels)
    return pixels


def _weights(opacity: NDArray[Any], path: Path) -> NDArray[Any]:
    check_opacity(path, opacity)
    return opacity


def _at_depth(values: NDArray[Any], path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    check_result(path, values)
    return to_depth(values, dtype)


def _from_zarr(path: Path, opened: Any) -> da.Array:
    if isinstance(opened, zarr.Group):
        inside = ", ".join(f"{path}/{name}" for name in sorted(opened.array_keys())) or "none"
        raise UserError(f"{path}: is a group; name one of its arrays: {inside}")
    chunk = int(np.prod(opened.chunks, dtype=object)) * opened.dtype.itemsize
    if chunk > _MAX_CHUNK:
        raise UserError(f"{path}: its chunks {opened.chunks} take {chunk / 2**30:.1f} GB each, more than 1 GB")
    return da.from_array(_Named(path, opened), opened.chunks)


class _Named:
    """An array in a file, which names the file where a part of it cannot be read."""

    def __init__(self, path: Path, array: zarr.Array[Any]) -> None:
        self.path, self.array = path, array
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    def __getitem__(self, index: Any) -> Any:
        try:
            return self.array[index]
        except Exception as error:  # as many ways to be broken as there are files
            raise _unreadable(self.path, error) from error


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: cannot be read in tiles ({str(error) or type(error).__name__})")


def _write(path: Path, picture: Picture, tile: int) -> None:
    if is_zarr(path):
        _write_zarr(path, picture.pixels)
    elif path.suffix.lower() == ".npy":
        _write_npy(path, picture.pixels)
    else:
        _write_tiff(path, picture, tile)


def _check_replaced(path: Path) -> None:
    """Refuse to replace a folder by an array if it is none: a group holds others, and another folder anything."""
    if not path.exists() or not any(path.iterdir()):
        return
    try:
        zarr.open_array(path, mode="r")
    except Exception as error:  # as many ways to be none as there are folders
        raise UserError(f"{path}: is a group or another folder, not an array, and is not replaced") from error


def _write_zarr(path: Path, array: da.Array) -> None:
    """Write an array in a folder beside, which takes the place of ``path`` when it is whole."""
    part, aside = _beside(path)
    part.parent.mkdir(parents=True, exist_ok=True)
    _clear(path)
    try:
        array.to_zarr(part, mode="w")
        if path.exists():
            path.resolve().rename(aside)
        part.rename(path.resolve())
    finally:
        _put_back(path)
        _clear(path)


def _beside(path: Path) -> tuple[Path, Path]:
    """Return where a store is written, and where the one that it replaces is whole until then."""
    place = path.resolve()
    return place.with_name(f".{place.name}.part"), place.with_name(f".{place.name}.old")


def _put_back(path: Path) -> None:
    """Put back the store that a run, perhaps a former one, moved aside and did not replace."""
    _, aside = _beside(path)
    if aside.exists() and not path.exists():
        aside.rename(path.resolve())


def _clear(path: Path) -> None:
    """Delete what runs have left beside a store: one that is not whole, and one that has been replaced."""
    part, aside = _beside(path)
    shutil.rmtree(part, ignore_errors=True)
    if aside.exists() and path.exists():
        aside.rename(part)  # at once, so that no part of it is ever put back
        shutil.rmtree(part, ignore_errors=True)


def _write_npy(path: Path, array: da.Array) -> None:
    with writing(path) as temporary:
        mapped = np.lib.format.open_memmap(temporary, mode="w+", dtype=array.dtype, shape=array.shape)
        da.store(array, mapped, lock=False)
        mapped.flush()


def _write_tiff(path: Path, picture: Picture, tile: int) -> None:
    array: da.Array = picture.interleaved()
    with writing(path) as temporary:
        tifffile.imwrite(
            temporary,
            _tiff_tiles(array, tile),
            shape=array.shape,
            dtype=array.dtype,
            tile=(tile, tile),
            bigtiff=array.nbytes > 2**31,
            **tiff.options(picture),
        )


def _tiff_tiles(array: da.Array, tile: int) -> Iterator[NDArray[Any]]:
    """Compute a row of tiles at a time, and yield them filled up to their full size."""
    for top in range(0, array.shape[0], tile):
        row = array[top : top + tile].compute()
        for left in range(0, array.shape[1], tile):
            part = row[:, left : left + tile]
            missing = [(0, tile - n) for n in part.shape[:2]] + [(0, 0)] * (part.ndim - 2)
            yield np.ascontiguousarray(np.pad(part, missing))
