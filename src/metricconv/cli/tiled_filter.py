"""Pictures larger than memory, filtered tile by tile (the extra ``large``)."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any, Self

import dask.callbacks
import numpy as np
from rich.progress import Progress

from .. import large
from .._errors import UserError
from ..io.images import check_format, check_output, is_zarr
from ..io.tiled import _TIFF_STEP, SUFFIXES, _at_depth, _check_replaced, _open, _put_back, _write
from .options import FileKnobs, FilterKnobs


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
