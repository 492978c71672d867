"""Training one setting, and all settings that a table lacks."""

import contextlib
import copy
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from ..._files import read_table, write_table
from ..._interpolation import lattice_tolerance
from ...nn import param_groups, record_supports
from ...supports import Support, TangentBall
from ..classification.batches import Batch, Half, Pictures, TestBatches, TrainBatches
from ..results import Results, locked, text
from .derivative import DERIVATIVES, lattice_derivative
from .network import ADAPTIVE, build
from .settings import CURVES, KEY, VALUES

# After these steps, and after every epoch, a curve has a point.
_FIRST_STEPS = (0, 1, 2, 5, 10, 20)
_SHARE_UP = 0.25  # of the schedule


class Outcome(NamedTuple):
    """The values of a run's row, and the points of its curve."""

    values: dict[str, object]
    curve: list[dict[str, object]]


def table(folder: Path) -> Results:
    """Return the table of all runs in a folder."""
    return Results(folder / "runs.csv", KEY, VALUES)


def run(
    results: Results, todo: Sequence[Mapping[str, Any]], pictures: Pictures, max_minutes: float | None = None
) -> int:
    """Train the settings that the table lacks; return how many rows were added.

    A run that was interrupted starts again from its beginning: runs are short.
    """
    added = 0
    for setting in results.pending(todo, max_minutes):
        start = time.perf_counter()
        outcome = train(setting, pictures)
        seconds = time.perf_counter() - start
        _add_curve(results.path.with_name("curves.csv"), setting, outcome.curve)
        results.add(setting, outcome.values, seconds)
        added += 1
    return added


def train(setting: Mapping[str, Any], pictures: Pictures) -> Outcome:
    """Train one setting. Initial weights and batches depend on the seed alone, not on layer, derivative or multiplier.

    The row of a one-sided run compares the first gradients of the predictors, one-sided and central: the cosine of the
    angle between them, ``gradient_cosine``, and the ratio of their norms, central over one-sided, ``gradient_ratio``.
    """
    torch.manual_seed(setting["seed"])
    network = build(
        setting["layer"], pictures.channels, pictures.classes, setting["width"], setting["backend"] or "auto"
    )
    batches = TrainBatches(pictures, setting["batch"], "pad-crop", setting["seed"])
    adaptive = setting["layer"] in ADAPTIVE
    compared = setting["derivative"] == "one-sided"
    values: dict[str, object] = _compare_gradients(network, next(iter(batches))) if compared else {}
    derivative = lattice_derivative(setting["derivative"]) if adaptive else contextlib.nullcontext()
    tolerance = lattice_tolerance(torch.float32)  # that of the definition, whatever derivative is in use
    with derivative:
        curve = _fit(network, batches, setting, tolerance)
    test = Half(*(part[: setting["test_images"]] for part in pictures.test))
    values |= _evaluate(network, TestBatches(pictures, test, batch=250))
    values |= {"train_loss": curve[-1]["train_loss"], "parameters": sum(p.numel() for p in network.parameters())}
    return Outcome(values, curve)


def share_on_lattice(supports: Mapping[str, Support], tolerance: float) -> float:
    """Return the share of sample coordinates that are whole numbers, among those that the predictor can move.

    Samples of a tangent ball move along their direction only: a coordinate that is zero stays zero.
    """
    whole = total = 0
    for support in supports.values():
        offsets = support.offsets().detach()  # [B, G, P, d, *out]
        if isinstance(support, TangentBall):
            stencil = support.stencil
            moves = (stencil.directions * stencil.radii.unsqueeze(1)).abs() > tolerance  # [P, d]
            offsets = offsets.movedim((2, 3), (0, 1))[moves]
        whole += int(((offsets - offsets.round()).abs() <= tolerance).sum())
        total += offsets.numel()
    return whole / total


def _fit(
    network: nn.Module, batches: TrainBatches, setting: Mapping[str, Any], tolerance: float
) -> list[dict[str, object]]:
    """Train a network; return its curve, whose losses are means over the steps since the point before."""
    decay = setting["weight_decay"]
    groups = param_groups(network, setting["lr"], setting["multiplier"] or 0.0, decay, decay)
    groups = [group for group in groups if group["params"]]
    optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    rates = [group["lr"] for group in groups]
    steps = max(setting["epochs"] * len(batches), 8)  # OneCycleLR divides by zero where only one step goes up
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, steps, pct_start=_SHARE_UP, cycle_momentum=False)
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
    """Return the share of whole sample coordinates for some images; None for a network without adaptive layers."""
    network.eval()  # so that the statistics of batch normalisation stay
    with record_supports(network) as supports:
        network(images)
    network.train()
    return share_on_lattice(supports, tolerance) if supports else None


def _compare_gradients(network: nn.Module, batch: Batch) -> dict[str, object]:
    """Compare the gradients of the predictors' parameters before the first step, by both derivatives."""
    images, labels = batch
    found = []
    for name in DERIVATIVES:
        fresh = copy.deepcopy(network)  # a pass changes the statistics of batch normalisation
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


def _add_curve(path: Path, setting: Mapping[str, Any], curve: Sequence[Mapping[str, object]]) -> None:
    """Add the curve of a run to the CSV of all curves, in place of an earlier one."""
    key = {name: text(setting[name]) for name in KEY}
    points = [{**key, **{name: text(value) for name, value in point.items()}} for point in curve]
    with locked(path):
        others = [row for row in read_table(path) if any(row[name] != value for name, value in key.items())]
        write_table(path, [*others, *points], (*KEY, *CURVES))
