"""Training on Lightning, as all experiments do it: seeded, logged as CSV, and the same again after a kill.

Every epoch starts from a seed of its own, made of the run's seed and the epoch's number. A run that is resumed from
its last whole epoch therefore draws the same numbers, and ends bit for bit where an unbroken one does, on hardware and
kernels that repeat themselves (``deterministic=True`` asks torch for those).
"""

import contextlib
import csv
import logging
import random
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ._lightning import Callback, CSVLogger, MisconfigurationException, ModelCheckpoint, lightning
from .data import read_saved

CHECKPOINT = "last.ckpt"
# What Lightning says of settings that are meant: no workers for data in memory, a batch that is the whole epoch, a
# folder with the checkpoint to go on from.
_MEANT = (
    ".*does not have many workers.*",
    ".*number of training batches.*is smaller than the logging interval.*",
    ".*Checkpoint directory.*exists and is not empty.*",
    ".*The dirpath has changed from.*",
    ".*treespec, LeafSpec.*",
    ".*GPU available but not used.*",
    ".*You defined a `validation_step` but have no `val_dataloader`.*",
)


class SeededEpochs(Callback):
    """Seeds Python, NumPy and torch at the start of every epoch, with the run's seed and the epoch's number.

    The loader's order and its workers' seeds are drawn after that. For the first epoch of a process Lightning makes the
    loader's iterator before the epoch starts, so that one is seeded as soon as the fit starts. Workers that outlive an
    epoch (``persistent_workers``) do not start anew and would break the promise.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.seeded: int | None = None

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Seed the first epoch of this process."""
        done = 0 if trainer.ckpt_path is None else epochs_done(Path(trainer.ckpt_path))
        self._seed(done, trainer.global_rank)

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Seed each further epoch."""
        if trainer.current_epoch != self.seeded:
            self._seed(trainer.current_epoch, trainer.global_rank)

    def _seed(self, epoch: int, rank: int) -> None:
        self.seeded = epoch
        seed_all(self.seed, epoch + 1, rank)


def seed_all(*parts: int) -> None:
    """Seed Python, NumPy and torch with a mixture of some numbers."""
    mixed = int(np.random.SeedSequence(parts).generate_state(1)[0])
    random.seed(mixed)
    np.random.seed(mixed)
    torch.manual_seed(mixed)


def make_trainer(
    folder: Path,
    *,
    epochs: int,
    seed: int,
    checkpoint_every: int | None = 1,
    accelerator: str = "auto",
    devices: int | str = 1,
    strategy: str = "auto",
    precision: Any = "32-true",
    deterministic: bool = False,
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> lightning.Trainer:
    """Return a trainer that writes its logs and its checkpoint to ``folder``.

    Args:
        folder: ``last.ckpt`` and ``logs/`` are made there.
        epochs: in all, those before a resumption included.
        seed: of the run; see ``SeededEpochs``. The model's initial weights are the caller's affair: ``seed_all`` first.
        checkpoint_every: epochs between checkpoints; None for none.
        accelerator, devices, strategy, precision: Lightning's: "cpu" or "gpu", how many, "ddp", "bf16-mixed" …
        deterministic: make torch use algorithms that repeat themselves.
        progress: show a progress bar; by default where stderr is a terminal.
        callbacks: more of Lightning's callbacks.
        **options: more of ``lightning.Trainer``'s.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # not what hardware there is, at every run
    chosen: list[Callback] = [SeededEpochs(seed), *callbacks]
    if checkpoint_every is not None:
        chosen.append(
            ModelCheckpoint(
                folder,
                Path(CHECKPOINT).stem,
                every_n_epochs=checkpoint_every,
                save_on_train_epoch_end=True,
                enable_version_counter=False,
            )
        )
    defaults: dict[str, Any] = {
        "logger": CSVLogger(str(folder), name="logs"),
        "log_every_n_steps": 1,
        "num_sanity_val_steps": 0,
    }
    with _without_the_meant_warnings():
        try:
            return lightning.Trainer(
                default_root_dir=folder,
                max_epochs=epochs,
                accelerator=accelerator,
                devices=devices,
                strategy=strategy,
                precision=precision,
                deterministic=deterministic,
                enable_progress_bar=sys.stderr.isatty() if progress is None else progress,
                enable_model_summary=False,
                enable_checkpointing=checkpoint_every is not None,
                callbacks=chosen,
                **(defaults | options),
            )
        except MisconfigurationException as error:  # a device, a precision or a strategy that is not there
            raise ValueError(str(error)) from None


def fit(trainer: lightning.Trainer, module: lightning.LightningModule, train: Any, val: Any = None) -> None:
    """Train from the beginning, or from the checkpoint in the trainer's folder if there is one."""
    checkpoint = Path(trainer.default_root_dir) / CHECKPOINT
    resumed = checkpoint.exists()
    if resumed:
        done = epochs_done(checkpoint)
        if trainer.is_global_zero:
            said = f"goes on from {checkpoint}, after {done} of {trainer.max_epochs} epochs"
            print(said, file=sys.stderr, flush=True)
    with _without_the_meant_warnings():
        trainer.fit(module, train, val, ckpt_path=str(checkpoint) if resumed else None)


def epochs_done(checkpoint: Path) -> int:
    """Return how many epochs a checkpoint is after; refuse one that is damaged."""
    content = read_saved(checkpoint, "a checkpoint", "; delete it to start anew")
    if not isinstance(content, dict) or "epoch" not in content:
        raise ValueError(f"{checkpoint} cannot be read as a checkpoint: it has no epoch; delete it to start anew")
    return int(content["epoch"]) + 1


def evaluate(trainer: lightning.Trainer, module: lightning.LightningModule, data: Any) -> dict[str, float]:
    """Return what the module's validation logs over some data, as it is now."""
    trainer.limit_val_batches = 1.0
    with _without_the_meant_warnings():
        trainer.validate(module, data, verbose=False)
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def history(folder: Path, by: str = "epoch") -> list[dict[str, float]]:
    """Return what was logged at each epoch, or ``by="step"``, in order; of one that was run twice, the last run.

    Lightning begins a new log at every resumption: they are joined here. A line that a kill has cut short is left out.
    """
    entries: dict[int, dict[str, float]] = {}
    logs = sorted((folder / "logs").glob("version_*/metrics.csv"), key=lambda path: int(path.parent.name[8:]))
    for log in logs:
        seen: set[int] = set()
        with log.open(newline="", encoding="utf-8") as file:
            whole = [line for line in file if line.endswith("\n")]
        for row in csv.DictReader(whole):
            place = int(row[by])
            if place not in seen:
                entries[place] = {}
                seen.add(place)
            entries[place] |= {name: float(value) for name, value in row.items() if value}
    return [entries[place] for place in sorted(entries)]


def device_of(options: Mapping[str, Any]) -> torch.device:
    """Return where data had best lie for a trainer of such options: on its GPU if it has one, else in main memory."""
    alone = options.get("devices", 1) in (1, "1") and options.get("accelerator", "auto") in ("auto", "gpu", "cuda")
    return torch.device("cuda" if alone and torch.cuda.is_available() else "cpu")


def now(device: torch.device) -> float:
    """Return the time, once the device has done all it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def parameters(model: nn.Module) -> int:
    """Count the numbers that are learnt."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@contextlib.contextmanager
def _without_the_meant_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        for message in _MEANT:
            warnings.filterwarnings("ignore", message)
        yield
