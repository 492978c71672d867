"""A Markdown table and a plot from a benchmark CSV."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

from metricconv._files import read_table, writing

from .first_call import REGIME
from .rows import Row

# Implementations in the plot, with markers and colors (of Okabe and Ito, safe for color blindness).
_MARKS = {
    ("cudnn conv2d", "bfloat16"): ("s", "#999999"),
    ("metric", "bfloat16"): ("o", "#D55E00"),
    ("metric", "float32"): ("o", "#E69F00"),
    ("torchvision deform_conv2d", "float32"): ("^", "#0072B2"),
}
# An open marker: with few channels it overlaps another.
_OPEN = ("metric", "float32")


def write(path: Path) -> None:
    """Write ``<gpu>.md`` and, where matplotlib is installed, ``<gpu>.png`` beside the CSV."""
    rows = read_table(path)
    with writing(path.with_suffix(".md")) as file:
        file.write_text(table(rows), encoding="utf-8")
    if importlib.util.find_spec("matplotlib") is not None:
        with writing(path.with_suffix(".png")) as file:
            plot(rows, file)


def table(rows: list[Row]) -> str:
    """Return a table of medians by shape and implementation, with their ratio to the metric convolution."""
    lines = [
        "| shape | op | dtype | fwd ms | fwd+bwd ms | peak MB, fwd | peak MB, fwd+bwd |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in sorted(rows, key=_order(rows)):
        shape = f"{row['shape']}, {row['timing']}" if row["regime"] == "training" else row["shape"]
        if row["timing"]:
            groups.setdefault((shape, row["op"], row["dtype"]), {}).setdefault(row["mode"], row)
    for (shape, op, dtype), modes in groups.items():
        step = modes.get("iteration")
        ours = groups.get((shape, "standard", dtype) if step else (shape, "metric", "bfloat16"), {})
        found = [modes.get("fwd"), step or modes.get("fwd+bwd")]
        others = [ours.get("fwd"), ours.get("iteration" if step else "fwd+bwd")]
        cells = [cell(row, other) for row, other in zip(found, others, strict=True)]
        cells += [row["peak_mb"] if row else "" for row in found]
        lines.append(f"| {shape} | {op} | {dtype} | {' | '.join(cells)} |")
    notes = [f"\n{r['op']} {r['dtype']} on {r['shape']}: {r['max_error']}" for r in rows if r["mode"] == "check"]
    caption = (
        f"{rows[0]['gpu']}, torch {rows[0]['torch']}, triton {rows[0]['triton']}, {rows[0]['date']}. Medians of GPU "
        "time (a captured graph, replayed with a cold cache). Calls of torchvision, which cannot be captured, and "
        "training iterations marked eager include launch overhead. First calls are wall-clock times with an empty "
        "kernel cache. In brackets, the ratio to the metric convolution in bfloat16; for training iterations, to the "
        "standard network. Memory is the peak of a call above the memory held before, in MB of 2²⁰ bytes.\n"
    )
    return "\n".join([caption, *lines, *notes]) + "\n"


def _order(rows: list[Row]) -> Callable[[Row], tuple[int, int, bool]]:
    """Return the sort key of rows by regime and shape, in the order of their first appearance."""
    regimes, shapes = (list(dict.fromkeys(row[name] for row in rows)) for name in ("regime", "shape"))

    def order(row: Row) -> tuple[int, int, bool]:
        eager = row["regime"] == "training" and row["timing"] == "eager"
        return regimes.index(row["regime"]), shapes.index(row["shape"]), eager

    return order


def cell(row: Row | None, ours: Row | None, digits: int = 3) -> str:
    """Return a median and its ratio to the median of another row."""
    if row is None:
        return ""
    ratio = f" ({float(row['p50_ms']) / float(ours['p50_ms']):.2f}×)" if ours else ""
    return f"{float(row['p50_ms']):.{digits}f}{ratio}"


def plot(rows: list[Row], path: Path) -> None:
    """Plot the median times of the main implementations by shape, forward and with backward, on a logarithmic axis."""
    from matplotlib.figure import Figure

    rows = sorted((r for r in rows if r["regime"] != REGIME), key=_order(rows))
    shapes = list(dict.fromkeys(r["shape"] for r in rows if r["mode"] == "fwd+bwd"))
    figure = Figure(figsize=(11, 1.2 + 0.32 * len(shapes)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, mode in zip(panels, ("fwd", "fwd+bwd"), strict=True):
        for (op, dtype), (marker, color) in _MARKS.items():
            drawn = [r for r in rows if (r["op"], r["dtype"], r["mode"]) == (op, dtype, mode)]
            positions = [shapes.index(r["shape"]) for r in drawn]
            times = [float(r["p50_ms"]) for r in drawn]
            style = {"markerfacecolor": "none", "markersize": 10} if (op, dtype) == _OPEN else {"markersize": 7}
            panel.plot(times, positions, marker, color=color, label=f"{op}, {dtype}", **style)
        panel.set(xscale="log", xlabel=f"{mode}, ms")
        panel.grid(alpha=0.4)
    panels[0].set_yticks(range(len(shapes)), shapes)
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(_MARKS), frameon=False)
    figure.suptitle(f"{rows[0]['gpu']}: median time by shape (N, C, H, W), k × k samples, g groups")
    figure.savefig(path, dpi=110)
