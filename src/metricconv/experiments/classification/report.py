"""The paper's tables and the sweep's figure, from the CSV alone: median ± standard deviation over seeds."""

import statistics
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..._files import read_table, writing
from ..results import markdown_table, write_markdown
from . import published
from .networks import start_label
from .setting import METHODS, Setting

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
# Of Okabe and Ito's colours, which those who see fewer colours can tell apart too.
COLOURS = {
    "standard": "#000000",
    "deformable": "#0072B2",
    "shifted": "#009E73",
    "metric-randers": "#D55E00",
    "metric-riemann": "#E69F00",
    "metric-geodesic": "#CC79A7",
}
# What makes runs comparable: the same for all methods of a table. Augmentation goes with the dataset.
_PROTOCOL = ("recipe", "epochs", "batch", "lr", "weight_decay", "train_images", "holdout", "precision")
# What a method may vary; named in its row where it is not the usual.
_VARIANT = ("init", "head", "eps_omega", "stencil", "metric_groups", "s_min", "s_max", "l1", "warmup")
_RECIPES = {"paper": "Adam, cosine", "sgd": "SGD (Nesterov), cosine", "onecycle": "SGD (Nesterov), one cycle"}
_COLUMNS = {
    "FKW, from scratch": ("fixed", "scratch"),
    "FKW, pretrained": ("fixed", "transfer"),
    "LKW, from scratch": ("learnt", "scratch"),
    "LKW, pretrained": ("learnt", "transfer"),
}


def write_all(folder: Path) -> list[str]:
    """Render the tables, and the sweep's figure where there is a sweep; return the names of what was written."""
    rows = read_table(folder / "runs.csv")
    if not rows:
        return []
    parts = ["# Classification", _introduction(rows)]
    for title, datasets in (("Table 3", ("mnist", "fashion-mnist")), ("Table 4", ("cifar10", "cifar100"))):
        parts += _accuracies(title, rows, datasets)
    parts += _ablation(rows) + _multipliers(rows) + _costs(rows)
    written = ["classification.md"]
    if swept(rows):
        with writing(folder / "sweep.png") as path:
            sweep_figure(rows).savefig(path)
        written.append("sweep.png")
    write_markdown(folder / "classification.md", *parts)
    return written


def label(row: Mapping[str, str], names: Sequence[str] = _VARIANT) -> str:
    """Return a method's name with what is not usual about it."""
    setting = Setting.from_row(row)
    usual = Setting(method=setting.method, weights=setting.weights).key
    odd = [_phrase(name, setting.key[name]) for name in names if setting.key[name] not in (usual[name], None)]
    return ", ".join([NAMES[setting.method], *filter(None, odd)])


def best_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the runs, one a seed, with the multiplier of the heads' rate that is best on held-out images.

    Without images held out the test images decide. Where some multipliers were run more than once, one of these is
    taken.
    """
    by_multiplier = defaultdict(list)
    for row in rows:
        by_multiplier[row["head_multiplier"]].append(row)
    enough = min(max(map(len, by_multiplier.values())), 2)
    several = [some for some in by_multiplier.values() if len(some) >= enough]
    return max(several, key=lambda some: statistics.mean(_score(row) for row in some))


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the median of some numbers, their standard deviation and how many there are.

    >>> spread([70.1, 70.5, 70.3]), spread([70.1])
    ('70.30 ± 0.20 (3)', '70.10 (1)')
    """
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.median(values):.{digits}f}{deviation} ({len(values)})"


def swept(rows: Iterable[Row]) -> list[list[Row]]:
    """Return the sweeps of the heads' rate: for each, the runs that differ in method, multiplier and seed alone."""
    sweeps = defaultdict(list)
    for row in rows:
        plain = row["weights"] == "learnt" and row["start"] == "scratch" and row["layers"] in ("", "2-4")
        if plain and label(row) == NAMES[row["method"]]:
            sweeps[(row["dataset"], row["network"], *_protocol(row))].append(row)
    several = [s for s in sweeps.values() if len({row["head_multiplier"] for row in s if row["head_multiplier"]}) > 2]
    return sorted(several, key=len, reverse=True)


def sweep_figure(rows: Iterable[Row]) -> Any:
    """Draw, for each sweep, the accuracy of every method by the multiplier of its heads' rate."""
    from matplotlib.figure import Figure

    sweeps = swept(rows)
    figure = Figure(figsize=(5.2 * len(sweeps), 4), dpi=150, layout="constrained")
    for axes, runs in zip(figure.subplots(1, len(sweeps), squeeze=False)[0], sweeps, strict=True):
        for method in METHODS:
            some = [row for row in runs if row["method"] == method]
            if not some:
                continue
            colour = COLOURS[method]
            if method == "standard":
                level = statistics.median(_percent(row) for row in some)
                axes.axhline(level, color=colour, linestyle="--", linewidth=1, label=NAMES[method])
                continue
            points = defaultdict(list)
            for row in some:
                points[float(row["head_multiplier"])].append(_percent(row))
            places = sorted(points)
            if len(places) < 2:
                continue
            medians = [statistics.median(points[place]) for place in places]
            axes.plot(places, medians, "o-", color=colour, label=NAMES[method], markersize=4)
            for place in places:
                axes.plot([place] * len(points[place]), points[place], ".", color=colour, alpha=0.5)
        axes.set(xscale="log", xlabel="heads' learning rate, times that of the weights", ylabel="test accuracy, %")
        axes.set_xticks(ticks := sorted({float(r["head_multiplier"]) for r in runs if r["head_multiplier"]}))
        axes.set_xticklabels([f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_title(textwrap.fill(f"{DATASETS[runs[0]['dataset']]}, {_describe(runs[0])}", 60), fontsize=8)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return figure


def _introduction(rows: Sequence[Row]) -> str:
    hardware = ", ".join(sorted({row["hardware"] for row in rows}))
    torch = ", ".join(sorted({row["torch"] for row in rows}))
    dates = sorted(row["date"] for row in rows)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return (
        "Test accuracy after the last epoch, in per cent: median ± standard deviation over seeds, with their number; "
        "in square brackets, what the paper prints. Every method stands at the multiplier of its heads' learning rate "
        "(×) that is best on held-out training images, or on test images where none were held out. The paper trains "
        "240 epochs; compare its numbers with ours only where the schedule is the same. "
        f"{hardware}; torch {torch}; {when}. `classify` and `classify-sweep` write the rows, `metricconv "
        "report` this page."
    )


def _accuracies(title: str, rows: Sequence[Row], datasets: Sequence[str]) -> list[str]:
    """Return one of the paper's tables, once for each protocol."""
    parts = []
    for dataset in datasets:
        of = [row for row in rows if row["dataset"] == dataset and row["layers"] in ("", "2-4")]
        for some in _by_protocol(of):
            parts += [f"## {title}: {DATASETS[dataset]}, {_describe(some[0])}"]
            parts += [_table(some, dataset, "top1")] + (
                [_table(some, dataset, "top5")] if dataset == "cifar100" else []
            )
            starts = sorted({row["start"] for row in some} - {"scratch"})
            parts += [f"Pretrained: {'; '.join(start_label(start, DATASETS[dataset]) for start in starts)}."] * bool(
                starts
            )
    return parts


def _table(rows: Sequence[Row], dataset: str, value: str) -> str:
    numbers = published.TOP1 if value == "top1" else published.TOP5
    columns = [name for name, column in _COLUMNS.items() if any(_column(row) == column for row in rows)]
    lines = []
    for name, some in _by_label(rows).items():
        cells = []
        for column in columns:
            weights, start = _COLUMNS[column]
            runs = [row for row in some if _column(row) == (weights, start)]
            paper = numbers.get(published.Cell(dataset, some[0]["method"], weights, start))
            cells.append(_cell(runs, value, paper if runs and _as_published(runs[0]) else None))
        lines.append([name, *cells])
    return markdown_table([f"{'top-1' if value == 'top1' else 'top-5'}, {rows[0]['network']}", *columns], lines)


def _ablation(rows: Sequence[Row]) -> list[str]:
    parts = []
    of = [
        row
        for row in rows
        if row["dataset"] == "cifar100" and row["layers"] in ("", "4") and row["weights"] == "learnt"
    ]
    for some in _by_protocol(of):
        if not any(row["layers"] == "4" for row in some):
            continue
        networks = [name for name in published.ABLATION_NETWORKS if any(row["network"] == name for row in some)]
        for start in sorted({row["start"] for row in some if row["layers"] == "4"}):
            parts.append(f"## Layer 4 alone: CIFAR-100, {start_label(start, 'CIFAR-100')}, {_describe(some[0])}")
            lines = []
            for name, runs in _by_label([row for row in some if row["start"] == start]).items():
                cells = []
                for n, value in enumerate(("top1", "top5")):
                    for network in networks:
                        paper = published.ABLATION.get((network, runs[0]["method"]))
                        here = [row for row in runs if row["network"] == network]
                        shown = bool(here) and _as_published(here[0])
                        cells.append(_cell(here, value, paper[n] if paper and shown else None))
                lines.append([name, *cells])
            header = [f"top-{k}, {network}" for k in (1, 5) for network in networks]
            parts.append(markdown_table(["", *header], lines))
            parts += ["The paper's networks were pretrained."] * (start == "scratch")
    return parts


def _multipliers(rows: Sequence[Row]) -> list[str]:
    parts = []
    for runs in swept(rows):
        places = sorted({float(row["head_multiplier"]) for row in runs if row["head_multiplier"]}, reverse=True)
        lines = []
        for name, some in _by_label(runs).items():
            if some[0]["method"] == "standard":
                continue
            found = [[_percent(row) for row in some if float(row["head_multiplier"]) == place] for place in places]
            lines.append([name, *(spread(values) if values else "" for values in found)])
        title = f"## The heads' learning rate: {DATASETS[runs[0]['dataset']]}, {_describe(runs[0])}"
        parts += [title, markdown_table(["top-1", *(f"× {place:g}" for place in places)], lines)]
    return parts + ["![accuracy by the heads' learning rate](sweep.png)"] * bool(parts)


def _costs(rows: Sequence[Row]) -> list[str]:
    """Return epoch times, memory and size, beside the standard network's of the same protocol and hardware."""
    parts = []
    for dataset in DATASETS:
        of = [row for row in rows if row["dataset"] == dataset and row["epoch_seconds"]]
        for some in _by_protocol(of, "network", "hardware", "processes"):
            base = [float(row["epoch_seconds"]) for row in some if row["method"] == "standard"]
            lines = []
            for name, runs in _by_size(some).items():
                seconds = statistics.median(float(row["epoch_seconds"]) for row in runs)
                peaks = [float(row["peak_mb"]) for row in runs if row["peak_mb"]]
                ratio = f"{seconds / statistics.median(base):.2f}" if base else ""
                peak = f"{statistics.median(peaks):.0f}" if peaks else ""
                lines.append([name, f"{int(runs[0]['parameters']) / 1e6:.2f}", f"{seconds:.2f}", ratio, peak])
            parts += [
                f"## Cost: {DATASETS[dataset]}, {some[0]['network']}, {some[0]['hardware']}, {_describe(some[0])}",
                markdown_table(["", "parameters, M", "s an epoch", "× standard", "peak, MiB"], lines),
            ]
    return parts


def _cell(runs: Sequence[Row], value: str, paper: published.Number | None) -> str:
    printed = ""
    if paper is not None:
        printed = f" [{paper[0]:.2f}{'' if paper[1] is None else f' ± {paper[1]:.2f}'}]"
    if not runs:
        return ""
    chosen = best_rows(runs)
    multiplier = chosen[0]["head_multiplier"]
    return spread([100 * float(row[value]) for row in chosen]) + (f" ×{multiplier}" if multiplier else "") + printed


def _by_protocol(rows: Iterable[Row], *more: str) -> list[list[Row]]:
    """Group runs by what makes them comparable, the longest schedules first."""
    groups = defaultdict(list)
    for row in rows:
        groups[(*_protocol(row), *(row[name] for name in more))].append(row)
    return sorted(groups.values(), key=lambda some: (-int(some[0]["epochs"]), -len(some)))


def _by_label(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Group runs by method and what is not usual about it, in the order of the methods, plain forms first."""
    groups = defaultdict(list)
    for row in rows:
        groups[label(row)].append(row)
    return _ordered(groups)


def _by_size(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Group runs by method and what changes its cost."""
    groups = defaultdict(list)
    for row in rows:
        fixed, only = row["weights"] == "fixed", row["layers"] == "4"
        name = label(row, ("head", "stencil", "metric_groups"))
        groups[name + ", fixed weights" * fixed + ", layer 4 alone" * only].append(row)
    return _ordered(groups)


def _ordered(groups: Mapping[str, list[Row]]) -> dict[str, list[Row]]:
    return dict(sorted(groups.items(), key=lambda item: (METHODS.index(item[1][0]["method"]), len(item[0]), item[0])))


def _protocol(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in _PROTOCOL)


def _describe(row: Row) -> str:
    """Return a protocol in words."""
    words = [
        _RECIPES[row["recipe"]],
        f"{row['epochs']} epoch{'s' * (row['epochs'] != '1')}",
        f"batch {row['batch']}",
        f"rate {row['lr']}",
    ]
    words += [f"{row['train_images']} training images"] * bool(row["train_images"])
    words += [f"{row['holdout']} held out"] * (row["holdout"] != "0")
    return ", ".join([*words, row["precision"]])


def _phrase(name: str, value: Any) -> str:
    if name == "init":
        return "the paper's init"
    if name == "eps_omega":
        return f"ε_ω = {value:g}"
    if name == "s_max":  # said with s_min
        return ""
    phrases = {"head": "{} numbers", "stencil": "{} stencil", "metric_groups": "{} groups", "s_min": "scales from {}"}
    return (phrases | {"l1": "L1 × {:g}", "warmup": "{} epochs of warm-up"})[name].format(value)


def _as_published(row: Row) -> bool:
    """Say whether the paper has this form of a method; its start, L1 term and warm-up may differ."""
    return label(row, ("head", "eps_omega", "stencil", "metric_groups", "s_min")) == NAMES[row["method"]]


def _column(row: Row) -> tuple[str, str]:
    return row["weights"], "scratch" if row["start"] == "scratch" else "transfer"


def _score(row: Row) -> float:
    return float(row["held_top1"] or row["top1"])


def _percent(row: Row) -> float:
    return 100 * float(row["top1"])
