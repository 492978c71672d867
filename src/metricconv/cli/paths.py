"""``metricconv path``: find the shortest path between two points of an image."""

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from matplotlib.figure import Figure
from rich.text import Text
from torch import Tensor

from .. import geodesic
from .._errors import UserError
from .._files import write_table, writing
from .._images import to_field
from .._options import expand_options
from ..io import images
from ..metrics import Metric, Randers, Riemannian
from ..viz import canvas
from . import options
from .console import console, print_line, results
from .options import ImageFileOptions

__all__ = ["path_command"]


class PathMetric(StrEnum):
    """Metrics of an image for paths."""

    bright = "bright"
    dark = "dark"
    surface = "surface"


@expand_options
def path_command(
    source: options.InputArgument,
    files: ImageFileOptions,
    start: Annotated[
        str, typer.Option("--from", metavar="Y,X", help="Row and column of the first point.", show_default=False)
    ],
    end: Annotated[
        str, typer.Option("--to", metavar="Y,X", help="Row and column of the last point.", show_default=False)
    ],
    metric: Annotated[
        PathMetric,
        typer.Option(
            "--metric",
            help="Where paths are short: along bright tubes, along dark tubes, or where the image is smooth (surface).",
        ),
    ] = PathMetric.bright,
    contrast: Annotated[
        float | None,
        typer.Option(
            "--contrast",
            min=0.0,
            max=1e6,
            help="Speed along tubes (default: 10), or length of an edge from 0 to 1 in pixels (surface; default: 30).",
        ),
    ] = None,
    scale: Annotated[
        float,
        typer.Option(
            "--scale",
            min=0.1,
            max=100.0,
            help="Standard deviation of the derivative filters in pixels: a tube's radius.",
        ),
    ] = 2.0,
    drift: Annotated[
        str,
        typer.Option(
            "--drift",
            metavar="Y,X",
            help="A flow of length at most 0.99: the part by which steps along it are shorter, and against it longer.",
        ),
    ] = "0,0",
    output: Annotated[
        Path | None, typer.Option("--out", "-o", help="Output figure, .png, .pdf or .svg. Default: IN-path.png.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option("--csv", help="Table of the path's points: y, x and the length up to each.")
    ] = None,
) -> None:
    """Find the shortest path between two points of an image, print its length and plot it.

    * `metricconv path retina.png --from 20,35 --to 180,90 --scale 3`
    * `metricconv path map.png --from 20,35 --to 180,90 --metric dark --csv path.csv`
    * `metricconv path river.png --from 20,35 --to 180,90 --drift 0,0.5`
    """
    target = output or Path(f"{source.stem}-path.png")
    options.check_figure_path(target, force=files.force, inputs=(source,))
    if table is not None:
        if table.suffix.lower() != ".csv":
            raise UserError(f"--csv {table}: cannot write {table.suffix or 'a file without suffix'}, expected .csv")
        images.check_output(table, force=files.force, inputs=(source,))
    data = files.read(source)
    if len(data.spatial) != 2:
        raise UserError(f"{source}: volumes are not supported, expected a 2-D image")
    points = [options.parse_point(*given, data.spatial) for given in (("--from", start), ("--to", end))]
    flow = _parse_drift(drift)
    image = data.to_float()
    with console.status(Text(f"drawing {target}")):
        x = to_field(torch.from_numpy(image), data.channel_axis).float()
        field = _with_drift(_metric(x, metric, contrast, scale), flow)
        path = geodesic.shortest_path(field, *points)
        colors = image if data.channel_axis is None else np.moveaxis(image, data.channel_axis, -1)
        figure = _draw(colors, path)
        rows = _rows(field, path)
        with writing(target) as temporary:
            figure.savefig(temporary)
            if table is not None:
                write_table(table, rows)
    pixels = float((path[1:] - path[:-1]).norm(dim=1).sum())
    print_line(f"length {rows[-1]['length']} in the metric, {pixels:.1f} pixels", results)
    print_line(f"wrote {target}" + (f" and {table}" if table is not None else ""))


def _parse_drift(text: str) -> tuple[float, float]:
    """Return the vector Y,X of --drift, of length at most 0.99."""
    try:
        y, x = (float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--drift {text}: expected two numbers, Y,X") from None
    if not math.hypot(y, x) <= 0.99:
        raise UserError(f"--drift {text}: must have a length of at most 0.99")
    return y, x


def _with_drift(metric: Riemannian, flow: tuple[float, float]) -> Metric:
    """Return the Randers metric in which a step v is shorter by |f| ‖v‖ along the flow f, longer by it against f."""
    strength = math.hypot(*flow)
    if not strength:
        return metric
    direction = metric.M.new_tensor(flow) / strength
    yy, yx, xx = metric.M.unbind(2)
    product = torch.stack([yy * direction[0] + yx * direction[1], yx * direction[0] + xx * direction[1]], 2)  # M u
    length = metric.norm(direction.view(1, 1, 2, 1, 1)).unsqueeze(2)
    return Randers(metric.M, -strength * product / length)


def _metric(image: Tensor, name: PathMetric, contrast: float | None, scale: float) -> Riemannian:
    if name == PathMetric.surface:
        return geodesic.surface_metric(image, 30.0 if contrast is None else contrast, scale=scale)
    return geodesic.tube_metric(
        image, 10.0 if contrast is None else contrast, scale=scale, dark=name == PathMetric.dark
    )


def _rows(field: Metric, path: Tensor) -> list[dict[str, str]]:
    """Return the points with the length of the path up to each."""
    middle, edges = (0.5 * (path[1:] + path[:-1])).T, (path[1:] - path[:-1]).T  # [2, n − 1]
    steps = field.at(middle.reshape(1, 2, -1, 1)).norm(edges.reshape(1, 1, 2, -1, 1)).flatten()
    lengths = [0.0, *steps.double().cumsum(0).tolist()]
    return [
        {"y": f"{y:.3f}", "x": f"{x:.3f}", "length": f"{length:.4f}"}
        for (y, x), length in zip(path.tolist(), lengths, strict=True)
    ]


def _draw(image: np.ndarray, path: Tensor) -> Figure:
    """Draw a path over the image."""
    height, width = image.shape[:2]
    figure = Figure(figsize=(6, min(max(6 * height / width, 3), 9)), dpi=150, layout="constrained")
    axes = figure.subplots()
    canvas.show(axes, image, (height, width))
    y, x = path.unbind(1)
    axes.plot(x.numpy(), y.numpy(), color="tab:orange", linewidth=2)
    axes.plot(x[0], y[0], "o", color="tab:blue", markersize=6)
    axes.plot(x[-1], y[-1], "s", color="tab:blue", markersize=6)
    return figure
