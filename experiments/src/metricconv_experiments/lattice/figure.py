"""lattice.png: loss curves, paired differences, samples on the lattice."""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from .derivative import DERIVATIVES
from .pairs import Group, Row, differences, on_lattice, paired

_COLORS = {"one-sided": "#D55E00", "central": "#0072B2"}
_COLORS_OF_GROUPS = ("#009E73", "#56B4E9", "#CC79A7", "#E69F00")


def figure(rows: Sequence[Row], curves: Sequence[Row]) -> Any:
    """Draw the training loss of each group, the paired differences of test accuracy, and the samples on the lattice."""
    from matplotlib.figure import Figure

    groups = list(paired(rows, "test_accuracy"))
    columns = -(-len(groups) // 2)
    drawing = Figure(figsize=(3.6 * (columns + 1), 6.4), dpi=150, layout="constrained")
    panels = drawing.subplots(2, columns + 1, squeeze=False)
    losses = panels[:, :columns].ravel()
    for axes, group in zip(losses, groups, strict=False):
        _draw_loss(axes, group, curves)
    for axes in losses[len(groups) :]:
        axes.set_axis_off()
    losses[0].legend(fontsize=8)
    _draw_differences(panels[0, columns], rows)
    _draw_on_lattice(panels[1, columns], curves)
    return drawing


def _draw_loss(axes: Any, group: Group, curves: Sequence[Row]) -> None:
    """Draw the mean over seeds of the training loss, and the range from minimum to maximum."""
    layer, multiplier = group
    some = [row for row in curves if (row["layer"], row["multiplier"]) == group and row["train_loss"]]
    for derivative, style in zip(DERIVATIVES, ("-", "--"), strict=True):
        points: dict[int, dict[str, float]] = defaultdict(
            dict
        )  # by epoch and seed; later points of an epoch replace earlier ones
        for row in some:
            if row["derivative"] == derivative:
                points[int(row["epoch"])][row["seed"]] = float(row["train_loss"])
        epochs = sorted(points)
        values = [list(points[epoch].values()) for epoch in epochs]
        color = _COLORS[derivative]
        axes.plot(epochs, [statistics.mean(v) for v in values], style, color=color, label=derivative)
        axes.fill_between(epochs, [min(v) for v in values], [max(v) for v in values], color=color, alpha=0.15, lw=0)
    axes.set_title(f"{layer}, multiplier {multiplier}", fontsize=10)
    axes.set(xlabel="epoch", ylabel="training loss: mean, range")
    axes.grid(alpha=0.3)


def _draw_differences(axes: Any, rows: Sequence[Row]) -> None:
    """Draw a dot for each pair, and the mean with its standard error."""
    found = differences(rows, "test_accuracy", 100)
    for position, difference in enumerate(found.values()):
        axes.plot([position] * len(difference.values), difference.values, "o", color="0.6", markersize=4)
        axes.errorbar(
            position + 0.2, difference.mean, difference.error, fmt="s", color="black", markersize=5, capsize=3
        )
    axes.axhline(0, color="0.3", linewidth=0.8)
    axes.set_xlim(-0.5, len(found) - 0.3)
    axes.set_xticks(range(len(found)), [f"{layer}\n× {multiplier}" for layer, multiplier in found], fontsize=8)
    axes.set_title("test accuracy, central − one-sided\ndots: seeds; squares: mean ± standard error", fontsize=9)
    axes.set_ylabel("percentage points")
    axes.grid(alpha=0.3, axis="y")


def _draw_on_lattice(axes: Any, curves: Sequence[Row]) -> None:
    """Draw the fraction of sample coordinates on the lattice by step."""
    for color, (group, fractions) in zip(itertools.cycle(_COLORS_OF_GROUPS), on_lattice(curves).items(), strict=False):
        percent = [100 * fraction for fraction in fractions.values()]
        axes.plot(list(fractions), percent, ".-", color=color, label=" × ".join(group))
    axes.set_xscale("symlog", linthresh=1)
    axes.set(xlabel="training step", ylabel="% of sample coordinates")
    axes.set_title("samples within the tolerance of a lattice point", fontsize=9)
    axes.legend(fontsize=7, handlelength=1, borderpad=0.3, loc="lower left")
    axes.grid(alpha=0.3)
