"""README.md and lattice.png, from runs.csv and curves.csv alone."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from metricconv._files import read_table, writing

from ..results import markdown_table, write_markdown
from .figure import figure
from .network import ADAPTIVE
from .pairs import Row, differences, on_lattice, overall, paired
from .settings import CURVES, KEY, VALUES

_RECIPE = tuple(name for name in KEY if name not in ("layer", "derivative", "multiplier", "seed"))
# The fraction of samples on the lattice is reported after these steps.
_STEPS = (0, 1, 5, 10, 20)
_GRADIENT = ("gradient_cosine", "gradient_ratio")


def write_all(folder: Path) -> list[str]:
    """Write the page and the figure; return the names of the written files."""
    rows, curves = read_table(folder / "runs.csv"), read_table(folder / "curves.csv")
    _check(folder, rows, curves)
    if not paired(rows, "test_accuracy"):
        return []
    with writing(folder / "lattice.png") as path:
        figure(rows, curves).savefig(path)
    write_markdown(folder / "README.md", *_page(rows, curves))
    return ["lattice.png", "README.md"]


def _check(folder: Path, rows: Sequence[Row], curves: Sequence[Row]) -> None:
    for name, table, columns in (("runs.csv", rows, (*KEY, *VALUES)), ("curves.csv", curves, (*KEY, *CURVES))):
        missing = sorted(set(columns) - set(table[0])) if table else []
        if missing:
            raise ValueError(f"{folder / name} has no column {', '.join(missing)}")
    adaptive = [row for row in rows if row["layer"] in ADAPTIVE]
    for name in _RECIPE:
        found = sorted({row[name] for row in adaptive})
        if len(found) > 1:
            raise ValueError(
                f"{folder / 'runs.csv'} mixes runs with `{name}` {', '.join(found)}: use another `output` for each"
            )


def _page(rows: Sequence[Row], curves: Sequence[Row]) -> list[str]:
    return [
        "# Does the derivative at lattice points matter for training?",
        "A converted layer starts with every sample on a pixel, where bilinear interpolation has a kink. Version 0.1 "
        "used the one-sided slope that rounding selected; now the derivative there is the central difference. This "
        "study trains the same networks on the same batches with both. This page is generated from "
        "[runs.csv](runs.csv) and [curves.csv](curves.csv).",
        "## Outcome",
        _outcome(rows),
        _accuracies(rows),
        _baseline(rows),
        "## How far apart the two derivatives are",
        _first_gradients(rows),
        _on_lattice(curves),
        "![training loss of both derivatives, differences of test accuracy, samples on the lattice](lattice.png)",
        "## Setup",
        _setup(rows),
        _commands(),
    ]


def _outcome(rows: Sequence[Row]) -> str:
    accuracy, loss = overall(rows, "test_accuracy", 100), overall(rows, "train_loss")
    groups = differences(rows, "test_accuracy", 100)
    if accuracy.resolved:
        answer = f"Yes: test accuracy is {'higher' if accuracy.mean > 0 else 'lower'} with the central difference, by"
    else:
        answer = "No effect on test accuracy was found:"
    layers = {layer: [row for row in rows if row["layer"] == layer] for layer, _ in groups}
    by_layer = (f"{layer} layers: {overall(some, 'test_accuracy', 100).text(2)}" for layer, some in layers.items())
    excluding = [f"{layer} × {multiplier}" for (layer, multiplier), one in groups.items() if one.resolved]
    parts = [
        f"**{answer} {accuracy.text(2)} points**, central minus one-sided, mean ± standard error over "
        f"{len(accuracy.values)} seeds (each the mean of its pairs); 95 % interval {accuracy.interval_text(2)}.",
        f"By layer, {'; '.join(by_layer)}.",
        f"Of the {len(groups)} rows below, the intervals of these exclude zero: {', '.join(excluding)}."
        if excluding
        else f"The interval of each of the {len(groups)} rows below contains zero.",
        f"The training loss of the last epoch {'differs' if loss.resolved else 'does not differ measurably'}: "
        f"{loss.text(3)}, 95 % interval {loss.interval_text(3)}.",
    ]
    if not accuracy.resolved:
        parts.append("An effect within these intervals cannot be excluded.")
    return " ".join(parts)


def _accuracies(rows: Sequence[Row]) -> str:
    header = [
        "layer, × predictor learning rate / base learning rate", "one-sided, %", "central, %",
        "central − one-sided, points", "95 % interval", "training loss, central − one-sided", "seeds",
    ]  # fmt: skip
    accuracy, loss = differences(rows, "test_accuracy", 100), differences(rows, "train_loss")
    lines = []
    for (layer, multiplier), seeds in paired(rows, "test_accuracy").items():
        one, central = (100 * statistics.mean(values) for values in zip(*seeds.values(), strict=True))
        difference = accuracy[layer, multiplier]
        cells = [f"{one:.2f}", f"{central:.2f}", difference.text(2), difference.interval_text(2)]
        lines.append([f"{layer} × {multiplier}", *cells, loss[layer, multiplier].text(3), str(len(seeds))])
    return markdown_table(header, lines)


def _baseline(rows: Sequence[Row]) -> str:
    standard = [100 * float(row["test_accuracy"]) for row in rows if row["layer"] == "standard"]
    parts = [
        "Accuracies are of test images after the last epoch, means over seeds; differences are means ± standard errors "
        "of paired differences, and intervals use Student's t."
    ]
    if len(standard) > 1:
        parts.append(
            f"The unconverted network reaches {statistics.mean(standard):.2f} % (standard deviation "
            f"{statistics.stdev(standard):.2f} over {len(standard)} seeds)."
        )
    if {row["multiplier"] for row in rows if row["layer"] in ADAPTIVE} == {"0.01", "0.1"}:
        parts.append(
            "The multipliers are those that the library recommends for deformable (0.01) and metric layers (0.1). "
            "Both were run for both layers, so nothing was selected."
        )
    return " ".join(parts)


def _first_gradients(rows: Sequence[Row]) -> str:
    lines = []
    for layer in ADAPTIVE:
        some = {row["seed"]: row for row in rows if row["layer"] == layer and row["gradient_cosine"]}.values()
        if some:
            lines.append([layer, *(_range([float(row[name]) for row in some]) for name in _GRADIENT)])
    return (
        "Gradients of the predictors' parameters before the first step, where all samples are on the lattice. "
        "Mean over seeds, with the range:\n\n"
        + markdown_table(["layer", "cosine between the two", "norm, central / one-sided"], lines)
    )


def _range(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _on_lattice(curves: Sequence[Row]) -> str:
    found = on_lattice(curves)
    steps = [step for step in _STEPS if all(step in fractions for fractions in found.values())]
    lines = []
    for (layer, multiplier), fractions in found.items():
        shown = (*steps, max(fractions))
        lines.append([f"{layer} × {multiplier}", *(f"{100 * fractions[step]:.1f}" for step in shown)])
    header = ["layer, × multiplier", *(f"step {step}" for step in steps), "end"]
    return (
        "The two derivatives are the same wherever a sample is off the lattice. The table gives the fraction of sample "
        "coordinates within the tolerance of an integer, in percent, among those that the predictor can move:\n\n"
        + markdown_table(header, lines)
    )


def _setup(rows: Sequence[Row]) -> str:
    first = next(row for row in rows if row["layer"] in ADAPTIVE)
    width = int(first["width"])
    versions = {name: ", ".join(sorted({row[name] for row in rows})) for name in ("hardware", "torch")}
    code: dict[str, dict[str, None]] = {}  # a dict as an ordered set
    for row in rows:
        code.setdefault(row["metricconv"], {})[row["derivative"] or row["layer"]] = None
    versions["metricconv"] = ", ".join(f"{version} ({', '.join(runs)})" for version, runs in sorted(code.items()))
    backends = ", ".join(sorted({row["backend"] for row in rows} - {""}))
    seeds = ", ".join(sorted({row["seed"] for row in rows}, key=int))
    return (
        f"A ResNet of three stages with one block each and {width}, {2 * width} and {4 * width} channels, on "
        f"{first['train_images']} training images of CIFAR-10 (a fixed random subset, padded, cropped and flipped) and "
        f"{first['test_images']} test images. `mc.convert` replaces the four 3×3 convolutions of the last "
        f"two stages, two of stride 1 and two of stride 2. SGD with Nesterov momentum 0.9, one cycle up to a rate of "
        f"{first['lr']}, batches of {first['batch']}, weight decay {first['weight_decay']}, {first['epochs']} epochs. "
        f"Initial weights and batches depend on the seed alone (seeds {seeds}), so the two derivatives of a seed form "
        "a pair. For the one-sided derivative, no position is treated as a lattice point; all other code is the same. "
        f"Backend: {backends}, for both. {versions['hardware']}; metricconv {versions['metricconv']}; torch "
        f"{versions['torch']}."
    )


def _commands() -> str:
    return "\n".join(
        (
            "- All runs, and this page: `metricconv reproduce lattice --output results/lattice`",
            "- One pair: `metricconv reproduce lattice --layer metric --multiplier 0.1 --seed 0`",
            "- Only this page and the figure, from the CSVs: `metricconv report`",
        )
    )
