"""The geodesic flow and its integration: known geodesics, conserved quantities, order of convergence."""

import math

import pytest
import torch

import metricconv as mc
from geodesy import circle, conformal, extruded, lattice, rough, runge_kutta
from helpers import make_metric, randers, sphere
from metricconv.metrics import geodesics, smoothed
from metricconv.metrics.flow import FlowField, rates, shoot


def end_points(metric, point, count=12, length=1.0, steps=4):
    """Return the end points of geodesics from one point, (count, 2)."""
    points = torch.tensor([point], dtype=torch.float64).expand(count, 2)
    return geodesics(metric, points, circle(count), length, steps)[0, 0, :, -1]


@pytest.mark.parametrize("kind", ["riemannian", "randers"])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_geodesics_of_constant_metrics_are_straight_with_unit_speed(kind, dim):
    metric = make_metric(kind, dim, 2, 3).map(lambda t: t.expand(2, 3, -1, *(6, 5, 4)[:dim]))
    directions = sphere(dim, 7)
    points = 2 + torch.rand(len(directions), dim, dtype=torch.float64)
    curves = geodesics(metric, points, directions, length=2.0, steps=4)
    reach = 2 * metric[..., *(slice(0, 1),) * dim].unit_vectors(directions).flatten(4).squeeze(-1)
    expected = points.unsqueeze(1) + torch.linspace(0, 1, 5, dtype=torch.float64).view(5, 1) * reach.unsqueeze(3)
    torch.testing.assert_close(curves, expected, atol=1e-13, rtol=0)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_velocity_has_unit_speed_for_any_momentum(dim):
    metric = randers(dim, spatial=(3, 4, 5)[:dim], asymmetry=0.95)
    points = torch.rand(50, dim, dtype=torch.float64) * 2
    local = FlowField.of(metric).interpolate(points.unsqueeze(0).unbind(-1))
    momentum = torch.randn(50, dim, dtype=torch.float64) * torch.logspace(-3, 3, 50, dtype=torch.float64)[:, None]
    velocity, rate = rates(local, momentum.unsqueeze(0).unbind(-1))
    local_metric = metric.at(points.t()[None].reshape(1, dim, 50, *(1,) * (dim - 1)))
    speed = local_metric.norm(torch.stack(velocity).view(1, 1, dim, 50, *(1,) * (dim - 1)))
    torch.testing.assert_close(speed, torch.ones_like(speed), atol=1e-12, rtol=0)
    twice, rate_of_twice = rates(local, (2 * momentum).unsqueeze(0).unbind(-1))
    torch.testing.assert_close(torch.stack(twice), torch.stack(velocity))
    torch.testing.assert_close(torch.stack(rate_of_twice), 2 * torch.stack(rate))


def test_interpolation_and_smoothing_do_not_increase_asymmetry():
    metric = randers(2, spatial=(9, 8), asymmetry=0.97)
    interpolated = metric.at(torch.rand(1, 2, 40, 50, dtype=torch.float64) * 9 - 1)
    for other in (interpolated, smoothed(metric), smoothed(metric, 3, padding_mode="circular")):
        assert other.asymmetry.max() <= 0.97 + 1e-12
        assert other.is_positive().all()


def test_smoothing_is_binomial_and_preserves_constants():
    impulse = torch.zeros(1, 1, 3, 5, 5, dtype=torch.float64)
    impulse[..., 2, 2] = 16
    assert smoothed(mc.Riemannian(impulse)).M[0, 0, 1, 2].tolist() == [0, 2, 4, 2, 0]
    assert smoothed(mc.Riemannian(impulse)).M[0, 0, 1, 1].tolist() == [0, 1, 2, 1, 0]
    corner = impulse.roll((2, 2), (3, 4))
    assert smoothed(mc.Riemannian(corner), padding_mode="circular").M[0, 0, 1, 0, 0] == 1
    assert smoothed(mc.Riemannian(corner)).M[0, 0, 1, 4].tolist() == [0, 0, 0, 3, 9]
    torch.testing.assert_close(smoothed(mc.Riemannian(impulse + 3), 0).M, impulse + 3)


# Half-plane: distances are those of dy / y. From (y₀, 0) a geodesic is a half-circle about the axis y = 0.
def hyperbolic(y, sin, cos, s):
    if abs(cos) < 1e-12:
        return y * math.exp(math.copysign(s, sin)), 0.0
    radius, center = y / abs(cos), y * sin / cos
    t = math.atanh(-center / radius) + math.copysign(s, cos)
    return radius / math.cosh(t), center + radius * math.tanh(t)


@pytest.mark.parametrize("size", [4.0, 8.0])
def test_geodesics_of_the_poincare_half_plane_are_half_circles(size):
    y, _ = lattice((41, 41))
    ends = end_points(conformal(size / (y + 25)), (20.0, 20.0), 16)
    exact = torch.tensor([hyperbolic(45, sin, cos, 1 / size) for sin, cos in circle(16).tolist()], dtype=torch.float64)
    error = torch.linalg.vector_norm(ends - exact - torch.tensor([-25.0, 20.0]), dim=1)
    assert error.mean() <= 0.01  # for balls of radius 11 and 6 pixels
    assert error.max() <= 0.03


@pytest.mark.parametrize("pixel", [(20.0, 20.0), (14.0, 24.5)])
def test_geodesics_of_the_sphere_are_great_circles(pixel):
    # Stereographic projection of a sphere of radius ρ: at distance r from the center, F = 2ρ²/(ρ² + r²) |u|.
    rho, size, point = 16.0, 5.0, torch.tensor(pixel, dtype=torch.float64) - 20
    y, x = lattice((41, 41))
    metric = conformal(2 * rho**2 / (rho**2 + (y - 20) ** 2 + (x - 20) ** 2) / size)
    ends = end_points(metric, pixel, 16) - 20

    def on_sphere(p):
        square = (p * p).sum(-1, keepdim=True) / rho**2
        return torch.cat([2 * p / rho, square - 1], -1) / (1 + square)

    along = 1e-6 * circle(16)
    start = on_sphere(point)
    tangent = torch.nn.functional.normalize(on_sphere(point + along) - on_sphere(point - along), dim=-1)
    angle = size / rho
    end = math.cos(angle) * start + math.sin(angle) * tangent
    exact = rho * end[:, :2] / (1 - end[:, 2:])
    error = torch.linalg.vector_norm(ends - exact, dim=1)
    assert error.mean() <= 0.01
    assert error.max() <= 0.03


@pytest.mark.parametrize("sign", [-1, 1])
def test_drift_of_constant_curl_bends_geodesics_into_circles(sign):
    # M = I/5², ω = κ(−x, y)/2, whose curl ∂_y ω_x − ∂_x ω_y is κ. By Euler-Lagrange, d/dt ẋ_y / (5|ẋ|) = κ ẋ_x: a
    # geodesic along x bends towards y if κ > 0, by the angle 5κ per pixel.
    kappa = 0.02 * sign
    y, x = lattice((27, 27))
    omega = torch.stack([13 - x, y - 13])[None, None] * kappa / 2
    metric = mc.Randers(conformal(torch.full_like(y, 1 / 5)).M, omega)
    fine, coarse = (geodesics(metric, [[13.0, 13.0]], [[0.0, 1.0]], 1.0, steps)[0, 0, 0] for steps in (64, 4))
    distance = torch.linalg.vector_norm(fine - torch.tensor([13 + 1 / (5 * kappa), 13.0]), dim=1)
    assert (distance - 1 / (5 * abs(kappa))).abs().max() < 1e-4
    assert fine[-1, 1] > 17 and (fine[-1, 0] - 13) * sign > 0.5
    assert torch.linalg.vector_norm(coarse - fine[::16], dim=1).max() < 0.02


def test_snells_law_at_a_step():
    # F = |u| above the step and 2|u| below. The momentum along the step is conserved: sin θ₁ = 2 sin θ₂.
    y, _ = lattice((41, 61))
    metric = smoothed(conformal(1 + (y > 20).double()))
    curve = geodesics(metric, torch.tensor([[8.0, 8.0]]), torch.tensor([[1.0, 1.0]]), 36.0, 1000)[0, 0, 0]
    before, after = curve[1] - curve[0], curve[-1] - curve[-2]
    sines = [(d[1] / torch.linalg.vector_norm(d)).item() for d in (before, after)]
    assert sines[1] == pytest.approx(sines[0] / 2, abs=0.012)


def test_integrator_has_order_two_and_agrees_with_runge_kutta():
    y, x = lattice((25, 25))
    factor = 0.25 * (1 + 0.25 * torch.sin(y / 6) * torch.cos(x / 5))
    omega = 0.1 * torch.stack([torch.sin(x / 6), torch.cos(y / 5)])[None, None]
    metric = mc.Randers(conformal(factor).M, omega)
    exact = runge_kutta(metric, torch.full((8, 2), 12.0).double(), circle(8), steps=400)
    counts = [4, 8, 16, 32, 64]
    errors = [(end_points(metric, (12.0, 12.0), 8, steps=n) - exact).square().mean().sqrt().item() for n in counts]
    assert errors[-1] < 1e-4
    assert math.log2(errors[0] / errors[-1]) / 4 == pytest.approx(2.0, abs=0.1)


def insert_axis(vectors, axis, height):
    """Insert a component along a third axis into vectors (…, 2)."""
    return torch.cat([vectors[..., :axis], torch.full_like(vectors[..., :1], height), vectors[..., axis:]], -1)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_extruded_metric_has_geodesics_of_its_plane(axis):
    plane, points = rough(3), torch.tensor([[5.3, 4.6]], dtype=torch.float64)
    expected = geodesics(plane, points, circle(12), 1.0, 6)
    result = geodesics(
        extruded(plane, axis), insert_axis(points, axis, 1.0), insert_axis(circle(12), axis, 0.0), 1.0, 6
    )
    torch.testing.assert_close(result, insert_axis(expected, axis, 1.0), atol=1e-12, rtol=0)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_geodesics_of_product_metrics_are_products(axis):
    # Without drift |(u, w)|² = |u|² + w²/4, and both terms are constant along a geodesic.
    plane, points = mc.Riemannian(rough(3).M), torch.tensor([[5.3, 4.6]], dtype=torch.float64)
    size = plane.at(points.view(1, 2, 1, 1)).norm(circle(12).view(1, 1, 12, 2, 1, 1)).flatten()
    whole = (size.square() + 0.25).sqrt()
    expected = geodesics(plane, points, circle(12), size / whole, 64)[0, 0, :, -1]
    directions = insert_axis(circle(12), axis, 1.0)
    result = geodesics(extruded(plane, axis), insert_axis(points, axis, 0.0), directions, 1.0, 64)[0, 0, :, -1]
    torch.testing.assert_close(result[:, axis], 1 / whole, atol=0.015, rtol=0)
    torch.testing.assert_close(result[:, [k for k in range(3) if k != axis]], expected, atol=0.015, rtol=0)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_error_of_length_is_quadratic_in_step(seed):
    metric = rough(seed)
    for steps in (4, 8, 16, 32):
        curve = geodesics(metric, torch.full((12, 2), 5.0).double(), circle(12), 1.0, steps)[0, 0]  # [N, steps + 1, 2]
        middle, chord = (curve[:, 1:] + curve[:, :-1]) / 2, curve[:, 1:] - curve[:, :-1]
        lengths = metric.at(middle.movedim(-1, 0)[None]).norm(chord.movedim(-1, 0)[None, None])
        assert (lengths.sum(-1) - 1).abs().max() < 0.1 / steps**2


def test_gradient_added_to_drift_does_not_change_paths():
    metric = rough(passes=1, asymmetry=0.3)
    # ∇φ for φ = yx/80 is linear, so central differences are exact.
    y, x = lattice(metric.spatial)
    other = mc.Randers(metric.M, metric.omega + torch.stack([x - 5, y - 5])[None, None] / 80)
    assert other.is_positive().all()
    points = torch.full((12, 2), 5.0).double()
    one, two = (geodesics(m, points, circle(12), 1.0, 400)[0, 0] for m in (metric, other))
    # The paths are the same, at different speeds: every point of one is close to a point of the other.
    for a, b in ((one, two), (two, one)):
        radius = 0.8 * min(torch.linalg.vector_norm(c[:, -1] - c[:, 0], dim=1).min() for c in (a, b))
        inside = torch.linalg.vector_norm(a - a[:, :1], dim=-1) < radius
        assert inside.sum() > 1000
        assert torch.cdist(a, b).amin(-1)[inside].max() < 0.02


def test_reversed_drift_reverses_geodesics():
    metric = rough(passes=3, asymmetry=0.5)
    reversed_metric = mc.Randers(metric.M, -metric.omega)
    points = torch.full((12, 2), 5.0).double()
    forward = geodesics(metric, points, circle(12), 1.0, 400)[0, 0]
    direction = forward[:, -1] - forward[:, -2]
    backward = geodesics(reversed_metric, forward[:, -1], -direction, 1.0, 400)[0, 0]
    torch.testing.assert_close(backward[:, -1], points, atol=0.03, rtol=0)


@pytest.mark.parametrize("steps", [1, 4, 32])
def test_flow_is_finite_for_noise_of_condition_1e8_in_float32(steps):
    angle = torch.rand(1, 1, 24, 24, dtype=torch.float64) * 2 * math.pi
    along = torch.stack([angle.sin(), angle.cos()], 2)
    length = torch.exp(6 * torch.rand_like(angle) - 3)
    base = mc.Riemannian.needle(along, length, length * torch.where(angle < 3, 1e-4, 1.0))
    drift = along.flip(2)
    omega = (0.999 * drift / base.dual().norm(drift).unsqueeze(2)).float()
    M, omega = base.M.float().requires_grad_(), omega.requires_grad_()
    metric = mc.Randers(M, omega)
    assert not metric.is_positive().all()  # after rounding to float32; geodesic balls do not check this
    origin, directions = (torch.rand(1, 200, 2) * 23).unbind(-1), torch.randn(1, 200, 2).unbind(-1)
    *_, last = shoot(FlowField.of(metric), origin, directions, torch.tensor(1.0), steps)
    ends = torch.stack(last.at(1.0))
    assert ends.dtype == torch.float32 and ends.isfinite().all()
    ends.sum().backward()
    if steps < 32:  # more steps overflow the derivatives in float32
        assert M.grad.isfinite().all() and omega.grad.isfinite().all()
