"""The first table of the page: one line per setting, one column per method."""

import statistics
from collections import defaultdict
from collections.abc import Sequence

from ..results import markdown_table, text
from .setting import PROTOCOL, Setting

Row = dict[str, str]

METHODS = ("standard", "deformable", "shifted", "metric-randers", "metric-geodesic")
# Options that distinguish lines of the table, in addition to those of the protocol.
_LINE = (*PROTOCOL, "weights", "start", "zero_gamma")


def selected(runs: Sequence[Row]) -> list[Row]:
    """Return the runs of a method to report, one per seed: those with the selected learning-rate multiplier.

    The multiplier is the best on held-out images, or on test images without them, of the seeds with the most
    multipliers; these seeds are not reported if there are others. If all seeds have all multipliers, the first one
    selects.
    """
    scores: dict[str, dict[str, float]] = defaultdict(dict)  # seed → multiplier → score
    for row in runs:
        scores[row["seed"]][row["multiplier"]] = float(row["held_top1"] or row["top1"])
    most = max(len(found) for found in scores.values())
    selecting = sorted((seed for seed, found in scores.items() if len(found) == most), key=int)
    if len(selecting) == len(scores) and most > 1:
        selecting = selecting[:1]
    multipliers = scores[selecting[0]]
    best = max(multipliers, key=lambda m: statistics.mean(scores[s][m] for s in selecting if m in scores[s]))
    rows = [row for row in runs if row["multiplier"] == best]
    return [row for row in rows if most == 1 or row["seed"] not in selecting] or rows


def table(rows: Sequence[Row], names: dict[str, str], datasets: dict[str, str]) -> str:
    """Return the table of plain methods, from ResNets whose stages 2 to 4 have replaced convolutions.

    A line contains the seeds that all methods with several seeds share, if there are at least two, or else all seeds.
    """
    lines = defaultdict(list)
    for row in rows:
        if row["method"] in METHODS and row["layers"] in ("", "2-4") and _plain(row):
            lines[tuple(row[name] for name in _LINE)].append(row)
    cells = []
    for some in sorted(lines.values(), key=_order):
        found = {method: selected(of) for method in METHODS if (of := [row for row in some if row["method"] == method])}
        if len(found) < 3:
            continue
        several = [{row["seed"] for row in runs} for runs in found.values() if len(runs) > 1]
        shared = set.intersection(*several) if several else set()
        if len(shared) > 1:
            found = {method: [row for row in runs if row["seed"] in shared] for method, runs in found.items()}
        cells.append([_describe(some[0], datasets), *(_mean(found.get(method, [])) for method in METHODS)])
    return markdown_table(["top-1, %", *(names[method] for method in METHODS)], cells) if cells else ""


def _plain(row: Row) -> bool:
    """Return whether a method has its default options."""
    default = Setting(method=row["method"], weights=row["weights"]).key
    options = ("init", "metric_parameters", "eps_omega", "stencil", "metric_groups", "s_min", "s_max", "l1", "warmup")
    return all(row[name] in (text(default[name]), "") for name in options)


def _order(some: Sequence[Row]) -> tuple[object, ...]:
    first = some[0]
    return first["network"] != "resnet18", first["weights"] != "learnt", first["dataset"], first["lr"]


def _describe(row: Row, datasets: dict[str, str]) -> str:
    weights = {"learnt": "learned kernels", "fixed": "fixed kernels"}[row["weights"]]
    gamma = ", γ = 0" * (row["zero_gamma"] == "True")
    start = "" if row["start"] == "scratch" else f", from {row['start']}"
    network = f"{row['network']}, {row['epochs']} epochs, rate {row['lr']}"
    return f"{datasets[row['dataset']]}, {weights}{gamma}{start}; {network}"


def _mean(runs: Sequence[Row]) -> str:
    if not runs:
        return ""
    values = [100 * float(row["top1"]) for row in runs]
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    multiplier = f" ×{runs[0]['multiplier']}" if runs[0]["multiplier"] else ""
    return f"{statistics.mean(values):.2f}{deviation} ({len(values)}){multiplier}"
