"""Figures of the denoising experiments."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import skimage
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .rows import LABELS, Row, decibels, distinct_values, grouped, method_name
from .tables import HEURISTIC_FILTER, IMAGE_KEY, name_of

# Colors of Okabe and Ito, safe for color blindness.
COLORS = {"deformable": "#0072B2", "utb 0.9": "#E69F00", "utb 0.1": "#D55E00"}
_MARKERS = {"standard": "x", "two plain layers": "+", "deformable deep": "D", "utb deep": "D", "ugb deep": "s"}
_SHOWN_KS = ("5", "11", "31")
_EPS_OMEGA = r"$\varepsilon_\omega$"
_FULL_NAMES = {
    "utb": "tangent balls",
    "utb deep": "tangent balls, deep predictor",
    "ugb": "geodesic balls",
    "ugb deep": "geodesic balls, deep predictor",
    "deformable deep": "deformable, deep predictor",
}


def draw_heuristic(images: Path, rows: Sequence[Row], title: str) -> Figure | None:
    """Draw the noisy and the filtered images, with smoothed gradients only if tuned; None if there are no images."""
    paths = {id(row): images / f"{name_of(row, HEURISTIC_FILTER)}.png" for row in rows}
    shown = [row for row in rows if row["gradient"] != "smoothed" or "tuned" in row["method"]]
    shown = [row for row in shown if paths[id(row)].exists()]
    if not shown:
        return None
    best = max(shown, key=lambda row: float(row["psnr"]))
    columns = 7
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(1.9 * columns, 2.25 * lines), dpi=110, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flatten().tolist()
    for axes in panels:
        axes.axis("off")
    for axes, row in zip(panels, shown, strict=False):
        label = f"{row['method'].replace(' of the edge metric', ', edge metric')}\n{decibels(row['psnr'])} dB"
        _show(axes, paths[id(row)], label, bold=row is best)
    figure.suptitle(title, fontsize=11)
    return figure


def draw_curves(curves: Sequence[Row]) -> Figure:
    """Draw the MSE by iteration: a row for each σ, a column for each k; dashed for the training noise."""
    sigmas, styles = [s for (s,) in distinct_values(curves, "sigma")], {"train_mse": "--", "test_mse": "-"}
    ks = sorted({int(row["k"]) for row in curves})
    figure = Figure(figsize=(max(2.3 * len(ks) + 0.8, 7.5), 1.9 * len(sigmas) + 0.7), dpi=150, layout="constrained")
    panels = figure.subplots(len(sigmas), len(ks), squeeze=False, sharex=True, sharey="row")
    for line, sigma in zip(panels, sigmas, strict=True):
        for axes, k in zip(line, ks, strict=True):
            for method, color in COLORS.items():
                points = [r for r in curves if (r["sigma"], int(r["k"]), method_name(r)) == (sigma, k, method)]
                for (_, run), (name, style) in itertools.product(grouped(points, *IMAGE_KEY), styles.items()):
                    values = [float(r[name]) for r in run]
                    axes.plot([float(r["iteration"]) for r in run], values, style, color=color, linewidth=1.3)
            axes.set(yscale="log")
            axes.grid(alpha=0.3, linewidth=0.5)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(which="both", labelsize=8)
        line[0].set_ylabel(f"σ = {sigma}\nMSE", fontsize=9)
    for axes, k in zip(panels[0], ks, strict=True):
        axes.set_title(f"k = {k}", fontsize=10)
    for axes in panels[-1]:
        axes.set_xlabel("iteration", fontsize=9)
    names = {name: label.replace("ε_ω", _EPS_OMEGA) for name, label in LABELS.items()}
    handles = [Line2D([], [], color=color, label=names[name]) for name, color in COLORS.items()]
    handles += [
        Line2D([], [], linestyle="-", color="#666666", label="test noise"),
        Line2D([], [], linestyle="--", color="#666666", label="training noise"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def draw_filtered(rows: Sequence[Row], work: Path) -> Figure | None:
    """Draw the filtered images with test noise: a row for each σ, a column for each method and k."""
    folders = {id(row): work / name_of(row, IMAGE_KEY) for row in rows}
    available = [
        row
        for row in rows
        if row["rate"] == "paper" and row["k"] in _SHOWN_KS and (folders[id(row)] / "test.png").exists()
    ]
    if not available:
        return None
    sigmas = sorted({row["sigma"] for row in available}, key=float)
    columns = [(method, k) for method in COLORS for k in _SHOWN_KS if any(row["k"] == k for row in available)]
    figure = Figure(figsize=(1.8 * len(columns), 2.1 * len(sigmas)), dpi=130, layout="constrained")
    for line, sigma in zip(figure.subplots(len(sigmas), len(columns), squeeze=False), sigmas, strict=True):
        for axes, (method, k) in zip(line, columns, strict=True):
            axes.axis("off")
            row = next((r for r in available if (r["sigma"], method_name(r), r["k"]) == (sigma, method, k)), None)
            if row is not None:
                label = f"{LABELS[method]}\nσ = {sigma}, k = {k}: {float(row['test_psnr']):.2f} dB"
                _show(axes, folders[id(row)] / "test.png", label)
    return figure


def draw_dataset(rows: Sequence[Row]) -> Figure:
    """Draw the test PSNR by the number of parameters, a panel for each σ.

    Markers of our recipe are large, those of the paper's small, with white faces for fixed weights. Rows with rates of
    the range test are omitted, because they would cover others.
    """
    rows = [row for row in rows if row["rate"] != "range"] or rows
    sigmas = sorted({row["sigma"] for row in rows}, key=float)
    figure = Figure(figsize=(max(4.0 * len(sigmas), 8.0), 4.6), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(sigmas), squeeze=False)[0]
    for axes, sigma in zip(panels, sigmas, strict=True):
        for (recipe, method, weights), group in grouped(rows, "recipe", "method", "weights"):
            points = [row for row in group if row["sigma"] == sigma]
            color, ours = _color(method), recipe == "ours"
            behind, crossed = method == "ugb deep", _MARKERS.get(method) in ("x", "+")
            axes.plot(
                [float(r["parameters"]) for r in points],
                [float(r["test_psnr"]) for r in points],
                _MARKERS.get(method, "o"),
                color=color,
                markerfacecolor="white" if weights == "fixed" else color,
                markersize=4.5 + 3.5 * ours + 3.5 * behind,  # both stay visible where two kinds of balls coincide
                markeredgewidth=1.8 if crossed else 1,
                zorder=3 if crossed else 2 - behind,
                label=f"{_FULL_NAMES.get(method, method)}, "
                + ("our recipe" if ours else f"the paper’s recipe, {weights} weights"),
            )
        axes.set(xscale="log", xlabel="trainable parameters", title=f"σ = {sigma}")
        axes.margins(x=0.1, y=0.1)
        axes.grid(alpha=0.3, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("test PSNR, dB")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    published = [row for row in rows if row["recipe"] == "paper"]
    ks = ", ".join(sorted({row["k"] for row in published}, key=int))
    eps = " and ".join(sorted({row["eps_omega"] for row in published if row["eps_omega"]}, key=float))
    about = f"; by the paper's recipe, k = {ks} from left to right" * bool(ks) + f", {_EPS_OMEGA} = {eps}" * bool(eps)
    figure.suptitle(f"One layer, trained on a dataset{about}", fontsize=11)
    return figure


def _color(method: str) -> str:
    kind = method.split()[0]
    return {"deformable": "#0072B2", "utb": "#D55E00", "ugb": "#CC79A7"}.get(kind, "#000000")


def _show(axes: Axes, path: Path, label: str, *, bold: bool = False) -> None:
    axes.imshow(skimage.io.imread(path), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_title(label.replace("ε_ω", _EPS_OMEGA), fontsize=8.5, fontweight="bold" if bold else "normal", pad=3)
