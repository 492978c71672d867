"""A first look: one noisy photograph, denoised by means over seven supports, with no learning.

Every filter takes the mean of 11 × 11 samples a pixel; they differ only in where these lie. The command writes a
picture, with unit balls drawn over the noisy image, and a table of how near each result is to the clean photograph:

    python -m metricconv.experiments.demo --output outputs/demo
"""

import argparse
import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import rich.console
import rich.table
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .._files import versions, write_table, writing
from ..filters import box_filter, geodesic_filter, interpolated_filter, random_deformable_filter, tangent_filter
from ..metrics import edge_metric, gradient_metric
from ..viz import canvas, unit_balls
from ..viz.balls import COLOURS, draw_ball
from .errors import in_one_line
from .photographs import photograph, psnr

SAMPLES = 11
SIGMA = 0.1

# The paper's metric, at a scale at which the noise has fewer edges of its own than in a 3×3 Sobel filter.
GRADIENT = partial(gradient_metric, iota=0.15, alpha=20.0, scale=1.5)
GRADIENT_WITH_DRIFT = partial(GRADIENT, eps_omega=0.5)
# Geodesics stop at edges by themselves, so that balls may be wide: 10 pixels, where nothing is in their way.
WIDE_EDGE = partial(edge_metric, iota=0.01, alpha=20.0, scale=1.0)

METHODS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "box 11 × 11": partial(box_filter, size=SAMPLES),
    "random deformable": partial(random_deformable_filter, samples=SAMPLES, seed=0),
    "interpolated 5 × 5": partial(interpolated_filter, samples=SAMPLES, size=5),
    "gradient metric": partial(tangent_filter, samples=SAMPLES, metric=GRADIENT),
    "gradient with drift": partial(tangent_filter, samples=SAMPLES, metric=GRADIENT_WITH_DRIFT),
    "edge metric": partial(tangent_filter, samples=SAMPLES, metric="edge"),
    "edge, geodesic balls": partial(geodesic_filter, samples=SAMPLES, metric=WIDE_EDGE),
}

# The part of the photograph that is shown, in fractions of its side: rows, then columns.
_SHOWN = (0.12, 0.52), (0.30, 0.70)


@dataclasses.dataclass(frozen=True)
class Result:
    """One denoised image, and what it took."""

    method: str
    image: np.ndarray
    psnr: float
    seconds: float


def run(output: Path, size: int = 256, seed: int = 0) -> list[Result]:
    """Denoise scikit-image's photograph at size × size pixels and write ``comparison.png`` and ``psnr.csv``."""
    if size < 16:
        raise ValueError(f"`size` (={size}) must be at least 16 pixels")
    clean = photograph("camera", size)
    noise = np.random.default_rng(seed).normal(0.0, SIGMA, clean.shape).astype(np.float32)
    noisy = clean + noise
    results = [Result("noisy", noisy, psnr(clean, noisy), 0.0)]
    for method, denoise in METHODS.items():
        denoise(noisy[:16, :16])  # so that no method is charged for what is compiled or loaded once
        start = time.perf_counter()
        image = denoise(noisy)
        results.append(Result(method, image, psnr(clean, image), time.perf_counter() - start))
    with writing(output / "comparison.png") as path:
        _picture(noisy, results).savefig(path)
    write_table(output / "psnr.csv", [_row(result, size, seed) for result in results])
    return results


@in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """Run the demonstration and print its table."""
    parser = argparse.ArgumentParser(prog="python -m metricconv.experiments.demo", description="Denoise a photograph.")
    parser.add_argument("--output", type=Path, default=Path("outputs/demo"), help="folder to write to (%(default)s)")
    parser.add_argument("--size", type=int, default=256, help="side of the photograph in pixels (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the noise (%(default)s)")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)  # or say at once that it cannot be
    results = run(options.output, options.size, options.seed)
    table = rich.table.Table(title=f"{SAMPLES} × {SAMPLES} samples a pixel, σ = {SIGMA}")
    table.add_column("support")
    table.add_column("PSNR (dB)", justify="right")
    table.add_column("seconds", justify="right")
    best = max(r.psnr for r in results)
    for r in results:
        seconds = f"{r.seconds:.2f}" if r.seconds else ""
        table.add_row(r.method, f"{r.psnr:.2f}", seconds, style="bold" if r.psnr == best else "")
    rich.console.Console().print(table)
    print(f"wrote {options.output / 'comparison.png'} and {options.output / 'psnr.csv'}")


def _picture(noisy: np.ndarray, results: Sequence[Result]) -> Figure:
    """Draw unit balls over the noisy image, large, and beside it two rows of what each filter makes of it, as PNG."""
    columns = (len(results) + 1) // 2
    # In inches: the large panel ends flush with both rows, as it is as high as these and the titles between them.
    side, title, gap = 1.8, 0.46, 0.1
    large = 2 * side + title
    width, height = large + columns * (side + gap), large + title
    figure = Figure(figsize=(width + 2 * gap, height + 2 * gap), dpi=160)
    rows, cols = (slice(*(round(edge * len(noisy)) for edge in part)) for part in _SHOWN)

    def panel(x: float, y: float, side: float, image: np.ndarray, label: str, weight: str = "normal") -> Axes:
        place = (x + gap) / (width + 2 * gap), (y + gap) / (height + 2 * gap)
        axes = figure.add_axes((*place, side / (width + 2 * gap), side / (height + 2 * gap)), xticks=[], yticks=[])
        axes.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set(xlim=(cols.start - 0.5, cols.stop - 0.5), ylim=(rows.stop - 0.5, rows.start - 0.5))
        axes.set_title(label, fontsize=11, fontweight=weight, pad=4)
        return axes

    balls = panel(0, 0, large, noisy, "unit balls of the gradient metric with drift,\nover the noisy image")
    points = np.add(canvas.places(8, noisy[rows, cols].shape), (rows.start, cols.start))
    for ball in unit_balls(GRADIENT_WITH_DRIFT(torch.from_numpy(noisy)[None, None]), points.tolist()):
        draw_ball(balls, ball, COLOURS["tangent"])
    best = max(r.psnr for r in results)
    for n, r in enumerate(results):
        x, y = large + gap + n % columns * (side + gap), (1 - n // columns) * (side + title)
        panel(x, y, side, r.image, f"{r.method}\n{r.psnr:.1f} dB", "bold" if r.psnr == best else "normal")
    return figure


def _row(result: Result, size: int, seed: int) -> dict[str, object]:
    """Return a line of the table, with what is needed to compare it with another run."""
    return {
        "method": result.method,
        "samples": SAMPLES**2 if result.seconds else 1,
        "psnr": f"{result.psnr:.4f}",
        "seconds": f"{result.seconds:.4f}",
        "size": size,
        "sigma": SIGMA,
        "seed": seed,
        "threads": torch.get_num_threads(),
        **versions("scikit-image"),
    }


if __name__ == "__main__":
    main()
