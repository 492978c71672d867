"""``metricconv balls``: plot the unit balls of an image's metric and print their parameters."""

from pathlib import Path
from typing import Annotated

import numpy as np
import rich.table
import torch
import typer
from matplotlib.figure import Figure
from rich.text import Text
from torch import Tensor

from .. import stencils, viz
from .._errors import UserError
from .._files import writing
from .._images import to_field
from .._options import expand_options
from ..metrics import Metric, Randers, Riemannian
from ..viz import canvas
from ..viz.fields import ball_properties
from . import options
from .console import console, print_line, results
from .options import ImageFileOptions, ImageMetricOptions, StencilName

__all__ = ["PointsOption", "balls_command"]

# Side length in pixels of the region that is shown without --at: balls of some pixels are well visible in it.
_REGION = 96

PointsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--at",
        metavar="Y,X",
        help="Row and column of a pixel; repeatable. Default: 8 × 8 pixels of the 96 × 96 with the most contrast.",
    ),
]


@expand_options
def balls_command(
    source: options.InputArgument,
    metric: ImageMetricOptions,
    files: ImageFileOptions,
    at: PointsOption = None,
    output: Annotated[
        Path | None, typer.Option("--out", "-o", help="Output figure, .png, .pdf or .svg. Default: IN-balls.png.")
    ] = None,
    ball: Annotated[str, typer.Option("--ball", help="Type of unit ball: tangent, geodesic or both.")] = "both",
    samples: Annotated[
        int,
        typer.Option(
            "--samples", "-k", min=0, max=99, help="Kernel size k: k² samples drawn per ball. Default: 0, none."
        ),
    ] = 0,
    stencil: Annotated[
        StencilName | None,
        typer.Option("--stencil", help="Sampling pattern of a ball. Default: onion if k is odd, otherwise polar."),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Show the whole image instead of a region; 8 × 8 pixels of it without --at.")
    ] = False,
) -> None:
    """Plot the unit balls of an image's metric and print their parameters.

    Tangent balls (metric constant around the pixel) are blue, geodesic balls (metric varying) are orange. Arrows show
    the offset of each tangent ball's center from its pixel.

    * `metricconv balls photo.jpg`
    * `metricconv balls photo.jpg --at 120,80 --at 60,200`
    * `metricconv balls photo.jpg --metric edge --iota 0.02 --out balls.pdf`
    """
    types = ["tangent", "geodesic"] if ball == "both" else [ball]
    if ball not in ("tangent", "geodesic", "both"):
        raise UserError(f"--ball {ball}: must be tangent, geodesic or both")
    if stencil and not samples:
        raise UserError(f"--stencil {stencil}: requires --samples")
    metric.check()
    name = stencil or ("onion" if samples % 2 else "polar")
    if samples:
        options.check_stencil(samples, name)
    target = output or Path(f"{source.stem}-balls.png")
    options.check_figure_path(target, force=files.force, inputs=(source,))
    data = files.read(source)
    if len(data.spatial) != 2:
        raise UserError(f"{source}: volumes are not supported, expected a 2-D image")
    points = [options.parse_point("--at", text, data.spatial) for text in at or ()]
    image, colors = data.to_float(), data.premultiplied()
    x = to_field(torch.from_numpy(colors.to_float()), colors.channel_axis)
    if data.channel_axis is not None:
        image = np.moveaxis(image, data.channel_axis, -1)
    with console.status(Text(f"drawing {target}")):
        field = metric.function("gradient", "reflect")(x)
        sampled = stencils.stencil_factory(name, samples)(2) if samples else None
        top, left, height, width = region = (0, 0, *data.spatial) if whole else _contrast_region(x)
        shown = points or [(y + top, x + left) for y, x in canvas.pixel_grid((8, 8), (height, width))]
        figure = _draw(image, field, shown, types, sampled, None if points and not whole else region)
        with writing(target) as temporary:
            figure.savefig(temporary)
    if points:
        results.print(_table(field, points))
    print_line(f"wrote {target}")


def _draw(
    image: np.ndarray,
    field: Metric,
    points: list[tuple[float, float]],
    types: list[str],
    stencil: stencils.Stencil | None,
    region: tuple[int, int, int, int] | None,
) -> Figure:
    """Draw balls over a region (y, x, height, width) of the image, by default the one around the balls."""
    height, width = image.shape[:2] if region is None else region[2:]
    figure = Figure(figsize=(6, min(max(6 * height / width, 3), 9)), dpi=150, layout="constrained")
    axes = figure.subplots()
    viz.plot_unit_balls(field, image, points, types, stencil, axes=axes)
    if region is not None:
        top, left, height, width = region
        axes.set(xlim=(left - 0.5, left + width - 0.5), ylim=(top + height - 0.5, top - 0.5))
    else:
        drawn = np.concatenate([patch.get_path().vertices for patch in axes.patches])
        low, high = drawn.min(0), drawn.max(0)
        reach = max(0.75 * float((high - low).max()), 12.0)
        x, y = (low + high) / 2
        axes.set(xlim=(x - reach, x + reach), ylim=(y + reach, y - reach))
        axes.set_facecolor("0.85")
    return figure


def _contrast_region(x: Tensor) -> tuple[int, int, int, int]:
    """Return the square with the largest variance in an image (1, C, H, W), as (y, x, height, width)."""
    size = min(x.shape[2], _REGION), min(x.shape[3], _REGION)
    stride = tuple(max(n // 4, 1) for n in size)
    gray = x.mean(1, keepdim=True)
    mean, square = (torch.nn.functional.avg_pool2d(values, size, stride) for values in (gray, gray.square()))
    variance = (square - mean.square())[0, 0]
    row, column = divmod(int(variance.argmax()), variance.shape[1])
    return row * stride[0], column * stride[1], *size


def _table(field: Metric, points: list[tuple[float, float]]) -> rich.table.Table:
    assert isinstance(field, Riemannian | Randers)
    rows = torch.tensor(points).round().long()
    table = rich.table.Table(title="unit tangent balls")
    columns = ball_properties(field)
    table.add_column("y, x", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right")
    for y, x in rows.tolist():
        table.add_row(f"{y}, {x}", *(f"{values[0, 0, y, x].item():.3g}" for values in columns.values()))
    return table
