"""A Markdown table and a plot from a CPU benchmark's CSV."""

import importlib.util
from pathlib import Path

from metricconv._files import read_table, writing

from .gpu_report import cell
from .rows import Row

# Implementations in the plot, with colors of Okabe and Ito, safe for color blindness.
_COLORS = {
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
    timed = [row for row in rows if row["op"] in _COLORS and row["mode"] != "check"]
    if timed and importlib.util.find_spec("matplotlib") is not None:
        with writing(path.with_suffix(".png")) as file:
            plot(timed, file)


def table(rows: list[Row]) -> str:
    """Return a table of medians by shape and implementation, with their ratio to the metric convolution."""
    lines = [
        f"{rows[0]['cpu']}, {rows[0]['threads']} threads, torch {rows[0]['torch']}, numba {rows[0]['numba']}, "
        f"{rows[0]['date']}. Medians of alternating runs; in brackets, the ratio to the metric convolution. "
        f"Memory is the peak of a call above the memory held before.\n",
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
    """Plot the medians by shape and mode, one line per implementation, on logarithmic axes."""
    from matplotlib.figure import Figure

    modes = list(dict.fromkeys(row["mode"] for row in rows))
    implementations: dict[str, list[str]] = {}
    for row in rows:
        ops = implementations.setdefault(row["shape"], [])
        ops += [row["op"]] * (row["op"] not in ops)
    heights = [len(ops) + 0.6 for ops in implementations.values()]
    figure = Figure(figsize=(11, 1.2 + 0.26 * sum(heights) + 0.3 * len(implementations)), layout="constrained")
    panels = figure.subplots(
        len(implementations), len(modes), sharex="col", sharey="row", squeeze=False, height_ratios=heights
    )
    for line, (shape, ops) in zip(panels, implementations.items(), strict=True):
        for panel, mode in zip(line, modes, strict=True):
            for row in (row for row in rows if (row["shape"], row["mode"]) == (shape, mode)):
                time, position = float(row["p50_ms"]), ops.index(row["op"])
                panel.plot(time, position, "o", color=_COLORS[row["op"]], markersize=7)
                label = f"{time:.3g}" if time < 1000 else f"{time:.0f}"
                panel.annotate(label, (time, position), (7, 0), textcoords="offset points", va="center", fontsize=8)
            panel.set(xscale="log", ylim=(len(ops) - 0.5, -0.5))
            panel.grid(alpha=0.4)
            panel.tick_params(labelsize=8)
        line[0].set_yticks(range(len(ops)), ops)
        line[0].set_title(shape, fontsize=9, loc="left")
    for panel, mode in zip(panels[-1], modes, strict=True):
        panel.margins(x=0.2)  # room for the labels
        panel.set_xlabel(f"{mode}, ms")
    figure.suptitle(
        f"{rows[0]['cpu']}, {rows[0]['threads']} threads: median time by shape (N, C, H, W), k × k samples", fontsize=11
    )
    figure.savefig(path, dpi=110)
