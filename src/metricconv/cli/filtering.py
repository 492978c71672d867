"""``metricconv filter``: filter an image or a folder of images."""

import inspect
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TimeElapsedColumn,
)
from rich.text import Text

from .. import filters
from .._errors import UserError, out_of_memory_as_user_error
from .._options import expand_options
from ..io import images
from .console import console, print_error, print_line, printable
from .external import import_extra
from .options import FilterOptions, ImageFileOptions

if TYPE_CHECKING:
    from .tiled_filter import TiledFilter

__all__ = [
    "OutputArgument",
    "SchedulerOption",
    "SkipExistingOption",
    "SourceArgument",
    "TileOption",
    "filter_command",
    "filter_file",
    "filter_files",
    "filter_folder",
    "filter_in_tiles",
    "needs_tiles",
    "progress_bar",
]

# A function of the paths IN and OUT, which may accept ``report``: a function of the finished rows and of all rows.
FilterOne = Callable[..., None]

_ADDRESS = re.compile(r"(?:tcp|tls)://(?:[\w.-]+|\[[\da-fA-F:.]+\]):(\d{1,5})", re.ASCII)

TileOption = Annotated[
    int | None,
    typer.Option(
        "--tile",
        min=16,
        max=2**20,
        help="Side length of tiles in pixels, for .zarr, .tif or .npy larger than memory. Default: 1024 for .zarr, "
        "no tiles for other files.",
        rich_help_panel="Files",
    ),
]

SchedulerOption = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        metavar="ADDRESS",
        help="Address of a dask.distributed scheduler, such as tcp://host:8786, whose workers filter the tiles of a "
        ".zarr.",
        rich_help_panel="Files",
    ),
]

SkipExistingOption = Annotated[
    bool,
    typer.Option(
        "--skip-existing",
        help="Skip images of a folder whose output exists, to resume an interrupted run.",
        rich_help_panel="Files",
    ),
]


SourceArgument = Annotated[Path, typer.Argument(metavar="IN", help="Input image, array or folder.", show_default=False)]
OutputArgument = Annotated[
    Path, typer.Argument(metavar="OUT", help="Output file; a folder if IN is one.", show_default=False)
]


@expand_options
def filter_command(
    source: SourceArgument,
    output: OutputArgument,
    filter_options: FilterOptions,
    files: ImageFileOptions,
    tile: TileOption = None,
    skip_existing: SkipExistingOption = False,
    scheduler: SchedulerOption = None,
) -> None:
    """Smooth an image by averaging over metric unit balls.

    The metric is computed from the image. Baselines average over other supports: box, dilated, interpolated, random.

    IN is an image (PNG, TIFF, JPEG, …), an array (.npy, .zarr) or a folder of images; gray or color, 8 or 16 bits or
    floats, 2-D or a volume. OUT keeps the bit depth (1 bit becomes 8), alpha channel and color profile of IN. Tiles can
    be read from and written to .zarr, .tif and .npy; a .zarr is always filtered in tiles.

    Defaults of --iota, --alpha and --scale, tuned for noise of σ = 0.1: 0.15, 20, 1.5 for tangent balls of gradient;
    0.01, 20, 1 for geodesic balls of edge. Otherwise 0.1, 100, 0 for gradient; 0.05, 10, 1.5 for edge; 0.2, 10, 1 for
    structure. To remove noise, `denoise` is stronger and needs no options.

    * `metricconv filter noisy.png smooth.png`
    * `metricconv filter noisy.png smooth.png --iota 0.05 --alpha 10`
    * `metricconv filter scans/ smooth/ --method geodesic`
    * `metricconv filter ct.npy out.npy --axes zyx -k 5`
    * `metricconv filter big.zarr out.zarr`, or `big.tif out.tif --tile 1024` (larger than memory)
    * `metricconv filter big.zarr out.zarr --scheduler tcp://host:8786` (on a cluster)
    """
    filter_options.keywords()  # raises for invalid combinations before anything is read
    filter_one = partial(filter_file, filter_options=filter_options, files=files)
    if needs_tiles(source, output, files, tile, skip_existing, scheduler):
        apply = import_extra("metricconv.cli.tiled_filter", "large").averages(filter_options)
        filter_in_tiles(source, output, apply, files, tile, scheduler, "computing the largest ball")
    else:
        filter_files(source, output, filter_one, files, skip_existing)


def needs_tiles(
    source: Path,
    output: Path,
    files: ImageFileOptions,
    tile: int | None,
    skip_existing: bool,
    scheduler: str | None,
) -> bool:
    """Check the options of paths before anything is read; return whether the image is filtered in tiles."""
    if skip_existing and (files.force or not source.is_dir()):
        raise UserError("--skip-existing: requires that IN is a folder, and cannot be combined with --force")
    if scheduler is not None:
        _check_scheduler(scheduler, source, output)
    return tile is not None or images.is_zarr(source) or images.is_zarr(output)


def filter_in_tiles(
    source: Path,
    output: Path,
    apply: "TiledFilter",
    files: ImageFileOptions,
    tile: int | None,
    scheduler: str | None,
    analysis: str,
) -> None:
    """Filter an image in tiles, with a progress bar; ``analysis`` is what ``apply`` computes before them."""
    tiled_filter = import_extra("metricconv.cli.tiled_filter", "large")
    with progress_bar() as progress:
        tiled_filter.filter_tiled(source, output, apply, files, tile or 1024, progress, scheduler, analysis)
    print_line(f"wrote {output}")


def filter_files(
    source: Path, output: Path, filter_one: FilterOne, files: ImageFileOptions, skip_existing: bool
) -> None:
    """Filter a file or all images of a folder, with a progress bar."""
    if source.is_dir():
        filter_folder(source, output, filter_one, files, skip_existing)
        return
    images.check_output(output, force=files.force, inputs=(source,))
    with progress_bar() as progress:
        task = progress.add_task(f"filtering {source.name}", total=None)
        filter_one(source, output, report=partial(_report, progress, task))
    print_line(f"wrote {output}")


def filter_file(
    source: Path,
    output: Path,
    filter_options: FilterOptions,
    files: ImageFileOptions,
    report: Callable[[int, int], None] | None = None,
) -> None:
    """Filter one image. ``report`` receives the number of finished rows and of all rows, if the filter supports it."""
    function = getattr(filters, filter_options.function)
    progress = {"progress": report} if "progress" in inspect.signature(function).parameters else {}
    with out_of_memory_as_user_error(source):
        image = files.read(source)
        images.check_format(output, image)
        filter_options.check_fits(source, image.spatial)
        colors = image.premultiplied()
        means = function(colors.pixels, channel_axis=colors.channel_axis, **filter_options.keywords(), **progress)
        values = image.unpremultiplied(means)
        images.check_result(source, values)
        images.write(output, image.with_values(values), force=files.force)


def filter_folder(
    source: Path, output: Path, filter_one: FilterOne, files: ImageFileOptions, skip_existing: bool
) -> None:
    """Filter all images of a folder; failures do not stop the others, but the exit code is 1.

    Hidden files are ignored: they may be temporary files of an interrupted run.
    """
    visible = (path for path in source.iterdir() if not path.name.startswith("."))
    found = sorted(path for path in visible if images.suffix_of(path) in images.SUFFIXES and path.is_file())
    if not found:
        raise UserError(f"{source}: contains no images ({' '.join(images.SUFFIXES)})")
    if not output.is_dir() and (output.exists() or images.suffix_of(output) in images.SUFFIXES):
        raise UserError(f"{output}: must be a folder because IN is one")
    existing = [path for path in found if skip_existing and (output / path.name).exists()]
    if existing:
        print_line(f"skipped {len(existing)} of {len(found)} images that exist in {output}")
        found = [path for path in found if path not in existing]
    for path in found:
        images.check_output(output / path.name, force=files.force, inputs=(path,))
    failed = 0
    with progress_bar() as progress:
        task = progress.add_task("filtering", total=len(found))
        for path in found:
            progress.update(task, description=path.name)
            try:
                filter_one(path, output / path.name)
            except (UserError, ValueError, OSError) as error:
                failed += 1
                # An OSError may name no file, or a temporary one.
                named = UserError(f"{path}: {error.strerror or error}") if isinstance(error, OSError) else error
                print_error(named, progress.console)
            progress.advance(task)
    print_line(f"wrote {len(found) - failed} of {len(found)} images to {output}")
    if failed:
        raise typer.Exit(1)


def _check_scheduler(address: str, source: Path, output: Path) -> None:
    """Check the form of a scheduler's address, and that several processes can read IN and write OUT."""
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found[1]) < 2**16:
        raise UserError(f"--scheduler {address}: must be an address such as tcp://host:8786")
    if not images.is_zarr(source) or not images.is_zarr(output):
        raise UserError(f"--scheduler {address}: requires that IN and OUT are .zarr")


def _report(progress: Progress, task: TaskID, done: int, rows: int) -> None:
    progress.update(task, completed=done, total=rows)


class _Description(ProgressColumn):
    """The description of a task, which may contain file names."""

    def render(self, task: Task) -> Text:
        return Text(printable(task.description))


class _Count(MofNCompleteColumn):
    """The finished and all parts of a task; nothing while their number is unknown."""

    def render(self, task: Task) -> Text:
        return Text() if task.total is None else super().render(task)


def progress_bar() -> Progress:
    """Return a progress bar, which is shown in terminals only."""
    parts = (SpinnerColumn(), _Description(), BarColumn(), _Count(), TimeElapsedColumn())
    return Progress(*parts, console=console, transient=True, disable=not console.is_terminal)
