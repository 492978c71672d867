"""Training one setting, and all settings missing in a table."""

import contextlib
import copy
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from metricconv._interpolation import lattice_tolerance
from metricconv.nn import param_groups, record_supports
from metricconv.supports import Support, TangentBall

from ..classification.batches import Batch, DeviceDataset, LabeledImages, TestBatches, TrainBatches
from ..results import Results, add_curve
from .derivative import DERIVATIVES, lattice_derivative
from .network import ADAPTIVE, build
from .settings import CURVES, KEY, VALUES

# Curves have points after these steps and after every epoch.
_FIRST_STEPS = (0, 1, 2, 5, 10, 20)
_WARMUP = 0.25  # fraction of the schedule with increasing learning rate


class TrainingOutcome(NamedTuple):
    """The values of a run's row, and the points of its curve."""

    values: dict[str, object]
    curve: list[dict[str, object]]


def table(folder: Path) -> Results:
    """Return the table of all runs in a folder."""
    return Results(folder / "runs.csv", KEY, VALUES)


def run(
    results: Results, todo: Sequence[Mapping[str, Any]], dataset: DeviceDataset, max_minutes: float | None = None
) -> int:
    """Train the settings missing in the table; return the number of added rows.

    Interrupted runs are started again, because runs are short.
    """
    added = 0
    for setting in results.pending(todo, max_minutes):
        start = time.perf_counter()
        outcome = train(setting, dataset)
        seconds = time.perf_counter() - start
        add_curve(results.path.with_name("curves.csv"), setting, outcome.curve, (*KEY, *CURVES), KEY)
        results.add(setting, outcome.values, seconds)
        added += 1
    return added


def train(setting: Mapping[str, Any], dataset: DeviceDataset) -> TrainingOutcome:
    """Train one setting. Initial weights and batches depend only on the seed, not on layer, derivative or multiplier.

    The row of a one-sided run compares the first gradients of the predictors, one-sided and central: the cosine of the
    angle between them, ``gradient_cosine``, and the ratio of their norms, central over one-sided, ``gradient_ratio``.
    """
    torch.manual_seed(setting["seed"])
    network = build(setting["layer"], dataset.channels, dataset.classes, setting["width"], setting["backend"] or "auto")
    batches = TrainBatches(dataset, setting["batch"], "pad-crop", setting["seed"])
    adaptive = setting["layer"] in ADAPTIVE
    compared = setting["derivative"] == "one-sided"
    values: dict[str, object] = _compare_gradients(network, next(iter(batches))) if compared else {}
    derivative = lattice_derivative(setting["derivative"]) if adaptive else contextlib.nullcontext()
    tolerance = lattice_tolerance(torch.float32)  # the tolerance of the definition, for both derivatives
    with derivative:
        curve = _fit(network, batches, setting, tolerance)
    test = LabeledImages(*(part[: setting["test_images"]] for part in dataset.test))
    values |= _evaluate(network, TestBatches(dataset, test, batch=250))
    values |= {"train_loss": curve[-1]["train_loss"], "parameters": sum(p.numel() for p in network.parameters())}
    return TrainingOutcome(values, curve)


def fraction_on_lattice(supports: Mapping[str, Support], tolerance: float) -> float:
    """Return the fraction of sample coordinates that are integers, among those that the predictor can move.

    Samples of a tangent ball move along their direction only, so coordinates that are zero stay zero.
    """
    whole = total = 0
    for support in supports.values():
        offsets = support.offsets().detach()  # [B, G, P, d, *out]
        if isinstance(support, TangentBall):
            stencil = support.stencil
            movable = (stencil.directions * stencil.radii.unsqueeze(1)).abs() > tolerance  # [P, d]
            offsets = offsets.movedim((2, 3), (0, 1))[movable]
        whole += int(((offsets - offsets.round()).abs() <= tolerance).sum())
        total += offsets.numel()
    return whole / total


def _fit(
    network: nn.Module, batches: TrainBatches, setting: Mapping[str, Any], tolerance: float
) -> list[dict[str, object]]:
    """Train a network; return its curve, whose losses are means over the steps since the previous point."""
    decay = setting["weight_decay"]
    groups = param_groups(network, setting["lr"], setting["multiplier"] or 0.0, decay, decay)
    groups = [group for group in groups if group["params"]]
    optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    rates = [group["lr"] for group in groups]
    steps = max(setting["epochs"] * len(batches), 8)  # OneCycleLR divides by zero if only one step is increasing
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, steps, pct_start=_WARMUP, cycle_momentum=False)
    probe, _ = next(iter(batches))
    curve: list[dict[str, object]] = [{"step": 0, "epoch": 0, "on_lattice": _probe(network, probe, tolerance)}]
    losses: list[float] = []
    step = 0
    for epoch in range(1, setting["epochs"] + 1):
        batches.set_epoch(epoch)
        for number, (images, labels) in enumerate(batches, 1):
            optimizer.zero_grad()
            loss = cross_entropy(network(images), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            step += 1
            if step in _FIRST_STEPS or number == len(batches):
                point = {"step": step, "epoch": epoch, "train_loss": sum(losses) / len(losses)}
                curve.append({**point, "on_lattice": _probe(network, probe, tolerance)})
                losses.clear()
    return curve


@torch.no_grad()
def _probe(network: nn.Module, images: Tensor, tolerance: float) -> float | None:
    """Return the fraction of integer sample coordinates; None for networks without adaptive layers."""
    network.eval()  # preserves the statistics of batch normalization
    with record_supports(network) as supports:
        network(images)
    network.train()
    return fraction_on_lattice(supports, tolerance) if supports else None


def _compare_gradients(network: nn.Module, batch: Batch) -> dict[str, object]:
    """Compare the predictors' initial gradients for the two derivatives."""
    images, labels = batch
    found = []
    for name in DERIVATIVES:
        fresh = copy.deepcopy(network)  # a pass changes the statistics of batch normalization
        _, predictors = param_groups(fresh, lr=1.0)
        with lattice_derivative(name):
            gradients = torch.autograd.grad(cross_entropy(fresh(images), labels), predictors["params"])
        found.append(torch.cat([gradient.flatten() for gradient in gradients]).double())
    one_sided, central = found
    ratio = torch.linalg.vector_norm(central) / torch.linalg.vector_norm(one_sided)
    return {"gradient_cosine": float(cosine_similarity(one_sided, central, dim=0)), "gradient_ratio": float(ratio)}


@torch.no_grad()
def _evaluate(network: nn.Module, batches: TestBatches) -> dict[str, object]:
    """Return the accuracy and the mean cross-entropy on test images."""
    network.eval()
    right, loss, count = 0, 0.0, 0
    for images, labels in batches:
        scores = network(images)
        right += int((scores.argmax(1) == labels).sum())
        loss += float(cross_entropy(scores, labels, reduction="sum"))
        count += len(labels)
    return {"test_accuracy": right / count, "test_loss": loss / count}
