"""A classifier on Lightning: its loss, its optimiser and schedule, its accuracies; and how long an epoch takes."""

import gc
import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...nn import geometry_l1, param_groups, set_geometry_gain
from .._lightning import Callback, MulticlassAccuracy, lightning
from ..training import now
from .setting import Setting


class Classifier(lightning.LightningModule):
    """A network that is trained on the cross-entropy, by the recipe of a setting.

    Validation goes over test images, then over those held out, if there are any: ``top1`` and ``top5``, ``held_top1`` …

    Args:
        network: from (B, C, H, W) to scores (B, classes).
        setting: the recipe.
        classes: how many.
    """

    PARTS = ("", "held_")

    def __init__(self, network: nn.Module, setting: Setting, classes: int) -> None:
        super().__init__()
        self.network, self.setting = network, setting
        self.total = torch.zeros(())  # no buffer: DDP would overwrite it with the first process's
        self.accuracies = nn.ModuleDict(
            {
                f"{part}top{k}": MulticlassAccuracy(
                    classes, top_k=min(k, classes), average="micro", validate_args=False
                )
                for part in self.PARTS
                for k in (1, 5)
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of images."""
        return self.network(x)

    def on_train_epoch_start(self) -> None:
        """Hold the geometry at its identity while it warms up."""
        self.total = torch.zeros((), device=self.device)
        if self.setting.warmup:
            set_geometry_gain(self.network, float(self.current_epoch >= self.setting.warmup))

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        """Return the cross-entropy, with the heads' L1 term."""
        images, labels = batch
        loss = cross_entropy(self(images).float(), labels)
        self.total += loss.detach()  # logged once an epoch: a step has no time for it
        return loss + self.setting.l1 * geometry_l1(self.network) if self.setting.l1 else loss

    def on_train_epoch_end(self) -> None:
        """Log the epoch's mean loss."""
        self.log("train_loss", self.total / self.trainer.num_training_batches, sync_dist=self.trainer.world_size > 1)

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int, dataloader_idx: int = 0) -> None:
        """Count what is right."""
        images, labels = batch
        scores = self(images).float()
        for k in (1, 5):
            self.accuracies[f"{self.PARTS[dataloader_idx]}top{k}"].update(scores, labels)  # type: ignore[operator]

    def on_validation_epoch_end(self) -> None:
        """Log the accuracies."""
        for name, accuracy in self.accuracies.items():
            assert isinstance(accuracy, MulticlassAccuracy)
            if accuracy.update_called:
                self.log(name, accuracy)

    def configure_optimizers(self) -> Any:
        """Return the recipe's optimiser and schedule; heads have a rate of their own."""
        chosen = self.setting
        lr, decay = float(chosen.lr or 0), float(chosen.weight_decay or 0)
        multiplier = 1.0 if chosen.head_multiplier is None else chosen.head_multiplier
        groups = [g for g in param_groups(self.network, lr, multiplier, decay, decay) if g["params"]]
        fused = groups[0]["params"][0].is_cuda
        optimizer: torch.optim.Optimizer
        if chosen.recipe == "paper":
            optimizer = torch.optim.Adam(groups, lr, fused=fused)
            return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, int(chosen.epochs or 1))]
        optimizer = torch.optim.SGD(groups, lr, momentum=0.9, nesterov=True, fused=fused)
        steps = max(int(self.trainer.estimated_stepping_batches), 1)
        schedule: Any
        if chosen.recipe == "sgd":
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        else:
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                # Of at least 8 steps, two of them up: torch's divides by zero where only one is.
                optimizer,
                [group["lr"] for group in groups],
                max(steps, 8),
                pct_start=0.25,
                cycle_momentum=False,
            )
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Stopwatch(Callback):
    """Times the training part of every epoch, the device's work included, and finds the peak of its memory.

    ``earlier`` is how many seconds a run took up to the checkpoint that it goes on from.
    """

    def __init__(self) -> None:
        self.earlier = 0.0
        self._made = time.monotonic()
        self.device = torch.device("cpu")
        self.epochs: list[float] = []
        self.peak_mb: float | None = None
        self._start = 0.0
        self._before = 0

    def begin(self, device: torch.device) -> None:
        """Say where training will happen; what the device holds now is no part of the run."""
        gc.collect()
        self.device = device
        self._before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0

    @property
    def epoch_seconds(self) -> float | None:
        """The median over epochs; the first, which pays for what is done once, counts only if it is the only one."""
        return statistics.median(self.epochs[1:] or self.epochs) if self.epochs else None

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the seconds up to it."""
        return {"seconds": self.earlier + time.monotonic() - self._made}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.earlier = float(state_dict["seconds"])

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Start."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self._start = now(self.device)

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Stop."""
        self.epochs.append(now(self.device) - self._start)
        if self.device.type == "cuda":
            # Of the last epoch alone: the first tries algorithms that it then does not use.
            self.peak_mb = (torch.cuda.max_memory_allocated(self.device) - self._before) / 2**20
