"""How many numbers of the paper's tables the CSVs of our results contain, and what the missing ones would cost.

A number counts as ours "at the paper's schedule" if it was computed with the paper's optimizer and number of epochs or
iterations, and as ours "at another schedule" otherwise. Learning rates are numbers of the paper, too: ours are those of
our range test.
"""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from .classification import published as accuracies
from .classification.networks import NARROW, SMALL
from .denoising import published as errors
from .results import markdown_table, read_rows, write_markdown

Row = dict[str, str]

# Epochs of a classification run in the paper, and runs per number.
EPOCHS = 240
RUNS = {"mnist": 1, "fashion-mnist": 1, "cifar10": 8, "cifar100": 8}
# Datasets with the same number and size of images, for which the time of an epoch is known.
_SAME_COST = {"mnist": "fashion-mnist", "cifar10": "cifar100"}
_CLASSIFY = "metricconv reproduce classify"


class Table(NamedTuple):
    """Coverage of a table of the paper: its number of cells, and how many we computed with which schedule.

    ``reduced`` counts those of the absent cells for which there are rows of a smaller network.
    """

    name: str
    cells: int
    same_schedule: int
    other_schedule: int
    command: str
    missing: str
    reduced: int = 0

    @property
    def absent(self) -> int:
        """Number of cells that have not been computed with any schedule."""
        return self.cells - self.same_schedule - self.other_schedule


# The paper quotes the two numbers of FlexConv; its own two are those of its accuracy tables.
_FLEXCONV = Table("comparison with FlexConv", 4, 0, 0, "", "FlexConv has not been run.")


def tables(folder: Path) -> list[Table]:
    """Return the coverage of all tables of the paper by the CSVs below a folder of results."""
    image, dataset = (read_rows(folder / "denoising" / f"{name}.csv") for name in ("image", "dataset"))
    trained = read_rows(folder / "classification/runs.csv")
    runs = [row for row in trained if row["network"] not in (NARROW, SMALL)]
    return [
        *_image_tables(image),
        *_dataset_tables(dataset),
        *_accuracy_tables(runs, [row for row in trained if row not in runs]),
        _ablation(runs),
        _cost(runs),
        _FLEXCONV,
    ]


def write(folder: Path) -> list[str]:
    """Write ``coverage.md``; return the names of the written files, none if there are no CSVs."""
    found = tables(folder)
    if not any(table.same_schedule or table.other_schedule for table in found):
        return []
    counts = [(t.cells, t.same_schedule, t.other_schedule, t.absent, t.reduced) for t in found]
    lines = [
        [table.name, *map(str, numbers), table.command and f"`{table.command}`"]
        for table, numbers in zip(found, counts, strict=True)
    ]
    lines.append(["**all**", *(str(sum(column)) for column in zip(*counts, strict=True)), ""])
    header = ["table of the paper", "numbers", "ours, same schedule", "ours, other schedule", "missing"]
    header += ["of these, on a smaller network", "command"]
    missing = [[table.name, table.missing] for table in found if table.missing]
    write_markdown(
        folder / "coverage.md",
        "# Coverage of the paper's tables",
        "How many of the numbers that the paper prints have been computed, counted from the CSVs of this folder by "
        "`metricconv report`. The schedule is the optimizer with its number of epochs or iterations; learning rates "
        "of ours are those of our range test. A table that the paper prints twice, in part, is counted once.",
        markdown_table(header, lines),
        "## What is missing",
        markdown_table(["table of the paper", "reason or estimated cost"], missing),
        "Costs are for one H200, from the measured seconds per epoch of 4-epoch runs in bfloat16 with CUDA graphs "
        f"(medians by method in `classification/runs.csv`), {EPOCHS} epochs, and as many runs per number as in the "
        f"paper: {RUNS['cifar10']} on CIFAR-10 and CIFAR-100, one on MNIST and Fashion-MNIST.",
    )
    return ["coverage.md"]


def _image_tables(rows: Sequence[Row]) -> list[Table]:
    command = "metricconv reproduce denoise-image"
    common = [row for row in rows if (row["image"], row["iterations"]) == ("cameraman", "100")]
    held = {rate: {_error_key(row, "fixed") for row in common if row["rate"] == rate} for rate in ("paper", "range")}
    values = [
        ("test MSE", errors.IMAGE_MSE, "paper"),
        ("gap δ", errors.IMAGE_GAP, "paper"),
        ("learning rates", errors.IMAGE_RATE, "range"),
    ]
    return [
        Table(
            f"one image, {name}",
            len(numbers),
            len(held[rate] & numbers.keys()),
            0,
            f"{command} --rate {rate}",
            _not_run(held[rate], numbers, "Range tests of the larger kernels have not been run."),
        )
        for name, numbers, rate in values
    ]


def _dataset_tables(rows: Sequence[Row]) -> list[Table]:
    found = []
    for dataset in errors.DATASET_MSE:
        common = [row for row in rows if (row["dataset"], row["recipe"]) == (dataset, "paper")]
        for name, numbers, rate in (
            ("test MSE", errors.DATASET_MSE[dataset], "paper"),
            ("gap δ", errors.DATASET_GAP[dataset], "paper"),
            ("learning rates", errors.DATASET_RATE[dataset], "range"),
        ):
            of = [row for row in common if row["rate"] == rate]
            same = {_error_key(row, row["weights"]) for row in of if row["epochs"] == "100"} & numbers.keys()
            other = {_error_key(row, row["weights"]) for row in of} & numbers.keys() - same
            reason = "The images and the split could not be obtained." if dataset == "voc2012" else ""
            command = f"metricconv reproduce denoise-dataset --dataset {dataset} --rate {rate}"
            reason = reason or _not_run(same | other, numbers, "Range tests of the larger kernels have not been run.")
            found.append(Table(f"{dataset}, {name}", len(numbers), len(same), len(other), command, reason))
    return found


def _accuracy_tables(runs: Sequence[Row], smaller: Sequence[Row]) -> list[Table]:
    found = []
    for value, numbers in (("top-1", accuracies.TOP1), ("top-5", accuracies.TOP5)):
        for dataset in dict.fromkeys(cell.dataset for cell in numbers):
            cells = {cell for cell in numbers if cell.dataset == dataset}
            of = [row for row in runs if row["dataset"] == dataset and row["layers"] in ("", "2-4")]
            same = {_cell(row) for row in of if row["recipe"] == "paper" and row["epochs"] == str(EPOCHS)} & cells
            other = {_cell(row) for row in of} & cells - same
            reduced = {_cell(row) for row in smaller} & cells - same - other
            hours = sum(_hours(runs, cell) for cell in cells - same)
            name = f"{dataset}, {value}"
            command = f"{_CLASSIFY} --grid paper --dataset {dataset}"
            cost = "in the runs of top-1" if value == "top-5" else f"{hours:.0f} GPU hours for the paper's schedule"
            pretrained = sum(cell.start == "transfer" for cell in cells - same)
            cost += f"; {pretrained} numbers need pretrained weights (`--pretrained`)" if pretrained else ""
            missing = f"{len(cells) - len(same)} numbers: {cost}." if len(same) < len(cells) else ""
            found.append(Table(name, len(cells), len(same), len(other), command, missing, len(reduced)))
    return found


def _ablation(runs: Sequence[Row]) -> Table:
    cells = {(network, method) for network, method in accuracies.ABLATION}
    of = [row for row in runs if row["dataset"] == "cifar100" and row["layers"] == "4" and row["weights"] == "learnt"]
    same = {(row["network"], row["method"]) for row in of if row["recipe"] == "paper"} & cells
    other = {(row["network"], row["method"]) for row in of} & cells - same
    return Table(
        "CIFAR-100, only layer 4, top-1 and top-5",
        2 * len(cells),
        2 * len(same),
        2 * len(other),
        f"{_CLASSIFY} --grid ablation",
        "Needs pretrained weights of ResNet-18, 50 and 152 (`--network`, `--pretrained`). "
        f"{_ablation_hours(runs):.0f} GPU hours for ResNet-18, from epochs with stages 2 to 4 replaced; about 2.3 "
        "times as many for ResNet-50 and 6.6 times for ResNet-152, by the number of operations.",
    )


def _cost(runs: Sequence[Row]) -> Table:
    cells = {(method, column) for method in ("deformable", "metric-randers") for column in ("epoch_seconds", "peak_mb")}
    held = {cell for cell in cells if any(row["method"] == cell[0] and row[cell[1]] for row in runs)}
    return Table(
        "memory and time of an epoch",
        1 + len(cells),
        0,
        len(held),
        f"{_CLASSIFY} --grid short",
        "FlexConv has not been run: the paper quotes its time from another publication.",
    )


def _error_key(row: Row, weights: str) -> errors.PublishedKey:
    eps_omega = float(row["eps_omega"]) if row["eps_omega"] else None
    return errors.PublishedKey(row["method"], eps_omega, weights, int(row["k"]), float(row["sigma"]))


def _cell(row: Row) -> accuracies.Cell:
    start = "scratch" if row["start"] == "scratch" else "transfer"
    return accuracies.Cell(row["dataset"], row["method"], row["weights"], start)


def _hours(runs: Iterable[Row], cell: accuracies.Cell) -> float:
    """Return the estimated GPU hours of a number of the paper."""
    dataset = _SAME_COST.get(cell.dataset, cell.dataset)
    of = [r for r in runs if (r["dataset"], r["method"]) == (dataset, cell.method) and r["epoch_seconds"]]
    return RUNS[cell.dataset] * EPOCHS * statistics.median(float(r["epoch_seconds"]) for r in of) / 3600 if of else 0.0


def _ablation_hours(runs: Iterable[Row]) -> float:
    """Return the estimated GPU hours of the ablation of ResNet-18, ten seeds per method."""
    times = [float(row["epoch_seconds"]) for row in runs if row["dataset"] == "cifar100" and row["epoch_seconds"]]
    return 5 * 10 * EPOCHS * statistics.median(times) / 3600 if times else 0.0


def _not_run(held: set[errors.PublishedKey], numbers: dict[errors.PublishedKey, float], reason: str) -> str:
    return "" if held >= numbers.keys() else reason
