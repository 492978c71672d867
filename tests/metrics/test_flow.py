"""The geodesic flow: known geodesics, conserved quantities, symmetries, order, derivatives."""

import math

import numpy as np
import pytest
import torch

import metricconv as mc
from geodesy import circle, conformal, extruded, lattice, rough, runge_kutta
from helpers import make_metric, randers, riemannian, sphere
from metricconv.metrics import check_positive, exp_map, geodesic_distance, geodesics, smoothed
from metricconv.metrics.flow import FlowField, flow, shoot


def shot(metric, point, count=12, length=1.0, steps=4):
    """Return where geodesics from one point end, (count, 2)."""
    points = torch.tensor([point], dtype=torch.float64).expand(count, 2)
    return geodesics(metric, points, circle(count), length, steps)[0, 0, :, -1]


@pytest.mark.parametrize("kind", ["riemannian", "randers"])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_geodesics_of_a_constant_metric_are_straight_and_of_unit_speed(kind, dim):
    metric = make_metric(kind, dim, 2, 3).map(lambda t: t.expand(2, 3, -1, *(6, 5, 4)[:dim]))
    directions = sphere(dim, 7)
    points = 2 + torch.rand(len(directions), dim, dtype=torch.float64)
    curves = geodesics(metric, points, directions, length=2.0, steps=4)
    reach = 2 * metric[..., *(slice(0, 1),) * dim].unit_vectors(directions).flatten(4).squeeze(-1)
    expected = points.unsqueeze(1) + torch.linspace(0, 1, 5, dtype=torch.float64).view(5, 1) * reach.unsqueeze(3)
    torch.testing.assert_close(curves, expected, atol=1e-13, rtol=0)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_velocity_has_unit_speed_whatever_the_momentum(dim):
    metric = randers(dim, spatial=(3, 4, 5)[:dim], asymmetry=0.95)
    points = torch.rand(50, dim, dtype=torch.float64) * 2
    local = FlowField.of(metric).read(points.unsqueeze(0).unbind(-1))
    momentum = torch.randn(50, dim, dtype=torch.float64) * torch.logspace(-3, 3, 50, dtype=torch.float64)[:, None]
    velocity, rate = flow(local, momentum.unsqueeze(0).unbind(-1))
    here = metric.at(points.t()[None].reshape(1, dim, 50, *(1,) * (dim - 1)))
    speed = here.norm(torch.stack(velocity).view(1, 1, dim, 50, *(1,) * (dim - 1)))
    torch.testing.assert_close(speed, torch.ones_like(speed), atol=1e-12, rtol=0)
    twice, rate_of_twice = flow(local, (2 * momentum).unsqueeze(0).unbind(-1))
    torch.testing.assert_close(torch.stack(twice), torch.stack(velocity))
    torch.testing.assert_close(torch.stack(rate_of_twice), 2 * torch.stack(rate))


def test_interpolation_and_smoothing_keep_the_drift_below_the_nodes_largest():
    metric = randers(2, spatial=(9, 8), asymmetry=0.97)
    between = metric.at(torch.rand(1, 2, 40, 50, dtype=torch.float64) * 9 - 1)
    for other in (between, smoothed(metric), smoothed(metric, 3, padding_mode="circular")):
        assert other.asymmetry.max() <= 0.97 + 1e-12
        assert other.is_positive().all()


def test_smoothing_is_binomial_and_keeps_a_constant():
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
    radius, centre = y / abs(cos), y * sin / cos
    t = math.atanh(-centre / radius) + math.copysign(s, cos)
    return radius / math.cosh(t), centre + radius * math.tanh(t)


@pytest.mark.parametrize("size", [4.0, 8.0])
def test_geodesics_of_the_poincare_half_plane_are_half_circles(size):
    y, _ = lattice((41, 41))
    ends = shot(conformal(size / (y + 25)), (20.0, 20.0), 16)
    exact = torch.tensor([hyperbolic(45, sin, cos, 1 / size) for sin, cos in circle(16).tolist()], dtype=torch.float64)
    error = torch.linalg.vector_norm(ends - exact - torch.tensor([-25.0, 20.0]), dim=1)
    assert error.mean() <= 0.01  # on balls of 11 and 6 pixels
    assert error.max() <= 0.03


@pytest.mark.parametrize("place", [(20.0, 20.0), (14.0, 24.5)])
def test_geodesics_of_the_sphere_are_great_circles(place):
    # Stereographic: a point (y, x) at radius r from the middle, with ρ the sphere's radius, is at F = 2ρ²/(ρ² + r²).
    rho, size, point = 16.0, 5.0, torch.tensor(place, dtype=torch.float64) - 20
    y, x = lattice((41, 41))
    metric = conformal(2 * rho**2 / (rho**2 + (y - 20) ** 2 + (x - 20) ** 2) / size)
    ends = shot(metric, place, 16) - 20

    def lifted(p):
        square = (p * p).sum(-1, keepdim=True) / rho**2
        return torch.cat([2 * p / rho, square - 1], -1) / (1 + square)

    along = 1e-6 * circle(16)
    start = lifted(point)
    tangent = torch.nn.functional.normalize(lifted(point + along) - lifted(point - along), dim=-1)
    angle = size / rho
    arrived = math.cos(angle) * start + math.sin(angle) * tangent
    exact = rho * arrived[:, :2] / (1 - arrived[:, 2:])
    error = torch.linalg.vector_norm(ends - exact, dim=1)
    assert error.mean() <= 0.01
    assert error.max() <= 0.03


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_rotating_drift_bends_geodesics_into_circles(sign):
    # M = I/5², ω = κ(−x, y)/2, whose curl ∂_y ω_x − ∂_x ω_y is κ. By Euler and Lagrange d/dt ẋ_y / (5|ẋ|) = κ ẋ_x: what
    # leaves along x turns towards y if κ > 0, by 5κ for every pixel.
    kappa = 0.02 * sign
    y, x = lattice((27, 27))
    omega = torch.stack([13 - x, y - 13])[None, None] * kappa / 2
    metric = mc.Randers(conformal(torch.full_like(y, 1 / 5)).M, omega)
    fine, coarse = (geodesics(metric, [[13.0, 13.0]], [[0.0, 1.0]], 1.0, steps)[0, 0, 0] for steps in (64, 4))
    turned = torch.linalg.vector_norm(fine - torch.tensor([13 + 1 / (5 * kappa), 13.0]), dim=1)
    assert (turned - 1 / (5 * abs(kappa))).abs().max() < 1e-4
    assert fine[-1, 1] > 17 and (fine[-1, 0] - 13) * sign > 0.5
    assert torch.linalg.vector_norm(coarse - fine[::16], dim=1).max() < 0.02


def test_snells_law_holds_at_a_step():
    # Lengths cost 1 above and 2 below; across the step the momentum along it is kept: sin θ₁ = 2 sin θ₂.
    y, _ = lattice((41, 61))
    metric = smoothed(conformal(1 + (y > 20).double()))
    curve = geodesics(metric, torch.tensor([[8.0, 8.0]]), torch.tensor([[1.0, 1.0]]), 36.0, 1000)[0, 0, 0]
    before, after = curve[1] - curve[0], curve[-1] - curve[-2]
    sines = [(d[1] / torch.linalg.vector_norm(d)).item() for d in (before, after)]
    assert sines[1] == pytest.approx(sines[0] / 2, abs=0.012)


def test_the_integrator_has_order_two_and_agrees_with_runge_kutta():
    y, x = lattice((25, 25))
    factor = 0.25 * (1 + 0.25 * torch.sin(y / 6) * torch.cos(x / 5))
    omega = 0.1 * torch.stack([torch.sin(x / 6), torch.cos(y / 5)])[None, None]
    metric = mc.Randers(conformal(factor).M, omega)
    exact = runge_kutta(metric, torch.full((8, 2), 12.0).double(), circle(8), steps=400)
    counts = [4, 8, 16, 32, 64]
    errors = [(shot(metric, (12.0, 12.0), 8, steps=n) - exact).square().mean().sqrt().item() for n in counts]
    assert errors[-1] < 1e-4
    assert math.log2(errors[0] / errors[-1]) / 4 == pytest.approx(2.0, abs=0.1)


def lifted(vectors, axis, height):
    """Put a component along a third axis between those of vectors (…, 2)."""
    return torch.cat([vectors[..., :axis], torch.full_like(vectors[..., :1], height), vectors[..., axis:]], -1)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_metric_extruded_along_a_third_axis_has_the_curves_of_its_plane(axis):
    plane, points = rough(3), torch.tensor([[5.3, 4.6]], dtype=torch.float64)
    expected = geodesics(plane, points, circle(12), 1.0, 6)
    found = geodesics(extruded(plane, axis), lifted(points, axis, 1.0), lifted(circle(12), axis, 0.0), 1.0, 6)
    torch.testing.assert_close(found, lifted(expected, axis, 1.0), atol=1e-12, rtol=0)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_curves_of_a_product_are_products_of_curves(axis):
    # Without drift |(u, w)|² = |u|² + w²/4 shares the length out, once and for all.
    plane, points = mc.Riemannian(rough(3).M), torch.tensor([[5.3, 4.6]], dtype=torch.float64)
    size = plane.at(points.view(1, 2, 1, 1)).norm(circle(12).view(1, 1, 12, 2, 1, 1)).flatten()
    whole = (size.square() + 0.25).sqrt()
    expected = geodesics(plane, points, circle(12), size / whole, 64)[0, 0, :, -1]
    directions = lifted(circle(12), axis, 1.0)
    found = geodesics(extruded(plane, axis), lifted(points, axis, 0.0), directions, 1.0, 64)[0, 0, :, -1]
    torch.testing.assert_close(found[:, axis], 1 / whole, atol=0.015, rtol=0)
    torch.testing.assert_close(found[:, [k for k in range(3) if k != axis]], expected, atol=0.015, rtol=0)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_length_of_a_curve_is_right_up_to_the_square_of_a_step(seed):
    metric = rough(seed)
    for steps in (4, 8, 16, 32):
        curve = geodesics(metric, torch.full((12, 2), 5.0).double(), circle(12), 1.0, steps)[0, 0]  # [N, steps + 1, 2]
        middle, chord = (curve[:, 1:] + curve[:, :-1]) / 2, curve[:, 1:] - curve[:, :-1]
        lengths = metric.at(middle.movedim(-1, 0)[None]).norm(chord.movedim(-1, 0)[None, None])
        assert (lengths.sum(-1) - 1).abs().max() < 0.1 / steps**2


def test_a_gradient_added_to_the_drift_leaves_the_curves():
    metric = rough(passes=1, asymmetry=0.3)
    # ∇φ for φ = yx/80 is linear, so central differences see it exactly.
    y, x = lattice(metric.spatial)
    other = mc.Randers(metric.M, metric.omega + torch.stack([x - 5, y - 5])[None, None] / 80)
    assert other.is_positive().all()
    points = torch.full((12, 2), 5.0).double()
    one, two = (geodesics(m, points, circle(12), 1.0, 400)[0, 0] for m in (metric, other))
    # They run at other speeds along the same curves: every point of one is near a segment of the other.
    for a, b in ((one, two), (two, one)):
        shared = 0.8 * min(torch.linalg.vector_norm(c[:, -1] - c[:, 0], dim=1).min() for c in (a, b))
        inside = torch.linalg.vector_norm(a - a[:, :1], dim=-1) < shared
        assert inside.sum() > 1000
        assert torch.cdist(a, b).amin(-1)[inside].max() < 0.02


def test_going_back_with_the_drift_reversed_retraces_the_curve():
    metric = rough(passes=3, asymmetry=0.5)
    back = mc.Randers(metric.M, -metric.omega)
    points = torch.full((12, 2), 5.0).double()
    there = geodesics(metric, points, circle(12), 1.0, 400)[0, 0]
    arrival = there[:, -1] - there[:, -2]
    again = geodesics(back, there[:, -1], -arrival, 1.0, 400)[0, 0]
    torch.testing.assert_close(again[:, -1], points, atol=0.03, rtol=0)


@pytest.mark.parametrize("kind", ["riemannian", "randers"])
@pytest.mark.parametrize("dim", [2, 3])
def test_exp_map_of_a_unit_vector_is_the_end_of_its_geodesic(kind, dim):
    metric = smoothed(make_metric(kind, dim, 2, 2, (6, 5, 4)[:dim], radius=1.5))
    points, directions = 1 + torch.rand(5, dim, dtype=torch.float64), sphere(dim, 5)
    ends = geodesics(metric, points, directions, 0.7, 6)[:, :, :, -1]
    local = metric.at(points.t().reshape(1, dim, 5, *(1,) * (dim - 1)))
    norm = local.norm(directions.t().reshape(1, 1, dim, 5, *(1,) * (dim - 1))).flatten(2)  # [2, 2, 5]
    vectors = 0.7 * directions / norm.unsqueeze(-1)
    torch.testing.assert_close(exp_map(metric, points.expand(2, 2, 5, dim), vectors, 6), ends)


def test_exp_map_of_zero_stays_where_it_is():
    metric = rough()
    point = torch.tensor([[4.0, 5.0]], dtype=torch.float64, requires_grad=True)
    end = exp_map(metric, point, torch.zeros(1, 2))
    assert torch.equal(end[0, 0], point)
    end.sum().backward()
    assert point.grad.isfinite().all()


def test_geodesics_along_zero_stay_where_they_are():
    metric = mc.Riemannian.isotropic(2.0)
    directions = torch.tensor([[0.0, 0.0], [0.0, 1.0]], requires_grad=True)
    curves = geodesics(metric, torch.tensor([[5.0, 5.0], [5.0, 5.0]]), directions, length=3.0, steps=2)
    assert curves[0, 0, 0].tolist() == [[5.0, 5.0]] * 3 and curves[0, 0, 1, -1].tolist() == [5.0, 11.0]
    (grad,) = torch.autograd.grad(curves.sum(), directions)
    assert grad[0].tolist() == [0.0, 0.0] and grad.isfinite().all()


def test_lengths_may_differ_from_curve_to_curve():
    metric, points, lengths = rough(), torch.full((3, 2), 5.0), torch.tensor([0.2, 0.5, 1.0])
    together = geodesics(metric, points, circle(3), lengths, 5)
    for n, length in enumerate(lengths.tolist()):
        alone = geodesics(metric, points[n : n + 1], circle(3)[n : n + 1], length, 5)
        torch.testing.assert_close(together[:, :, n : n + 1], alone)


def test_past_the_border_nothing_bends():
    y, x = lattice((8, 9))
    metric = conformal(0.3 * (1 + 0.4 * torch.sin(2 * math.pi * x / 9) * torch.cos(2 * math.pi * y / 8)))
    upwards = circle(6) * torch.tensor([-1.0, 1.0]) * circle(6)[:, :1].sign()
    curves = geodesics(metric, torch.tensor([[-2.0, 4.0]]).expand(6, 2), upwards, 0.5, 3)[0, 0]
    steps = torch.nn.functional.normalize(curves.diff(dim=1), dim=-1)
    torch.testing.assert_close(steps, torch.nn.functional.normalize(upwards, dim=-1).unsqueeze(1).expand_as(steps))


def test_a_circular_metric_starts_anew_past_the_border():
    y, x = lattice((8, 9))
    metric = conformal(0.3 * (1 + 0.4 * torch.sin(2 * math.pi * x / 9) * torch.cos(2 * math.pi * y / 8)))
    moved = metric.map(lambda t: t.roll((4, 5), (3, 4)))
    corner = torch.tensor([[7.0, 8.0]]).expand(6, 2)
    one = geodesics(metric, corner, circle(6), 1.0, 4, padding_mode="circular")
    two = geodesics(moved, corner - 4, circle(6), 1.0, 4, padding_mode="circular")
    torch.testing.assert_close(two + 4, one)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_derivatives_of_first_and_second_order(dim):
    size = (5, 4, 3)[:dim]
    metric = smoothed(randers(dim, spatial=size, radius=1.0, asymmetry=0.4))
    leaves = [t.detach().clone().requires_grad_() for t in metric.tensors().values()]
    points = (1.137 + 0.31 * torch.rand(1, dim, dtype=torch.float64)).requires_grad_()
    vectors = (0.4 * sphere(dim, 1)[:1]).clone().requires_grad_()

    def end(M, omega, points, vectors):
        return exp_map(mc.Randers(M, omega), points, vectors, 2)

    assert torch.autograd.gradcheck(end, (*leaves, points, vectors), fast_mode=True)
    if dim == 2:
        assert torch.autograd.gradgradcheck(end, (*leaves, points, vectors), fast_mode=True)


@pytest.mark.parametrize("steps", [1, 4, 32])
def test_nothing_is_infinite_on_white_noise_of_condition_1e8_in_float32(steps):
    angle = torch.rand(1, 1, 24, 24, dtype=torch.float64) * 2 * math.pi
    along = torch.stack([angle.sin(), angle.cos()], 2)
    length = torch.exp(6 * torch.rand_like(angle) - 3)
    base = mc.Riemannian.needle(along, length, length * torch.where(angle < 3, 1e-4, 1.0))
    drift = along.flip(2)
    omega = (0.999 * drift / base.dual().norm(drift).unsqueeze(2)).float()
    M, omega = base.M.float().requires_grad_(), omega.requires_grad_()
    metric = mc.Randers(M, omega)
    assert not metric.is_positive().all()  # once rounded: `geodesics` would refuse it, a geodesic ball does not look
    origin, directions = (torch.rand(1, 200, 2) * 23).unbind(-1), torch.randn(1, 200, 2).unbind(-1)
    *_, last = shoot(FlowField.of(metric), origin, directions, torch.tensor(1.0), steps)
    ends = torch.stack(last.at(1.0))
    assert ends.dtype == torch.float32 and ends.isfinite().all()
    ends.sum().backward()
    if steps < 32:  # after that many steps through noise derivatives exceed float32
        assert M.grad.isfinite().all() and omega.grad.isfinite().all()


def test_check_positive_names_the_pixel():
    metric = riemannian(2, 2, 1, (4, 5))
    check_positive(metric)
    M = metric.M.clone()
    M[1, 0, :, 2, 3] = torch.tensor([1.0, 2.0, 1.0])
    with pytest.raises(ValueError, match=r"index \(1, 0, 2, 3\) \(1 such of 40 pixels\): M = \[1.0, 2.0, 1.0\]"):
        check_positive(mc.Riemannian(M))


@pytest.mark.parametrize("bad", [[1.0, 2.0, 1.0], [-1.0, 0.0, -1.0]], ids=["indefinite", "negative"])
def test_geodesics_refuse_a_metric_that_is_not_positive(bad):
    M = riemannian(2, spatial=(6, 6)).M.clone()
    M[0, 0, :, 3, 4] = torch.tensor(bad)
    point, message = torch.ones(1, 2), r"`metric` must be positive; it is not at index \(0, 0, 3, 4\)"
    for trace in (geodesics, exp_map):
        with pytest.raises(ValueError, match=message):
            trace(mc.Riemannian(M), point, point)


def test_geodesics_are_traced_under_torch_func_and_torch_compile():
    points, M = torch.full((3, 2), 5.0).double(), rough().M

    def ends(M):
        return exp_map(mc.Riemannian(M), points, circle(3), 2)

    expected = ends(M)
    together = torch.func.vmap(ends)(torch.stack([M, 2 * M]))
    torch.testing.assert_close(together[0], expected)
    assert torch.func.jacrev(ends)(M).isfinite().all()
    graph = torch.compile(ends, backend="eager", fullgraph=True)
    torch.testing.assert_close(graph(M), expected)


def test_impossible_geodesics_are_refused():
    metric, point = riemannian(2, spatial=(4, 4)), torch.zeros(1, 2)
    for steps in (0, -1, 1.5):
        with pytest.raises(ValueError, match=rf"`steps` \(={steps}\) must be"):
            geodesics(metric, point, point + 1, steps=steps)
    with pytest.raises(
        ValueError, match=r"`points` must be \(N, 2\) or, for this metric, \(1, 1, N, 2\), got.*\(1, 3\)"
    ):
        geodesics(metric, torch.zeros(1, 3), point)
    with pytest.raises(ValueError, match=r"`directions` must be .*got shape \(2, 1, 1, 2\)"):
        geodesics(metric, point, torch.zeros(2, 1, 1, 2))
    with pytest.raises(ValueError, match=r"`padding_mode` \(='zeros'\) must be one of 'border', 'circular'"):
        geodesics(metric, point, point + 1, padding_mode="zeros")
    with pytest.raises(ValueError, match=r"`points` must be .*got shape \(1, 3\)"):
        exp_map(metric, points=torch.zeros(1, 3), vectors=point)
    with pytest.raises(ValueError, match=r"`points`, `vectors` must be as many, got \[2, 3\]"):
        exp_map(metric, torch.zeros(2, 2), torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"`passes` \(=-1\)"):
        smoothed(metric, -1)

    class Other(mc.Riemannian):
        pass

    with pytest.raises(TypeError, match="geodesics know Riemannian and Randers metrics, got Other"):
        geodesics(Other(metric.M), point, point + 1)


@pytest.mark.parametrize("give", [lambda p: p, lambda p: torch.tensor(p), np.array], ids=["lists", "tensor", "array"])
def test_pixels_may_be_whole_numbers_of_any_kind(give):
    metric = riemannian(2, spatial=(6, 6))
    point, step = torch.tensor([[2.0, 3.0]]), torch.tensor([[1.0, 0.0]])
    pixel, along = give([[2, 3]]), give([[1, 0]])
    assert torch.equal(geodesics(metric, pixel, along), geodesics(metric, point, step))
    assert torch.equal(exp_map(metric, pixel, along), exp_map(metric, point, step))
    assert torch.equal(geodesic_distance(metric, pixel), geodesic_distance(metric, point))


def test_points_that_are_no_numbers_are_refused():
    metric = riemannian(2, spatial=(6, 6))
    with pytest.raises(
        TypeError, match=r"`source` must be a torch.Tensor, an array or lists of numbers, got \[\['a'\]\]"
    ):
        geodesic_distance(metric, [["a"]])
    with pytest.raises(TypeError, match=r"`points` must hold real numbers, got dtype torch.bool"):
        geodesics(metric, torch.ones(1, 2, dtype=torch.bool), torch.ones(1, 2))


@pytest.mark.parametrize(
    ("count", "length", "message"),
    [
        (3, 1.0, r"`points`, `directions` must be as many, got \[2, 3\]"),
        (2, torch.ones(3), r"`points`, `directions`, `length` must be as many, got \[2, 2, 3\]"),
        (2, torch.ones(1, 2), r"`length` must be a number, \(N,\) or \(B, G, N\), got shape \(1, 2\)"),
    ],
)
def test_as_many_points_as_directions_and_lengths(count, length, message):
    with pytest.raises(ValueError, match=message):
        geodesics(rough(), torch.full((2, 2), 5.0), circle(count), length)


def test_one_point_may_stand_for_all_directions():
    point = torch.full((1, 2), 5.0)
    torch.testing.assert_close(geodesics(rough(), point, circle(3)), geodesics(rough(), point.expand(3, 2), circle(3)))


@pytest.mark.parametrize("size", [1e-38, 1e-23, 1.0, 1e20, 1e30])
def test_vectors_may_be_as_short_or_as_long_as_floats_are(size):
    flat = mc.Riemannian.isotropic(1.0).expand_to((12, 12))
    vector = size * torch.tensor([[0.6, 0.8]])
    curve = geodesics(flat, [[5.0, 5.0]], vector, length=2.0, steps=2)[0, 0, 0]
    torch.testing.assert_close(curve[-1], torch.tensor([6.2, 6.6]))
    vector = vector.clamp_max(1e9).requires_grad_()  # which it goes all along
    arrived = exp_map(flat, [[5.0, 5.0]], vector)[0, 0, 0]
    assert torch.isfinite(arrived).all()
    (gradient,) = torch.autograd.grad(arrived[0], vector)
    torch.testing.assert_close(gradient, torch.tensor([[1.0, 0.0]]), atol=1e-5, rtol=0)


def test_a_length_that_is_no_number_is_refused():
    with pytest.raises(TypeError, match=r"`length` \(='far'\) must be a number"):
        geodesics(mc.Riemannian.isotropic(1.0), [[5.0, 5.0]], [[1.0, 0.0]], length="far")
