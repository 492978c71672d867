"""``metricconv denoise``: remove noise from an image or a folder of images."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import filters
from .._errors import UserError, out_of_memory_as_user_error
from .._options import expand_options
from ..io import images
from ..io.image_data import Array, ImageData
from .external import import_extra
from .filtering import (
    OutputArgument,
    SchedulerOption,
    SkipExistingOption,
    SourceArgument,
    TileOption,
    filter_files,
    filter_in_tiles,
    needs_tiles,
)
from .options import ImageFileOptions, SpacingOption, check_spacing, parse_spacing

__all__ = ["denoise_command"]


@dataclasses.dataclass(frozen=True)
class DenoiseOptions:
    """Arguments of ``filters.denoise``."""

    sigma: Annotated[
        str,
        typer.Option(
            "--sigma",
            metavar="auto|NUMBER",
            help="Standard deviation of the noise, in the units of the image (0 to 255 for 8 bits).",
        ),
    ] = "auto"
    spacing: SpacingOption = None

    def keywords(self) -> dict[str, Any]:
        """Return the arguments by name; errors name the option."""
        sigma: float | str = "auto"
        if self.sigma != "auto":
            sigma = _number(self.sigma)
            if not 0 <= sigma < math.inf:
                raise UserError(f"--sigma {self.sigma}: must be auto or a number of at least 0")
        spacing = parse_spacing(self.spacing)
        return {"sigma": sigma} if spacing is None else {"sigma": sigma, "spacing": spacing}

    def check_fits(self, path: Path, image: ImageData) -> None:
        """Check that the options suit an image."""
        check_spacing(self.spacing, path, image.spatial)
        if image.pixels.dtype.kind == "b" or (image.pixels.dtype.kind in "ui" and image.pixels.dtype.itemsize > 4):
            raise UserError(f"{path}: contains {image.pixels.dtype}, expected floats or integers of 8 to 32 bits")


@expand_options
def denoise_command(
    source: SourceArgument,
    output: OutputArgument,
    denoise_options: DenoiseOptions,
    files: ImageFileOptions,
    tile: TileOption = None,
    skip_existing: SkipExistingOption = False,
    scheduler: SchedulerOption = None,
) -> None:
    """Remove noise from an image; the noise level is estimated.

    Files are read and written as by `filter`; the alpha channel is kept.

    * `metricconv denoise noisy.png clean.png`
    * `metricconv denoise noisy.png clean.png --sigma 25`
    * `metricconv denoise scans/ clean/`
    * `metricconv denoise brain.nii.gz clean.nii.gz`
    * `metricconv denoise ct.npy out.npy --axes zyx --spacing 3,1,1`
    * `metricconv denoise big.zarr out.zarr`, or `big.tif out.tif --tile 1024` (larger than memory)
    """
    denoise_options.keywords()  # raises for invalid values before anything is read
    if needs_tiles(source, output, files, tile, skip_existing, scheduler):
        apply = partial(_denoise_tiles, denoise_options)
        filter_in_tiles(source, output, apply, files, tile, scheduler, "estimating the noise")
    else:
        denoise_one = partial(_denoise_file, denoise_options=denoise_options, files=files)
        filter_files(source, output, denoise_one, files, skip_existing)


def _denoise_file(
    source: Path,
    output: Path,
    denoise_options: DenoiseOptions,
    files: ImageFileOptions,
    report: Callable[[int, int], None] | None = None,
) -> None:
    with out_of_memory_as_user_error(source):
        image = files.read(source)
        images.check_format(output, image)
        denoise_options.check_fits(source, image)
        keywords = {"spacing": image.spacing} | denoise_options.keywords()
        pixels = filters.denoise(image.pixels, channel_axis=image.channel_axis, progress=report, **keywords)
        images.check_result(source, pixels)
        images.write(output, dataclasses.replace(image, pixels=pixels), force=files.force)


def _denoise_tiles(denoise_options: DenoiseOptions, source: Path, image: ImageData, tile: int) -> Array:
    denoise_options.check_fits(source, image)
    tiled_filter, large = (import_extra(f"metricconv.{name}", "large") for name in ("cli.tiled_filter", "large"))
    pixels, chunks = tiled_filter.in_tiles(source, image, tile)
    keywords = denoise_options.keywords()
    return large.denoise(pixels, channel_axis=image.channel_axis, **keywords).rechunk(chunks)


def _number(text: str) -> float:
    """Return the number that a text stands for, NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
