"""Tables in Markdown and figures, from the CSVs alone (and from pictures, where a run has left some)."""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import skimage
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..._files import writing
from ..results import Results, beside, markdown_table, scientific, write_markdown
from . import tables
from .tables import IMAGE_KEY, name_of

Row = dict[str, str]

# Okabe and Ito's colours, which those who see fewer colours can tell apart too.
COLOURS = {"deformable": "#0072B2", "utb 0.9": "#E69F00", "utb 0.1": "#D55E00"}
_MARKERS = {"standard": "x", "two plain layers": "+", "deformable deep": "D", "utb deep": "D", "ugb deep": "s"}
_SHOWN_KS = ("5", "11", "31")
_EPS_OMEGA = r"$\varepsilon_\omega$"
_SEEDS = "Of several seeds, the mean ± the standard deviation, and how many there are."
_FULL_NAMES = {
    "utb": "tangent balls",
    "utb deep": "tangent balls, deep head",
    "ugb": "geodesic balls",
    "ugb deep": "geodesic balls, deep head",
    "deformable deep": "deformable, deep head",
}
LABELS = {"deformable": "deformable", "utb 0.9": "UTB, ε_ω = 0.9", "utb 0.1": "UTB, ε_ω = 0.1"}
# Columns of whole numbers; all others with numbers may have fractions.
_WHOLE = ("k", "parameters")


def write_all(folder: Path, work: Path) -> list[str]:
    """Render whatever tables a folder has; return the names of the files that were written, here and below."""
    return [
        *write_heuristic(folder, work / "heuristic"),
        *write_tuned(folder),
        *write_image(folder, work / "image"),
        *write_dataset(folder),
    ]


def write_heuristic(folder: Path, work: Path) -> list[str]:
    """Write ``heuristic.md`` and, for each run whose images ``work`` has, a figure named after it."""
    rows = _read(
        folder / "heuristic.csv",
        tables.HEURISTIC_KEY,
        tables.HEURISTIC_VALUES,
        needed=("psnr", "ssim"),
        optional=("released_psnr", "seconds"),
    )
    if not rows:
        return []
    header = ["filter", "gradient of", "samples", "knobs", "PSNR, dB", "released code", "SSIM", "seconds"]
    parts = [
        "# Denoising with no learning",
        "`denoise-heuristic` writes this page. Tuned rows, and the classical filters below them, have their knobs from "
        "other photographs; where the CSV has several knobs of a filter, the last are shown. In the released code the "
        "tangent ball has one sample more, its centre; its UGB is that of the pictures it ships.",
    ]
    written = ["heuristic.md"]
    for (image, pixels, sigma, seed, padding_mode), chosen in _groups(rows, *tables.HEURISTIC_RUN):
        last = list({(row["method"], row["gradient"]): row for row in chosen}.values())
        best = max(last, key=lambda row: float(row["psnr"]))
        lines = [
            [
                _bold(row["method"], row is best),
                row["gradient"],
                row["samples"],
                row["knobs"],
                _bold(_decibels(row["psnr"]), row is best),
                _decibels(row["released_psnr"]) if row["released_psnr"] else "",
                f"{float(row['ssim']):.3f}",
                f"{float(row['seconds']):.2f}" if row["seconds"] else "",
            ]
            for row in last
        ]
        title = f"{image}, σ = {sigma}, seed {seed}, padding mode {padding_mode}"
        parts += [
            f"## {title}",
            f"The picture whose `pixels` are {pixels}; {'; '.join(dict.fromkeys(map(_provenance, last)))}.",
            markdown_table(header, lines),
        ]
        name = tables.name_of(last[0], tables.HEURISTIC_RUN)
        figure = _heuristic_figure(work / name, last, title)
        if figure is not None:
            written.append(f"heuristic_{name}.png")
            with writing(folder / written[-1]) as path:
                figure.savefig(path)
    write_markdown(folder / "heuristic.md", *parts)
    return written


def write_tuned(folder: Path) -> list[str]:
    """Write ``tuned.md``."""
    needed = ("psnr", "ssim", "gain", "better")
    rows = _read(folder / "tuned.csv", tables.TUNED_KEY, tables.TUNED_VALUES, needed, ("seconds",))
    if not rows:
        return []
    parts = [
        "# Filters with tuned knobs, on many pictures",
        f"{_span(rows)}. `denoise-tuned` writes this page. The knobs are from three other photographs; every filter "
        "with knobs is tuned alike. Where the CSV has several knobs of a filter, the last are shown.",
    ]
    for (dataset, pictures, seed), chosen in _groups(rows, "dataset", "pictures", "seed"):
        columns = _distinct(chosen, "sigma", "padding_mode")
        header = ["", *(f"σ = {sigma}, {mode}" for sigma, mode in columns)]
        parts.append(f"## {dataset}: {pictures} test pictures, noise of seed {seed}")
        for title, say in (
            ("Mean PSNR, dB:", lambda row: f"{float(row['psnr']):.2f}"),
            ("Mean SSIM:", lambda row: f"{float(row['ssim']):.3f}"),
            (
                "Gain in PSNR on the tangent balls of the edge metric, and on how many of the pictures there is one:",
                lambda row: f"{float(row['gain']):+.2f} dB, {100 * float(row['better']):.0f} %",
            ),
        ):
            lines = []
            for (method,) in _distinct(chosen, "method"):
                mine = {(r["sigma"], r["padding_mode"]): r for r in chosen if r["method"] == method}
                lines.append([method, *(say(mine[column]) if column in mine else "" for column in columns)])
            parts += [title, markdown_table(header, lines)]
    write_markdown(folder / "tuned.md", *parts)
    return ["tuned.md"]


def write_image(folder: Path, work: Path) -> list[str]:
    """Write ``image.md``, ``image_curves.png`` and, where ``work`` has the pictures, ``image_pictures.png``."""
    needed = ("k", "sigma", "lr", "test_mse", "test_psnr", "gap")
    optional = ("paper_mse", "paper_gap", "seconds")
    rows = _read(folder / "image.csv", tables.IMAGE_KEY, tables.IMAGE_VALUES, needed, optional)
    if not rows:
        return []
    parts = [
        "# Sample locations learnt on one image",
        "Trained on one noise, tested on another over the same image; uniform weights, plain gradient descent. Of "
        "several noises, the mean ± the standard deviation, and how many there are; in brackets, the paper's number. "
        f"{_span(rows)}. `denoise-image` writes this page.",
    ]
    titles = {"paper": "with the paper's learning rates", "range": "with rates from our range test"}
    for (image, pixels, iterations, precision, rate), chosen in _groups(
        rows, "image", "pixels", "iterations", "precision", "rate"
    ):
        parts += [
            f"## {image}, {iterations} iterations, {titles[rate]}",
            f"The picture whose `pixels` are {pixels}; precision {precision}.",
        ]
        parts += ["Test MSE:", _table(chosen, "test_mse", "paper_mse", scientific)]
        parts += ["Generalisation gap δ = (test − train) / train:", _table(chosen, "gap", "paper_gap", _gap)]
        if rate == "range":
            parts += ["Suggested rates:", _table(chosen, "lr", "", lambda value: scientific(value, 1))]
    write_markdown(folder / "image.md", *parts)
    written = ["image.md"]
    points = ("iteration", "train_mse", "test_mse")
    curves = _read(folder / "image_curves.csv", tables.IMAGE_KEY, points, ("k", *points))
    if curves:
        written.append("image_curves.png")
        with writing(folder / "image_curves.png") as path:
            _curves_figure([row for row in curves if row["rate"] == "paper"] or curves).savefig(path)
    figure = _pictures_figure(rows, work)
    if figure is not None:
        written.append("image_pictures.png")
        with writing(folder / "image_pictures.png") as path:
            figure.savefig(path)
    return written


def write_dataset(folder: Path) -> list[str]:
    """Write ``dataset.md`` and ``dataset.png``."""
    needed = ("k", "sigma", "test_mse", "test_psnr", "gap", "parameters")
    optional = ("ms_per_image", "paper_mse", "paper_gap", "seconds")
    rows = _read(folder / "dataset.csv", tables.DATASET_KEY, tables.DATASET_VALUES, needed, optional)
    if not rows:
        return []
    parts = ["# One layer learnt on a dataset", f"{_span(rows)}. `denoise-dataset` writes this page."]
    published = [row for row in rows if row["recipe"] == "paper"]
    ours = [row for row in rows if row["recipe"] == "ours"]
    how = ("size", "precision", "devices")
    for (dataset, noise, rate, epochs, *_), chosen in _groups(published, "dataset", "noise", "rate", "epochs", *how):
        parts += [
            f"## The paper's recipe: {dataset}, {noise} noise, {rate} learning rates, {epochs} epochs",
            f"{_how(chosen[0])} {_SEEDS}",
            "Test MSE (in brackets the paper's, rescaled to a true MSE; the paper trains for 100 epochs):",
            _table(chosen, "test_mse", "paper_mse", scientific),
            "Test PSNR, dB:",
            _table(chosen, "test_psnr", "", _decibels),
            "Generalisation gap δ (in brackets as printed, which carries + 0.143 on BSDS300):",
            _table(chosen, "gap", "paper_gap", lambda value: f"{float(value):.3f}"),
            "Learnt parameters; milliseconds an image, forward:",
            _cost_table(chosen),
        ]
    for (dataset, noise, epochs, k, *_), chosen in _groups(ours, "dataset", "noise", "epochs", "k", *how):
        sigmas = [sigma for (sigma,) in _distinct(chosen, "sigma")]
        hardware = chosen[0]["hardware"]
        lines = []
        for (method,) in _distinct(chosen, "method"):
            mine = [row for row in chosen if row["method"] == method]
            values = [_mean([r for r in mine if r["sigma"] == s], "test_psnr", _decibels) for s in sigmas]
            times = [float(row["ms_per_image"]) for row in mine if row["ms_per_image"] and row["hardware"] == hardware]
            time = f"{statistics.median(times):.3f}" if times else ""
            lines.append([method, mine[0]["parameters"], *values, time])
        parts += [
            f"## How far a single {k} × {k} layer goes: {dataset}, {noise} noise, Adam with a cosine, {epochs} epochs",
            f"{_how(chosen[0])} {_SEEDS}",
            "Test PSNR, dB. All but the two plain layers start as the mean, and all have learnt weights; a deep head "
            "has one hidden layer. "
            f"Time on {hardware}.",
            markdown_table(["layer", "parameters", *(f"σ = {s}" for s in sigmas), "ms an image"], lines),
        ]
    write_markdown(folder / "dataset.md", *parts)
    with writing(folder / "dataset.png") as path:
        _dataset_figure(rows).savefig(path)
    return ["dataset.md", "dataset.png"]


def _read(
    path: Path, key: Sequence[str], values: Sequence[str], needed: Sequence[str], optional: Sequence[str] = ()
) -> list[Row]:
    """Read a table; refuse one without a number where one is ``needed``, or with words where one is ``optional``."""
    rows = Results(path, key, values).rows
    for (line, row), name in itertools.product(enumerate(rows, 2), (*needed, *optional)):
        if row[name] or name in needed:
            try:
                (int if name in _WHOLE else float)(row[name])
            except ValueError:
                raise ValueError(f"{path}, line {line}: `{name}` (={row[name]!r}) is not a number; mend it") from None
    return rows


def _table(rows: Sequence[Row], value: str, paper: str, say: Callable[[str], str]) -> str:
    """Return a table with a line for each σ, method and kind of weights, and a column for each k: means over seeds."""
    ks = sorted({int(row["k"]) for row in rows})
    lines = []
    for line in dict.fromkeys(map(_line, rows)):
        cells = []
        for k in ks:
            alike = [row for row in rows if (_line(row), int(row["k"])) == (line, k)]
            printed = alike[0][paper] if alike and paper else ""
            cells.append(beside(_mean(alike, value, say), say(printed) if printed else ""))
        lines.append([line, *cells])
    return markdown_table(["", *(f"k = {k}" for k in ks)], lines)


def _line(row: Row) -> str:
    weights = f", weights {row['weights']}" if "weights" in row else ""
    return f"σ = {row['sigma']}, {LABELS.get(_method(row), _method(row))}{weights}"


def _mean(rows: Sequence[Row], value: str, say: Callable[[str], str]) -> str:
    """Return the mean over rows and, of several, their standard deviation and number; nothing of none."""
    values = [v for v in (float(row[value]) for row in rows) if math.isfinite(v)]
    if not values:
        return "diverged" if rows else ""
    spread = f" ± {say(str(statistics.stdev(values)))}, n = {len(values)}" if len(values) > 1 else ""
    lost = f", {len(rows) - len(values)} diverged" if len(rows) > len(values) else ""
    return say(str(statistics.mean(values))) + spread + lost


def _cost_table(rows: Sequence[Row]) -> str:
    """Return a table with a line for each method and kind of weights: parameters and time by k."""
    ks = sorted({int(row["k"]) for row in rows})
    lines = []
    for method, weights in dict.fromkeys((_method(row), row["weights"]) for row in rows):
        cells = []
        for k in ks:
            alike = [r for r in rows if (_method(r), r["weights"], r["k"]) == (method, weights, str(k))]
            times = [float(row["ms_per_image"]) for row in alike if row["ms_per_image"]]
            time = f"; {statistics.median(times):.3g} ms" if times else ""
            cells.append(f"{int(alike[0]['parameters']):,}{time}" if alike else "")
        lines.append([f"{LABELS.get(method, method)}, weights {weights}", *cells])
    return markdown_table(["", *(f"k = {k}" for k in ks)], lines)


def _heuristic_figure(images: Path, rows: Sequence[Row], title: str) -> Figure | None:
    """Draw the noisy image and what every filter makes of it, on smoothed gradients only if tuned; None of none."""
    paths = {id(row): images / f"{name_of(row, tables.HEURISTIC_PICTURE)}.png" for row in rows}
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
        label = f"{row['method'].replace(' of the edge metric', ', edge metric')}\n{_decibels(row['psnr'])} dB"
        _show(axes, paths[id(row)], label, bold=row is best)
    figure.suptitle(title, fontsize=11)
    return figure


def _curves_figure(curves: Sequence[Row]) -> Figure:
    """Draw the MSE by iteration: a row for each σ, a column for each k; dashed on the training noise."""
    sigmas, styles = [s for (s,) in _distinct(curves, "sigma")], {"train_mse": "--", "test_mse": "-"}
    ks = sorted({int(row["k"]) for row in curves})
    figure = Figure(figsize=(max(2.3 * len(ks) + 0.8, 7.5), 1.9 * len(sigmas) + 0.7), dpi=150, layout="constrained")
    panels = figure.subplots(len(sigmas), len(ks), squeeze=False, sharex=True, sharey="row")
    for line, sigma in zip(panels, sigmas, strict=True):
        for axes, k in zip(line, ks, strict=True):
            for method, colour in COLOURS.items():
                points = [r for r in curves if (r["sigma"], int(r["k"]), _method(r)) == (sigma, k, method)]
                for (_, run), (name, style) in itertools.product(_groups(points, *IMAGE_KEY), styles.items()):
                    values = [float(r[name]) for r in run]
                    axes.plot([float(r["iteration"]) for r in run], values, style, color=colour, linewidth=1.3)
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
    handles = [Line2D([], [], color=colour, label=names[name]) for name, colour in COLOURS.items()]
    handles += [
        Line2D([], [], linestyle="-", color="#666666", label="test noise"),
        Line2D([], [], linestyle="--", color="#666666", label="training noise"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def _pictures_figure(rows: Sequence[Row], work: Path) -> Figure | None:
    """Draw what was filtered with the test noise: a row for each σ, a column for each method and k."""
    folders = {id(row): work / name_of(row, IMAGE_KEY) for row in rows}
    there = [
        row
        for row in rows
        if row["rate"] == "paper" and row["k"] in _SHOWN_KS and (folders[id(row)] / "test.png").exists()
    ]
    if not there:
        return None
    sigmas = sorted({row["sigma"] for row in there}, key=float)
    columns = [(method, k) for method in COLOURS for k in _SHOWN_KS if any(row["k"] == k for row in there)]
    figure = Figure(figsize=(1.8 * len(columns), 2.1 * len(sigmas)), dpi=130, layout="constrained")
    for line, sigma in zip(figure.subplots(len(sigmas), len(columns), squeeze=False), sigmas, strict=True):
        for axes, (method, k) in zip(line, columns, strict=True):
            axes.axis("off")
            row = next((r for r in there if (r["sigma"], _method(r), r["k"]) == (sigma, method, k)), None)
            if row is not None:
                label = f"{LABELS[method]}\nσ = {sigma}, k = {k}: {float(row['test_psnr']):.2f} dB"
                _show(axes, folders[id(row)] / "test.png", label)
    return figure


def _dataset_figure(rows: Sequence[Row]) -> Figure:
    """Draw the test PSNR by the number of parameters, a panel for each σ.

    Our recipe is large, the paper's small, and hollow where weights are fixed. Of the paper's, its own rates alone:
    with those of our range test its markers would not tell one from the other.
    """
    rows = [row for row in rows if row["rate"] != "range"] or rows
    sigmas = sorted({row["sigma"] for row in rows}, key=float)
    figure = Figure(figsize=(max(4.0 * len(sigmas), 8.0), 4.6), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(sigmas), squeeze=False)[0]
    for axes, sigma in zip(panels, sigmas, strict=True):
        for (recipe, method, weights), alike in _groups(rows, "recipe", "method", "weights"):
            points = [row for row in alike if row["sigma"] == sigma]
            colour, ours = _colour(method), recipe == "ours"
            behind, crossed = method == "ugb deep", _MARKERS.get(method) in ("x", "+")
            axes.plot(
                [float(r["parameters"]) for r in points],
                [float(r["test_psnr"]) for r in points],
                _MARKERS.get(method, "o"),
                color=colour,
                markerfacecolor="white" if weights == "fixed" else colour,
                markersize=4.5 + 3.5 * ours + 3.5 * behind,  # so that both can be seen where two balls are level
                markeredgewidth=1.8 if crossed else 1,
                zorder=3 if crossed else 2 - behind,
                label=f"{_FULL_NAMES.get(method, method)}, "
                + ("our recipe" if ours else f"the paper’s recipe, {weights} weights"),
            )
        axes.set(xscale="log", xlabel="learnt parameters", title=f"σ = {sigma}")
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
    figure.suptitle(f"One layer, learnt on a dataset{about}", fontsize=11)
    return figure


def _colour(method: str) -> str:
    kind = method.split()[0]
    return {"deformable": "#0072B2", "utb": "#D55E00", "ugb": "#CC79A7"}.get(kind, "#000000")


def _show(axes: Axes, path: Path, label: str, *, bold: bool = False) -> None:
    axes.imshow(skimage.io.imread(path), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_title(label.replace("ε_ω", _EPS_OMEGA), fontsize=8.5, fontweight="bold" if bold else "normal", pad=3)


def _groups(rows: Sequence[Row], *columns: str) -> list[tuple[tuple[str, ...], list[Row]]]:
    """Return the rows that agree in some columns together, behind their values there, in the order of the rows."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in columns), []).append(row)
    return list(groups.items())


def _distinct(rows: Sequence[Row], *columns: str) -> list[tuple[str, ...]]:
    """Return the distinct values of some columns, in the order of the rows."""
    return list(dict.fromkeys(tuple(row[name] for name in columns) for row in rows))


def _how(row: Row) -> str:
    devices = f"{row['devices']} device{'s' * (row['devices'] != '1')}"
    return f"Pictures of {row['size']} × {row['size']} pixels, precision {row['precision']}, {devices}."


def _method(row: Row) -> str:
    return f"{row['method']} {row['eps_omega']}".strip()


def _decibels(value: str) -> str:
    return f"{float(value):.2f}"


def _gap(value: str) -> str:
    return f"{float(value):.2f}" if float(value) < 10 else f"{float(value):.0f}"


def _bold(cell: str, yes: bool) -> str:
    return f"**{cell}**" if yes else cell


def _provenance(row: Row) -> str:
    return f"{row['hardware']}, torch {row['torch']}, metricconv {row['metricconv']}, {row['date']}"


def _span(rows: Sequence[Row]) -> str:
    """Say how many rows took how long, where that is known of all, and where."""
    minutes = sum(float(row["seconds"] or "nan") for row in rows) / 60
    took = "" if math.isnan(minutes) else f", {minutes:.1f} minutes in all"
    return f"{len(rows)} rows{took}; {'; '.join(dict.fromkeys(map(_provenance, rows)))}"
