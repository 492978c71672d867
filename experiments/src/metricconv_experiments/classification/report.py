"""Tables and the figure of the sweep, from the CSV: median ± standard deviation over seeds."""

import math
import statistics
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from metricconv._files import writing

from ..results import markdown_table, read_rows, text, write_markdown
from . import fixed, published, summary
from .networks import start_label
from .setting import METHODS, PROTOCOL, Setting
from .summary import selected

Row = dict[str, str]

NAMES = {
    "standard": "standard",
    "deformable": "deformable",
    "shifted": "shifted",
    "metric-randers": "metric (Randers)",
    "metric-riemann": "metric (Riemann)",
    "metric-geodesic": "metric (geodesic)",
}
DATASETS = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
# Colors of Okabe and Ito, safe for color blindness.
COLORS = {
    "standard": "#000000",
    "deformable": "#0072B2",
    "shifted": "#009E73",
    "metric-randers": "#D55E00",
    "metric-riemann": "#E69F00",
    "metric-geodesic": "#CC79A7",
}
# Options of a method, named in its row where they differ from the default.
_VARIANT = {
    "init": "{}",
    "zero_gamma": "γ = 0",
    "metric_parameters": "{} parameters",
    "eps_omega": "ε_ω = {}",
    "stencil": "{} stencil",
    "metric_groups": "{} groups",
    "s_min": "s_min = {}",
    "s_max": "s_max = {}",
    "l1": "L1 penalty {}",
    "warmup": "{} epochs of warm-up",
}
_INITS = {"paper": "the paper's initialization", "constant": "constant kernels, predictors at zero"}
_VALUES = {"top1": "top-1", "top5": "top-5"}
_RECIPES = {"paper": "Adam, cosine", "sgd": "SGD (Nesterov), cosine", "onecycle": "SGD (Nesterov), one cycle"}


def write_all(folder: Path) -> list[str]:
    """Write the tables and, if there is a sweep, its figure; return the names of the written files."""
    rows = read_rows(folder / "runs.csv")
    if not rows:
        return []
    _check(folder / "runs.csv", rows)
    parts = ["# Classification", *_summary(rows), _introduction(rows)]
    controlled = _controlled(rows)
    others = [row for row in rows if not any(row in some for some in controlled)]
    for title, datasets in (("Table 3", ("mnist", "fashion-mnist")), ("Table 4", ("cifar10", "cifar100"))):
        parts += _accuracies(title, others, datasets)
    parts += _fixed(controlled) + _ablation(rows) + _multipliers(rows) + _costs(rows)
    written = ["classification.md"]
    if swept(rows):
        with writing(folder / "sweep.png") as path:
            sweep_figure(rows).savefig(path)
        written.append("sweep.png")
    write_markdown(folder / "classification.md", *parts)
    return written


def _summary(rows: Sequence[Row]) -> list[str]:
    """Return the summary over seeds that all methods share, if there are enough methods."""
    table = summary.table(rows, NAMES, DATASETS)
    explained = (
        "Test accuracy after the last epoch: mean ± standard deviation over seeds, and their number: the seeds that "
        "all methods share, if these are several. The multiplier (×) of each method is selected on held-out images by "
        "a seed that is not reported, if others were run. Stages 2 to 4 have replaced convolutions. For fixed kernels, "
        "the column of standard convolutions is a control without geometry: box filters."
    )
    return ["## Summary", explained, table, "## Details"] * bool(table)


def _check(path: Path, rows: Iterable[Row]) -> None:
    for line, row in enumerate(rows, 2):
        try:
            Setting.from_row(row)
        except KeyError as error:
            raise ValueError(f"{path} has no column {error}") from None
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}") from None


def label(row: Row, names: Iterable[str] = _VARIANT) -> str:
    """Return the name of a method with the options that differ from the default."""
    default = Setting(method=row["method"], weights=row["weights"]).key
    if row["metric_parameters"]:  # the defaults of s_min and s_max depend on it
        same = Setting(method=row["method"], metric_parameters=int(row["metric_parameters"])).key
        default |= {"s_min": same["s_min"], "s_max": same["s_max"]}
    changed = [
        _VARIANT[name].format(_INITS.get(row[name], row[name]))
        for name in names
        if row[name] not in (text(default[name]), "")
    ]
    return ", ".join([NAMES[row["method"]], *changed])


def median_and_deviation(values: Sequence[float], digits: int = 2) -> str:
    """Return "median ± standard deviation (count)".

    >>> median_and_deviation([70.1, 70.5, 70.3]), median_and_deviation([70.1])
    ('70.30 ± 0.20 (3)', '70.10 (1)')
    """
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.median(values):.{digits}f}{deviation} ({len(values)})"


def swept(rows: Iterable[Row]) -> list[list[Row]]:
    """Return sweeps of the multiplier: lists of runs that differ only in method, multiplier and seed."""
    sweeps = defaultdict(list)
    for row in rows:
        plain = row["weights"] == "learnt" and row["start"] == "scratch" and row["layers"] in ("", "2-4")
        if plain and label(row) == NAMES[row["method"]]:
            sweeps[_protocol(row)].append(row)
    several = [s for s in sweeps.values() if len({row["multiplier"] for row in s if row["multiplier"]}) > 2]
    return sorted(several, key=len, reverse=True)


def sweep_figure(rows: Iterable[Row]) -> Any:
    """Draw a panel for each sweep: the accuracy of every method as a function of the multiplier."""
    from matplotlib.figure import Figure

    sweeps = swept(rows)
    columns = min(3, len(sweeps))
    lines = math.ceil(len(sweeps) / columns)
    figure = Figure(figsize=(5.2 * columns, 4 * lines), dpi=150, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flat
    for axes in panels[len(sweeps) :]:
        axes.set_axis_off()
    for axes, runs in zip(panels, sweeps, strict=False):
        for method in METHODS:
            some = [row for row in runs if row["method"] == method]
            if not some:
                continue
            color = COLORS[method]
            if method == "standard":
                level = statistics.median(_percent(row) for row in some)
                axes.axhline(level, color=color, linestyle="--", linewidth=1, label=NAMES[method])
                continue
            points = defaultdict(list)
            for row in some:
                points[float(row["multiplier"])].append(_percent(row))
            multipliers = sorted(points)
            if len(multipliers) < 2:
                continue
            medians = [statistics.median(points[multiplier]) for multiplier in multipliers]
            axes.plot(multipliers, medians, "o-", color=color, label=NAMES[method], markersize=5)
            for multiplier in (m for m in multipliers if len(points[m]) > 1):
                values = points[multiplier]
                axes.plot([multiplier] * len(values), values, ".", color=color, markersize=4, alpha=0.6)
        axes.set(xscale="log", xlabel="predictor learning rate / base learning rate", ylabel="test accuracy, %")
        axes.set_xticks(ticks := sorted({float(r["multiplier"]) for r in runs if r["multiplier"]}))
        axes.set_xticklabels([f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_title(textwrap.fill(_describe(runs[0]), 60), fontsize=8)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.supxlabel("lines: medians over seeds; small dots: individual seeds, if there are several", fontsize=8)
    return figure


def _introduction(rows: Sequence[Row]) -> str:
    hardware = ", ".join(sorted({row["hardware"] for row in rows}))
    torch = ", ".join(sorted({row["torch"] for row in rows}))
    dates = sorted(row["date"] for row in rows)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return (
        "Test accuracy after the last epoch in percent: median ± standard deviation over seeds, and their number in "
        "parentheses; in square brackets, the paper's value. Each method is reported at the multiplier (×: predictor "
        "learning rate / base learning rate) that is best on held-out training images, or on test images if none were "
        "held out, for the seeds with the most multipliers. These seeds are not reported if there are others. A metric "
        "has 7 parameters per pixel where kernel weights are learned (LKW) and 6 where they are fixed (FKW), unless "
        "its row states otherwise. The paper trains for 240 epochs; its values are comparable only with rows of the "
        "same schedule.\n\n"
        f"{hardware}; torch {torch}; {when}. Rows are written by `classify` and `classify-sweep`, this page by "
        "`metricconv report`."
    )


def _accuracies(title: str, rows: Sequence[Row], datasets: Sequence[str]) -> list[str]:
    """Return one table of the paper for each protocol."""
    parts = []
    for dataset in datasets:
        of = [row for row in rows if row["dataset"] == dataset and row["layers"] in ("", "2-4")]
        for some in _by_protocol(of):
            parts += [f"## {title}: {_describe(some[0])}", _table(some, "top1")]
            parts += [_table(some, "top5")] * (dataset == "cifar100")
            starts = sorted({row["start"] for row in some} - {"scratch"})
            parts += [f"Pretrained ({start}): {start_label(start, DATASETS[dataset])}." for start in starts]
    return parts


def _table(rows: Sequence[Row], value: str) -> str:
    """Return a table with one column for each kind of weights and start."""
    columns = sorted({_column(row) for row in rows})
    lines = []
    for name, some in _by_name(rows).items():
        cells = [[row for row in some if _column(row) == column] for column in columns]
        lines.append([name, *(_cell(runs, value, _printed(runs[0], value)) if runs else "" for runs in cells)])
    return markdown_table([_VALUES[value], *(heading for *_, heading in columns)], lines)


def _controlled(rows: Iterable[Row]) -> list[list[Row]]:
    """Return runs of fixed kernels by protocol, where these include a control without geometry."""
    groups = _by_protocol([row for row in rows if row["weights"] == "fixed"], "start", "layers")
    return [some for some in groups if any(row["method"] == "standard" for row in some)]


def _fixed(controlled: Iterable[Sequence[Row]]) -> list[str]:
    """Return tables of fixed kernels with a control."""
    parts = []
    for some in controlled:
        runs: dict[str, dict[str, list[Row]]] = {}
        for name, same in _by_name(some, lambda row: label(row, [n for n in _VARIANT if n != "zero_gamma"])).items():
            gammas = sorted({row["zero_gamma"] for row in same})
            groups = {gamma: [row for row in same if row["zero_gamma"] == gamma] for gamma in gammas}
            title = fixed.CONTROL if same[0]["method"] == "standard" else name
            runs[title] = {gamma: selected(group) for gamma, group in groups.items()}
        start = start_label(some[0]["start"], DATASETS[some[0]["dataset"]])
        parts += [
            f"## Fixed kernels: {_describe(some[0])}, {start}, stages {some[0]['layers']}",
            "Mean ± standard deviation over seeds, and their number. γ is that of the last batch normalization of each "
            "residual block, at the start. Differences are of runs with the same seed. Multipliers (×) are selected on "
            "held-out images with a seed that is not reported, if there are several.",
            fixed.table(runs),
        ]
    return parts


def _ablation(rows: Sequence[Row]) -> list[str]:
    parts = []
    of = [
        row
        for row in rows
        if row["dataset"] == "cifar100" and row["layers"] in ("", "4") and row["weights"] == "learnt"
    ]
    for some in _by_protocol(of, "start"):
        if not any(row["layers"] == "4" for row in some):
            continue
        lines = []
        for name, runs in _by_name(some).items():
            paper = published.ABLATION.get((runs[0]["network"], runs[0]["method"])) if _as_published(runs[0]) else None
            pairs = zip(_VALUES, paper or (None, None), strict=True)
            lines.append([name, *(_cell(runs, value, number) for value, number in pairs)])
        start = some[0]["start"]
        parts.append(f"## Only layer 4 replaced: {_describe(some[0])}, {start_label(start, 'CIFAR-100')}")
        parts.append(markdown_table(["", *_VALUES.values()], lines))
        parts += ["The networks of the paper were pretrained."] * (start == "scratch")
    return parts


def _multipliers(rows: Sequence[Row]) -> list[str]:
    parts = []
    for runs in swept(rows):
        multipliers = sorted({float(row["multiplier"]) for row in runs if row["multiplier"]}, reverse=True)
        lines = []
        for name, some in _by_name(runs).items():
            if some[0]["method"] == "standard":
                continue
            found = [[_percent(row) for row in some if float(row["multiplier"]) == m] for m in multipliers]
            lines.append([name, *(median_and_deviation(values) if values else "" for values in found)])
        title = f"## Predictor learning rate: {_describe(runs[0])}"
        parts += [title, markdown_table(["top-1", *(f"× {multiplier:g}" for multiplier in multipliers)], lines)]
    return parts + ["![accuracy as a function of the predictor learning rate](sweep.png)"] * bool(parts)


def _costs(rows: Sequence[Row]) -> list[str]:
    """Return epoch times, memory and size, with the ratio to the standard network of the same protocol, start,
    hardware and way to launch steps."""
    parts = []
    for dataset in DATASETS:
        of = [row for row in rows if row["dataset"] == dataset and (row["epoch_seconds"] or row["peak_mb"])]
        for some in _by_protocol(of, "start", "hardware", "processes", "launched"):
            base = _median([row for row in some if row["method"] == "standard"], "epoch_seconds")
            lines = []
            for name, runs in _by_name(some, _label_of_cost).items():
                seconds, peak = _median(runs, "epoch_seconds"), _median(runs, "peak_mb")
                ratio = None if seconds is None or base is None else seconds / base
                size = int(runs[0]["parameters"]) / 1e6
                lines.append([name, *(_number(*one) for one in ((size, 2), (seconds, 2), (ratio, 2), (peak, 0)))])
            hardware = f"{some[0]['processes']} × {some[0]['hardware']}".removeprefix("1 × ")
            start = start_label(some[0]["start"], DATASETS[dataset])
            launched = f", launched {some[0]['launched']}" if some[0]["launched"] else ""
            parts += [
                f"## Cost: {hardware}, {_describe(some[0])}, {start}{launched}",
                markdown_table(["", "parameters, M", "s per epoch", "× standard", "peak, MiB"], lines),
            ]
    return parts


def _median(rows: Sequence[Row], column: str) -> float | None:
    values = [float(row[column]) for row in rows if row[column]]
    return statistics.median(values) if values else None


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _cell(runs: Sequence[Row], value: str, paper: published.Number | None) -> str:
    printed = ""
    if paper is not None:
        printed = f" [{paper[0]:.2f}{'' if paper[1] is None else f' ± {paper[1]:.2f}'}]"
    best = selected(runs)
    multiplier = best[0]["multiplier"]
    return (
        median_and_deviation([100 * float(row[value]) for row in best])
        + (f" ×{multiplier}" if multiplier else "")
        + printed
    )


def _by_protocol(rows: Iterable[Row], *more: str) -> list[list[Row]]:
    """Group runs that are comparable, the longest schedules first."""
    groups = defaultdict(list)
    for row in rows:
        groups[(*_protocol(row), *(row[name] for name in more))].append(row)
    return sorted(groups.values(), key=lambda some: (-int(some[0]["epochs"]), -len(some)))


def _by_name(rows: Iterable[Row], name: Callable[[Row], str] = label) -> dict[str, list[Row]]:
    """Group runs by method and options, in the order of the methods, default options first."""
    groups = defaultdict(list)
    for row in rows:
        groups[name(row)].append(row)
    return dict(sorted(groups.items(), key=lambda item: (METHODS.index(item[1][0]["method"]), len(item[0]), item[0])))


def _label_of_cost(row: Row) -> str:
    return label(row) + ", fixed weights" * (row["weights"] == "fixed") + ", only layer 4" * (row["layers"] == "4")


def _protocol(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in PROTOCOL)


def _describe(row: Row) -> str:
    """Return a description of a protocol."""
    parts = {
        "dataset": DATASETS[row["dataset"]],
        "network": row["network"],
        "recipe": _RECIPES[row["recipe"]],
        "epochs": f"{row['epochs']} epoch{'s' * (row['epochs'] != '1')}",
        "batch": f"batch {row['batch']}",
        "lr": f"rate {row['lr']}",
        "weight_decay": f"weight decay {row['weight_decay']}",
        "augmentation": row["augmentation"].replace("none", "no augmentation"),
        "train_images": f"{row['train_images']} training images" * bool(row["train_images"]),
        "holdout": f"{row['holdout']} held out" * (row["holdout"] != "0"),
        "precision": row["precision"],
    }
    return ", ".join(filter(None, (parts.get(name, f"{name} {row[name]}") for name in PROTOCOL)))


def _printed(row: Row, value: str) -> published.Number | None:
    """Return the paper's number for a run; Tables 3 and 4 are of ResNet-18."""
    if row["network"] != "resnet18" or not _as_published(row):
        return None
    start = "scratch" if row["start"] == "scratch" else "transfer"
    numbers = published.TOP1 if value == "top1" else published.TOP5
    return numbers.get(published.Cell(row["dataset"], row["method"], row["weights"], start))


def _as_published(row: Row) -> bool:
    """Return whether the paper has this form of a method; start, L1 penalty and warm-up may differ."""
    changed = ("zero_gamma", "metric_parameters", "eps_omega", "stencil", "metric_groups", "s_min", "s_max")
    return row["init"] != "constant" and label(row, changed) == NAMES[row["method"]]


def _column(row: Row) -> tuple[str, bool, str]:
    """Return a sort key whose last item is the heading of a run's column."""
    pretrained = row["start"] != "scratch"
    kind = {"fixed": "FKW", "learnt": "LKW"}[row["weights"]]
    return kind, pretrained, f"{kind}, pretrained ({row['start']})" if pretrained else f"{kind}, from scratch"


def _score(row: Row) -> float:
    return float(row["held_top1"] or row["top1"])


def _percent(row: Row) -> float:
    return 100 * float(row["top1"])
