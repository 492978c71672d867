"""``metricconv compare``: PSNR and SSIM of every filter on one image."""

import dataclasses
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import rich.table
import skimage
import typer
from matplotlib.figure import Figure

from .. import filters
from .._errors import UserError
from .._files import versions, write_table, writing
from .._images import psnr
from .._options import expand_options
from ..io import images
from ..io.image_data import ImageData, spatial_shape
from ..viz import canvas
from . import options
from .console import console, print_line, results
from .options import FilterOptions, ImageFileOptions, ImageMetricOptions, Method

__all__ = ["FilterResult", "compare_command", "filters_to_compare"]


@dataclasses.dataclass(frozen=True)
class FilterResult:
    """The result of one filter and its distance to the clean image."""

    method: str
    image: np.ndarray
    psnr: float
    ssim: float
    seconds: float


@expand_options
def compare_command(
    source: options.InputArgument,
    metric: ImageMetricOptions,
    files: ImageFileOptions,
    clean: Annotated[
        Path | None, typer.Option("--clean", help="Clean reference image; IN is then the noisy image.")
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(
            "--noise",
            min=0.0,
            max=10.0,
            help="Standard deviation of the added noise, for intensities in [0, 1]. Default: 0.1.",
        ),
    ] = None,
    seed: options.SeedOption = None,
    output: Annotated[
        Path | None, typer.Option("--out", "-o", help="Output figure, .png, .pdf or .svg. Default: IN-compare.png.")
    ] = None,
    table: Annotated[Path | None, typer.Option("--csv", help="Output table, .csv.")] = None,
    samples: options.SamplesOption = 11,
) -> None:
    """Denoise an image with every filter; print PSNR and SSIM and write a figure.

    Without --clean, IN is the clean image and Gaussian noise is added to it. `denoise` estimates its level. Metric
    options apply to tangent and geodesic balls; their defaults are those of `filter`, tuned for noise of σ = 0.1.
    Prints the commands that reproduce both filters.

    * `metricconv compare photo.png`
    * `metricconv compare noisy.png --clean photo.png --csv rows.csv`
    """
    if clean is not None and noise is not None:
        raise UserError(f"--noise {noise}: cannot be combined with --clean")
    noise, seed = 0.1 if noise is None else noise, seed or 0
    candidates = filters_to_compare(samples, metric, seed)
    for filter_options in candidates.values():
        filter_options.keywords()  # raises for invalid combinations before anything is read
    target = output or Path(f"{source.stem}-compare.png")
    inputs = tuple(path for path in (source, clean) if path is not None)
    options.check_figure_path(target, force=files.force, inputs=inputs)
    if table is not None:
        if table.suffix.lower() != ".csv":
            raise UserError(f"--csv {table}: cannot write {table.suffix or 'a file without suffix'}, expected .csv")
        images.check_output(table, force=files.force, inputs=inputs)
    data = files.read(source)
    if len(data.spatial) != 2 or min(data.spatial) < 7:
        raise UserError(f"{source}: expected an image of at least 7 × 7 pixels, got {data.spatial}")
    _check_range(source, data, noisy=clean is not None)
    image = data.to_float()
    reference = image if clean is None else _clean(clean, data, files)
    generator = np.random.default_rng(seed)
    noisy = image + generator.normal(0.0, noise, image.shape) if clean is None else image
    rows = [_row("noisy", reference, noisy, data.channel_axis, 0.0)]
    functions: dict[str, Callable[..., Any]] = {
        name: partial(getattr(filters, filter_options.function), **filter_options.keywords())
        for name, filter_options in candidates.items()
    }
    for name, function in (functions | {"denoise": filters.denoise}).items():
        with console.status(name):
            apply = partial(function, channel_axis=data.channel_axis)
            apply(_corner(noisy, data.channel_axis))  # excludes compilation from the timing
            start = time.perf_counter()
            filtered = apply(noisy)
            rows.append(_row(name, reference, filtered, data.channel_axis, time.perf_counter() - start))
    with writing(target) as temporary:
        _plot(rows, reference, data.channel_axis).savefig(temporary)
        if table is not None:  # both are written, or neither
            write_table(table, [_csv_row(row, source, clean, noise, seed, samples) for row in rows])
    results.print(_table(rows))
    for filter_options in candidates.values():
        if filter_options.method in (Method.tangent, Method.geodesic):
            print_line(_command(filter_options), results)
    print_line(f"wrote {target}" + (f" and {table}" if table else ""))


def filters_to_compare(samples: int, given: ImageMetricOptions, seed: int) -> dict[str, FilterOptions]:
    """Return the filters to compare, by name: the baselines, with two sizes of box, and both unit balls."""
    odd = samples + 1 - samples % 2  # a grid has a central pixel
    return {
        "box 3 × 3": FilterOptions(Method.box, 3),
        f"box {odd} × {odd}": FilterOptions(Method.box, odd),
        "dilated by 3": FilterOptions(Method.dilated, odd),
        "random deformable": FilterOptions(Method.random, odd, seed=seed),
        "interpolated 5 × 5": FilterOptions(Method.interpolated, max(samples, 2)),
        "tangent balls": FilterOptions(Method.tangent, samples, _for_method(given, Method.tangent)),
        "geodesic balls": FilterOptions(Method.geodesic, samples, _for_method(given, Method.geodesic)),
    }


def _for_method(given: ImageMetricOptions, method: Method) -> ImageMetricOptions:
    """Return the options of a method, with its defaults; those that only the metric of the other has are dropped."""
    options = given.or_tuned(method)
    if given.name is None and options.name != "gradient":
        options = dataclasses.replace(options, eps_omega=None)
    return options


def _command(filter_options: FilterOptions) -> str:
    """Return the command that applies this filter."""
    arguments = {"--method": filter_options.method, "--samples": filter_options.samples} | filter_options.metric.given
    return " ".join(["metricconv filter IN OUT", *(f"{option} {value}" for option, value in arguments.items())])


def _check_range(path: Path, data: ImageData, *, noisy: bool = False) -> None:
    """Check that intensities are in [0, 1], the range assumed by PSNR; noisy ones only need their mean in it."""
    pixels = data.pixels
    problem = f"signed {pixels.dtype}" if pixels.dtype.kind == "i" else images.out_of_range(pixels)
    if problem and not (noisy and pixels.dtype.kind == "f" and 0 <= pixels.mean(dtype=np.float64) <= 1):
        raise UserError(f"{path}: contains {problem}, expected floats in [0, 1] or unsigned integers")


def _clean(path: Path, data: ImageData, files: ImageFileOptions) -> np.ndarray:
    reference = files.read(path)
    if reference.pixels.shape != data.pixels.shape:
        raise UserError(f"{path}: expected shape {data.pixels.shape} as IN, got {reference.pixels.shape}")
    _check_range(path, reference)
    return reference.to_float()


def _corner(image: np.ndarray, channel_axis: int | None) -> np.ndarray:
    channels = None if channel_axis is None else channel_axis % image.ndim
    return image[tuple(slice(None) if axis == channels else slice(16) for axis in range(image.ndim))]


def _row(method: str, clean: np.ndarray, image: np.ndarray, channel_axis: int | None, seconds: float) -> FilterResult:
    ssim = skimage.metrics.structural_similarity(clean, image, data_range=1.0, channel_axis=channel_axis)
    return FilterResult(method, image, psnr(clean, image), float(ssim), seconds)


def _table(rows: list[FilterResult]) -> rich.table.Table:
    table = rich.table.Table()
    for name in ("filter", "PSNR (dB)", "SSIM", "seconds"):
        table.add_column(name, justify="left" if name == "filter" else "right")
    best = max(row.psnr for row in rows)
    for row in rows:
        seconds = f"{row.seconds:.2f}" if row.seconds else ""
        style = "bold" if row.psnr == best else ""
        table.add_row(row.method, f"{row.psnr:.2f}", f"{row.ssim:.3f}", seconds, style=style)
    return table


def _plot(rows: list[FilterResult], clean: np.ndarray, channel_axis: int | None) -> Figure:
    """Plot the result of each filter, the best in bold, and the clean image last."""
    columns = 3
    lines = math.ceil((len(rows) + 1) / columns)
    size = spatial_shape(rows[0].image.shape, channel_axis)
    aspect = min(max(size[0] / size[1], 0.5), 2.0)
    figure = Figure(figsize=(2.4 * columns, (2.4 * aspect + 0.35) * lines), dpi=150, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    best = max(row.psnr for row in rows)
    panels_shown = [(row.image, f"{row.method}: {row.psnr:.1f} dB", row.psnr == best) for row in rows]
    for panel in panels:
        panel.axis("off")
    for panel, (image, title, bold) in zip(panels, [*panels_shown, (clean, "clean", False)], strict=False):
        panel.axis("on")
        image = image if channel_axis is None else np.moveaxis(image, channel_axis, -1)
        canvas.show(panel, np.clip(image, 0, 1), size)
        panel.set_title(title, fontsize=9, fontweight="bold" if bold else "normal")
    return figure


def _csv_row(
    row: FilterResult, source: Path, clean: Path | None, noise: float, seed: int, samples: int
) -> dict[str, object]:
    return {
        "image": source.name,
        "method": row.method,
        "psnr": f"{row.psnr:.4f}",
        "ssim": f"{row.ssim:.4f}",
        "seconds": f"{row.seconds:.4f}",
        "noise": "" if clean else noise,
        "seed": "" if clean else seed,
        "samples": samples,
        **versions("scikit-image"),
    }
