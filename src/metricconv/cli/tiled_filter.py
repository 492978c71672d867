"""``metricconv filter`` and ``denoise`` in tiles, for images larger than memory (the extra ``large``)."""

import contextlib
import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import dask.callbacks
import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

from .. import large
from .._errors import UserError
from ..io import images, tiled
from ..io.image_data import Array, ImageData, to_dtype
from .external import import_extra
from .options import FilterOptions, ImageFileOptions

__all__ = ["averages", "filter_tiled", "in_tiles"]

# A function of the path, the lazy image and the side length of tiles that returns the filtered pixels.
TiledFilter = Callable[[Path, ImageData, int], Array]


def filter_tiled(
    source: Path,
    output: Path,
    apply: TiledFilter,
    files: ImageFileOptions,
    tile: int,
    progress: Progress,
    scheduler: str | None,
    analysis: str,
) -> None:
    """Filter an image in tiles of tile × tile pixels, which are read and written one by one.

    ``analysis`` describes what ``apply`` computes before the tiles are filtered.

    With ``scheduler``, the address of a dask.distributed scheduler, its workers read, filter and write the tiles.
    """
    if tile % tiled.TIFF_TILE_STEP:
        raise UserError(f"--tile {tile}: must be a multiple of {tiled.TIFF_TILE_STEP}")
    if files.max_pixels is not None:
        raise UserError(f"--max-pixels {files.max_pixels}: has no effect on tiles")
    tiled.check_paths(source, output, force=files.force)
    with contextlib.ExitStack() as stack:
        image = tiled.open_image(source, files.axes, stack, tile)
        tiled.check_format(output, image)
        computing: Callable[[Progress, str], AbstractContextManager[object]] = _TaskProgress
        if scheduler is not None:
            cluster = import_extra("metricconv.cli.cluster", "large").Cluster(scheduler)
            computing = stack.enter_context(cluster).computing
        with computing(progress, analysis):
            filtered = apply(source, image, tile)
        with computing(progress, f"filtering {source}"):
            tiled.write(output, dataclasses.replace(image, pixels=filtered), tile)


def averages(filter_options: FilterOptions) -> TiledFilter:
    """Return the filter of these options."""
    if not hasattr(large, filter_options.function):
        raise UserError(f"--method {filter_options.method}: not supported for tiles")

    def apply(source: Path, image: ImageData, tile: int) -> Array:
        filter_options.check_fits(source, image.spatial)
        colors = image.premultiplied()
        pixels, chunks = in_tiles(source, colors, tile)
        function = getattr(large, filter_options.function)
        values = function(pixels, channel_axis=colors.channel_axis, **filter_options.keywords())
        dtype = image.pixels.dtype
        written_dtype = np.dtype(np.uint8) if dtype.kind == "b" else dtype
        filtered = image.unpremultiplied(values).map_blocks(_convert, source, dtype, dtype=written_dtype)
        return filtered.rechunk(chunks[: filtered.ndim])

    return apply


def in_tiles(source: Path, image: ImageData, tile: int) -> tuple[Array, list[int]]:
    """Return the pixels of a lazy image in tiles with all channels, and the chunks; check their number."""
    pixels, channels = image.pixels, image.channel_axis
    chunks = [-1 if channels is not None and a == channels % pixels.ndim else tile for a in range(pixels.ndim)]
    sides = [n if c == -1 else c for n, c in zip(pixels.shape, chunks, strict=True)]
    tiled.check_blocks(source, pixels.shape, sides, tiled.MAX_TILES)
    return pixels.rechunk(chunks), chunks


def _convert(values: NDArray[Any], path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    images.check_result(path, values)
    return to_dtype(values, dtype)


class _TaskProgress(dask.callbacks.Callback):
    """Progress bar of dask's finished tasks, out of all tasks started so far."""

    def __init__(self, progress: Progress, description: str) -> None:
        self.bar = progress
        self.task = progress.add_task(description, total=None)
        super().__init__(start_state=self._add_tasks, posttask=self._advance)

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.bar.remove_task(self.task)

    def _add_tasks(self, graph: Any, state: Any) -> None:
        task = next(t for t in self.bar.tasks if t.id == self.task)
        self.bar.update(self.task, total=(task.total or 0) + len(state["ready"]) + len(state["waiting"]))

    def _advance(self, *task: Any) -> None:
        self.bar.advance(self.task)
