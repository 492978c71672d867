"""The learning-rate range test (Smith, 2017): the training loss while the learning rate increases.

Each loss is divided by that of the untrained module on the same batch, because losses differ more between batches than
between steps. Lightning's ``Tuner.lr_find`` does not do this. Its smoothing also delays the curve by half of the sweep,
it suggests the rate of the steepest slope with respect to the rate instead of its logarithm, and it writes the model to
disk.
"""

import copy
import dataclasses
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metricconv._files import write_table, writing

from ._lightning import Callback, isolate_rng, lightning
from .training import fit, make_trainer

# A sweep stops if the loss exceeds its minimum by this factor.
_EXPLOSION = 4.0


@dataclasses.dataclass(frozen=True)
class RangeTest:
    """Relative loss at each rate of a logarithmic grid; a sweep ends early if the loss explodes.

    >>> rates = [10.0**n for n in range(-6, 4)]
    >>> RangeTest(rates, [1.0, 1.0, 1.0, 1.0, 0.9, 0.6, 0.3, 0.2, 0.4, 1.2]).suggestion
    1.0
    """

    rates: list[float]
    losses: list[float]

    @property
    def smoothed(self) -> list[float]:
        """The loss, smoothed by a triangular window of a twelfth of the sweep on each side."""
        half = max(len(self.losses) // 12, 1)
        weights = half + 1 - np.abs(np.arange(-half, half + 1))
        return np.convolve(np.pad(self.losses, half, "edge"), weights / weights.sum(), "valid").tolist()

    @property
    def suggestion(self) -> float:
        """A tenth of the rate of the lowest smoothed loss: long trainings diverge at lower rates than a sweep."""
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
        """Return a matplotlib figure of the loss and the suggested rate."""
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
    """Train a copy of the module for ``steps`` steps while the learning rate increases from ``low`` to ``high``.

    Checkpoints are ignored, so that the test can be repeated.

    Args:
        module: not changed; it has one optimizer, and the ratios of the learning rates of its groups are preserved.
        data: loader of training batches, iterated as often as necessary.
        low, high, steps: range and number of rates of the logarithmic grid.
        seed: seed of the order of batches.
        **options: options of ``make_trainer``: accelerator, precision …
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
        raise ValueError("`data` must contain batches on which the untrained `module` has a finite nonzero loss")
    return RangeTest(sweep.rates[: len(sweep.losses)], sweep.losses)


class _Sweep(Callback):
    """Sets the learning rate before every batch, and records the loss relative to the untrained module."""

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
        self.untrained_loss = float(loss["loss"] if isinstance(loss, dict) else loss)
        for group, ratio in zip(trainer.optimizers[0].param_groups, self.ratios, strict=True):
            group["lr"] = self.rates[len(self.losses)] * ratio

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, *_: Any
    ) -> None:
        loss = float(outputs["loss"]) / self.untrained_loss if self.untrained_loss else math.nan
        if not math.isfinite(loss) or (self.losses and loss > _EXPLOSION * min(self.losses)):
            trainer.should_stop = True
        else:
            self.losses.append(loss)
