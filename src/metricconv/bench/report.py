"""A Markdown table and a plot from a benchmark CSV."""

import csv
from pathlib import Path

Row = dict[str, str]


def write(path: Path) -> None:
    """Write ``<gpu>.md`` and, where matplotlib is installed, ``<gpu>.png`` beside the CSV."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    path.with_suffix(".md").write_text(table(rows))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return
    plot(rows, path.with_suffix(".png"))


def table(rows: list[Row]) -> str:
    """Return, by shape, the median of every contender and how many times slower it is than the metric convolution."""
    lines = ["| shape | op | dtype | fwd ms | fwd+bwd ms | peak MB (fwd+bwd) |", "|---|---|---|---|---|---|"]
    groups: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in rows:
        if row["timing"]:
            groups.setdefault((row["shape"], row["op"], row["dtype"]), {}).setdefault(row["mode"], row)
    for (shape, op, dtype), modes in groups.items():
        ours = groups.get((shape, "metric", "bfloat16"), {})
        cells = [_cell(modes.get(mode), ours.get(mode)) for mode in ("fwd", "fwd+bwd")]
        peak = modes["fwd+bwd"]["peak_mb"] if "fwd+bwd" in modes else ""
        lines.append(f"| {shape} | {op} | {dtype} | {cells[0]} | {cells[1]} | {peak} |")
    notes = [f"\n{r['op']} {r['dtype']} on {r['shape']}: {r['max_error']}" for r in rows if r["mode"] == "check"]
    head = (
        f"{rows[0]['gpu']}, torch {rows[0]['torch']}, triton {rows[0]['triton']}, {rows[0]['date']}. Median of GPU time"
    )
    head += " (a replayed graph, cold cache; eager for torchvision, which cannot be captured, and for training"
    head += " iterations); in brackets, times the metric convolution in bfloat16.\n"
    return "\n".join([head, *lines, *notes]) + "\n"


def _cell(row: Row | None, ours: Row | None) -> str:
    if row is None:
        return ""
    ratio = f" ({float(row['p50_ms']) / float(ours['p50_ms']):.2f}×)" if ours else ""
    return f"{float(row['p50_ms']):.3f}{ratio}"


def plot(rows: list[Row], path: Path) -> None:
    """Draw forward + backward time by shape, one bar a contender, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    timed = [r for r in rows if r["mode"] == "fwd+bwd"]
    shapes = list(dict.fromkeys(r["shape"] for r in timed))
    ops = list(dict.fromkeys((r["op"], r["dtype"]) for r in timed))
    figure, axes = plt.subplots(figsize=(12, 0.5 + 0.9 * len(shapes)), layout="constrained")
    colours = plt.get_cmap("tab20")(range(20))
    height = 0.85 / max(len(ops), 1)
    for index, (op, dtype) in enumerate(ops):
        chosen = {r["shape"]: float(r["p50_ms"]) for r in timed if (r["op"], r["dtype"]) == (op, dtype)}
        places = [shapes.index(s) + index * height for s in chosen]
        axes.barh(places, list(chosen.values()), height, label=f"{op}, {dtype}", color=colours[index % 20])
    axes.set(xscale="log", xlabel="forward + backward, ms (median)", title=rows[0]["gpu"] if rows else "")
    axes.set_yticks([i + 0.4 for i in range(len(shapes))], shapes)
    axes.invert_yaxis()
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.savefig(path, dpi=110)
    plt.close(figure)
