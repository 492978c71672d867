"""Training with Lightning for all experiments: seeded, logged to CSV and resumable.

Every epoch is seeded with the seed of the run and the number of the epoch. A run that is resumed from its last complete
epoch therefore draws the same random numbers, and gives the same result to the bit if hardware and kernels are
deterministic (``deterministic=True`` requires such kernels).
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
# Warnings of Lightning about intended settings: no workers for data in memory, epochs of one batch, a folder that
# already contains a checkpoint.
_EXPECTED_WARNINGS = (
    ".*does not have many workers.*",
    ".*number of training batches.*is smaller than the logging interval.*",
    ".*Checkpoint directory.*exists and is not empty.*",
    ".*The dirpath has changed from.*",
    ".*treespec, LeafSpec.*",
    ".*GPU available but not used.*",
    ".*You defined a `validation_step` but have no `val_dataloader`.*",
)


class SeededEpochs(Callback):
    """Seeds Python, NumPy and torch at the start of every epoch with the seed of the run and the number of the epoch.

    The order of the loader and the seeds of its workers are drawn afterwards. Lightning creates the iterator of the
    first epoch before that epoch starts, so this epoch is seeded when the fit starts. ``persistent_workers`` are not
    supported, because they are not seeded again.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.seeded: int | None = None

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Seed the first epoch of this process."""
        done = 0 if trainer.ckpt_path is None else epochs_done(Path(trainer.ckpt_path))
        self._seed(done, trainer.global_rank)

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Seed all other epochs."""
        if trainer.current_epoch != self.seeded:
            self._seed(trainer.current_epoch, trainer.global_rank)

    def _seed(self, epoch: int, rank: int) -> None:
        self.seeded = epoch
        seed_all(self.seed, epoch + 1, rank)


def seed_all(*parts: int) -> None:
    """Seed Python, NumPy and torch with a hash of the given numbers."""
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
        folder: folder for ``last.ckpt`` and ``logs/``.
        epochs: total number of epochs, including those before a resumption.
        seed: seed of the run; see ``SeededEpochs``. Call ``seed_all`` before creating the model.
        checkpoint_every: epochs between checkpoints; None for no checkpoints.
        accelerator, devices, strategy, precision: options of Lightning: "cpu" or "gpu", a number, "ddp", "bf16-mixed" …
        deterministic: use deterministic algorithms.
        progress: show a progress bar. Default: if stderr is a terminal.
        callbacks: additional callbacks.
        **options: other options of ``lightning.Trainer``.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # no message about the hardware for every run
    all_callbacks: list[Callback] = [SeededEpochs(seed), *callbacks]
    if checkpoint_every is not None:
        all_callbacks.append(
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
    with _without_expected_warnings():
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
                callbacks=all_callbacks,
                **(defaults | options),
            )
        except MisconfigurationException as error:  # a device, precision or strategy is not available
            raise ValueError(str(error)) from None


def fit(trainer: lightning.Trainer, module: lightning.LightningModule, train: Any, val: Any = None) -> None:
    """Train, starting from the checkpoint in the trainer's folder if there is one."""
    checkpoint = Path(trainer.default_root_dir) / CHECKPOINT
    resumed = checkpoint.exists()
    if resumed:
        done = epochs_done(checkpoint)
        if trainer.is_global_zero:
            message = f"resumed from {checkpoint}, after {done} of {trainer.max_epochs} epochs"
            print(message, file=sys.stderr, flush=True)
    with _without_expected_warnings():
        trainer.fit(module, train, val, ckpt_path=str(checkpoint) if resumed else None)


def epochs_done(checkpoint: Path) -> int:
    """Return the number of completed epochs of a checkpoint; raise ValueError if it is damaged."""
    content = read_saved(checkpoint, "a checkpoint", "; delete it to start again")
    if not isinstance(content, dict) or "epoch" not in content:
        raise ValueError(f"{checkpoint} cannot be read as a checkpoint: it has no epoch; delete it to start again")
    return int(content["epoch"]) + 1


def evaluate(trainer: lightning.Trainer, module: lightning.LightningModule, data: Any) -> dict[str, float]:
    """Return the metrics that the validation of the module logs for given data."""
    trainer.limit_val_batches = 1.0
    with _without_expected_warnings():
        trainer.validate(module, data, verbose=False)
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def history(folder: Path, by: str = "epoch") -> list[dict[str, float]]:
    """Return the logged values by epoch, or by step; if one was run twice, those of the last run.

    Lightning starts a new log at every resumption; the logs are joined here. Incomplete lines are skipped.
    """
    entries: dict[int, dict[str, float]] = {}
    logs = sorted((folder / "logs").glob("version_*/metrics.csv"), key=lambda path: int(path.parent.name[8:]))
    for log in logs:
        seen: set[int] = set()
        with log.open(newline="", encoding="utf-8") as file:
            complete = [line for line in file if line.endswith("\n")]
        for row in csv.DictReader(complete):
            index = int(row[by])
            if index not in seen:
                entries[index] = {}
                seen.add(index)
            entries[index] |= {name: float(value) for name, value in row.items() if value}
    return [entries[index] for index in sorted(entries)]


def device_of(options: Mapping[str, Any]) -> torch.device:
    """Return the device on which to store the data for a trainer with given options: its GPU, if it uses one."""
    single = options.get("devices", 1) in (1, "1") and options.get("accelerator", "auto") in ("auto", "gpu", "cuda")
    return torch.device("cuda" if single and torch.cuda.is_available() else "cpu")


def now(device: torch.device) -> float:
    """Return the time after all work of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def count_parameters(model: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@contextlib.contextmanager
def _without_expected_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        for message in _EXPECTED_WARNINGS:
            warnings.filterwarnings("ignore", message)
        yield
