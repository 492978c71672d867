"""Pictures larger than memory: zarr arrays and TIFFs, filtered tile by tile (the extra ``large``)."""

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import dask.array as da
import dask.callbacks
import numpy as np
import tifffile
import zarr
from numpy.typing import NDArray
from rich.progress import Progress

from .. import large
from .._files import writing
from . import tiff
from .errors import UserError
from .images import check_finite, check_format, check_numbers, check_opacity, check_output, check_result, is_zarr
from .knobs import FileKnobs, FilterKnobs
from .picture import Picture, channel_axis_of, to_depth

SUFFIXES = (".zarr", ".tif", ".tiff", ".npy")
# No chunk of a file may be larger than this, in bytes: it is decoded whole.
_MAX_CHUNK = 2**30
# TIFF's tiles are whole multiples of this.
_TIFF_STEP = 16


def filter_tiled(
    source: Path, output: Path, chosen: FilterKnobs, files: FileKnobs, tile: int, progress: Progress
) -> None:
    """Filter a picture in tiles of tile² pixels, reading and writing them one by one."""
    if not hasattr(large, chosen.function):
        raise UserError(f"--method {chosen.method}: is not there for tiles")
    if tile % _TIFF_STEP:
        raise UserError(f"--tile {tile}: must be a multiple of {_TIFF_STEP}")
    if files.max_pixels is not None:
        raise UserError(f"--max-pixels {files.max_pixels}: of no use with tiles, which are read one by one")
    for path in filter(is_zarr, (source, output)):
        _put_back(path)
    check_output(output, force=files.force, inputs=(source,))
    if source.resolve() in output.resolve().parents:
        raise UserError(f"{output}: lies inside of the input {source}")
    if output.resolve() in source.resolve().parents:
        raise UserError(f"{output}: the input {source} lies inside of it")
    if not is_zarr(output) and output.suffix.lower() not in SUFFIXES:
        raise UserError(f"{output}: tiles are written to {', '.join(SUFFIXES)}")
    if is_zarr(output):
        _check_replaced(output)
    with contextlib.ExitStack() as opened:
        picture = _open(source, files.axes, opened)
        check_format(output, picture, SUFFIXES)
        if len(picture.spatial) != 2 and output.suffix.lower() in (".tif", ".tiff") and not is_zarr(output):
            raise UserError(f"{output}: a volume of tiles fits into .zarr or .npy only")
        chosen.check_reach(source, picture.spatial)
        seen = picture.weighed()
        image, channels = seen.pixels, seen.channel_axis
        chunks = [-1 if channels is not None and a == channels % image.ndim else tile for a in range(image.ndim)]
        image = image.rechunk(chunks)
        with _Bar(progress, "looking for the largest ball"):
            values = getattr(large, chosen.function)(image, channel_axis=channels, **chosen.keywords())
        dtype = picture.pixels.dtype
        kind = np.dtype(np.uint8) if dtype.kind == "b" else dtype
        filtered = picture.unweighed(values).map_blocks(_at_depth, source, dtype, dtype=kind)
        filtered = filtered.rechunk(chunks[: filtered.ndim])
        with _Bar(progress, f"filtering {source}"):
            _write(output, dataclasses.replace(picture, pixels=filtered), tile)


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


class _Bar(dask.callbacks.Callback):
    """A bar of what dask has done, of all that it was asked to do so far."""

    def __init__(self, progress: Progress, description: str) -> None:
        self.bar = progress
        self.task = progress.add_task(description, total=None)
        super().__init__(start_state=self._more, posttask=self._done)

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.bar.remove_task(self.task)

    def _more(self, graph: Any, state: Any) -> None:
        task = next(t for t in self.bar.tasks if t.id == self.task)
        self.bar.update(self.task, total=(task.total or 0) + len(state["ready"]) + len(state["waiting"]))

    def _done(self, *task: Any) -> None:
        self.bar.advance(self.task)
