"""Tables of fixed kernels: accuracies with γ = 1 and γ = 0, and paired differences to a control without geometry."""

import statistics
from collections.abc import Sequence

from ..results import markdown_table

Row = dict[str, str]

CONTROL = "no geometry"


def table(runs: dict[str, dict[str, list[Row]]]) -> str:
    """Return the table of a protocol.

    Args:
        runs: the reported runs by name of the method and by the column ``zero_gamma``, "False" or "True". The control
            has the name ``CONTROL``.
    """
    lines = []
    for name, variants in runs.items():
        plain, zero = variants.get("False", []), variants.get("True", [])
        cells = [_accuracy(plain), _accuracy(zero), _difference(zero, plain)]
        for gamma, some in (("False", plain), ("True", zero)):
            cells.append("" if name == CONTROL else _difference(some, runs.get(CONTROL, {}).get(gamma, [])))
        lines.append([name, *cells])
    header = ["top-1", "γ = 1", "γ = 0", "γ = 0 − γ = 1", f"γ = 1 − {CONTROL}", f"γ = 0 − {CONTROL}"]
    return markdown_table(header, lines)


def _accuracy(runs: Sequence[Row]) -> str:
    if not runs:
        return ""
    multiplier = runs[0]["multiplier"]
    return _mean([_percent(row) for row in runs]) + (f" ×{multiplier}" if multiplier else "")


def _difference(runs: Sequence[Row], others: Sequence[Row]) -> str:
    """Return the mean difference over the seeds of both."""
    before = {row["seed"]: _percent(row) for row in others}
    differences = [_percent(row) - before[row["seed"]] for row in runs if row["seed"] in before]
    return _mean(differences, "+") if differences else ""


def _mean(values: Sequence[float], sign: str = "") -> str:
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{sign}.2f}{deviation} ({len(values)})"


def _percent(row: Row) -> float:
    return 100 * float(row["top1"])
