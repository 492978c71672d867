"""Training one setting, or all settings missing in a table."""

import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, pad

from metricconv._files import writing
from metricconv.nn import capture, param_groups

from ..results import Results
from .networks import build
from .patches import DeviceDataset, DeviceImages, patches
from .scores import NAMES, scores
from .setting import KEY, Setting

VALUES = (*NAMES, "train_loss", "parameters", "step_ms", "launched")

Phase = tuple[str, Callable[[Results], Iterable[Setting]]]


class Runner:
    """Trains settings one after the other; datasets stay on the device.

    Runs are short, so they have no checkpoints: an interrupted run is started again. On a CPU it gives the same row; on
    a GPU sums in another order can differ in the last digits.

    Args:
        device: where to train.
        root: folder of datasets; see ``metricconv_experiments.data``.
        work: folder for the trained networks, except those that select rates; None to discard them.
        graphs: replay training steps as CUDA graphs.
    """

    def __init__(
        self, device: torch.device, root: Path | None = None, work: Path | None = None, *, graphs: bool = False
    ) -> None:
        self.device, self.root, self.work, self.graphs = device, root, work, graphs
        self._datasets: dict[str, DeviceDataset] = {}
        torch.backends.cudnn.benchmark = True  # the heuristic is slow for few channels

    def train(self, setting: Setting) -> dict[str, object]:
        """Train a setting and return the values of its row."""
        images, evaluated = self.dataset(setting.dataset).split(setting)
        torch.manual_seed(int(np.random.SeedSequence((33, setting.seed)).generate_state(1)[0]))
        network = build(setting).to(self.device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        if self.graphs:
            capture(network, next(patches(images, setting))[0])
        start = self._now()
        loss = fit(network, images, setting)
        step = (self._now() - start) / setting.steps
        probability = predict(network, evaluated)
        if self.work is not None and not setting.holdout:
            save(self.work / f"{setting.name}.pt", setting, network)
        return {
            **scores(probability, evaluated.mask, evaluated.field, evaluated.thin),
            "train_loss": loss,
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            "step_ms": 1000 * step,
            "launched": "as CUDA graphs" if self.graphs else "eagerly",
        }

    def dataset(self, name: str) -> DeviceDataset:
        """Return a dataset on the device, which is read once."""
        if name not in self._datasets:
            self._datasets[name] = DeviceDataset(name, self.root, self.device)
        return self._datasets[name]

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def fit(network: nn.Module, images: DeviceImages, setting: Setting) -> float:
    """Train a network with AdamW; return the mean loss of the last tenth of the steps."""
    groups = [
        group
        for group in param_groups(network, setting.lr, setting.multiplier or 0.0, setting.weight_decay)
        if group["params"]
    ]
    optimizer = torch.optim.AdamW(groups, fused=images.x.is_cuda)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, setting.steps))
    losses = []
    for x, target, weight in patches(images, setting):
        optimizer.zero_grad()
        loss = segmentation_loss(network(x), target, weight)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    return float(torch.stack(losses[-max(setting.steps // 10, 1) :]).mean())


def learning_rate(step: int, steps: int) -> float:
    """Return the learning rate of a step, relative to the largest: it rises linearly, then falls as a half cosine.

    >>> [learning_rate(step, 10) for step in (0, 1, 2, 6)]
    [0.5, 1.0, 1.0, 0.5]
    """
    rising = max(steps // 5, 1)
    if step < rising:
        return (step + 1) / rising
    return (1 + math.cos(math.pi * (step - rising) / max(steps - rising, 1))) / 2


def segmentation_loss(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Return the cross-entropy plus 1 − soft Dice of a batch, over the pixels of weight 1."""
    entropy = binary_cross_entropy_with_logits(logits, target, weight, reduction="sum") / weight.sum().clamp_min(1)
    probability = logits.sigmoid() * weight
    target = target * weight
    return entropy + 1 - (2 * (probability * target).sum() + 1) / (probability.sum() + target.sum() + 1)


@torch.no_grad()
def predict(network: nn.Module, images: DeviceImages) -> Tensor:
    """Return the probabilities (N, H, W) of whole images, one at a time."""
    height, width = images.x.shape[1:]
    network.eval()
    margins = (0, -width % 4, 0, -height % 4)
    x = pad(images.x.unsqueeze(1), margins, mode="reflect")
    return torch.cat([network(one)[:, :height, :width].sigmoid() for one in x.split(1)])


def save(path: Path, setting: Setting, network: nn.Module) -> None:
    """Write a trained network and its setting."""
    with writing(path) as temporary:
        torch.save({"setting": setting.key, "state": network.state_dict()}, temporary)


def load(path: Path) -> tuple[Setting, nn.Module]:
    """Return the setting and the network, in evaluation mode, of a file written by ``save``."""
    content = torch.load(path, map_location="cpu", weights_only=True)
    setting = Setting(**content["setting"])
    network = build(setting)
    network.load_state_dict(content["state"])
    return setting, network.eval()


def table(folder: Path) -> Results:
    """Return the table of all runs in a folder."""
    return Results(folder / "runs.csv", KEY, VALUES)


def run_all(results: Results, phases: Sequence[Phase], runner: Runner, max_minutes: float | None = None) -> int:
    """Train the settings missing in the table, phase by phase, and return the number of added rows.

    A phase may depend on the rows of earlier phases: rows in progress in another process are waited for at its end.
    With ``max_minutes``, no run is started after that time.
    """
    start = time.monotonic()
    added = 0
    results.prepare()
    for title, settings in phases:
        todo = list(dict.fromkeys(settings(results)))
        for wait in (False, True):
            for n, setting in enumerate(todo, 1):
                if setting.key in results:
                    continue
                if max_minutes is not None and time.monotonic() - start >= 60 * max_minutes:
                    _report(f"stopped at {title}, {n} of {len(todo)}; run the command again to resume")
                    return added
                with results.claimed(setting.key, wait=wait) as claimed:
                    if claimed:
                        started = time.monotonic()
                        values = runner.train(setting)
                        results.add(setting.key, values, time.monotonic() - started)
                        added += 1
                        _report(f"{title}, {n} of {len(todo)}: {setting.name}: {_summary(values)}")
    return added


def _summary(values: dict[str, object]) -> str:
    shown = {name: 100 * float(str(values[name])) for name in ("dice", "cldice", "auc", "thin_sensitivity")}
    return ", ".join(f"{name} {value:.2f}" for name, value in shown.items()) + f", {values['step_ms']:.1f} ms per step"


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
