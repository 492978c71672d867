"""A Markdown table and a plot from a CPU benchmark's CSV."""

import importlib.util
from pathlib import Path

from .._files import read_table, writing
from .report import cell
from .rows import Row

# Who is drawn, and how: colours of Okabe and Ito, which those who see fewer colours can tell apart too.
_COLOURS = {
    "torch conv2d": "#999999",
    "grid_sample": "#0072B2",
    "metric": "#D55E00",
    "metric (reference)": "#E69F00",
    "geodesic": "#009E73",
    "geodesic (reference)": "#56B4E9",
}


def write(path: Path) -> None:
    """Write ``<cpu>.md`` and, where matplotlib is installed, ``<cpu>.png`` beside the CSV."""
    rows = read_table(path)
    with writing(path.with_suffix(".md")) as file:
        file.write_text(table(rows), encoding="utf-8")
    timed = [row for row in rows if row["op"] in _COLOURS and row["mode"] != "check"]
    if timed and importlib.util.find_spec("matplotlib") is not None:
        with writing(path.with_suffix(".png")) as file:
            plot(timed, file)


def table(rows: list[Row]) -> str:
    """Return, by shape and mode, the median of every contender, and how many times that of the metric convolution."""
    lines = [
        f"{rows[0]['cpu']}, {rows[0]['threads']} threads, torch {rows[0]['torch']}, numba {rows[0]['numba']}, "
        f"{rows[0]['date']}. Contenders take turns; medians; in brackets, times the metric convolution. Memory is the "
        f"most that a call holds above what the process held before.\n",
        "| shape | op | fwd ms | fwd+bwd ms | peak MB, fwd | peak MB, fwd+bwd |",
        "|---|---|---|---|---|---|",
    ]
    found = {(row["shape"], row["op"], row["mode"]): row for row in rows}
    for shape, op in dict.fromkeys((row["shape"], row["op"]) for row in rows if row["mode"] != "check"):
        modes = [found.get((shape, op, mode)) for mode in ("fwd", "fwd+bwd")]
        ours = [found.get((shape, "metric", mode)) for mode in ("fwd", "fwd+bwd")]
        cells = [cell(row, other, digits=2) for row, other in zip(modes, ours, strict=True)]
        peaks = [row["peak_mb"] if row else "" for row in modes]
        lines.append(f"| {shape} | {op} | {' | '.join(cells)} | {' | '.join(peaks)} |")
    wrong = [f"\n{r['op']} on {r['shape']}: error {r['max_error']}, not timed" for r in rows if r["mode"] == "check"]
    return "\n".join([*lines, *wrong]) + "\n"


def plot(rows: list[Row], path: Path) -> None:
    """Draw the medians by shape and mode as bars, on a logarithmic axis."""
    from matplotlib.figure import Figure

    groups = list(dict.fromkeys((row["shape"], row["mode"]) for row in rows))
    sizes = [sum((row["shape"], row["mode"]) == group for row in rows) for group in groups]
    figure = Figure(figsize=(8, 0.9 + 0.26 * sum(sizes) + 0.25 * len(groups)), layout="constrained")
    heights = [n + 0.6 for n in sizes]
    axes = figure.subplots(len(groups), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (shape, mode) in zip(axes, groups, strict=True):
        chosen = [row for row in rows if (row["shape"], row["mode"]) == (shape, mode)]
        times = [float(row["p50_ms"]) for row in chosen]
        bars = axis.barh([row["op"] for row in chosen], times, color=[_COLOURS[row["op"]] for row in chosen])
        axis.bar_label(bars, [f"{t:.3g}" if t < 1000 else f"{t:.0f}" for t in times], padding=3, fontsize=8)
        axis.set(xscale="log", title=f"{shape}, {mode}")
        axis.title.set_fontsize(9)
        axis.invert_yaxis()
        axis.margins(x=0.15)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel(f"ms, median; {rows[0]['cpu']}, {rows[0]['threads']} threads")
    figure.savefig(path, dpi=120)
