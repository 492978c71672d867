"""The paper's tables and the sweep's figure, from the CSV alone: median ± standard deviation over seeds."""

import statistics
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ..._files import read_table, writing
from ..results import markdown_table, text, write_markdown
from . import published
from .networks import start_label
from .setting import METHODS, PROTOCOL, Setting

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
# What a method may vary; named in its row where it is not the usual.
_VARIANT = {
    "init": "the {}'s init",
    "head": "{} numbers",
    "eps_omega": "ε_ω = {}",
    "stencil": "{} stencil",
    "metric_groups": "{} groups",
    "s_min": "scales from {}",
    "s_max": "scales up to {}",
    "l1": "L1 × {}",
    "warmup": "{} epochs of warm-up",
}
_VALUES = {"top1": "top-1", "top5": "top-5"}
_RECIPES = {"paper": "Adam, cosine", "sgd": "SGD (Nesterov), cosine", "onecycle": "SGD (Nesterov), one cycle"}


def write_all(folder: Path) -> list[str]:
    """Render the tables, and the sweep's figure where there is a sweep; return the names of what was written."""
    rows = read_table(folder / "runs.csv")
    if not rows:
        return []
    _check(folder / "runs.csv", rows)
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


def _check(path: Path, rows: Iterable[Row]) -> None:
    for line, row in enumerate(rows, 2):
        try:
            Setting.from_row(row)
        except KeyError as error:
            raise ValueError(f"{path} lacks the column {error}") from None
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}") from None


def label(row: Row, names: Iterable[str] = _VARIANT) -> str:
    """Return a method's name with what is not usual about it."""
    usual = Setting(method=row["method"], weights=row["weights"]).key
    odd = [_VARIANT[name].format(row[name]) for name in names if row[name] not in (text(usual[name]), "")]
    return ", ".join([NAMES[row["method"]], *odd])


def best_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the runs, one a seed, with the multiplier of the heads' rate that is best on held-out images.

    Without images held out the test images decide. Where some multipliers were run more than once, only these are
    compared.
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
            sweeps[_protocol(row)].append(row)
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
            axes.plot(places, medians, "o-", color=colour, label=NAMES[method], markersize=5)
            for place in (place for place in places if len(points[place]) > 1):
                axes.plot([place] * len(points[place]), points[place], ".", color=colour, markersize=4, alpha=0.6)
        axes.set(xscale="log", xlabel="heads' learning rate, times that of the weights", ylabel="test accuracy, %")
        axes.set_xticks(ticks := sorted({float(r["head_multiplier"]) for r in runs if r["head_multiplier"]}))
        axes.set_xticklabels([f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_title(textwrap.fill(_describe(runs[0]), 60), fontsize=8)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.supxlabel("lines: medians over seeds; small dots: single seeds, where there are several", fontsize=8)
    return figure


def _introduction(rows: Sequence[Row]) -> str:
    hardware = ", ".join(sorted({row["hardware"] for row in rows}))
    torch = ", ".join(sorted({row["torch"] for row in rows}))
    dates = sorted(row["date"] for row in rows)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return (
        "Test accuracy after the last epoch, in per cent: median ± standard deviation over seeds, with their number; "
        "in square brackets, what the paper prints. Every method stands at the multiplier of its heads' learning rate "
        "(×) whose mean is best on held-out training images, or on test images where none were held out; where some "
        "multipliers were run with several seeds, those run with one are left aside. A metric is made of 7 numbers "
        "where weights are learnt (LKW), of 6 where they are fixed (FKW), unless its row says otherwise. The paper "
        "trains 240 epochs; compare its numbers with ours only where the schedule is the same. "
        f"{hardware}; torch {torch}; {when}. `classify` and `classify-sweep` write the rows, `metricconv "
        "report` this page."
    )


def _accuracies(title: str, rows: Sequence[Row], datasets: Sequence[str]) -> list[str]:
    """Return one of the paper's tables, once for each protocol."""
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
    """Return a table with a column for each kind of weights and each start."""
    columns = sorted({_column(row) for row in rows})
    lines = []
    for name, some in _by_name(rows).items():
        cells = [[row for row in some if _column(row) == column] for column in columns]
        lines.append([name, *(_cell(runs, value, _printed(runs[0], value)) if runs else "" for runs in cells)])
    return markdown_table([_VALUES[value], *(heading for *_, heading in columns)], lines)


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
        parts.append(f"## Layer 4 alone: {_describe(some[0])}, {start_label(start, 'CIFAR-100')}")
        parts.append(markdown_table(["", *_VALUES.values()], lines))
        parts += ["The paper's networks were pretrained."] * (start == "scratch")
    return parts


def _multipliers(rows: Sequence[Row]) -> list[str]:
    parts = []
    for runs in swept(rows):
        places = sorted({float(row["head_multiplier"]) for row in runs if row["head_multiplier"]}, reverse=True)
        lines = []
        for name, some in _by_name(runs).items():
            if some[0]["method"] == "standard":
                continue
            found = [[_percent(row) for row in some if float(row["head_multiplier"]) == place] for place in places]
            lines.append([name, *(spread(values) if values else "" for values in found)])
        title = f"## The heads' learning rate: {_describe(runs[0])}"
        parts += [title, markdown_table(["top-1", *(f"× {place:g}" for place in places)], lines)]
    return parts + ["![accuracy by the heads' learning rate](sweep.png)"] * bool(parts)


def _costs(rows: Sequence[Row]) -> list[str]:
    """Return epoch times, memory and size, beside the standard network's of the same protocol, start and hardware,
    whose steps were launched the same way."""
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
                markdown_table(["", "parameters, M", "s an epoch", "× standard", "peak, MiB"], lines),
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
    chosen = best_rows(runs)
    multiplier = chosen[0]["head_multiplier"]
    return spread([100 * float(row[value]) for row in chosen]) + (f" ×{multiplier}" if multiplier else "") + printed


def _by_protocol(rows: Iterable[Row], *more: str) -> list[list[Row]]:
    """Group runs by what makes them comparable, the longest schedules first."""
    groups = defaultdict(list)
    for row in rows:
        groups[(*_protocol(row), *(row[name] for name in more))].append(row)
    return sorted(groups.values(), key=lambda some: (-int(some[0]["epochs"]), -len(some)))


def _by_name(rows: Iterable[Row], name: Callable[[Row], str] = label) -> dict[str, list[Row]]:
    """Group runs by method and what is not usual about it, in the order of the methods, plain forms first."""
    groups = defaultdict(list)
    for row in rows:
        groups[name(row)].append(row)
    return dict(sorted(groups.items(), key=lambda item: (METHODS.index(item[1][0]["method"]), len(item[0]), item[0])))


def _label_of_cost(row: Row) -> str:
    return label(row) + ", fixed weights" * (row["weights"] == "fixed") + ", layer 4 alone" * (row["layers"] == "4")


def _protocol(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in PROTOCOL)


def _describe(row: Row) -> str:
    """Return a protocol in words."""
    words = {
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
    return ", ".join(filter(None, (words.get(name, f"{name} {row[name]}") for name in PROTOCOL)))


def _printed(row: Row, value: str) -> published.Number | None:
    """Return the paper's number for a run: its Tables 3 and 4 are about ResNet-18."""
    if row["network"] != "resnet18" or not _as_published(row):
        return None
    start = "scratch" if row["start"] == "scratch" else "transfer"
    numbers = published.TOP1 if value == "top1" else published.TOP5
    return numbers.get(published.Cell(row["dataset"], row["method"], row["weights"], start))


def _as_published(row: Row) -> bool:
    """Say whether the paper has this form of a method; its start, L1 term and warm-up may differ."""
    return label(row, ("head", "eps_omega", "stencil", "metric_groups", "s_min", "s_max")) == NAMES[row["method"]]


def _column(row: Row) -> tuple[str, bool, str]:
    """Return the heading of a run's column, behind what columns are sorted by."""
    pretrained = row["start"] != "scratch"
    kind = {"fixed": "FKW", "learnt": "LKW"}[row["weights"]]
    return kind, pretrained, f"{kind}, pretrained ({row['start']})" if pretrained else f"{kind}, from scratch"


def _score(row: Row) -> float:
    return float(row["held_top1"] or row["top1"])


def _percent(row: Row) -> float:
    return 100 * float(row["top1"])
