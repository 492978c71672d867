"""Grids of runs by name: the short one for a single GPU and some minutes, and those of the paper's tables."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..results import Results, text
from .runs import Phase
from .setting import KEY, Setting

# By the name of a grid, what it is about.
DATASETS = {
    "short": ("cifar100", "fashion-mnist"),
    "paper": ("fashion-mnist", "mnist", "cifar100", "cifar10"),
    "ablation": ("cifar100",),
}
RIVALS = ("deformable", "shifted")
ADAPTIVE = ("metric-randers", *RIVALS)
# Of the heads' learning rate, the most telling first.
MULTIPLIERS = (0.1, 1.0, 0.01, 0.3, 0.03)
USUAL_MULTIPLIER = 0.1
# Of the rivals, which want less: one below what is best for them among the others.
LOWER = (0.003,)
# Of geodesic balls, which want less too.
GEODESIC = (0.01, 0.003)

# What the short grid holds fixed where the command says nothing else.
SHORT = {"recipe": "onecycle", "epochs": 6, "batch": 128, "holdout": 5000}
# What it holds fixed on grey images: at the usual rate even the standard network is at times lost.
GENTLE = {"lr": 0.1}
# What is tried on the metric network beside its usual form.
VARIANTS: dict[str, dict[str, Any]] = {
    "Riemannian": {"method": "metric-riemann"},
    "geodesic balls": {"method": "metric-geodesic"},
    "four metrics a layer": {"metric_groups": 4},
    "little drift": {"eps_omega": 0.9},
    "much drift": {"eps_omega": 0.1},
    "wide range of scales": {"s_min": 0.01, "s_max": 3.0},
    "round stencil": {"stencil": "onion"},
    "6 numbers": {"head": 6},
}


def short(common: Mapping[str, Any], seeds: Iterable[int] = (0, 1, 2)) -> list[Phase]:
    """Return the comparison at one short schedule for all, in order of importance.

    Each method is taken at its own best multiplier of the heads' rate, chosen on held-out images with the first seed.
    All multipliers of a dataset are run before the first choice: a grid that is stopped and run again, however often,
    has the rows of one that is not.
    """
    first, *others = seeds
    second, more = others[:1], others[1:]
    cifar, clothes = _base("cifar100", common), _base("fashion-mnist", common)

    def make(base: Mapping[str, Any], method: str, **rest: Any) -> Setting:
        return Setting(**{**base, "method": method, **rest})

    def sweep(
        base: Mapping[str, Any], *multipliers: float, methods: Sequence[str] = ADAPTIVE, **rest: Any
    ) -> Callable[[Results], Iterator[Setting]]:
        def settings(_: Results) -> Iterator[Setting]:
            for multiplier in multipliers:
                for method in methods:
                    yield make(base, method, head_multiplier=multiplier, seed=first, **rest)

        return settings

    def best(
        base: Mapping[str, Any], *methods: str, seeds: Sequence[int] = (first,), **rest: Any
    ) -> Callable[[Results], Iterator[Setting]]:
        def settings(results: Results) -> Iterator[Setting]:
            for seed in seeds:
                for method in methods:
                    multiplier = best_multiplier(results, make(base, method, seed=first))
                    yield make(base, method, head_multiplier=multiplier, seed=seed, **rest)

        return settings

    def variants(results: Results) -> Iterator[Setting]:
        multiplier = best_multiplier(results, make(cifar, "metric-randers", seed=first))
        for changes in VARIANTS.values():
            yield Setting(
                **{**cifar, "method": "metric-randers", "head_multiplier": multiplier, "seed": first, **changes}
            )

    return [
        ("CIFAR-100, standard", lambda _: [make(cifar, "standard", seed=first)]),
        ("CIFAR-100, the heads' rate", sweep(cifar, *MULTIPLIERS)),
        ("CIFAR-100, the heads' rate, the rivals lower", sweep(cifar, *LOWER, methods=RIVALS)),
        ("CIFAR-100, another seed", best(cifar, "standard", *ADAPTIVE, seeds=second)),
        ("Fashion-MNIST, standard", lambda _: [make(clothes, "standard", seed=first)]),
        ("Fashion-MNIST, the heads' rate", sweep(clothes, *MULTIPLIERS)),
        ("Fashion-MNIST, the heads' rate, the rivals lower", sweep(clothes, *LOWER, methods=RIVALS)),
        ("Fashion-MNIST, another seed", best(clothes, "standard", *ADAPTIVE, seeds=second)),
        ("CIFAR-100, fixed weights", sweep(cifar, *MULTIPLIERS[:3], weights="fixed")),
        ("CIFAR-100, the paper's init", best(cifar, *ADAPTIVE, init="paper")),
        ("CIFAR-100, other metrics", variants),
        ("CIFAR-100, geodesic balls, the heads' rate", sweep(cifar, *GEODESIC, methods=["metric-geodesic"])),
        ("Fashion-MNIST, fixed weights", sweep(clothes, *MULTIPLIERS[:3], weights="fixed")),
        ("CIFAR-100, more seeds", best(cifar, "standard", *ADAPTIVE, seeds=more)),
        ("Fashion-MNIST, more seeds", best(clothes, "standard", *ADAPTIVE, seeds=more)),
    ]


def _base(dataset: str, common: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the runs of a dataset have in common."""
    gentle = GENTLE if "mnist" in dataset else {}
    return {**SHORT, **gentle, "dataset": dataset, **common}


def sweep(
    common: Mapping[str, Any], methods: Iterable[str], multipliers: Iterable[float], seeds: Iterable[int]
) -> list[Phase]:
    """Return a sweep of the heads' learning rates, with the standard network beside it."""
    base = _base(common.get("dataset", "cifar100"), common)
    methods, multipliers, seeds = list(methods), list(multipliers), list(seeds)

    def settings(_: Results) -> Iterator[Setting]:
        for seed in seeds:
            yield Setting(**{**base, "method": "standard", "seed": seed})
            for multiplier in multipliers:
                for method in methods:
                    yield Setting(**{**base, "method": method, "head_multiplier": multiplier, "seed": seed})

    return [("the heads' rate", settings)]


def paper(common: Mapping[str, Any], starts: Iterable[str], seeds: Sequence[int] = range(8)) -> list[Phase]:
    """Return the paper's Tables 3 and 4 by its own recipe: Adam, 240 epochs, heads at the rate of the rest.

    ``starts`` are "scratch" and, where pretrained weights are given, their name. As in the paper, the grey images have
    one run each, with the first seed, and the others one for each seed.
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
    """Return the paper's ablation: only layer 4 replaced, on CIFAR-100, with learnt weights."""

    def settings(_: Results) -> Iterator[Setting]:
        for seed in seeds:
            for method in ("standard", *RIVALS, "metric-randers", "metric-riemann"):
                yield Setting(**_published(common, "cifar100", method, "learnt", start), layers="4", seed=seed)

    return [("layer 4 alone", settings)]


def best_multiplier(results: Results, setting: Setting) -> float | None:
    """Return the multiplier with the best held-out accuracy among the rows that differ from a setting in it alone.

    Without images held out, the best on the test images; without rows, the usual one.
    """
    if setting.head_multiplier is None:
        return None
    same = [name for name in KEY if name != "head_multiplier"]
    rows = [row for row in results.rows if all(row[name] == text(setting.key[name]) for name in same)]
    if not rows:
        return USUAL_MULTIPLIER
    return float(max(rows, key=lambda row: float(row["held_top1"] or row["top1"]))["head_multiplier"])


def single(settings: Iterable[Setting]) -> list[Phase]:
    """Return a grid of given settings."""
    chosen = list(settings)
    return [(f"{len(chosen)} run{'s' * (len(chosen) > 1)}", lambda _: chosen)]


def of_dataset(phases: Iterable[Phase], dataset: str) -> list[Phase]:
    """Return the part of a grid that is about one dataset."""

    def part(settings: Callable[[Results], Iterable[Setting]]) -> Callable[[Results], list[Setting]]:
        return lambda results: [setting for setting in settings(results) if setting.dataset == dataset]

    return [(title, part(settings)) for title, settings in phases]


def planned(phases: Iterable[Phase], results: Results) -> list[tuple[str, Setting]]:
    """Return all runs of a grid as it stands, once each, with the title of their first phase."""
    titles: dict[Setting, str] = {}
    for title, settings in phases:
        for setting in settings(results):
            titles.setdefault(setting, title)
    return [(title, setting) for setting, title in titles.items()]


def _cells() -> Iterator[tuple[str, str]]:
    yield "standard", "learnt"
    for method in (*RIVALS, "metric-randers"):
        yield method, "learnt"
        yield method, "fixed"


def _published(common: Mapping[str, Any], dataset: str, method: str, weights: str, start: str) -> dict[str, Any]:
    """Return the paper's settings of a cell; its L1 term and its warm-up are the metric network's alone."""
    metric = method.startswith("metric") and weights == "learnt" and dataset.startswith("cifar")
    warm = metric and dataset == "cifar10" and start != "scratch"
    chosen = {"recipe": "paper", "init": "paper", "head_multiplier": 1.0, "l1": 5000.0 if metric else 0.0}
    chosen |= {"warmup": 50 if warm else 0}
    if dataset.startswith("cifar"):
        chosen |= {"augmentation": "resized-crop"}
    return {**chosen, **common, "dataset": dataset, "method": method, "weights": weights, "start": start}
