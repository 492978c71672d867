"""The first steps of training: gradients of the predictors, radii of the supports, and the motion of samples."""

import contextlib
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from metricconv.nn import adaptive_layers, metric, param_groups, record_supports

from ..classification import networks
from ..classification.batches import DeviceDataset, TrainBatches
from ..classification.setting import Setting
from ..results import Results, add_curve
from .settings import CURVES, KEY, SUPPORTS, VALUES

# Losses are means over these last steps, motions medians over these first ones.
_LAST, _FIRST = 10, 20
# Images on which supports are recorded.
_PROBE = 16


def table(folder: Path) -> Results:
    """Return the table of all runs in a folder."""
    return Results(folder / "runs.csv", KEY, VALUES)


def run(
    results: Results, todo: Sequence[Mapping[str, Any]], dataset: DeviceDataset, max_minutes: float | None = None
) -> int:
    """Train the settings missing in the table; return the number of added rows. Interrupted runs are started again."""
    added = 0
    for setting in results.pending(todo, max_minutes):
        start = time.perf_counter()
        curve = train(setting, dataset)
        values = {
            "train_loss": statistics.mean(float(point["train_loss"]) for point in curve[-_LAST:]),
            "gradient": max(float(point["gradient"]) for point in curve),
            "radius": max(float(point["radius"]) for point in curve),
            "moved": statistics.median(float(point["moved"]) for point in curve[:_FIRST]),
        }
        seconds = time.perf_counter() - start
        add_curve(results.path.with_name("curves.csv"), setting, curve, (*KEY, *CURVES), KEY)
        results.add(setting, values, seconds)
        added += 1
    return added


def train(setting: Mapping[str, Any], dataset: DeviceDataset) -> list[dict[str, float]]:
    """Train for the first steps of a setting; return the point of each step.

    ``gradient`` is the largest norm, over layers, of the gradient of a predictor; ``radius`` the largest distance of a
    sample from its pixel; ``moved`` the root mean square of the distance, in pixels, by which the step moved a sample.
    Initial weights and batches depend on the seed alone.
    """
    method, limited = SUPPORTS[setting["support"]]
    torch.manual_seed(setting["seed"])
    network = networks.build(
        Setting(dataset=setting["dataset"], network=setting["network"], method=method),
        dataset.classes,
        dataset.channels,
    ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    decay = setting["weight_decay"]
    groups = [g for g in param_groups(network, setting["lr"], setting["multiplier"], decay, decay) if g["params"]]
    optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    batches = TrainBatches(dataset, setting["batch"], "pad-crop", setting["seed"])
    predictors = [layer.predictor for _, layer in adaptive_layers(network) if layer.predictor is not None]
    curve: list[dict[str, float]] = []
    with contextlib.nullcontext() if limited else without_largest_radius():
        before = _offsets(network, dataset)
        for step, (images, labels) in zip(range(1, setting["steps"] + 1), _endless(batches), strict=False):
            optimizer.zero_grad()
            loss = cross_entropy(network(images), labels)
            loss.backward()
            norms = [_norm([p.grad for p in predictor.parameters() if p.grad is not None]) for predictor in predictors]
            optimizer.step()
            after = _offsets(network, dataset)
            moved = torch.cat([(b - a).flatten() for a, b in zip(before, after, strict=True)])
            reach = max(float(offsets.norm(dim=3).max()) for offsets in after)
            dim = after[0].shape[3]
            curve.append(
                {
                    "step": step,
                    "train_loss": loss.item(),
                    "gradient": max(norms),
                    "radius": reach,
                    "moved": math.sqrt(dim * float(moved.square().mean())),
                }
            )
            before = after
    return curve


@contextlib.contextmanager
def without_largest_radius() -> Iterator[None]:
    """Do not limit the radius of predicted geodesic balls inside of the block, as before version 0.2."""
    before = metric._PIXELS_PER_STEP
    metric._PIXELS_PER_STEP = 1e6
    try:
        yield
    finally:
        metric._PIXELS_PER_STEP = before


def _endless(batches: TrainBatches) -> Iterator[tuple[Tensor, Tensor]]:
    epoch = 0
    while True:
        batches.set_epoch(epoch)
        yield from batches
        epoch += 1


@torch.no_grad()
def _offsets(network: nn.Module, dataset: DeviceDataset) -> list[Tensor]:
    """Return the offsets (B, G, P, d, *out) of each adaptive layer for the first training images."""
    network.eval()  # preserves the statistics of batch normalization
    with record_supports(network) as supports:
        network(dataset.normalized(dataset.train.x[:_PROBE]))
        offsets = [support.offsets().detach() for support in supports.values()]
    network.train()
    return offsets


def _norm(tensors: Sequence[Tensor]) -> float:
    return float(torch.cat([tensor.flatten() for tensor in tensors]).norm())
