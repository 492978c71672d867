"""Grids of runs by name: small ones for a few minutes on a GPU, and those of the paper's tables."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..results import Results, text
from .networks import SMALL
from .runs import Phase
from .setting import KEY, Setting

# Datasets of each grid.
DATASETS = {
    "short": ("cifar100", "fashion-mnist"),
    "paper": ("fashion-mnist", "mnist", "cifar100", "cifar10"),
    "ablation": ("cifar100",),
    "fixed": ("cifar10", "fashion-mnist", "cifar100"),
    "small": ("cifar10", "mnist", "fashion-mnist"),
}
METRICS = ("metric-randers", "metric-geodesic")
BASELINES = ("deformable", "shifted")
ADAPTIVE = ("metric-randers", *BASELINES)
# Predictor learning-rate multipliers, the most informative first: as many for the baselines, which need lower ones.
MULTIPLIERS = (0.1, 1.0, 0.01, 0.3, 0.03)
BASELINE_MULTIPLIERS = (0.01, 0.1, 0.003, 0.03, 0.001)
DEFAULT_MULTIPLIER = 0.1

# Defaults of the short grid.
SHORT = {"recipe": "onecycle", "epochs": 6, "batch": 128, "holdout": 5000}
# Its learning rate for gray images: with the default, even some standard networks diverge.
GRAY_OPTIONS = {"lr": 0.1}
# Variants of the metric network.
VARIANTS: dict[str, dict[str, Any]] = {
    "Riemannian": {"method": "metric-riemann"},
    "four metrics per layer": {"metric_groups": 4},
    "low asymmetry": {"eps_omega": 0.9},
    "high asymmetry": {"eps_omega": 0.1},
    "wide range of scales": {"s_min": 0.01, "s_max": 3.0},
    "round stencil": {"stencil": "onion"},
    "6 parameters": {"metric_parameters": 6},
}

# Defaults of the grids of the small network.
TINY = {
    "network": SMALL, "recipe": "onecycle", "epochs": 4, "batch": 64, "lr": 0.1, "train_images": 3000, "holdout": 1000,
}  # fmt: skip
# Its multipliers, for all methods.
TINY_MULTIPLIERS = (0.1, 1.0, 0.01, 10.0, 0.001)
# Methods with fixed kernels; the last one is the control without geometry.
FIXED_METHODS: tuple[dict[str, Any], ...] = (
    {"method": "metric-randers", "metric_parameters": 6},
    {"method": "metric-randers", "metric_parameters": 7},
    {"method": "deformable"},
    {"method": "shifted"},
    {"method": "standard"},
)
# Variants of the small network with learned kernels.
SMALL_VARIANTS: tuple[dict[str, Any], ...] = (
    {"method": "metric-randers", "init": "paper"},
    {"method": "deformable", "init": "paper"},
    {"method": "shifted", "init": "paper"},
    {"method": "metric-randers", "l1": 5000.0},
    {"method": "metric-randers", "warmup": 1},
)


def short(common: Mapping[str, Any], seeds: Iterable[int] = range(6)) -> list[Phase]:
    """Return a comparison with one short schedule for all methods, in order of importance.

    Each method is compared at its best predictor learning-rate multiplier, selected on held-out images with the first
    seed. All multipliers of a dataset are run before the first selection, so that an interrupted grid results in the
    same rows.
    """
    first, *others = seeds
    second, more = others[:1], others[1:]
    cifar, clothes = _base("cifar100", common), _base("fashion-mnist", common)

    def make(base: Mapping[str, Any], method: str, **rest: Any) -> Setting:
        return Setting(**{**base, "method": method, **rest})

    def sweep(
        base: Mapping[str, Any], methods: Sequence[str] = ADAPTIVE, count: int = len(MULTIPLIERS), **rest: Any
    ) -> Callable[[Results], Iterator[Setting]]:
        def settings(_: Results) -> Iterator[Setting]:
            for n, method in itertools.product(range(count), methods):
                multipliers = BASELINE_MULTIPLIERS if method in BASELINES else MULTIPLIERS
                yield make(base, method, multiplier=multipliers[n], seed=first, **rest)

        return settings

    def best(
        base: Mapping[str, Any], *methods: str, seeds: Sequence[int] = (first,), **rest: Any
    ) -> Callable[[Results], Iterator[Setting]]:
        def settings(results: Results) -> Iterator[Setting]:
            for seed in seeds:
                for method in methods:
                    multiplier = best_multiplier(results, make(base, method, seed=first))
                    yield make(base, method, multiplier=multiplier, seed=seed, **rest)

        return settings

    def variants(results: Results) -> Iterator[Setting]:
        multiplier = best_multiplier(results, make(cifar, "metric-randers", seed=first))
        for changes in VARIANTS.values():
            yield Setting(**{**cifar, "method": "metric-randers", "multiplier": multiplier, "seed": first, **changes})

    return [
        ("CIFAR-100, standard", lambda _: [make(cifar, "standard", seed=first)]),
        ("CIFAR-100, multipliers", sweep(cifar)),
        ("CIFAR-100, another seed", best(cifar, "standard", *ADAPTIVE, seeds=second)),
        ("CIFAR-100, more seeds", best(cifar, "standard", *ADAPTIVE, seeds=more)),
        ("CIFAR-100, geodesic balls, multipliers", sweep(cifar, ["metric-geodesic"])),
        ("CIFAR-100, geodesic balls", best(cifar, "metric-geodesic", seeds=others)),
        ("Fashion-MNIST, standard", lambda _: [make(clothes, "standard", seed=first)]),
        ("Fashion-MNIST, multipliers", sweep(clothes)),
        ("Fashion-MNIST, another seed", best(clothes, "standard", *ADAPTIVE, seeds=second)),
        ("CIFAR-100, fixed weights", sweep(cifar, count=3, weights="fixed")),
        ("CIFAR-100, the paper's initialization", best(cifar, *ADAPTIVE, init="paper")),
        ("CIFAR-100, other metrics", variants),
        ("Fashion-MNIST, fixed weights", sweep(clothes, count=3, weights="fixed")),
        ("Fashion-MNIST, more seeds", best(clothes, "standard", *ADAPTIVE, seeds=more)),
    ]


def _base(dataset: str, common: Mapping[str, Any]) -> dict[str, Any]:
    """Return the common options of the runs of a dataset."""
    gray = GRAY_OPTIONS if "mnist" in dataset else {}
    return {**SHORT, **gray, "dataset": dataset, **common}


def sweep(
    common: Mapping[str, Any], methods: Iterable[str], multipliers: Iterable[float], seeds: Iterable[int]
) -> list[Phase]:
    """Return a sweep of predictor learning-rate multipliers, and the standard network for comparison."""
    base = _base(common.get("dataset", "cifar100"), common)
    methods, multipliers, seeds = list(methods), list(multipliers), list(seeds)

    def settings(_: Results) -> Iterator[Setting]:
        for seed in seeds:
            yield Setting(**{**base, "method": "standard", "seed": seed})
            for multiplier in multipliers:
                for method in methods:
                    yield Setting(**{**base, "method": method, "multiplier": multiplier, "seed": seed})

    return [("multipliers", settings)]


def paper(common: Mapping[str, Any], starts: Iterable[str], seeds: Sequence[int] = range(8)) -> list[Phase]:
    """Return Tables 3 and 4 of the paper with its recipe: Adam, 240 epochs, multiplier 1.

    ``starts`` contains "scratch" and the names of pretrained weights. As in the paper, gray images are run with the
    first seed only, other images with every seed.
    """
    starts = list(starts)

    def of(dataset: str) -> Callable[[Results], Iterator[Setting]]:
        def settings(_: Results) -> Iterator[Setting]:
            for seed in seeds[:1] if "mnist" in dataset else seeds:
                for start in starts:
                    for method, weights in _cells():
                        yield Setting(**_published(common, dataset, method, weights, start), seed=seed)

        return settings

    return [(dataset, of(dataset)) for dataset in DATASETS["paper"]]


def ablation(common: Mapping[str, Any], start: str, seeds: Sequence[int] = range(10)) -> list[Phase]:
    """Return the paper's ablation: CIFAR-100, only layer 4 replaced, learned weights."""

    def settings(_: Results) -> Iterator[Setting]:
        for seed in seeds:
            for method in ("standard", *BASELINES, "metric-randers", "metric-riemann"):
                yield Setting(**_published(common, "cifar100", method, "learnt", start), layers="4", seed=seed)

    return [("layer 4 alone", settings)]


def fixed(common: Mapping[str, Any], seeds: Sequence[int] = range(6)) -> list[Phase]:
    """Return a study of fixed kernels: all methods and a control without geometry, with γ = 1 and γ = 0.

    Multipliers are selected on held-out images with the first seed. All methods are run at the same multipliers, and
    reported with the other seeds.
    """

    def variants(dataset: str) -> list[dict[str, Any]]:
        return [
            {**TINY, **common, "weights": "fixed", "dataset": dataset, **method, "zero_gamma": zero_gamma}
            for method, zero_gamma in itertools.product(FIXED_METHODS, (False, True))
        ]

    return [phase for dataset in DATASETS["fixed"] for phase in _selected_and_reported(variants(dataset), seeds)]


def small(common: Mapping[str, Any], seeds: Sequence[int] = range(6)) -> list[Phase]:
    """Return a study of the small network with learned kernels, as ``fixed``.

    On CIFAR-10, all seeds are run with all multipliers; the variants of a method have its selected multiplier.
    """

    def methods(dataset: str) -> list[dict[str, Any]]:
        return [{**TINY, **common, "dataset": dataset, "method": name} for name in ("standard", *METRICS, *BASELINES)]

    def variants(results: Results) -> Iterator[Setting]:
        for seed, changes in itertools.product(seeds[1:] or seeds, SMALL_VARIANTS):
            plain = {**TINY, **common, "dataset": "cifar10", "method": changes["method"]}
            yield Setting(
                **{**plain, **changes},
                multiplier=best_multiplier(results, Setting(**plain, seed=seeds[0])),
                seed=seed,
            )

    cifar, *gray = DATASETS["small"]
    return [
        *_selected_and_reported(methods(cifar), seeds),
        (f"{cifar}, variants", variants),
        *(phase for dataset in gray for phase in _selected_and_reported(methods(dataset), seeds)),
        (f"{cifar}, all multipliers", _all_multipliers(methods(cifar), seeds)),
    ]


def _selected_and_reported(variants: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> list[Phase]:
    """Return all multipliers of the small network with the first seed, then the best ones with the other seeds."""
    first, *others = seeds

    def best(results: Results) -> Iterator[Setting]:
        for seed, variant in itertools.product(others or [first], variants):
            yield Setting(**variant, multiplier=best_multiplier(results, Setting(**variant, seed=first)), seed=seed)

    title = f"{variants[0]['dataset']}, {Setting(**variants[0]).weights} weights"
    return [(f"{title}, multipliers", _all_multipliers(variants, [first])), (title, best)]


def _all_multipliers(
    variants: Sequence[Mapping[str, Any]], seeds: Sequence[int]
) -> Callable[[Results], Iterator[Setting]]:
    """Return all multipliers of the small network, for the methods that have multipliers."""

    def settings(_: Results) -> Iterator[Setting]:
        for seed, multiplier, variant in itertools.product(seeds, TINY_MULTIPLIERS, variants):
            if variant["method"] != "standard":
                yield Setting(**variant, multiplier=multiplier, seed=seed)

    return settings


def best_multiplier(results: Results, setting: Setting) -> float | None:
    """Return the multiplier with the best held-out accuracy among the rows that differ from a setting in nothing else.

    Without held-out images, test accuracy is used; without rows, the default multiplier is returned.
    """
    if setting.multiplier is None:
        return None
    same = [name for name in KEY if name != "multiplier"]
    rows = [row for row in results.rows if all(row[name] == text(setting.key[name]) for name in same)]
    if not rows:
        return DEFAULT_MULTIPLIER
    return float(max(rows, key=lambda row: float(row["held_top1"] or row["top1"]))["multiplier"])


def single(settings: Iterable[Setting]) -> list[Phase]:
    """Return a grid of given settings."""
    listed = list(settings)
    return [(f"{len(listed)} run{'s' * (len(listed) > 1)}", lambda _: listed)]


def of_dataset(phases: Iterable[Phase], dataset: str) -> list[Phase]:
    """Return the runs of a grid that use one dataset."""

    def part(settings: Callable[[Results], Iterable[Setting]]) -> Callable[[Results], list[Setting]]:
        return lambda results: [setting for setting in settings(results) if setting.dataset == dataset]

    return [(title, part(settings)) for title, settings in phases]


def planned(phases: Iterable[Phase], results: Results) -> list[tuple[str, Setting]]:
    """Return all runs of a grid, given the present results, once each, with the title of their first phase."""
    titles: dict[Setting, str] = {}
    for title, settings in phases:
        for setting in settings(results):
            titles.setdefault(setting, title)
    return [(title, setting) for setting, title in titles.items()]


def _cells() -> Iterator[tuple[str, str]]:
    yield "standard", "learnt"
    for method in (*BASELINES, "metric-randers"):
        yield method, "learnt"
        yield method, "fixed"


def _published(common: Mapping[str, Any], dataset: str, method: str, weights: str, start: str) -> dict[str, Any]:
    """Return the paper's settings of a cell; only metric networks have an L1 penalty and a warm-up."""
    metric = method.startswith("metric") and weights == "learnt" and dataset.startswith("cifar")
    warm = metric and dataset == "cifar10" and start != "scratch"
    options: dict[str, Any] = {"recipe": "paper", "init": "paper", "multiplier": 1.0, "l1": 5000.0 if metric else 0.0}
    options |= {"warmup": 50 if warm else 0}
    if dataset.startswith("cifar"):
        options |= {"augmentation": "resized-crop"}
    return {**options, **common, "dataset": dataset, "method": method, "weights": weights, "start": start}
