"""Tangent and geodesic balls compared: on a photograph, along the vessels of a retina, and in denoising.

    python -m metricconv.experiments.geodesics --output outputs/geodesics

writes ``balls.png``, ``vessels.png`` and ``denoising.csv``, all from pictures that come with scikit-image. With
METRICCONV_DATA naming a folder that holds cameraman256.png, the balls are drawn on that picture, as in the paper.
"""

import argparse
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import rich.console
import rich.table
import skimage
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Polygon
from torch import Tensor

from .._files import versions, write_table, writing
from .._interpolation import interpolate
from ..filters import geodesic_filter, tangent_filter
from ..metrics import (
    Metric,
    Riemannian,
    edge_metric,
    geodesic_distance,
    geodesics,
    gradient_metric,
    smoothed,
)

SAMPLES = 11
SIGMA = 0.1


class Knobs(NamedTuple):
    """The numbers of an edge metric."""

    iota: float
    alpha: float
    scale: float

    def metric(self, image: Tensor) -> Riemannian:
        """Return the metric of an image."""
        return edge_metric(image, *self)


# Found by ``tune`` on the photograph "camera" alone; the images below had no say.
KNOBS = {"tangent": Knobs(0.03, 15.0, 1.5), "geodesic": Knobs(0.01, 20.0, 1.0)}
GRID = [Knobs(*k) for k in itertools.product((0.01, 0.02, 0.03, 0.05), (5.0, 10.0, 15.0, 20.0, 30.0), (1.0, 1.5, 2.0))]
FILTERS: dict[str, Callable[..., np.ndarray]] = {"tangent": tangent_filter, "geodesic": geodesic_filter}
IMAGES = ("astronaut", "chelsea", "coffee", "rocket", "coins", "moon")

# Two of Okabe and Ito's colours, which those who see fewer colours can tell apart too.
_BALL, _PIXEL = "#E69F00", "#56B4E9"


@dataclasses.dataclass(frozen=True)
class Row:
    """How near a denoised image is to the clean one."""

    image: str
    method: str
    psnr: float


def denoise(size: int = 256, seed: int = 0, images: Sequence[str] = IMAGES) -> list[Row]:
    """Denoise images by the mean of 11 × 11 samples of either ball of the edge metric, each at its own best scale."""
    rows = []
    for name in images:
        clean, noisy = _noisy(name, size, seed)
        rows.append(Row(name, "noisy", _psnr(clean, noisy)))
        for method, apply in FILTERS.items():
            rows.append(Row(name, method, _psnr(clean, apply(noisy, SAMPLES, KNOBS[method].metric))))
    return rows


def tune(size: int = 256, seed: int = 0) -> dict[str, Knobs]:
    """Return, for either ball, the knobs of the edge metric that denoise scikit-image's "camera" best."""
    clean, noisy = _noisy("camera", size, seed)

    def score(method: str, knobs: Knobs) -> float:
        return _psnr(clean, FILTERS[method](noisy, SAMPLES, knobs.metric))

    return {method: max(GRID, key=partial(score, method)) for method in FILTERS}


def draw_balls(image: np.ndarray) -> Figure:
    """Draw both balls of two metrics on the same pixels of a photograph."""
    x = torch.from_numpy(image)[None, None].double()
    metrics: dict[str, Metric] = {
        "gradient metric": gradient_metric(x, iota=0.03, alpha=10.0, scale=1.5),
        "edge metric": edge_metric(x, iota=0.02, alpha=10.0, scale=1.5),
    }
    part = tuple(slice(round(a * len(image)), round(b * len(image))) for a, b in ((0.10, 0.50), (0.30, 0.70)))
    pixels = torch.tensor(list(_lattice(part, 7)), dtype=torch.float64)
    figure = Figure(figsize=(9, 9.4), dpi=150, layout="constrained")
    for row, (name, metric) in zip(figure.subplots(2, 2), metrics.items(), strict=True):
        metric = smoothed(metric)
        for axes, kind, outlines in zip(row, ("tangent", "geodesic"), _outlines(metric, pixels), strict=True):
            _show(axes, image, part)
            axes.set_title(f"{kind} balls of the {name}", fontsize=11)
            for outline in outlines.flip(-1).tolist():
                axes.add_patch(Polygon(outline, facecolor=to_rgba(_BALL, 0.35), edgecolor=_BALL, linewidth=1.2))
            axes.plot(*pixels.flip(1).t().tolist(), ".", color=_PIXEL, markersize=4)
    return figure


def draw_vessels(side: int = 200) -> Figure:
    """Draw the distances from one vessel pixel of a retina, and the geodesics from it to other vessels."""
    green = skimage.data.retina()[330:1030, 480:1180, 1] / 255.0
    green = skimage.transform.resize(green, (side, side), anti_aliasing=True)
    metric = vessel_metric(green)
    source = _source(metric, side)
    distance = geodesic_distance(metric, source[None])[0, 0]
    figure = Figure(figsize=(10, 5.3), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, title in ((left, "distance from a vessel pixel"), (right, "geodesics from it to other vessels")):
        _show(axes, green, (slice(0, side), slice(0, side)))
        axes.set_title(title, fontsize=11)
    left.imshow(distance.numpy(), cmap="viridis_r", alpha=0.75, interpolation="nearest")
    left.contour(distance.numpy(), levels=14, colors="white", linewidths=0.6)
    for target in _targets(metric, distance):
        path = _descend(distance, target, source).numpy()
        right.plot(path[:, 1], path[:, 0], color=_BALL, linewidth=1.6)
        right.plot(path[0, 1], path[0, 0], "o", color=_BALL, markersize=4)
    for axes in (left, right):
        axes.plot(*source.flip(0).tolist(), "o", color=_PIXEL, markersize=7, markeredgecolor="white")
    return figure


def vessel_metric(image: np.ndarray, contrast: float = 12.0, scales: Sequence[float] = (1.5, 3.0)) -> Riemannian:
    """Return a round metric in which ways along dark, thin structures are short: M = I / (1 + contrast · v)².

    v in [0, 1] is the top eigenvalue of σ²·Hessian at any of the scales σ, where positive, by its 99th percentile.
    """
    hessians = [skimage.feature.hessian_matrix(image, s, use_gaussian_derivatives=False) for s in scales]
    ridges = [s**2 * skimage.feature.hessian_matrix_eigvals(h)[0] for s, h in zip(scales, hessians, strict=True)]
    ridge = np.clip(np.max(ridges, 0), 0, None)
    vesselness = torch.from_numpy(np.clip(ridge / np.quantile(ridge, 0.99), 0, 1)).double()
    return Riemannian.isotropic((1 + contrast * vesselness)[None, None])


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the pictures and the table, and print the latter."""
    parser = argparse.ArgumentParser(prog="python -m metricconv.experiments.geodesics", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("outputs/geodesics"), help="folder (%(default)s)")
    parser.add_argument("--size", type=int, default=256, help="side of the denoised images in pixels (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the noise (%(default)s)")
    parser.add_argument("--tune", action="store_true", help="search the metric's knobs anew, print them and stop")
    options = parser.parse_args(arguments)
    console = rich.console.Console()
    if options.tune:
        console.print(tune(options.size, options.seed))
        return
    for name, figure in (("balls", draw_balls(_photograph())), ("vessels", draw_vessels())):
        with writing(options.output / f"{name}.png") as path:
            figure.savefig(path)
    rows = denoise(options.size, options.seed)
    write_table(options.output / "denoising.csv", [_line(row, options.size, options.seed) for row in rows])
    console.print(_table(rows))
    console.print(f"wrote balls.png, vessels.png and denoising.csv to {options.output}")


def _noisy(name: str, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return one of scikit-image's pictures, grey and size × size, without and with noise."""
    image = getattr(skimage.data, name)()
    image = skimage.color.rgb2gray(image) if image.ndim == 3 else image
    clean = skimage.transform.resize(image, (size, size), anti_aliasing=True).astype(np.float32)
    clean = clean if clean.max() <= 1 else clean / 255
    noise = np.random.default_rng(seed).normal(0.0, SIGMA, clean.shape).astype(np.float32)
    return clean, clean + noise


def _psnr(clean: np.ndarray, image: np.ndarray) -> float:
    return float(skimage.metrics.peak_signal_noise_ratio(clean, image, data_range=1.0))


def _photograph() -> np.ndarray:
    path = Path(os.environ.get("METRICCONV_DATA", "")) / "cameraman256.png"
    if path.is_file():
        return skimage.util.img_as_float(skimage.io.imread(path))
    return skimage.transform.resize(skimage.data.camera(), (256, 256), anti_aliasing=True)


def _outlines(metric: Metric, pixels: Tensor, count: int = 96) -> tuple[Tensor, Tensor]:
    """Return the outlines of the tangent and the geodesic balls of some pixels, (N, count, 2) in (y, x) each."""
    angle = torch.arange(count, dtype=torch.float64) * (2 * torch.pi / count)
    directions = torch.stack([angle.sin(), angle.cos()], 1)
    rows, columns = pixels.long().unbind(1)
    reach = metric.unit_vectors(directions)[0, 0][:, :, rows, columns].permute(2, 0, 1)  # [N, count, 2]
    starts = pixels.repeat_interleave(count, 0)
    curves = geodesics(metric, starts, directions.repeat(len(pixels), 1), steps=24)[0, 0, :, -1]
    return pixels.unsqueeze(1) + reach, curves.view(-1, count, 2)


def _show(axes: Axes, image: np.ndarray, part: Sequence[slice]) -> None:
    rows, columns = part
    axes.imshow(image, cmap="gray", interpolation="nearest")
    axes.set(xlim=(columns.start - 0.5, columns.stop - 0.5), ylim=(rows.stop - 0.5, rows.start - 0.5))
    axes.set(xticks=[], yticks=[])


def _lattice(part: Sequence[slice], count: int) -> Iterator[tuple[int, int]]:
    """Return pixels evenly spread over a part of an image."""
    places = (np.arange(count) + 0.5) / count
    axes = ((along.start + places * (along.stop - along.start)).astype(int).tolist() for along in part)
    return itertools.product(*axes)


def _source(metric: Riemannian, side: int) -> Tensor:
    """Return the pixel of least cost about where the upper arcade branches."""
    rows, columns = (slice(round(a * side), round(b * side)) for a, b in ((0.10, 0.17), (0.44, 0.51)))
    row, column = divmod(int(metric.M[0, 0, 0, rows, columns].argmin()), columns.stop - columns.start)
    return torch.tensor([rows.start + row, columns.start + column], dtype=torch.float64)


def _targets(metric: Riemannian, distance: Tensor, count: int = 18) -> list[Tensor]:
    """Return pixels on vessels, far from the source and from each other."""
    cost = metric.M[0, 0, 0]
    vessel = (cost < cost.quantile(0.08)) & (distance > distance.quantile(0.03))
    margin = len(cost) // 25
    places = vessel[margin:-margin, margin:-margin].nonzero().double() + margin
    chosen = [places[0]]
    while len(chosen) < count:
        gap = torch.cdist(places, torch.stack(chosen)).amin(1)
        chosen.append(places[int(gap.argmax())])
    return chosen


def _descend(distance: Tensor, start: Tensor, source: Tensor, step: float = 0.4, most: int = 5000) -> Tensor:
    """Follow −∇d, the way back of a round metric, from a pixel down to the source: (N, 2)."""
    slope = torch.stack(torch.gradient(distance))[None]
    path = [start]
    while torch.linalg.vector_norm(path[-1] - source) > 2 and len(path) < most:
        down = interpolate(slope, path[-1].view(1, 1, 2), "border").view(2)
        path.append(path[-1] - step * down / torch.linalg.vector_norm(down).clamp_min(1e-12))
    return torch.stack([*path, source])


def _means(rows: Sequence[Row]) -> dict[str, float]:
    return {m: float(np.mean([r.psnr for r in rows if r.method == m])) for m in ("noisy", *FILTERS)}


def _table(rows: Sequence[Row]) -> rich.table.Table:
    table = rich.table.Table(title=f"PSNR (dB), edge metric, σ = {SIGMA}")
    table.add_column("image")
    methods = ("noisy", *FILTERS)
    for method in methods:
        table.add_column(method, justify="right")
    for image in dict.fromkeys(r.image for r in rows):
        table.add_row(image, *(f"{r.psnr:.2f}" for m in methods for r in rows if (r.image, r.method) == (image, m)))
    table.add_row("mean", *(f"{mean:.2f}" for mean in _means(rows).values()), style="bold")
    return table


def _line(row: Row, size: int, seed: int) -> dict[str, object]:
    """Return a line of the table, with what is needed to compare it with another run."""
    return {
        "image": row.image,
        "method": row.method,
        "psnr": f"{row.psnr:.4f}",
        **dict(zip(Knobs._fields, KNOBS.get(row.method, ("", "", "")), strict=True)),
        "samples": SAMPLES**2 if row.method in KNOBS else 1,
        "size": size,
        "sigma": SIGMA,
        "seed": seed,
        **versions("scikit-image"),
    }


if __name__ == "__main__":
    main()
