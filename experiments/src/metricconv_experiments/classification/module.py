"""Lightning module of a classifier: loss, optimizer, schedule and accuracies; and a callback that times epochs."""

import gc
import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from metricconv.nn import geometry_l1, param_groups, set_geometry_gain

from .._lightning import Callback, MulticlassAccuracy, lightning
from ..training import now
from .setting import Setting


class Classifier(lightning.LightningModule):
    """A network that is trained on the cross-entropy with the recipe of a setting.

    Validation logs ``top1`` and ``top5`` of the test images, and ``held_top1`` and ``held_top5`` of held-out images.

    Args:
        network: maps images (B, C, H, W) to scores (B, classes).
        setting: defines the recipe.
        classes: number of classes.
    """

    PARTS = ("", "held_")

    def __init__(self, network: nn.Module, setting: Setting, classes: int) -> None:
        super().__init__()
        self.network, self.setting = network, setting
        self.total = torch.zeros(())  # not a buffer: DDP would overwrite it with that of the first process
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
        """Keep all supports at their identity during the warm-up."""
        self.total = torch.zeros((), device=self.device)
        if self.setting.warmup:
            set_geometry_gain(self.network, float(self.current_epoch >= self.setting.warmup))

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        """Return the cross-entropy plus the L1 penalty of the predictors."""
        images, labels = batch
        loss = cross_entropy(self(images).float(), labels)
        self.total += loss.detach()  # logged once per epoch, which is faster
        return loss + self.setting.l1 * geometry_l1(self.network) if self.setting.l1 else loss

    def on_train_epoch_end(self) -> None:
        """Log the epoch's mean loss."""
        self.log("train_loss", self.total / self.trainer.num_training_batches, sync_dist=self.trainer.world_size > 1)

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int, dataloader_idx: int = 0) -> None:
        """Update the accuracies."""
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
        """Return the optimizer and the schedule of the recipe; predictors have a separate learning rate."""
        setting = self.setting
        lr, decay = float(setting.lr or 0), float(setting.weight_decay or 0)
        multiplier = 1.0 if setting.multiplier is None else setting.multiplier
        groups = [g for g in param_groups(self.network, lr, multiplier, decay, decay) if g["params"]]
        fused = groups[0]["params"][0].is_cuda
        optimizer: torch.optim.Optimizer
        if setting.recipe == "paper":
            optimizer = torch.optim.Adam(groups, lr, fused=fused)
            return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, int(setting.epochs or 1))]
        optimizer = torch.optim.SGD(groups, lr, momentum=0.9, nesterov=True, fused=fused)
        steps = max(int(self.trainer.estimated_stepping_batches), 1)
        schedule: Any
        if setting.recipe == "sgd":
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        else:
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                # At least 8 steps, two of them increasing: torch divides by zero if only one is.
                optimizer,
                [group["lr"] for group in groups],
                max(steps, 8),
                pct_start=0.25,
                cycle_momentum=False,
            )
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Stopwatch(Callback):
    """Measures the training time of every epoch and the peak memory of the device.

    ``earlier`` is the duration of the run, in seconds, up to the checkpoint from which it was resumed.
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
        """Set the device; memory that is allocated on it now is not counted."""
        gc.collect()
        self.device = device
        self._before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0

    @property
    def epoch_seconds(self) -> float | None:
        """The median over epochs, without the first, which includes the warm-up, if there are others."""
        return statistics.median(self.epochs[1:] or self.epochs) if self.epochs else None

    def state_dict(self) -> dict[str, Any]:
        """Return the duration so far, for the checkpoint."""
        return {"seconds": self.earlier + time.monotonic() - self._made}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the duration from a checkpoint."""
        self.earlier = float(state_dict["seconds"])

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Start timing."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self._start = now(self.device)

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Stop timing."""
        self.epochs.append(now(self.device) - self._start)
        if self.device.type == "cuda":
            # Of the last epoch only: the first one tries algorithms that are not used later.
            self.peak_mb = (torch.cuda.max_memory_allocated(self.device) - self._before) / 2**20
