"""The integrator of geodesics: its steps in NumPy, and the order of convergence within a step."""

import math

import numpy as np
import pytest
import torch

import metricconv as mc
from geodesy import circle, lattice, runge_kutta
from metricconv.metrics import geodesics
from metricconv.metrics.flow import FlowField, Segment, shoot

# A metric that is linear in the position (y, x): interpolation and central differences are exact inside the image.
M0 = np.array([[0.10, 0.02], [0.02, 0.07]])
SLOPES = np.array([[[0.006, 0.001], [0.001, 0.002]], [[-0.002, 0.0015], [0.0015, 0.004]]])  # ∂_y M and ∂_x M
OMEGA0 = np.array([0.08, -0.05])
OMEGA_SLOPES = np.array([[0.002, 0.006], [-0.004, 0.001]])  # OMEGA_SLOPES[k, j] = ∂_k ω_j
ORIGIN = np.array([5.3, 4.6])


def metric_at(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return M and ω at a position."""
    return M0 + p[0] * SLOPES[0] + p[1] * SLOPES[1], OMEGA0 + p @ OMEGA_SLOPES


def rates(p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ẋ and q̇ by the formulas in the docstring of ``flow``."""
    M, omega = metric_at(p)
    raised = np.linalg.solve(M, q)
    n = math.sqrt(q @ raised)
    e = raised / n
    c = 1 + omega @ e
    force = [
        e @ SLOPES[k] @ e / 2 + sum((OMEGA_SLOPES[k, j] - OMEGA_SLOPES[j, k]) * e[j] for j in range(2))
        for k in range(2)
    ]
    return e / c, n / c * np.array(force)


def linear_metric(size: tuple[int, int] = (12, 12)) -> mc.Randers:
    """Return the same metric as a field of pixels."""
    pixels = torch.stack(lattice(size)).numpy()
    M = M0[:, :, None, None] + np.einsum("kij,kyx->ijyx", SLOPES, pixels)
    omega = OMEGA0[:, None, None] + np.einsum("kj,kyx->jyx", OMEGA_SLOPES, pixels)
    return mc.Randers(torch.tensor(M[[0, 0, 1], [0, 1, 1]])[None, None], torch.tensor(omega)[None, None])


def segments(direction: np.ndarray, length: float, steps: int) -> list[Segment]:
    """Return the steps of a geodesic from ORIGIN."""
    origin, along = (torch.tensor(v).view(2, 1, 1).unbind(0) for v in (ORIGIN, direction))
    return list(shoot(FlowField.of(linear_metric()), origin, along, torch.tensor(length, dtype=torch.float64), steps))


@pytest.mark.parametrize("direction", [(0.6, 0.8), (-1.0, 0.3)])
def test_three_steps_agree_with_numpy(direction):
    u, h = np.array(direction), 0.7 / 3
    M, omega = metric_at(ORIGIN)
    e = u / math.sqrt(u @ M @ u)
    q = M @ e

    def integrate(middle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return h ẋ and h q̇ at the middle of a step, from the momentum predicted there."""
        _, force = rates(middle, q)
        velocity, force = rates(middle, q + h / 2 * force)
        return h * velocity, h * force

    starts, steps, bends = [np.zeros(2)], [], []
    # The first velocity is that of the start, half a step before the first midpoint: the difference is half a bend.
    first = h * e / (1 + omega @ e)
    step, impulse = integrate(ORIGIN + first / 2)
    q = q + impulse
    steps.append(step)
    bends.append(2 * (step - first))
    for _ in range(2):  # the later ones start from the previous midpoint, a full step before
        starts.append(starts[-1] + steps[-1])
        step, impulse = integrate(ORIGIN + starts[-1] + steps[-1] / 2 + bends[-1] / 4)
        q = q + impulse
        bends.append(step - steps[-1])
        steps.append(step)

    result = segments(u, 0.7, 3)
    for segment, x, w, b in zip(result, starts, steps, bends, strict=True):
        vectors = torch.stack([torch.stack(v).flatten() for v in (*segment, segment.at(0.5))])
        np.testing.assert_allclose(vectors, [x, w, b, x + w / 2 - b / 8], rtol=0, atol=1e-13)
    curve = geodesics(linear_metric(), ORIGIN[None], u[None], 0.7, 3)[0, 0, 0]
    np.testing.assert_allclose(curve, ORIGIN + np.stack([*starts, starts[-1] + steps[-1]]), rtol=0, atol=1e-13)


@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_error_within_first_step_is_cubic_in_its_length(fraction):
    errors = []
    for length in (0.4, 0.2, 0.1):
        ends = [torch.stack(segments(u.numpy(), length, 1)[0].at(fraction)).flatten() for u in circle(8)]
        points = torch.tensor(ORIGIN).expand(8, 2)
        exact = runge_kutta(linear_metric(), points, circle(8), fraction * length, steps=20) - points
        errors.append((torch.stack(ends) - exact).square().mean().sqrt().item())
    assert math.log2(errors[0] / errors[1]) == pytest.approx(3, abs=0.2)
    assert math.log2(errors[1] / errors[2]) == pytest.approx(3, abs=0.2)
