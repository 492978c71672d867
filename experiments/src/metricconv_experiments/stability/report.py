"""README.md and stability.png, from runs.csv, curves.csv and the accuracies in ../classification/runs.csv."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metricconv._files import read_table, writing

from ..classification.networks import SMALL
from ..classification.report import NAMES, label
from ..results import markdown_table, read_rows, write_markdown
from .settings import CURVES, KEY, SUPPORTS, VALUES

Row = dict[str, str]
# By support and multiplier.
Group = tuple[str, float]

# Colors of Okabe and Ito, safe for color blindness.
_COLORS = {
    "tangent": "#D55E00",
    "geodesic": "#CC79A7",
    "geodesic, unlimited": "#000000",
    "deformable": "#0072B2",
    "shifted": "#009E73",
}
_METHODS = {method: support for support, (method, limited) in SUPPORTS.items() if limited}
# The multiplier of the panel of curves, and the columns of the table of first steps.
_SHOWN = 1.0
_SHOWN_VALUES = ("gradient", "radius", "moved", "train_loss")


def write_all(folder: Path) -> list[str]:
    """Write the page and the figure; return the names of the written files, none if there are no runs."""
    rows, curves = read_table(folder / "runs.csv"), read_table(folder / "curves.csv")
    for name, table, columns in (("runs.csv", rows, (*KEY, *VALUES)), ("curves.csv", curves, (*KEY, *CURVES))):
        missing = sorted(set(columns) - set(table[0])) if table else []
        if missing:
            raise ValueError(f"{folder / name} has no column {', '.join(missing)}")
    if not rows:
        return []
    found = accuracies(read_rows(folder.parent / "classification/runs.csv"))
    with writing(folder / "stability.png") as path:
        figure(rows, curves, found).savefig(path)
    write_markdown(folder / "README.md", *_page(rows, found))
    return ["stability.png", "README.md"]


def accuracies(rows: Sequence[Row]) -> dict[Group, list[float]]:
    """Return the test accuracies of the small network, in percent, by support and multiplier."""
    found = defaultdict(list)
    for row in rows:
        setting = tuple(row[name] for name in ("dataset", "network", "weights", "start"))
        plain = row["method"] in _METHODS and label(row) == NAMES[row["method"]]
        if plain and setting == ("cifar10", SMALL, "learnt", "scratch"):
            found[_METHODS[row["method"]], float(row["multiplier"])].append(100 * float(row["top1"]))
    return dict(found)


def figure(rows: Sequence[Row], curves: Sequence[Row], found: dict[Group, list[float]]) -> Any:
    """Draw accuracies by multiplier and by the motion of samples, and the predictors' gradients by step."""
    from matplotlib.figure import Figure

    moved = _means(rows, "moved")
    drawing = Figure(figsize=(13, 4), dpi=150, layout="constrained")
    by_multiplier, by_motion, by_step = drawing.subplots(1, 3)
    for support, color in _COLORS.items():
        groups = sorted(group for group in found if group[0] == support)
        for axes, positions in (
            (by_multiplier, {group: group[1] for group in groups}),
            (by_motion, {group: moved[group] for group in groups if group in moved}),
        ):
            points = [(x, value) for group, x in positions.items() for value in found[group]]
            means = [statistics.mean(found[group]) for group in positions]
            axes.plot(list(positions.values()), means, "-", color=color)
            axes.plot(*zip(*points, strict=True), "o", color=color, markersize=4, alpha=0.7) if points else None
        curve = defaultdict(list)
        for row in curves:
            if row["support"] == support and float(row["multiplier"]) == _SHOWN:
                curve[int(row["step"])].append(float(row["gradient"]))
        by_step.plot(list(curve), [statistics.median(v) for v in curve.values()], color=color, label=support)
        by_step.fill_between(
            list(curve),
            [min(v) for v in curve.values()],
            [max(v) for v in curve.values()],
            color=color,
            alpha=0.15,
            lw=0,
        )
    by_multiplier.set(xscale="log", xlabel="predictor learning rate / base learning rate", ylabel="test accuracy, %")
    by_motion.set(xscale="log", xlabel="pixels that a step moves a sample (root mean square)")
    by_step.set(yscale="log", xlabel="training step", ylabel="largest gradient norm of a predictor")
    by_multiplier.set_title("accuracy by multiplier: means and seeds", fontsize=10)
    by_motion.set_title("the same accuracies by motion of the samples", fontsize=10)
    by_step.set_title(f"gradients at multiplier {_SHOWN:g}: median and range of seeds", fontsize=10)
    by_step.legend(fontsize=8)
    for axes in (by_multiplier, by_motion, by_step):
        axes.grid(alpha=0.3)
    return drawing


def _page(rows: Sequence[Row], found: dict[Group, list[float]]) -> list[str]:
    first = rows[0]
    columns = ("hardware", "metricconv", "torch", "backend")
    about = {name: ", ".join(sorted({row[name] for row in rows} - {""})) for name in columns}
    multipliers = sorted({float(row["multiplier"]) for row in rows})
    return [
        "# How stable is training with learned supports?",
        "Accuracy by the learning rate of the predictors, and why networks with geodesic balls collapsed. This page is "
        "generated from [runs.csv](runs.csv), [curves.csv](curves.csv) and the rows of the same network in "
        "[classification](../classification/runs.csv).",
        "## Accuracy",
        _accuracies(found),
        "![accuracy by multiplier and by motion, and gradients by step](stability.png)",
        "## First steps",
        f"Largest gradient norm of a predictor over {first['steps']} steps and all layers, largest distance of a "
        "sample from its pixel, pixels that a step moves a sample (root mean square, median of the first 20 steps), "
        "and training loss of the last 10 steps: medians over seeds, with the range.",
        _first_steps(rows, multipliers),
        "Before version 0.2, geodesic balls were not limited. Where some balls become large, their geodesics cross "
        "pixels with different metrics in steps of up to ten pixels, and the derivative of a sample by the metric "
        "grows with every pixel on its path. Such a gradient moves the predictor to where its outputs are saturated, "
        "and there its gradient is almost zero. This does not happen in every run of these few steps, as the ranges "
        "show. The limit, 1.5 pixels per integration step, keeps geodesics as short "
        "as the integration can follow. It is a weighted mean of the predicted and the initial metric, so the start is "
        "unchanged. Tangent balls do not have this problem, because a sample depends on one metric only.",
        "A multiplier means different things to different supports: at the start, a unit of a raw parameter changes "
        "the radius of a ball by about a quarter, and a deformable offset by a pixel. The middle panel therefore "
        "repeats the accuracies by the motion of the samples, measured in the first steps.",
        "## Setup",
        f"{first['network']} on {first['train_images']} training images of CIFAR-10, batches of {first['batch']}, SGD "
        f"with Nesterov momentum 0.9. Accuracies: the one-cycle schedule of [classification](../classification/"
        f"README.md). First steps: a constant learning rate of {first['lr']}; seeds "
        f"{', '.join(sorted({row['seed'] for row in rows}, key=int))}. {about['hardware']}; "
        f"metricconv {about['metricconv']}; torch {about['torch']}; backend {about['backend']}.",
        "- First steps: `metricconv reproduce stability --seed 1 --output results/stability`\n"
        "- Accuracies: `metricconv reproduce classify` with the options of "
        "[classification](../classification/README.md)\n"
        "- Only this page and the figure, from the CSVs: `metricconv report`",
    ]


def _accuracies(found: dict[Group, list[float]]) -> str:
    multipliers = sorted({multiplier for _, multiplier in found})
    lines = []
    for support in SUPPORTS:
        cells = [_mean(found.get((support, multiplier), [])) for multiplier in multipliers]
        if any(cells):
            lines.append([support, *cells])
    return markdown_table(["test accuracy, %", *(f"× {multiplier:g}" for multiplier in multipliers)], lines)


def _first_steps(rows: Sequence[Row], multipliers: Sequence[float]) -> str:
    lines = []
    for multiplier in multipliers:
        for support in SUPPORTS:
            some = [row for row in rows if row["support"] == support and float(row["multiplier"]) == multiplier]
            if some:
                cells = [
                    _range([float(row[name]) for row in some]) for name in ("gradient", "radius", "moved", "train_loss")
                ]
                lines.append([f"{support} × {multiplier:g}", *cells, str(len(some))])
    return markdown_table(["", "gradient", "radius, px", "moved, px", "training loss", "seeds"], lines)


def _means(rows: Sequence[Row], name: str) -> dict[Group, float]:
    values = defaultdict(list)
    for row in rows:
        values[row["support"], float(row["multiplier"])].append(float(row[name]))
    return {group: statistics.mean(some) for group, some in values.items()}


def _mean(values: Sequence[float]) -> str:
    if not values:
        return ""
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation} ({len(values)})"


def _range(values: Sequence[float]) -> str:
    extent = f" ({min(values):.3g} to {max(values):.3g})" if len(values) > 1 else ""
    return f"{statistics.median(values):.3g}{extent}"
