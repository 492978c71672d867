"""Tracing of retinal vessels between two points: ``python -m benchmarks.vessels --data FOLDER``.

``FOLDER`` has the DRIVE photographs, DRIVE/{training,test}/{images,vessels}/*.png. Pairs of points are drawn on the
skeleton of the vessels that people marked, 100 to 300 pixels apart along it. The path of each method from one to the
other, through the green channel, is compared with the path along the skeleton: the mean distance of its points from the
true path, the share of its points inside vessels, and the share of paths that are right, which are within 3 pixels of
the true path on average.

Methods are the shortest paths of ``tube_metric``, also with anisotropy 1 (round unit balls) and with a drift along the
vessels, away from the first point; and scikit-image's ``route_through_array``, with ``geometric=True`` and False, on
costs 1 / (1 + c r), where r is the Sato ridge filter relative to its 99th percentile. Contrast c and scale are the best
of a grid on training images, by the share of right paths, then by the mean distance. Means over the pairs of the test
images are written to ``vessels.csv``, and ``vessels.png`` shows some paths.
"""

import argparse
import datetime
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.spatial
import skimage
import torch
from numpy.typing import NDArray
from PIL import Image

import metricconv as mc
from metricconv.geodesic import shortest_path, tube_metric

from .rows import Rows

COLUMNS = ["method", "contrast", "scale", "pairs", "split", "distance", "inside", "right", "date"]
CONTRASTS, SCALES = (3.0, 10.0, 30.0), (2.0, 3.0)
DRIFT = 0.5
Array = NDArray[np.float64]
Tracer = Callable[[Array, Array, Array, float, float], Array]


class Pair(NamedTuple):
    """Two points of a photograph on its vessels, and the path along the skeleton."""

    green: Array
    vessels: NDArray[np.bool_]
    start: Array
    end: Array
    true_path: Array


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="Folder of the photographs.")
    parser.add_argument("--pairs", type=int, default=4, help="Pairs per test image.")
    parser.add_argument("--training", type=int, default=30, help="Pairs of training images, one per image and round.")
    parser.add_argument("--only", default="", help="Part of the names of methods to run.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = Rows(Path(__file__).with_suffix(".csv"), COLUMNS, ("method",), options.only)
    training = list(_pairs(options.data / "DRIVE" / "training", 2))[: options.training]
    test = list(_pairs(options.data / "DRIVE" / "test", options.pairs))
    for name, trace in TRACERS.items():
        if options.only not in name:
            continue
        settings = list(itertools.product(CONTRASTS, SCALES))
        tuned = [np.mean([scores(pair, _trace(trace, pair, *s)) for pair in training], 0) for s in settings]
        contrast, scale = settings[max(range(len(settings)), key=lambda n: (tuned[n][2], -tuned[n][0]))]
        found = np.mean([scores(pair, _trace(trace, pair, contrast, scale)) for pair in test], 0)
        values = zip(("distance", "inside", "right"), (f"{value:.3f}" for value in found), strict=True)
        rows.add(
            {"method": name, "contrast": f"{contrast:g}", "scale": f"{scale:g}", "pairs": str(len(test))}
            | {"split": "test", "date": datetime.date.today().isoformat()}
            | dict(values)
        )
    print(rows.written())
    plot(test, rows, Path(__file__).with_suffix(".png"))


def _pairs(folder: Path, count: int) -> Iterator[Pair]:
    """Yield pairs of each photograph of a folder, drawn with its position as the random seed."""
    for seed, name in enumerate(sorted((folder / "images").glob("*.png"))):
        green = np.asarray(Image.open(name).convert("RGB"))[..., 1] / 255
        vessels = np.asarray(Image.open(folder / "vessels" / name.name).convert("L")) > 127
        skeleton = skimage.morphology.skeletonize(vessels)
        nodes, rng, found = np.argwhere(skeleton), np.random.default_rng(seed), 0
        while found < count:
            start = nodes[rng.integers(len(nodes))]
            walk = skimage.graph.MCP_Geometric(np.where(skeleton, 1.0, -1.0))
            lengths, _ = walk.find_costs([start])
            ends = np.argwhere((lengths >= 100) & (lengths <= 300))
            if len(ends):
                end = ends[rng.integers(len(ends))]
                yield Pair(green, vessels, start.astype(float), end.astype(float), np.array(walk.traceback(end), float))
                found += 1


def _trace(trace: Tracer, pair: Pair, contrast: float, scale: float) -> Array:
    return trace(pair.green, pair.start, pair.end, contrast, scale)


def scores(pair: Pair, path: Array) -> tuple[float, float, float]:
    """Return the mean distance of a path from the true path, its share inside vessels, and whether it is right."""
    steps = np.linalg.norm(np.diff(path, axis=0), axis=1)
    along = np.concatenate([[0.0], steps.cumsum()])
    even = np.arange(0.0, along[-1], 0.5)
    points = np.stack([np.interp(even, along, path[:, axis]) for axis in range(2)], 1)
    distance = float(scipy.spatial.KDTree(pair.true_path).query(points)[0].mean())
    inside = float(pair.vessels[tuple(points.round().astype(int).T)].mean())
    return distance, inside, float(distance < 3)


def _tube(green: Array, start: Array, end: Array, contrast: float, scale: float) -> Array:
    return _geodesic(_metric(green, contrast, scale), start, end)


def _round_tube(green: Array, start: Array, end: Array, contrast: float, scale: float) -> Array:
    return _geodesic(_metric(green, contrast, scale, anisotropy=1.0), start, end)


def _with_drift(green: Array, start: Array, end: Array, contrast: float, scale: float) -> Array:
    """Trace in a Randers metric whose drift is along the tubes, away from the first point."""
    metric = _metric(green, contrast, scale)
    entries = metric.M[0, 0].movedim(0, -1)  # [H, W, 3]
    matrices = entries[..., [0, 1, 1, 2]].unflatten(-1, (2, 2))
    values, axes = torch.linalg.eigh(matrices)
    direction = axes[..., 0]  # along the tube, where steps are short
    grid = torch.stack(torch.meshgrid(*map(torch.arange, green.shape), indexing="ij"), -1)
    away = grid - torch.from_numpy(start)
    direction = torch.where((direction * away).sum(-1, keepdim=True) < 0, -direction, direction)
    strength = DRIFT * (1 - values[..., :1] / values[..., 1:])  # none where unit balls are round
    omega = -strength * values[..., :1].sqrt() * direction
    return _geodesic(mc.Randers(metric.M, omega.movedim(-1, 0)[None, None].to(metric.dtype)), start, end)


def _metric(green: Array, contrast: float, scale: float, anisotropy: float = 3.0) -> mc.Riemannian:
    return tube_metric(torch.from_numpy(green)[None, None], contrast, scale=scale, dark=True, anisotropy=anisotropy)


def _geodesic(metric: mc.Metric, start: Array, end: Array) -> Array:
    return shortest_path(metric, start, end).double().numpy()


def _route(green: Array, start: Array, end: Array, contrast: float, scale: float, geometric: bool = False) -> Array:
    ridge = skimage.filters.sato(green, sigmas=[scale], black_ridges=True)
    cost = 1 / (1 + contrast * np.minimum(ridge / np.quantile(ridge, 0.99), 1))
    ends = (tuple(start.astype(int)), tuple(end.astype(int)))
    path, _ = skimage.graph.route_through_array(cost, *ends, geometric=geometric)
    return np.array(path, float)


def _geometric_route(green: Array, start: Array, end: Array, contrast: float, scale: float) -> Array:
    return _route(green, start, end, contrast, scale, geometric=True)


TRACERS: dict[str, Tracer] = {
    "route_through_array, MCP": _route,
    "route_through_array, MCP_Geometric": _geometric_route,
    "tube_metric, round": _round_tube,
    "tube_metric": _tube,
    "tube_metric with drift": _with_drift,
}


def plot(pairs: list[Pair], rows: Rows, target: Path) -> None:
    """Draw the paths of some methods for six pairs."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = {"route_through_array, MCP_Geometric": "C1", "tube_metric": "C0", "tube_metric with drift": "C2"}
    settings = {row["method"]: (float(row["contrast"]), float(row["scale"])) for row in rows}
    figure, panels = plt.subplots(2, 3, figsize=(9, 6.4), layout="constrained")
    for pair, axes in zip(pairs[:: max(len(pairs) // 6, 1)], panels.flat, strict=False):
        axes.imshow(pair.green, cmap="gray")
        lines = {"marked vessels": ("white", pair.true_path)} | {
            name: (color, _trace(TRACERS[name], pair, *settings[name]))
            for name, color in shown.items()
            if name in settings
        }
        for name, (color, path) in lines.items():
            axes.plot(path[:, 1], path[:, 0], color=color, lw=4 if color == "white" else 1.5, label=name)
        everything = np.concatenate([path for _, path in lines.values()])
        low, high = everything.min(0) - 25, everything.max(0) + 25
        axes.set(xlim=(low[1], high[1]), ylim=(high[0], low[0]), xticks=[], yticks=[], aspect="equal")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, facecolor="0.7")
    figure.savefig(target, dpi=100)


if __name__ == "__main__":
    main()
