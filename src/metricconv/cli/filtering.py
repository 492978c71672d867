"""``metricconv filter``: pictures in, filtered pictures out."""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from .. import filters
from .._errors import UserError, lack_of_memory
from .._options import spread
from ..io import images
from .console import console, say, say_error
from .mounts import load
from .options import FileKnobs, FilterKnobs

TileOption = Annotated[
    int | None,
    typer.Option(
        "--tile",
        min=16,
        help="Filter in tiles of so many pixels a side, for pictures larger than memory: .zarr (always: 1024), .tif or "
        ".npy.",
        rich_help_panel="Files",
    ),
]


@spread
def filter_command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A picture, array or folder.", show_default=False)],
    output: Annotated[
        Path, typer.Argument(metavar="OUT", help="Its file, or a folder for a folder.", show_default=False)
    ],
    chosen: FilterKnobs,
    files: FileKnobs,
    tile: TileOption = None,
) -> None:
    """Smooth a picture: the mean over what each pixel looks at.

    A pixel looks at the unit ball of a metric that is read off the picture, or at a rival's support.

    IN is a PNG, TIFF, JPEG or other image, an array (.npy, .zarr), or a folder of images; grey or colour, 8 or 16 bits
    or floats, an image or a volume. OUT keeps the depth (but for 1 bit, which becomes 8), the opacity and the colour
    profile of IN. A .zarr is filtered in tiles, which go from .zarr, .tif or .npy to one of these.

    Unless given, ι, α and σ are 0.1, 100 and 0 for the gradient metric, 0.05, 10 and 1.5 for edge, 0.2, 10 and 1 for
    structure.

    * `metricconv filter noisy.png smooth.png`
    * `metricconv filter noisy.png smooth.png --iota 0.15 --alpha 20 --scale 1.5`
    * `metricconv filter scans/ smooth/ --method geodesic`
    * `metricconv filter ct.npy out.npy --axes zyx -k 5`
    * `metricconv filter big.zarr out.zarr`, or `big.tif out.tif --tile 1024`: larger than memory
    """
    chosen.keywords()  # refuses what does not fit together, before anything is read
    if tile is not None or images.is_zarr(source) or images.is_zarr(output):
        tiled = load("metricconv.cli.tiled_filter", "large")
        with _bar() as progress:
            tiled.filter_tiled(source, output, chosen, files, tile or 1024, progress)
        say(f"wrote {output}")
    elif source.is_dir():
        filter_folder(source, output, chosen, files)
    else:
        images.check_output(output, force=files.force, inputs=(source,))
        with _bar() as progress:
            task = progress.add_task(f"filtering {source.name}", total=None)
            filter_file(source, output, chosen, files, partial(_report, progress, task))
        say(f"wrote {output}")


def filter_file(
    source: Path,
    output: Path,
    chosen: FilterKnobs,
    files: FileKnobs,
    report: Callable[[int, int], None] | None = None,
) -> None:
    """Filter one picture; filters that can tell how far they are do so to ``report``, as rows done and all rows."""
    function = getattr(filters, chosen.function)
    told = {"progress": report} if "progress" in inspect.signature(function).parameters else {}
    with lack_of_memory(source):
        picture = files.read(source)
        images.check_format(output, picture)
        chosen.check_reach(source, picture.spatial)
        seen = picture.weighed()
        values = picture.unweighed(function(seen.pixels, channel_axis=seen.channel_axis, **chosen.keywords(), **told))
        images.check_result(source, values)
        images.write(output, picture.with_values(values), force=files.force)


def filter_folder(source: Path, output: Path, chosen: FilterKnobs, files: FileKnobs) -> None:
    """Filter all pictures of a folder; one that fails does not stop the others, but the command fails in the end."""
    found = sorted(path for path in source.iterdir() if path.suffix.lower() in images.SUFFIXES and path.is_file())
    if not found:
        raise UserError(f"{source}: no pictures ({' '.join(images.SUFFIXES)}) in this folder")
    if not output.is_dir() and (output.exists() or output.suffix.lower() in images.SUFFIXES):
        raise UserError(f"{output}: must be a folder, as IN is one")
    for path in found:
        images.check_output(output / path.name, force=files.force, inputs=(path,))
    failed = 0
    with _bar() as progress:
        task = progress.add_task("filtering", total=len(found))
        for path in found:
            progress.update(task, description=path.name)
            try:
                filter_file(path, output / path.name, chosen, files)
            except (UserError, ValueError, OSError) as error:
                failed += 1
                # An error of a disk may name no file, or one that stands for this only until it is whole.
                named = UserError(f"{path}: {error.strerror or error}") if isinstance(error, OSError) else error
                say_error(named, progress.console)
            progress.advance(task)
    say(f"wrote {len(found) - failed} of {len(found)} pictures to {output}")
    if failed:
        raise typer.Exit(1)


def _report(progress: Progress, task: TaskID, done: int, rows: int) -> None:
    progress.update(task, completed=done, total=rows)


def _bar() -> Progress:
    text = TextColumn("{task.description}", markup=False)
    parts = (SpinnerColumn(), text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*parts, console=console, transient=True, disable=not console.is_terminal)
