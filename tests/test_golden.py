"""Outputs that a change of the code's structure must not change, stored as a few numbers each.

``python tests/test_golden.py`` writes them again, for a change of behaviour that is meant.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import metricconv as mc

STORE = Path(__file__).parent / "golden" / "outputs.json"
nn, filters = mc.nn, mc.filters


def wave(*shape: int) -> Tensor:
    """Return a smooth signal without a random generator, whose numbers a version of torch might change."""
    grids = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in shape), indexing="ij")
    phase = sum((k + 1) * 0.37 * g for k, g in enumerate(grids))
    return (torch.sin(phase) + 0.5 * torch.cos(2.3 * phase + 1)).float()


def layer(make: Callable[[], nn.AdaptiveConv], *size: int) -> Tensor:
    """Return the output, and gradients, of a layer whose parameters are all set by ``wave``."""
    module = make()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.2 * wave(parameter.numel()).view(parameter.shape))
    x = wave(2, module.in_channels, *size).requires_grad_()
    y = module(x)
    gradients = torch.autograd.grad(y.square().sum(), [x, *module.parameters()])
    return torch.cat([y.detach().flatten(), *(g.flatten() for g in gradients)])


IMAGE = (0.5 + 0.25 * wave(18, 21)).numpy()
CASES: dict[str, Callable[[], Tensor | np.ndarray]] = {
    "metric 1-D": lambda: layer(lambda: nn.MetricConv1d(3, 4, 3, padding=1), 11),
    "metric 2-D": lambda: layer(lambda: nn.MetricConv2d(3, 4, 3, padding=1), 7, 8),
    "metric 3-D": lambda: layer(lambda: nn.MetricConv3d(2, 3, 3, padding=1), 4, 5, 6),
    "many channels": lambda: layer(lambda: nn.MetricConv2d(16, 8, 3, stride=2, padding=1, metric_groups=2), 7, 8),
    "modulated": lambda: layer(lambda: nn.MetricConv2d(4, 4, 3, padding=1, groups=2, modulation=True), 6, 5),
    "circular": lambda: layer(lambda: nn.MetricConv2d(3, 4, 5, padding=2, padding_mode="circular"), 7, 8),
    "geodesic": lambda: layer(lambda: nn.MetricConv2d(3, 4, 3, padding=1, ball="geodesic"), 7, 8),
    "deformable": lambda: layer(lambda: nn.DeformableConv2d(3, 4, 3, padding=1, padding_mode="reflect"), 7, 8),
    "shifted": lambda: layer(lambda: nn.ShiftedConv2d(3, 4, 3, padding=1, padding_mode="border"), 7, 8),
    "dilated": lambda: layer(lambda: nn.DilatedConv2d(3, 4, 3, padding=1), 7, 8),
    "tangent filter": lambda: filters.tangent_filter(IMAGE, samples=5),
    "geodesic filter": lambda: filters.geodesic_filter(IMAGE, samples=5),
    "box filter": lambda: filters.box_filter(IMAGE, 3),
    "dilated filter": lambda: filters.dilated_filter(IMAGE, 3),
    "interpolated filter": lambda: filters.interpolated_filter(IMAGE, 3, 4.0),
}


def summary(name: str) -> list[float]:
    """Return eight numbers that depend on all of an output."""
    values = torch.as_tensor(CASES[name]()).detach().double().flatten()
    weights = torch.stack([torch.cos(0.1 + k * 0.7 * torch.arange(len(values))) for k in range(8)]).double()
    return ((weights * values).sum(1) / values.norm()).tolist()


@pytest.mark.parametrize("name", CASES)
def test_output_is_the_stored_one(name):
    assert summary(name) == pytest.approx(json.loads(STORE.read_text())[name], abs=3e-5)


if __name__ == "__main__":
    STORE.write_text(json.dumps({name: [round(v, 7) for v in summary(name)] for name in CASES}, indent=1) + "\n")
