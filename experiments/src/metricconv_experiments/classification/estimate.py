"""Estimated run time of a grid, from a few timed training steps of each kind of run."""

import statistics
from collections.abc import Iterable

import torch
from torch.nn.functional import cross_entropy

from ..training import now
from .runs import Runner
from .setting import Setting

WARM_UP, STEPS = 5, 20
# Overhead in seconds: of Lightning per step, and of a run (building, testing, writing).
STEP_OVERHEAD = 5e-4
RUN_OVERHEAD = 2.0

Kind = tuple[object, ...]


def kind(setting: Setting) -> Kind:
    """Return the values that determine the time of a step."""
    return tuple(
        setting.key[name]
        for name in (
            "dataset",
            "network",
            "method",
            "layers",
            "metric_parameters",
            "metric_groups",
            "batch",
            "precision",
        )
    )


def run_seconds(settings: Iterable[Setting], runner: Runner, device: torch.device) -> list[float]:
    """Return the estimated seconds of each setting; settings of the same kind are timed once."""
    known: dict[Kind, float] = {}
    times = []
    for setting in settings:
        if kind(setting) not in known:
            known[kind(setting)] = step_seconds(setting, runner, device)
        count = len(runner.images(setting.dataset).train_y) - setting.holdout
        batches = (setting.train_images or count) // setting.batch * int(setting.epochs or 1)
        times.append(batches * (known[kind(setting)] + STEP_OVERHEAD) + RUN_OVERHEAD)
    return times


def step_seconds(setting: Setting, runner: Runner, device: torch.device) -> float:
    """Return the median time of a training step, after warm-up steps."""
    run = runner.prepare(setting, runner.on_device(setting, device))
    network = run.module.network.train()
    optimizer = torch.optim.SGD(network.parameters(), 1e-3, momentum=0.9)
    times = []
    for (x, y), _ in zip(run.train, range(WARM_UP + STEPS), strict=False):
        start = now(device)
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=setting.precision == "bf16-mixed"):
            scores = network(x)
        cross_entropy(scores.float(), y).backward()
        optimizer.step()
        times.append(now(device) - start)
    return statistics.median(times[WARM_UP:] or times)
