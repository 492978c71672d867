"""Statistics of pairs of runs that differ only in the derivative."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .network import ADAPTIVE

Row = dict[str, str]
Group = tuple[str, str]  # layer and multiplier

# Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom; beyond, the last is slightly too large.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


class Difference(NamedTuple):
    """The mean of paired differences, central minus one-sided, and its standard error."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over pairs."""
        return statistics.mean(self.values)

    @property
    def error(self) -> float:
        """Standard error of the mean; NaN for a single pair."""
        return statistics.stdev(self.values) / math.sqrt(len(self.values)) if len(self.values) > 1 else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean, by Student's t."""
        half = _T[min(len(self.values) - 1, len(_T)) - 1] * self.error
        return self.mean - half, self.mean + half

    @property
    def resolved(self) -> bool:
        """Whether the 95 % interval excludes zero."""
        low, high = self.interval
        return low > 0 or high < 0

    def text(self, digits: int) -> str:
        """Return "mean ± standard error".

        >>> Difference((-0.1, -0.3)).text(2)
        '−0.20 ± 0.10'
        """
        return f"{signed(self.mean, digits)} ± {self.error:.{digits}f}"

    def interval_text(self, digits: int) -> str:
        """Return the 95 % interval as "low to high"."""
        return " to ".join(signed(end, digits) for end in self.interval)


def signed(value: float, digits: int) -> str:
    """Return a number with its sign, and a true minus."""
    return f"{value:+.{digits}f}".replace("-", "−")


def paired(rows: Sequence[Row], column: str) -> dict[Group, dict[str, tuple[float, float]]]:
    """Return, by layer and multiplier, the values (one-sided, central) of each seed that has both."""
    found: dict[Group, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if row["layer"] in ADAPTIVE:
            found[row["layer"], row["multiplier"]][row["seed"]][row["derivative"]] = float(row[column])
    pairs = {
        group: {seed: (both["one-sided"], both["central"]) for seed, both in seeds.items() if len(both) == 2}
        for group, seeds in found.items()
    }
    return {group: pairs[group] for group in _sorted(pairs) if len(pairs[group]) > 1}


def differences(rows: Sequence[Row], column: str, scale: float = 1.0) -> dict[Group, Difference]:
    """Return central minus one-sided of each group, times ``scale``."""
    return {
        group: Difference(tuple(scale * (central - one) for one, central in seeds.values()))
        for group, seeds in paired(rows, column).items()
    }


def overall(rows: Sequence[Row], column: str, scale: float = 1.0) -> Difference:
    """Return central minus one-sided, averaged over the groups of each seed first: only seeds are independent."""
    by_seed = defaultdict(list)
    for seeds in paired(rows, column).values():
        for seed, (one, central) in seeds.items():
            by_seed[seed].append(scale * (central - one))
    return Difference(tuple(statistics.mean(values) for values in by_seed.values()))


def on_lattice(curves: Sequence[Row]) -> dict[Group, dict[int, float]]:
    """Return, by layer and multiplier, the mean fraction of sample coordinates on the lattice after each recorded step.

    Only runs with the central difference are used.
    """
    found: dict[Group, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in curves:
        if row["on_lattice"] and row["derivative"] == "central":
            found[row["layer"], row["multiplier"]][int(row["step"])].append(float(row["on_lattice"]))
    return {
        group: {step: statistics.mean(found[group][step]) for step in sorted(found[group])} for group in _sorted(found)
    }


def _sorted(groups: Iterable[Group]) -> list[Group]:
    order = list(ADAPTIVE)
    return sorted(groups, key=lambda group: (order.index(group[0]), float(group[1])))
