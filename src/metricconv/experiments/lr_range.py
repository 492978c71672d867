"""The learning-rate range test (Smith, 2017): train while the rate grows, and see how far the loss falls.

Every loss is divided by that of the untrained module on the same batch, as hard batches differ from easy ones by more
than a step of training changes. Lightning's own ``Tuner.lr_find`` does not; it has a fixed smoothing that lags half its
sweep behind, suggests where the loss falls fastest, by the slope in the rate instead of its logarithm, and writes the
whole model to disk.
"""

import copy
import dataclasses
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._files import write_table, writing
from ._lightning import Callback, isolate_rng, lightning
from .training import fit, make_trainer

# A sweep stops once the loss is so many times its least.
_EXPLOSION = 4.0


@dataclasses.dataclass(frozen=True)
class RangeTest:
    """The loss at each rate of a logarithmic grid, 1 before training; a sweep ends early where the loss explodes.

    >>> rates = [10.0**n for n in range(-6, 4)]
    >>> RangeTest(rates, [1.0, 1.0, 1.0, 1.0, 0.9, 0.6, 0.3, 0.2, 0.4, 1.2]).suggestion
    1.0
    """

    rates: list[float]
    losses: list[float]

    @property
    def smoothed(self) -> list[float]:
        """The loss averaged with its neighbours, a twelfth of the sweep on either side, the nearer the more."""
        half = max(len(self.losses) // 12, 1)
        weights = half + 1 - np.abs(np.arange(-half, half + 1))
        return np.convolve(np.pad(self.losses, half, "edge"), weights / weights.sum(), "valid").tolist()

    @property
    def suggestion(self) -> float:
        """A tenth of the rate at which the smoothed loss is least, as a long training explodes sooner than a sweep."""
        if len(self.losses) < 3:
            raise ValueError(f"`losses` (={self.losses}) are too few: start the range test at a smaller rate")
        return self.rates[int(np.argmin(self.smoothed))] / 10

    def write(self, folder: Path, title: str = "") -> None:
        """Write ``lr_range.csv`` and ``lr_range.png``."""
        rows = zip(self.rates, self.losses, self.smoothed, strict=True)
        columns = ("rate", "loss", "smoothed")
        write_table(folder / "lr_range.csv", [dict(zip(columns, row, strict=True)) for row in rows])
        with writing(folder / "lr_range.png") as path:
            self.plot(title).savefig(path)

    def plot(self, title: str = "") -> Any:
        """Return a matplotlib figure of the loss by the rate, with the suggestion marked."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 3.6), dpi=150, layout="constrained")
        axes = figure.subplots()
        axes.plot(self.rates, self.losses, ".", color="#999999", label="loss")
        axes.plot(self.rates, self.smoothed, color="#0072B2", label="smoothed")
        axes.axvline(self.suggestion, color="#D55E00", linestyle="--", label=f"suggested: {self.suggestion:.2g}")
        axes.set(xscale="log", xlabel="learning rate", ylabel="loss / untrained loss", title=title)
        lowest, first = min(self.losses), self.losses[0]
        axes.set_ylim(lowest - 0.1 * (first - lowest), first + 0.6 * (first - lowest) + 1e-12)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        return figure


def range_test(
    module: lightning.LightningModule,
    data: Any,
    low: float,
    high: float,
    steps: int = 100,
    *,
    seed: int = 0,
    **options: Any,
) -> RangeTest:
    """Train a copy of the module for so many steps while every learning rate grows from ``low`` to ``high``.

    It always starts at the module as it is, whatever checkpoints there are, so that it can be repeated.

    Args:
        module: left as it is; one optimiser, whose groups keep the ratios of their rates.
        data: a loader of training batches, gone through as often as the steps need.
        low, high, steps: of the logarithmic grid.
        seed: of the batches' order.
        **options: of ``make_trainer``: accelerator, precision …
    """
    if not 0 < low < high < math.inf:
        raise ValueError(f"`low` (={low}) and `high` (={high}) must be positive, finite and in this order")
    if steps < 3:
        raise ValueError(f"`steps` (={steps}) must be at least 3")
    sweep = _Sweep(np.geomspace(low, high, steps).tolist())
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(
            Path(folder),
            epochs=-1,
            seed=seed,
            checkpoint_every=None,
            callbacks=[sweep],
            max_steps=steps,
            logger=False,
            limit_val_batches=0,
            **options,
        )
        fit(trainer, copy.deepcopy(module), data)
    if not sweep.losses:
        raise ValueError("`data` must have batches on which the untrained `module` has a finite loss other than 0")
    return RangeTest(sweep.rates[: len(sweep.losses)], sweep.losses)


class _Sweep(Callback):
    """Sets the rate before every batch, and keeps its loss before the step, divided by the untrained module's."""

    def __init__(self, rates: list[float]) -> None:
        self.rates = rates
        self.losses: list[float] = []
        self.ratios: list[float] = []

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self.untrained = copy.deepcopy(pl_module)
        self.untrained.trainer = trainer
        self.untrained.log = self.untrained.log_dict = lambda *_, **__: None  # type: ignore[assignment, method-assign]
        groups = trainer.optimizers[0].param_groups
        largest = max(group["lr"] for group in groups)
        self.ratios = [group["lr"] / largest for group in groups]

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        with isolate_rng(), trainer.precision_plugin.train_step_context(), torch.no_grad():  # same dropout for both
            loss: Any = self.untrained.training_step(batch, batch_idx)
        self.before = float(loss["loss"] if isinstance(loss, dict) else loss)
        for group, ratio in zip(trainer.optimizers[0].param_groups, self.ratios, strict=True):
            group["lr"] = self.rates[len(self.losses)] * ratio

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, *_: Any
    ) -> None:
        loss = float(outputs["loss"]) / self.before if self.before else math.nan
        if not math.isfinite(loss) or (self.losses and loss > _EXPLOSION * min(self.losses)):
            trainer.should_stop = True
        else:
            self.losses.append(loss)
