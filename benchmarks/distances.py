"""Time and error of distance maps: ``python -m benchmarks.distances`` writes ``distances.csv`` and ``distances.png``.

The baselines are scikit-fmm (isotropic, order 1 and 2), which must be installed, and scikit-image's ``MCP_Geometric``.
Times are the least of several runs, on metrics that are constant, so that distances are known: the mean relative error
leaves out the pixels within 3 px of the source, where scikit-fmm starts. Images of more than a megapixel show how the
time grows: of order 1, one run each.
"""

import argparse
import datetime
import math
import platform
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import metricconv as mc
from metricconv.geodesic import distance_map

from .rows import Row, Rows

COLUMNS = [
    "solver", "metric", "size", "order", "seconds", "ratio", "mean_error", "processor", "threads", "torch", "date",
]  # fmt: skip
SIZES = [256, 512, 1024, 2048, 4096]
Array = NDArray[np.float64]
# Name, anisotropy, ‖ω‖.
METRICS = [
    ("isotropic", 1.0, 0.0), ("anisotropy 10", 10.0, 0.0), ("drift 0.5", 10.0, 0.5), ("drift 0.9", 10.0, 0.9),
]  # fmt: skip


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="Keep the rows of other sizes.")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="Sides of images in pixels.")
    parser.add_argument("--volume", type=int, default=128, help="Side of the volume in pixels, 0 for none.")
    parser.add_argument("--repeat", type=int, default=3, help="Runs per row.")
    options = parser.parse_args()
    folder = Path(__file__).parent
    rows = Rows(
        folder / "distances.csv", COLUMNS, ("solver", "metric", "size", "order"), "sizes" if options.keep else ""
    )
    for size in options.sizes:
        spatial = (size, size)
        baseline = None
        for solver, name, order, run, exact in _cases(spatial):
            if size > 1024 and (order == 2 or solver == "MCP_Geometric" or name == "drift 0.9"):
                continue
            row = _measure(solver, name, spatial, order, run, exact, options.repeat if size <= 1024 else 1)
            baseline = baseline or row["seconds"]  # scikit-fmm of order 1 is the first
            rows.add(row | {"ratio": f"{float(row['seconds']) / float(baseline):.2f}"})
    if options.volume:
        spatial3 = (options.volume,) * 3
        metric, exact = _constant(spatial3, 10.0, 0.5)
        source = [[float(n // 2) for n in spatial3]]
        rows.add(_measure("metricconv", "drift 0.5", spatial3, 2, partial(_map, metric, source, 2), exact, 1))
    plot(rows.written())


def _cases(spatial: tuple[int, ...]) -> Iterator[tuple[str, str, int, Callable[[], Array], Array]]:
    """Yield solver, metric, order, the function to time, and the exact distances."""
    from skimage.graph import MCP_Geometric

    center = [n // 2 for n in spatial]
    round_distance = np.sqrt(sum((g - c) ** 2.0 for g, c in zip(np.indices(spatial), center, strict=True)))
    for order in (1, 2):
        yield (
            "scikit-fmm", "isotropic", order,
            partial(_fast_marching, round_distance, order), round_distance,
        )  # fmt: skip
    yield (
        "MCP_Geometric", "isotropic", 1,
        lambda: MCP_Geometric(np.ones(spatial)).find_costs([center])[0], round_distance,
    )  # fmt: skip
    source = [[float(c) for c in center]]
    for name, anisotropy, drift in METRICS:
        metric, exact = _constant(spatial, anisotropy, drift)
        for order in (1, 2):
            yield (
                "metricconv", name, order,
                partial(_map, metric, source, order), exact,
            )  # fmt: skip


def _constant(spatial: tuple[int, ...], anisotropy: float, drift: float) -> tuple[mc.Metric, Array]:
    """Return a constant metric and its distances from the center of the image."""
    dim = len(spatial)
    direction = torch.tensor([0.4, 1.0, 0.3][:dim]).view(1, 1, dim, *(1,) * dim)
    ellipse = mc.Riemannian.needle(direction, 1.0, 1 / anisotropy)
    metric: mc.Metric = ellipse
    if drift:
        probe = torch.tensor([1.0, -0.7, 0.5][:dim]).view(1, 1, dim, *(1,) * dim)
        metric = mc.Randers(ellipse.M, drift * probe / ellipse.dual().norm(probe).unsqueeze(2))
    offset = torch.stack(torch.meshgrid(*(torch.arange(n) - n // 2 for n in spatial), indexing="ij")).double()
    exact = metric.to(torch.float64).norm(offset[None, None])
    return metric.expand_to(spatial).map(torch.Tensor.contiguous), exact[0, 0].numpy()


def _fast_marching(round_distance: Array, order: int) -> Array:
    """Return scikit-fmm's distances from the center, from those on a small circle."""
    import skfmm

    found: Array = skfmm.distance(round_distance - 2.9, order=order) + 2.9
    return found


def _map(metric: mc.Metric, source: list[list[float]], order: int) -> Array:
    return distance_map(metric, source, order=order)[0, 0].double().numpy()


def _measure(
    solver: str,
    metric: str,
    spatial: tuple[int, ...],
    order: int,
    run: Callable[[], Array],
    exact: Array,
    repeat: int,
) -> Row:
    """Return the row of a solver: its error, and the least time of several runs after a warm-up."""
    found = run()
    far = sum((g - n // 2) ** 2 for g, n in zip(np.indices(spatial), spatial, strict=True)) > 9
    error = float((np.abs(found - exact)[far] / np.abs(exact[far])).mean())
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    print(f"{solver:14}{metric:14}{spatial!s:18}order {order}{min(seconds):9.3f} s{100 * error:9.3f} %", flush=True)
    return {
        "solver": solver, "metric": metric, "size": "x".join(map(str, spatial)), "order": str(order),
        "seconds": f"{min(seconds):.4f}", "ratio": "", "mean_error": f"{error:.2e}",
        "processor": _processor(), "threads": str(torch.get_num_threads()), "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
    }  # fmt: skip


def _processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def plot(path: Path) -> None:
    """Draw time per pixel against the number of pixels, from the CSV."""
    import csv

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines: dict[str, list[tuple[int, float]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            sides = [int(n) for n in row["size"].split("x")]
            if len(sides) == 2:
                label = f"{row['solver']}, {row['metric']}, order {row['order']}"
                lines.setdefault(label, []).append((sides[0] * sides[1], float(row["seconds"])))
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for n, (label, points) in enumerate(sorted(lines.items())):
        pixels, seconds = zip(*sorted(points), strict=True)
        style = "-" if label.startswith("metricconv") else "--"
        axes.semilogx(
            pixels,
            [1e9 * s / p for s, p in zip(seconds, pixels, strict=True)],
            style + "o",
            label=label,
            ms=3,
            color=f"C{n}" if n < 10 else "black",
        )
    pixels, seconds = zip(*sorted(lines["metricconv, anisotropy 10, order 1"]), strict=True)
    slope = seconds[0] / (pixels[0] * math.log(pixels[0]))
    axes.semilogx(pixels, [1e9 * slope * math.log(p) for p in pixels], ":", color="0.5", label="n log n")
    axes.set(xlabel="pixels", ylabel="nanoseconds per pixel")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
