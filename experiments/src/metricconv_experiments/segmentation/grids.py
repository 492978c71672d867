"""The grid of runs: rates selected on held-out training images, then all methods at their best rates."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..results import Results, text
from .runs import Phase
from .setting import KEY, METHODS, ORDINARY, Setting

# Numbers of training images, the most informative first; None is all.
IMAGES = (4, None, 1, 2)
SEEDS = (1, 2, 3, 4, 5)
# Rates are selected with this seed, with this number of training images, on as many others as given by dataset.
SELECTION_SEED, SELECTION_IMAGES = 0, 4
HOLDOUT = {"drive": 8, "crackforest": 20}
# Rates of the first selection. The best one is compared with its neighbors, a factor of about 3 away, until it is not
# at the edge, but at most this often.
LEARNING_RATES = (0.001, 0.003, 0.01, 0.03, 0.1)
MULTIPLIERS = (0.01, 0.03, 0.1, 0.3, 1.0)
BASELINE_MULTIPLIERS = (0.001, 0.003, 0.01, 0.03, 0.1)
_EXTENSIONS = 3


def grid(
    dataset: str,
    common: Mapping[str, Any],
    methods: Sequence[str] = METHODS,
    images: Sequence[int | None] = IMAGES,
    seeds: Iterable[int] = SEEDS,
) -> list[Phase]:
    """Return all runs of a dataset: the selection of rates, then the comparison, in order of importance.

    Methods without a predictor select the learning rate, the others their multiplier at the best learning rate of the
    standard network, so that all methods have the same number of trials.
    """
    seeds = list(seeds)
    ordinary = [method for method in ORDINARY if method in methods or method == "standard"]
    adaptive = [method for method in methods if method not in ORDINARY]

    def comparison(results: Results) -> Iterator[Setting]:
        for count in images:
            for seed in seeds:
                for method in methods:
                    rates = best_rates(results, dataset, common, method)
                    yield Setting(**{**common, **rates, "dataset": dataset, "images": count, "seed": seed})

    return [
        *_selection(dataset, common, ordinary, "learning rates"),
        *_selection(dataset, common, adaptive, "multipliers"),
        (f"{dataset}, comparison", comparison),
    ]


def selection_grid(dataset: str, common: Mapping[str, Any], methods: Sequence[str] = METHODS) -> list[Phase]:
    """Return the runs of a dataset that select rates."""
    return grid(dataset, common, methods)[:-1]


def rates_of(method: str) -> tuple[str, tuple[float, ...]]:
    """Return which rate of a method is selected, and its first values."""
    if method in ORDINARY:
        return "lr", LEARNING_RATES
    return "multiplier", MULTIPLIERS if method.startswith("metric") else BASELINE_MULTIPLIERS


def best_rates(results: Results, dataset: str, common: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Return the method, its learning rate and its multiplier with the best Dice on the held-out images.

    Rates without rows are those of ``Setting``.
    """
    rates: dict[str, Any] = {"method": method}
    if method not in ORDINARY:
        rates = best_rates(results, dataset, common, "standard") | rates
    name, _ = rates_of(method)
    found = _found(results, dataset, common, method, rates)
    return rates | ({name: best(found)} if found else {})


def best(scores: Mapping[float, float]) -> float:
    """Return the rate with the best score, the smallest one of several."""
    return max(sorted(scores), key=lambda rate: scores[rate])


def _selection(dataset: str, common: Mapping[str, Any], methods: Sequence[str], title: str) -> list[Phase]:
    def first(results: Results) -> Iterator[Setting]:
        for method in methods:
            name, rates = rates_of(method)
            for rate in rates:
                yield _trial(dataset, common, {**_base(results, dataset, common, method), name: rate})

    def extension(results: Results) -> Iterator[Setting]:
        for method in methods:
            name, rates = rates_of(method)
            base = _base(results, dataset, common, method)
            found = _found(results, dataset, common, method, base)
            rate = beyond(found) if found and len(found) < len(rates) + _EXTENSIONS else None
            if rate is not None:
                yield _trial(dataset, common, {**base, name: rate})

    extensions = [(f"{dataset}, {title}, extension {n}", extension) for n in range(1, _EXTENSIONS + 1)]
    return [(f"{dataset}, {title}", first), *extensions]


def beyond(scores: Mapping[float, float]) -> float | None:
    """Return the next rate if the best one is at the edge of those tried, in 1, 3, 10, 30 …, otherwise None.

    >>> beyond({0.01: 0.5, 0.03: 0.7, 0.1: 0.9}), beyond({0.01: 0.9, 0.03: 0.7}), beyond({1: 0.1, 3: 0.2, 10: 0.1})
    (0.3, 0.003, None)
    """
    rate = best(scores)
    leading = f"{rate:.0e}".startswith("1")
    if rate == max(scores):
        return float(f"{rate * (3 if leading else 10 / 3):.1g}")
    if rate == min(scores):
        return float(f"{rate / (10 / 3 if leading else 3):.1g}")
    return None


def _base(results: Results, dataset: str, common: Mapping[str, Any], method: str) -> dict[str, Any]:
    if method in ORDINARY:
        return {"method": method}
    return best_rates(results, dataset, common, "standard") | {"method": method}


def _trial(dataset: str, common: Mapping[str, Any], rates: Mapping[str, Any]) -> Setting:
    selection = {"images": SELECTION_IMAGES, "holdout": HOLDOUT[dataset], "seed": SELECTION_SEED}
    return Setting(**{**common, **rates, **selection, "dataset": dataset})


def _found(
    results: Results, dataset: str, common: Mapping[str, Any], method: str, rates: Mapping[str, Any]
) -> dict[float, float]:
    """Return the Dice on held-out images by rate, of the rows of a method that differ in nothing else."""
    name, _ = rates_of(method)
    wanted = _trial(dataset, common, {**rates, "method": method}).key
    same = [column for column in KEY if column != name]
    rows = [row for row in results.rows if all(row[column] == text(wanted[column]) for column in same)]
    return {float(row[name]): float(row["dice"]) for row in rows}


def single(settings: Iterable[Setting]) -> list[Phase]:
    """Return a grid of given settings."""
    listed = list(settings)
    return [(f"{len(listed)} run{'s' * (len(listed) != 1)}", lambda _: listed)]
