"""Comparison of tangent and geodesic balls: on a photograph, with the paper's heat flow, and on retinal vessels.

    python -m metricconv_experiments.geodesics --output outputs/geodesics

writes ``balls.png``, ``heat.png`` and ``vessels.png`` from images included in scikit-image. As in the paper, the balls
are drawn on cameraman, if that image is found (see ``metricconv_experiments.data``). ``denoise-heuristic`` compares
both kinds of balls in denoising.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import rich.console
import skimage
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from torch import Tensor

from metricconv._files import writing
from metricconv._interpolation import interpolate
from metricconv.metrics import (
    Metric,
    Riemannian,
    edge_metric,
    gradient_metric,
    smoothed,
)
from metricconv.metrics.eikonal import hopf_lax_distance
from metricconv.stencils import Stencil
from metricconv.viz import canvas, plot_unit_balls
from metricconv.viz.balls import KINDS

from .data import MissingData, find, open_gray
from .denoising.inputs import CAMERAMAN
from .errors import errors_in_one_line
from .heat_ball import HeatBall
from .photographs import photograph


def draw_balls(image: np.ndarray) -> Figure:
    """Draw tangent and geodesic balls of two metrics at the same pixels of a photograph."""
    x = torch.from_numpy(image)[None, None].double()
    metrics: dict[str, Metric] = {
        "gradient metric": gradient_metric(x, iota=0.03, alpha=10.0, scale=1.5),
        "edge metric": edge_metric(x, iota=0.02, alpha=10.0, scale=1.5),
    }
    rows, columns = (slice(round(a * len(image)), round(b * len(image))) for a, b in ((0.10, 0.50), (0.30, 0.70)))
    points = np.add(canvas.pixel_positions(7, image[rows, columns].shape), (rows.start, columns.start)).tolist()
    figure = Figure(figsize=(9, 9.4), dpi=150, layout="constrained")
    for row, (name, metric) in zip(figure.subplots(2, 2), metrics.items(), strict=True):
        metric = smoothed(metric)
        for axes, kind in zip(row, KINDS, strict=True):
            plot_unit_balls(metric, image, points, kind, axes=axes, smooth=0)
            axes.set(xlim=(columns.start - 0.5, columns.stop - 0.5), ylim=(rows.stop - 0.5, rows.start - 0.5))
            axes.set_title(f"{kind} balls of the {name}", fontsize=11)
    return figure


def draw_heat(image: np.ndarray, side: int = 40) -> Figure:
    """Draw tangent balls, geodesic balls and the paper's heat flow of the same metric at the same pixels.

    With the paper's times and scale, the flow moves samples by a tenth of a pixel. They start at twice the distance of
    the samples of the tangent ball.
    """
    first = [round(part * size) for part, size in zip((0.12, 0.36), image.shape, strict=True)]
    crop = image[first[0] : first[0] + side, first[1] : first[1] + side]
    metric = smoothed(gradient_metric(torch.from_numpy(crop)[None, None].float(), iota=0.1, alpha=10.0, scale=1.5))
    points = canvas.pixel_positions(4, crop.shape)
    figure = Figure(figsize=(11, 4.1), dpi=150, layout="constrained")
    *compared, last = figure.subplots(1, 3)
    for axes, kind in zip(compared, KINDS, strict=True):
        plot_unit_balls(metric, crop, points, kind, axes=axes, smooth=0)
        axes.set_title(f"{kind} balls", fontsize=11)
    canvas.show(last, crop, crop.shape)
    moved = HeatBall(metric, _circle(7), kernel_radius=3).offsets()[0, 0]  # [P, 2, H, W]
    for y, x in (map(round, point) for point in points):
        outline = np.add(moved[:, :, y, x].numpy(), (y, x))
        last.fill(outline[:, 1], outline[:, 0], edgecolor=canvas.GREEN, facecolor=(*to_rgb(canvas.GREEN), 0.25))
        last.plot(x, y, "o", color="white", markersize=3, markeredgecolor="black", markeredgewidth=0.6)
    last.set_title("the paper's heat flow", fontsize=11)
    return figure


def _circle(k: int) -> Stencil:
    """Return k² equally spaced directions at radius 1."""
    angle = torch.arange(k * k, dtype=torch.float64) * (2 * math.pi / (k * k))
    return Stencil(torch.stack([angle.sin(), angle.cos()], 1), torch.ones_like(angle), (k, k))


def draw_vessels(side: int = 200) -> Figure:
    """Draw the geodesic distance from a vessel pixel of a retina, and geodesics from it to other vessels."""
    green = skimage.data.retina()[330:1030, 480:1180, 1] / 255.0
    green = skimage.exposure.rescale_intensity(skimage.transform.resize(green, (side, side), anti_aliasing=True))
    metric = vessel_metric(green)
    source = _source(metric, side)
    distance = hopf_lax_distance(metric, source[None])[0, 0]
    figure = Figure(figsize=(10, 5.3), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, title in ((left, "distance from a vessel pixel"), (right, "geodesics from it to other vessels")):
        canvas.show(axes, green, green.shape)
        axes.set_title(title, fontsize=11)
    field = left.imshow(distance.numpy(), cmap="viridis_r", alpha=0.75, interpolation="nearest")
    figure.colorbar(field, ax=left, location="bottom", shrink=0.6, pad=0.02, label="geodesic distance")
    left.contour(distance.numpy(), levels=14, colors="white", linewidths=0.6)
    for target in _targets(metric, distance):
        path = _descend(distance, target, source).numpy()
        right.plot(path[:, 1], path[:, 0], color=canvas.ORANGE, linewidth=1.6)
        right.plot(path[0, 1], path[0, 0], "o", color=canvas.ORANGE, markersize=4)
    for axes in (left, right):
        axes.plot(*source.flip(0).tolist(), "o", color="white", markersize=7, markeredgecolor="black")
    return figure


def vessel_metric(image: np.ndarray, contrast: float = 12.0, scales: Sequence[float] = (1.5, 3.0)) -> Riemannian:
    """Return an isotropic metric with short paths along dark, thin structures: M = I / (1 + contrast · v)².

    v in [0, 1] is the larger eigenvalue of σ²·Hessian minus the positive part of the other, which suppresses blobs; the
    maximum over scales σ, divided by its 99th percentile.
    """
    hessians = [skimage.feature.hessian_matrix(image, s, use_gaussian_derivatives=False) for s in scales]
    curvatures = [s**2 * skimage.feature.hessian_matrix_eigvals(h) for s, h in zip(scales, hessians, strict=True)]
    ridge = np.clip([across - np.clip(along, 0, None) for across, along in curvatures], 0, None).max(0)
    vesselness = torch.from_numpy(np.clip(ridge / np.quantile(ridge, 0.99), 0, 1)).double()
    return Riemannian.isotropic((1 + contrast * vesselness)[None, None])


@errors_in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """Write the figures."""
    parser = argparse.ArgumentParser(prog="python -m metricconv_experiments.geodesics", description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/geodesics"), help="output folder; default: %(default)s"
    )
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)  # reports an error before anything is computed
    image = _photograph()
    for name, figure in (("balls", draw_balls(image)), ("heat", draw_heat(image)), ("vessels", draw_vessels())):
        with writing(options.output / f"{name}.png") as path:
            figure.savefig(path)
    rich.console.Console().print(f"wrote balls.png, heat.png and vessels.png to {options.output}")


def _photograph() -> np.ndarray:
    try:
        return open_gray(find(CAMERAMAN))
    except MissingData:
        return photograph("camera", 256)


def _source(metric: Riemannian, side: int) -> Tensor:
    """Return the pixel of lowest cost near the branching of the upper vessel arcade."""
    rows, columns = (slice(round(a * side), round(b * side)) for a, b in ((0.10, 0.17), (0.44, 0.51)))
    row, column = divmod(int(metric.M[0, 0, 0, rows, columns].argmin()), columns.stop - columns.start)
    return torch.tensor([rows.start + row, columns.start + column], dtype=torch.float64)


def _targets(metric: Riemannian, distance: Tensor, count: int = 18) -> list[Tensor]:
    """Return pixels on vessels, far from the source and from each other."""
    cost = metric.M[0, 0, 0]
    vessel = (cost < cost.quantile(0.06)) & (distance > distance.quantile(0.03))
    margin = len(cost) // 25
    candidates = vessel[margin:-margin, margin:-margin].nonzero().double() + margin
    selected = [candidates[0]]
    while len(selected) < count:
        gap = torch.cdist(candidates, torch.stack(selected)).amin(1)
        selected.append(candidates[int(gap.argmax())])
    return selected


def _descend(distance: Tensor, start: Tensor, source: Tensor, step: float = 0.4, max_steps: int = 5000) -> Tensor:
    """Descend along −∇d, the geodesic of an isotropic metric, from a pixel to the source: (N, 2)."""
    slope = torch.stack(torch.gradient(distance))[None]
    path = [start]
    while torch.linalg.vector_norm(path[-1] - source) > 2 and len(path) < max_steps:
        down = interpolate(slope, path[-1].view(1, 1, 2), "border").view(2)
        path.append(path[-1] - step * down / torch.linalg.vector_norm(down).clamp_min(1e-12))
    return torch.stack([*path, source])


if __name__ == "__main__":
    main()
