"""Where geodesics amplify rounding errors, the CPU backend differs from the reference by no more than these."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import metricconv as mc
from helpers import randers
from ops.cases import MODES, relative

# In float64: of outputs relative to outputs, and relative to the displacement of samples in pixels.
ROUNDING, FACTOR = 1e-11, 300

Run = Callable[[mc.GeodesicBall, str], Tensor]


def strong_problem(seed: int, smooth: int) -> tuple[Callable[[mc.Metric], mc.GeodesicBall], mc.Metric, Run]:
    """Return the ball of a metric, a metric that is unrelated between adjacent pixels, and the operator on a ball."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    size, mode, steps = (rng.randint(3, 9), rng.randint(3, 9)), rng.choice(MODES), rng.choice([1, 2, 3, 4, 6])
    metric = randers(
        2, spatial=size, radius=rng.choice([0.5, 1.0, 3.0, 10.0]), asymmetry=rng.choice([0.01, 0.6, 0.99, 0.9999])
    )
    x, weight = torch.randn(1, 1, *size).double(), torch.randn(1, 1, 3, 3).double()
    padding_mode = "circular" if mode == "circular" else "border"

    def ball(metric: mc.Metric) -> mc.GeodesicBall:
        return mc.GeodesicBall(metric, mc.stencils.square_onion(3), steps, smooth, padding_mode=padding_mode)

    def run(ball: mc.GeodesicBall, backend: str) -> Tensor:
        return mc.support_conv(x, ball, weight, padding=1, padding_mode=mode, backend=backend)

    return ball, metric, run


def last_bits_changed(t: Tensor) -> Tensor:
    """Change values by at most 2 units in the last place."""
    return t * (1 + torch.finfo(t.dtype).eps * torch.randint(-1, 2, t.shape).to(t))


def error_and_sensitivity(seed: int, smooth: int) -> tuple[float, float]:
    """Return the difference between the backends, and how far samples move if last bits of the metric change."""
    ball, metric, run = strong_problem(seed, smooth)
    support = ball(metric)
    error = relative(run(support, "cpu"), run(support, "reference"))
    moves = [(ball(metric.map(last_bits_changed)).offsets() - support.offsets()).abs().max() for _ in range(4)]
    return error, max(moves).item()


@pytest.mark.parametrize("smooth", [0, 1])
def test_backends_differ_by_no_more_than_changes_of_the_last_bit(smooth: int) -> None:
    results = [error_and_sensitivity(seed, smooth) for seed in range(60)]
    for seed, (error, sensitivity) in enumerate(results):
        assert error <= ROUNDING + FACTOR * sensitivity, (seed, error, sensitivity)
    assert (max(error for error, _ in results) > ROUNDING) == (smooth == 0)
