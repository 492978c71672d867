"""Columns of the tables, common options of all runs, and the grid of runs."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from metricconv import _checks

# Kinds of supports: the method of classification, and whether geodesic balls have a largest radius.
SUPPORTS = {
    "tangent": ("metric-randers", True),
    "geodesic": ("metric-geodesic", True),
    "geodesic, unlimited": ("metric-geodesic", False),
    "deformable": ("deformable", True),
    "shifted": ("shifted", True),
}
KEY = ("dataset", "network", "support", "multiplier", "seed", "train_images", "steps", "batch", "lr", "weight_decay")
VALUES = ("train_loss", "gradient", "radius", "moved")
CURVES = ("step", "train_loss", "gradient", "radius", "moved")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Options of all runs: SGD with Nesterov momentum 0.9 and a constant learning rate."""

    dataset: Annotated[str, typer.Option(help="Dataset: mnist, fashion-mnist, cifar10 or cifar100.")] = "cifar10"
    network: Annotated[str, typer.Option(help="Network: resnet10-width8, resnet18-width8, resnet18 …")] = (
        "resnet10-width8"
    )
    train_images: Annotated[int, typer.Option(min=1, help="Number of training images.")] = 3000
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 60
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 64
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 0.1
    weight_decay: Annotated[float, typer.Option(help="Weight decay.")] = 5e-4


def settings(
    recipe: Recipe, supports: Sequence[str], multipliers: Sequence[float], seeds: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield the settings, seed by seed."""
    for support in supports:
        _checks.one_of(support, SUPPORTS, "support")
    for seed in seeds:
        for multiplier in multipliers:
            for support in supports:
                yield {**dataclasses.asdict(recipe), "support": support, "multiplier": multiplier, "seed": seed}
