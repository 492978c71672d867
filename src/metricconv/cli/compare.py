"""``metricconv compare``: every filter on one picture, measured against the clean one."""

import dataclasses
import math
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import rich.table
import skimage
import typer
from matplotlib.figure import Figure

from .. import filters
from .._errors import UserError
from .._files import versions, write_table, writing
from .._options import spread
from ..experiments.photographs import psnr
from ..io import images
from ..io.image_data import Picture, spatial_size
from ..viz import canvas
from . import options as knobs
from .console import console, results, say
from .options import FileKnobs, FilterKnobs, Method, MetricKnobs, MetricName

# The balls of both kinds at scales that suit noise of σ = 0.1; options given override them.
_TUNED = {
    Method.tangent: MetricKnobs(MetricName("gradient"), iota=0.15, alpha=20.0, scale=1.5),
    Method.geodesic: MetricKnobs(MetricName("edge"), iota=0.01, alpha=20.0, scale=1.0),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """What one filter makes of the picture, and how near it is to the clean one."""

    method: str
    image: np.ndarray
    psnr: float
    ssim: float
    seconds: float


@spread
def compare_command(
    source: knobs.InputArgument,
    metric: MetricKnobs,
    files: FileKnobs,
    clean: Annotated[
        Path | None, typer.Option("--clean", help="The picture without noise; IN is then taken as noisy already.")
    ] = None,
    noise: Annotated[
        float | None, typer.Option("--noise", min=0.0, max=10.0, help="σ of the noise to add, of a range of 1 (0.1).")
    ] = None,
    seed: knobs.SeedOption = None,
    output: Annotated[
        Path | None, typer.Option("--out", "-o", help="The picture, .png, .pdf or .svg (IN-compare.png).")
    ] = None,
    table: Annotated[Path | None, typer.Option("--csv", help="Write the table there too.")] = None,
    samples: knobs.SamplesOption = 11,
) -> None:
    """Denoise a picture with every filter: a table, and a picture of all.

    Without --clean, IN is the clean picture and Gaussian noise is added to it. Metric options go to both balls;
    unless given, they suit noise of σ = 0.1. Below the table are the commands that filter a picture with these balls.

    * `metricconv compare photo.png`
    * `metricconv compare noisy.png --clean photo.png --csv rows.csv`
    """
    if clean is not None and noise is not None:
        raise UserError(f"--noise {noise}: of no use with --clean, as IN is noisy already")
    noise, seed = 0.1 if noise is None else noise, seed or 0
    filtered_by = contenders(samples, metric, seed)
    for chosen in filtered_by.values():
        chosen.keywords()  # refuses what does not fit together, before anything is read
    target = output or Path(f"{source.stem}-compare.png")
    given = tuple(path for path in (source, clean) if path is not None)
    images.check_drawing(target, force=files.force, inputs=given)
    if table is not None:
        images.check_output(table, force=files.force, inputs=given)
        if table.absolute() == target.absolute():
            raise UserError(f"--csv {table}: is where the picture goes")
    picture = files.read(source)
    if len(picture.spatial) != 2 or min(picture.spatial) < 7:
        raise UserError(f"{source}: must be an image of 7 × 7 pixels or more, it is {picture.spatial}")
    _check_range(source, picture, noisy=clean is not None)
    image = picture.floats()
    reference = image if clean is None else _clean(clean, picture, files)
    generator = np.random.default_rng(seed)
    noisy = image + generator.normal(0.0, noise, image.shape) if clean is None else image
    rows = [_row("noisy", reference, noisy, picture.channel_axis, 0.0)]
    for name, chosen in filtered_by.items():
        with console.status(name):
            apply = partial(getattr(filters, chosen.function), channel_axis=picture.channel_axis, **chosen.keywords())
            apply(_corner(noisy, picture.channel_axis))  # so that none is charged for what is compiled once
            start = time.perf_counter()
            filtered = apply(noisy)
            rows.append(_row(name, reference, filtered, picture.channel_axis, time.perf_counter() - start))
    with writing(target) as temporary:
        _picture(rows, reference, picture.channel_axis).savefig(temporary)
        if table is not None:  # both are written, or none
            write_table(table, [_line(row, source, clean, noise, seed, samples) for row in rows])
    results.print(_table(rows))
    for chosen in filtered_by.values():
        if chosen.method in _TUNED:
            say(_command(chosen), results)
    say(f"wrote {target}" + (f" and {table}" if table else ""))


def contenders(samples: int, own: MetricKnobs, seed: int) -> dict[str, FilterKnobs]:
    """Return the filters to compare, by name: the rivals, a small box too, and both balls."""
    odd = samples + 1 - samples % 2  # a grid has a central pixel
    return {
        "box 3 × 3": FilterKnobs(Method.box, 3),
        f"box {odd} × {odd}": FilterKnobs(Method.box, odd),
        "dilated by 3": FilterKnobs(Method.dilated, odd),
        "random deformable": FilterKnobs(Method.random, odd, seed=seed),
        "interpolated 5 × 5": FilterKnobs(Method.interpolated, max(samples, 2)),
        "tangent balls": FilterKnobs(Method.tangent, samples, _tuned(Method.tangent, own)),
        "geodesic balls": FilterKnobs(Method.geodesic, samples, _tuned(Method.geodesic, own)),
    }


def _tuned(method: Method, own: MetricKnobs) -> MetricKnobs:
    """Return the options that were given, over those that suit the method."""
    # Numbers that suit one metric mean nothing to another.
    start = _TUNED[method] if own.name in (None, _TUNED[method].name) else MetricKnobs(own.name)
    changes = {key: value for key, value in dataclasses.asdict(own).items() if value is not None}
    if own.name is None and start.name != "gradient":
        changes.pop("eps_omega", None)
    return dataclasses.replace(start, **changes)


def _command(chosen: FilterKnobs) -> str:
    """Return the command that filters a picture in this way."""
    options = {"--method": chosen.method, "--samples": chosen.samples} | chosen.metric.given
    return " ".join(["metricconv filter IN OUT", *(f"{option} {value}" for option, value in options.items())])


def _check_range(path: Path, picture: Picture, *, noisy: bool = False) -> None:
    """Refuse numbers outside of 0 to 1, by which errors are measured; noise may pass it, but not on average."""
    pixels = picture.pixels
    past = f"{pixels.dtype}, which are signed" if pixels.dtype.kind == "i" else images.past_range(pixels)
    if past and not (noisy and pixels.dtype.kind == "f" and 0 <= pixels.mean(dtype=np.float64) <= 1):
        raise UserError(f"{path}: holds {past}; compare takes floats from 0 to 1, or unsigned integers")


def _clean(path: Path, picture: Picture, files: FileKnobs) -> np.ndarray:
    reference = files.read(path)
    if reference.pixels.shape != picture.pixels.shape:
        raise UserError(f"{path}: has shape {reference.pixels.shape}, and IN {picture.pixels.shape}: they must agree")
    _check_range(path, reference)
    return reference.floats()


def _corner(image: np.ndarray, channel_axis: int | None) -> np.ndarray:
    channels = None if channel_axis is None else channel_axis % image.ndim
    return image[tuple(slice(None) if axis == channels else slice(16) for axis in range(image.ndim))]


def _row(method: str, clean: np.ndarray, image: np.ndarray, channel_axis: int | None, seconds: float) -> Row:
    ssim = skimage.metrics.structural_similarity(clean, image, data_range=1.0, channel_axis=channel_axis)
    return Row(method, image, psnr(clean, image), float(ssim), seconds)


def _table(rows: list[Row]) -> rich.table.Table:
    table = rich.table.Table()
    for name in ("filter", "PSNR (dB)", "SSIM", "seconds"):
        table.add_column(name, justify="left" if name == "filter" else "right")
    best = max(row.psnr for row in rows)
    for row in rows:
        seconds = f"{row.seconds:.2f}" if row.seconds else ""
        style = "bold" if row.psnr == best else ""
        table.add_row(row.method, f"{row.psnr:.2f}", f"{row.ssim:.3f}", seconds, style=style)
    return table


def _picture(rows: list[Row], clean: np.ndarray, channel_axis: int | None) -> Figure:
    """Show what each filter makes of the picture, the best in bold, and the clean one last."""
    columns = 3
    lines = math.ceil((len(rows) + 1) / columns)
    size = spatial_size(rows[0].image.shape, channel_axis)
    aspect = min(max(size[0] / size[1], 0.5), 2.0)
    figure = Figure(figsize=(2.4 * columns, (2.4 * aspect + 0.35) * lines), dpi=150, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    best = max(row.psnr for row in rows)
    shown = [(row.image, f"{row.method}: {row.psnr:.1f} dB", row.psnr == best) for row in rows]
    for panel in panels:
        panel.axis("off")
    for panel, (image, title, bold) in zip(panels, [*shown, (clean, "clean", False)], strict=False):
        panel.axis("on")
        image = image if channel_axis is None else np.moveaxis(image, channel_axis, -1)
        canvas.show(panel, np.clip(image, 0, 1), size)
        panel.set_title(title, fontsize=9, fontweight="bold" if bold else "normal")
    return figure


def _line(row: Row, source: Path, clean: Path | None, noise: float, seed: int, samples: int) -> dict[str, object]:
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
