"""Columns of the tables, common options of all runs, and the grid of runs."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from metricconv import _checks

from .derivative import DERIVATIVES
from .network import LAYERS

KEY = (
    "dataset", "layer", "derivative", "multiplier", "seed", "train_images", "test_images", "epochs", "batch", "lr",
    "weight_decay", "width", "backend",
)  # fmt: skip
VALUES = ("test_accuracy", "test_loss", "train_loss", "gradient_cosine", "gradient_ratio", "parameters")
CURVES = ("step", "epoch", "train_loss", "on_lattice")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Common options of all runs: SGD with Nesterov momentum 0.9 and a one-cycle schedule."""

    train_images: Annotated[int, typer.Option(help="Training images, a fixed random subset.")] = 3000
    test_images: Annotated[int, typer.Option(help="Test images, the first ones.")] = 10000
    epochs: Annotated[int, typer.Option(help="Training epochs.")] = 8
    batch: Annotated[int, typer.Option(help="Batch size.")] = 64
    lr: Annotated[float, typer.Option(help="Maximum learning rate of the schedule.")] = 0.1
    weight_decay: Annotated[float, typer.Option(help="Weight decay.")] = 5e-4
    width: Annotated[
        int, typer.Option(help="Channels of the first stage; the next ones have 2 and 4 times as many.")
    ] = 8
    backend: Annotated[str, typer.Option(help="Backend of the adaptive layers.")] = "cpu"

    def __post_init__(self) -> None:
        for name in ("train_images", "test_images", "epochs", "batch", "width"):
            _checks.whole(getattr(self, name), name, minimum=1)
        _checks.positive(self.lr, "lr")
        _checks.not_negative(self.weight_decay, "weight_decay")


def settings(
    recipe: Recipe, layers: Sequence[str], multipliers: Sequence[float], seeds: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield the settings, seed by seed, with the two derivatives of a pair next to each other.

    Standard networks are run once for each seed, without derivative, multiplier or backend.
    """
    for layer in layers:
        _checks.one_of(layer, LAYERS, "layer")
    for multiplier in multipliers:
        _checks.not_negative(multiplier, "multiplier")
    common = {"dataset": "cifar10", **dataclasses.asdict(recipe)}
    for seed, layer in itertools.product(seeds, layers):
        if layer == "standard":
            none = {"derivative": None, "multiplier": None, "backend": None}
            yield {**common, "layer": layer, "seed": seed, **none}
            continue
        for multiplier, derivative in itertools.product(multipliers, DERIVATIVES):
            yield {**common, "layer": layer, "derivative": derivative, "multiplier": multiplier, "seed": seed}
