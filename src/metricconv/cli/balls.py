"""``metricconv balls``: the unit balls of some pixels, as a picture and as numbers."""

from pathlib import Path
from typing import Annotated

import numpy as np
import rich.table
import torch
import typer
from matplotlib.figure import Figure
from rich.text import Text

from .. import stencils, viz
from .._errors import UserError
from .._files import writing
from .._images import to_field
from .._options import spread
from ..io import images
from ..metrics import Metric, Randers, Riemannian
from ..viz.fields import ball_numbers
from . import options as knobs
from .console import console, results, say
from .options import FileKnobs, MetricKnobs, StencilName

PointsOption = Annotated[
    list[str] | None,
    typer.Option("--at", metavar="Y,X", help="A pixel; may be given more than once (8 × 8 pixels)."),
]


@spread
def balls_command(
    source: knobs.InputArgument,
    metric: MetricKnobs,
    files: FileKnobs,
    at: PointsOption = None,
    output: Annotated[
        Path | None, typer.Option("--out", "-o", help="The picture, .png, .pdf or .svg (IN-balls.png).")
    ] = None,
    ball: Annotated[str, typer.Option("--ball", help="tangent, geodesic, or both.")] = "both",
    samples: Annotated[
        int, typer.Option("--samples", "-k", min=0, max=99, help="Draw k² samples a ball; 0 for none.")
    ] = 0,
    stencil: Annotated[
        StencilName | None, typer.Option("--stencil", help="How a ball is sampled (onion if k is odd, else polar).")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Show the whole image, not just around the pixels.")] = False,
) -> None:
    """Draw the unit balls of a picture's metric, and print their numbers.

    Tangent balls, of the metric at the pixel, are blue; geodesic ones, of the metric as it changes around it, are
    orange. An arrow shows how far a ball is carried by its drift.

    * `metricconv balls photo.jpg --at 120,80 --at 60,200`
    * `metricconv balls photo.jpg --metric edge --iota 0.02 --out balls.pdf`
    """
    kinds = ["tangent", "geodesic"] if ball == "both" else [ball]
    if ball not in ("tangent", "geodesic", "both"):
        raise UserError(f"--ball {ball}: must be tangent, geodesic or both")
    if stencil and not samples:
        raise UserError(f"--stencil {stencil}: of no use without --samples")
    metric.check()
    name = stencil or ("onion" if samples % 2 else "polar")
    if samples:
        knobs.check_stencil(samples, name)
    target = output or Path(f"{source.stem}-balls.png")
    images.check_drawing(target, force=files.force, inputs=(source,))
    picture = files.read(source)
    if len(picture.spatial) != 2:
        raise UserError(f"{source}: is a volume; balls are drawn on images")
    points = None if not at else [_point(text, picture.spatial) for text in at]
    image, seen = picture.floats(), picture.weighed()
    x = to_field(torch.from_numpy(seen.floats()), seen.channel_axis)
    if picture.channel_axis is not None:
        image = np.moveaxis(image, picture.channel_axis, -1)
    with console.status(Text(f"drawing {target}")):
        field = metric.function("gradient", "reflect")(x)
        sampled = stencils.chosen(name, samples)(2) if samples else None
        figure = _draw(image, field, points, kinds, sampled, whole)
        with writing(target) as temporary:
            figure.savefig(temporary)
    if points:
        results.print(_table(field, points))
    say(f"wrote {target}")


def _draw(
    image: np.ndarray,
    field: Metric,
    points: list[tuple[float, float]] | None,
    kinds: list[str],
    stencil: stencils.Stencil | None,
    whole: bool,
) -> Figure:
    """Draw the balls, on the part of the image that they take and some more, unless the whole is asked for."""
    height, width = image.shape[:2]
    figure = Figure(figsize=(6, min(max(6 * height / width, 3), 9)), dpi=150, layout="constrained")
    axes = figure.subplots()
    viz.plot_unit_balls(field, image, 8 if points is None else points, kinds, stencil, axes=axes)
    if points is not None and not whole:
        drawn = np.concatenate([patch.get_path().vertices for patch in axes.patches])
        low, high = drawn.min(0), drawn.max(0)
        reach = max(0.75 * float((high - low).max()), 12.0)
        x, y = (low + high) / 2
        axes.set(xlim=(x - reach, x + reach), ylim=(y + reach, y - reach))
        axes.set_facecolor("0.85")
    return figure


def _table(field: Metric, points: list[tuple[float, float]]) -> rich.table.Table:
    assert isinstance(field, Riemannian | Randers)
    rows = torch.tensor(points).round().long()
    table = rich.table.Table(title="unit tangent balls")
    columns = ball_numbers(field)
    table.add_column("y, x", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right")
    for y, x in rows.tolist():
        table.add_row(f"{y}, {x}", *(f"{values[0, 0, y, x].item():.3g}" for values in columns.values()))
    return table


def _point(text: str, size: tuple[int, ...]) -> tuple[float, float]:
    try:
        y, x = (float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--at {text}: must be two numbers, Y,X") from None
    if not (0 <= y <= size[0] - 1 and 0 <= x <= size[1] - 1):
        raise UserError(f"--at {text}: outside the image, which is {size[0]} high and {size[1]} wide")
    return y, x
