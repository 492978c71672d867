"""segmentation.md and segmentation.png, from runs.csv alone."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from metricconv._files import read_table, writing

from ..lattice.pairs import Difference, signed
from ..results import markdown_table, write_markdown
from .datasets import THIN
from .grids import rates_of
from .runs import VALUES
from .scores import THRESHOLD, TOLERANCE
from .setting import DATASETS, KEY, METHODS

Row = dict[str, str]

NAMES = {
    "standard": "standard",
    "standard-5x5": "standard, 5×5",
    "deformable": "deformable",
    "snake": "snake",
    "metric-randers": "metric, Randers",
    "metric-riemann": "metric, Riemannian",
    "metric-geodesic": "metric, geodesic",
    "metric-asymmetric": "metric, asymmetric",
}
DATASET_NAMES = {"drive": "DRIVE", "crackforest": "CrackForest"}
# Scores of the tables, in percent.
SCORES = {
    "dice": "Dice",
    "cldice": "clDice",
    "auc": "AUC",
    "thin_sensitivity": "sensitivity, thin",
    "tolerant_f1": "tolerant F1",
}
# Published Dice on the test images of DRIVE, in percent, with other training and other networks.
PUBLISHED = (("DSCNet", 82.06), ("LightVesselNet, 75 000 parameters", 80.7))
# Colors of Okabe and Ito, safe for color blindness.
_COLORS = ("#000000", "#999999", "#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#CC79A7", "#009E73")


def write_all(folder: Path) -> list[str]:
    """Write the page and the figure; return the names of the written files, none if there are no runs."""
    rows = read_table(folder / "runs.csv")
    missing = sorted({*KEY, *VALUES} - set(rows[0])) if rows else []
    if missing:
        raise ValueError(f"{folder / 'runs.csv'} has no column {', '.join(missing)}")
    compared = [row for row in rows if row["holdout"] == "0"]
    if not compared:
        return []
    for name in ("steps", "batch", "patch", "weight_decay"):
        if len({row[name] for row in rows}) > 1:
            raise ValueError(f"{folder / 'runs.csv'} mixes runs with several values of `{name}`")
    with writing(folder / "segmentation.png") as path:
        figure(compared).savefig(path)
    write_markdown(folder / "segmentation.md", *_page(rows, compared))
    return ["segmentation.png", "segmentation.md"]


def figure(rows: Sequence[Row]) -> Any:
    """Draw paired differences of Dice and clDice to the standard network: dots are seeds, diamonds are means."""
    from matplotlib.figure import Figure

    datasets = [name for name in DATASETS if any(row["dataset"] == name for row in rows)]
    drawing = Figure(figsize=(10, 3.6 * len(datasets)), dpi=150, layout="constrained")
    grid = drawing.subplots(len(datasets), 2, squeeze=False)
    for line, dataset in zip(grid, datasets, strict=True):
        positions = list(enumerate(counts(rows, dataset)))
        for axes, score in zip(line, ("dice", "cldice"), strict=True):
            for n, (method, color) in enumerate(zip(METHODS[1:], _COLORS[1:], strict=True)):
                label: str | None = NAMES[method]
                for position, count in positions:
                    values = difference(rows, dataset, count, (method, "standard"), score).values
                    at = position + 0.1 * (n - len(METHODS[2:]) / 2)
                    axes.plot([at] * len(values), values, "o", color=color, ms=4, alpha=0.6)
                    if values:
                        axes.plot(at, statistics.mean(values), "D", color=color, ms=8, label=label)
                        label = None
            axes.axhline(0, color="0.5", linewidth=0.8)
            axes.set_xlim(-0.6, len(positions) - 0.4)
            axes.set_xticks([position for position, _ in positions], [str(count) for _, count in positions])
            axes.set(xlabel="training images", ylabel=f"{SCORES[score]}, points")
            axes.set_title(f"{DATASET_NAMES[dataset]}: {SCORES[score]} minus that of the standard network", fontsize=10)
            axes.grid(axis="y", alpha=0.3)
    grid[0, 1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return drawing


def counts(rows: Sequence[Row], dataset: str) -> list[int]:
    """Return the numbers of training images of a dataset in increasing order."""
    return sorted({int(row["images"]) for row in rows if row["dataset"] == dataset})


def difference(rows: Sequence[Row], dataset: str, count: int, methods: tuple[str, str], score: str) -> Difference:
    """Return the first method minus the second one, in points, over the seeds that both have."""
    first, second = (_by_seed(rows, dataset, method, count, score) for method in methods)
    return Difference(tuple(first[seed] - second[seed] for seed in first if seed in second))


def _page(rows: Sequence[Row], compared: Sequence[Row]) -> list[str]:
    parts = [
        "# Vessels and cracks from few labeled images",
        "Does the geometry of a metric help to segment thin structures when few images are labeled? All methods share "
        "the network, the patches and the schedule, and differ in its 3×3 convolutions alone. This page is generated "
        "from [runs.csv](runs.csv).",
        "![Dice and clDice minus those of the standard network](segmentation.png)",
        "Paired differences to the standard network: dots are seeds, diamonds their means.",
    ]
    for dataset in DATASETS:
        if any(row["dataset"] == dataset for row in compared):
            parts += [f"## {DATASET_NAMES[dataset]}", *_of_dataset(compared, dataset)]
    return [*parts, "## Rates", *_rates(rows), "## Setup", *_setup(rows)]


def _of_dataset(rows: Sequence[Row], dataset: str) -> Iterator[str]:
    for count in counts(rows, dataset):
        yield f"### {count} training image{'s' * (count > 1)}"
        yield _table(rows, dataset, count)
    yield (
        "Means and standard deviations over seeds, in percent; Dice and clDice minus those of the standard and of the "
        "deformable network, in points, are means of paired differences over the n seeds that both methods have, with "
        "their 95 % intervals (Student's t)."
    )
    if dataset == "drive":
        published = "; ".join(f"{name}: {value:g}" for name, value in PUBLISHED)
        yield f"Published Dice on DRIVE with all 20 images, other networks and other training: {published}."


def _table(rows: Sequence[Row], dataset: str, count: int) -> str:
    header = ["", "parameters", "seeds", *SCORES.values()]
    header += [f"{name}, − {other}" for other in ("standard", "deformable") for name in ("Dice", "clDice")]
    lines = []
    for method in METHODS:
        seeds = _by_seed(rows, dataset, method, count, "dice")
        if not seeds:
            continue
        cells = [_parameters(rows, method), str(len(seeds))]
        cells += [_mean(_values(rows, dataset, method, count, score)) for score in SCORES]
        for other in ("standard", "deformable"):
            for score in ("dice", "cldice"):
                values = difference(rows, dataset, count, (method, other), score)
                cells.append(_paired(values) if method != other else "")
        lines.append([NAMES[method], *cells])
    return markdown_table(header, lines)


def _rates(rows: Sequence[Row]) -> Iterator[str]:
    selection = [row for row in rows if row["holdout"] != "0"]
    if not selection:
        return
    first = selection[0]
    yield (
        f"Each rate was selected by the Dice, in percent, on held-out training images, after training on "
        f"{first['images']} others with seed {first['seed']}, which is not among the reported seeds: the learning rate "
        "of the standard networks, and the learning rate of the predictors relative to that of the standard network. "
        "A grid was extended while its best value was at its edge."
    )
    lines = []
    for dataset in DATASETS:
        for method in METHODS:
            name, _ = rates_of(method)
            some = [row for row in selection if (row["dataset"], row["method"]) == (dataset, method)]
            by_rate = {float(row[name]): 100 * float(row["dice"]) for row in some}
            if by_rate:
                tried = ", ".join(f"{rate:g}: {by_rate[rate]:.1f}" for rate in sorted(by_rate))
                best = max(sorted(by_rate), key=lambda rate: by_rate[rate])
                kind = "learning rate" if name == "lr" else "multiplier"
                lines.append([f"{DATASET_NAMES[dataset]}, {NAMES[method]}", kind, tried, f"{best:g}"])
    yield markdown_table(["", "rate", "Dice by rate", "selected"], lines)


def _setup(rows: Sequence[Row]) -> Iterator[str]:
    first = rows[0]
    about = {
        name: ", ".join(sorted({row[name] for row in rows} - {""}))
        for name in ("hardware", "metricconv", "torch", "backend")
    }
    yield (
        "An encoder-decoder of three stages with 16, 32 and 32 channels and two convolutions each, skip connections, "
        "batch normalization and bilinear upsampling. All 3×3 convolutions except the first one are replaced, and "
        "start from the same weights. With 5×5 kernels, the network has 10, 20 and 20 channels. A snake layer has nine "
        "samples per chain; half of its output channels use horizontal, the other half vertical chains."
    )
    yield (
        f"{first['steps']} steps of AdamW with batches of {first['batch']} patches of {first['patch']}×"
        f"{first['patch']} pixels, turned, flipped, scaled and with random contrast; cross-entropy plus soft Dice; the "
        "learning rate rises for a fifth of the steps and then falls as a half cosine. DRIVE: green channel, official "
        "20 training and 20 test images, first observer, within the field of view. CrackForest: files 1 to 72 for "
        "training and 73 to 118 for testing. Local contrast is normalized. A seed selects the training images, the "
        "initial weights and the patches."
    )
    yield (
        f"Threshold {THRESHOLD:g}. Dice, clDice and the tolerant F1 (tolerance {TOLERANCE} pixels) are means over "
        f"images, AUC and the sensitivity on structures of at most {THIN} pixels are of all pixels together. "
        f"Centerlines are by Zhang and Suen's thinning. {about['hardware']}; metricconv {about['metricconv']}; torch "
        f"{about['torch']}; backend {about['backend']}."
    )
    yield (
        "- All runs of a dataset: `metricconv reproduce segment --dataset drive --grid comparison --graphs --output "
        "results/segmentation`\n"
        "- One row: `metricconv reproduce segment --dataset drive --method metric-randers --multiplier 0.03 --images 4 "
        "--seed 1`\n"
        "- Only this page and the figure, from the CSV: `metricconv report`"
    )


def _by_seed(rows: Iterable[Row], dataset: str, method: str, count: int, score: str) -> dict[str, float]:
    key = (dataset, method, str(count))
    return {
        row["seed"]: 100 * float(row[score]) for row in rows if (row["dataset"], row["method"], row["images"]) == key
    }


def _values(rows: Iterable[Row], dataset: str, method: str, count: int, score: str) -> list[float]:
    return list(_by_seed(rows, dataset, method, count, score).values())


def _parameters(rows: Iterable[Row], method: str) -> str:
    return next(row["parameters"] for row in rows if row["method"] == method)


def _paired(found: Difference) -> str:
    """Return the mean of paired differences, their number, and the interval of several."""
    if not found.values:
        return ""
    mean, count = signed(found.mean, 1), f"n = {len(found.values)}"
    return f"{mean} ({found.interval_text(1)}; {count})" if len(found.values) > 1 else f"{mean} ({count})"


def _mean(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"
