"""Distance maps, compared with closed forms."""

import math
import warnings

import pytest
import torch

import metricconv as mc
from geodesy import conformal, lattice
from metricconv.geodesic import _problem, distance_map, geodesic_ball, nearest_sources
from metricconv.geodesic.distance import solve

pytest.importorskip("numba")
from metricconv.geodesic import _adjoint, _solver


def constant(values, size, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype).view(1, 1, -1, *(1,) * len(size)).expand(1, 1, -1, *size)


SIZE = (61, 61)
METRICS = {
    "round": mc.Riemannian(constant([1.0, 0.0, 1.0], SIZE)),
    "anisotropic": mc.Riemannian(constant([4.0, 1.5, 1.0], SIZE)),
    "needle": mc.Riemannian.needle(constant([0.4, 1.0], SIZE), 1.0, 0.1),
    "drift": mc.Randers(constant([1.0, 0.0, 1.0], SIZE), constant([0.3, 0.5], SIZE)),
    "strong drift": mc.Randers(constant([1.0, 0.0, 1.0], SIZE), constant([0.0, 0.9], SIZE)),
}


@pytest.mark.parametrize(("order", "bound"), [(1, 0.035), (2, 0.008)])
@pytest.mark.parametrize("name", METRICS)
def test_distances_of_constant_metrics_are_norms(name, order, bound):
    metric, source = METRICS[name], torch.tensor([30.25, 29.5], dtype=torch.float64)
    exact = metric.norm((torch.stack(lattice(SIZE)) - source.view(2, 1, 1))[None, None])
    distance = distance_map(metric, source[None], order=order)
    assert ((distance - exact).abs() / exact).mean() < bound


def test_distances_of_hyperbolic_half_plane():
    y, x = lattice((41, 41))
    distance = distance_map(conformal(4 / (y + 12)), [[8.0, 20.0]])[0, 0]
    exact = 4 * torch.acosh(1 + ((y - 8) ** 2 + (x - 20) ** 2) / (2 * (y + 12) * 20))
    assert (distance - exact).abs().mean() < 0.003 * exact.mean()


def test_distances_on_the_sphere():
    y, x = ((c - 20) / 20 for c in lattice((41, 41)))  # stereographic projection
    distance = distance_map(conformal(2 / (1 + y**2 + x**2) / 20), [[10.0, 12.0]])[0, 0]
    b, a = -0.5, -0.4
    chord = ((y - b) ** 2 + (x - a) ** 2) / ((1 + y**2 + x**2) * (1 + a**2 + b**2))
    exact = 2 * torch.asin(chord.sqrt())
    assert (distance - exact).abs().mean() < 0.003 * exact.mean()


def test_distances_in_a_rotating_wind_are_times_of_straight_lines_in_its_frame():
    y, x = (c - 20 for c in lattice((41, 41)))
    turn, source = 0.03, torch.tensor([-6.0, 4.0], dtype=torch.float64)
    wind = turn * torch.stack([x, -y])[None, None]
    metric = mc.Randers.from_zermelo(mc.Riemannian(constant([1.0, 0.0, 1.0], (41, 41))), wind)
    distance = distance_map(metric, (source + 20)[None])[0, 0]
    times = torch.linspace(0, 80, 4001, dtype=torch.float64).view(-1, 1, 1)
    # At time t the point (y, x) was at R(−t)(y, x) in the rotating frame; the first time within reach of the source.
    c, s = torch.cos(turn * times), torch.sin(turn * times)
    behind = ((c * y - s * x) - source[0]).square() + ((s * y + c * x) - source[1]).square()
    exact = times.flatten()[(behind.sqrt() <= times).int().argmax(0)]
    assert (distance - exact).abs().mean() < 0.005 * exact.mean()


def test_refraction_follows_the_law_of_snell():
    y, x = lattice((41, 41))
    slow = 2.0
    distance = distance_map(conformal(torch.where(y > 20, slow, 1.0)), [[5.0, 10.0]])[0, 0]
    crossing = torch.linspace(0, 40, 2001, dtype=torch.float64).view(-1, 1, 1)
    above = ((20.5 - 5) ** 2 + (crossing - 10) ** 2).sqrt()
    exact = (above + slow * ((y - 20.5) ** 2 + (x - crossing) ** 2).sqrt()).amin(0)
    below = y > 21
    assert ((distance - exact).abs() / exact)[below].mean() < 0.01


@pytest.mark.parametrize("drift", [0.0, 0.9])
def test_metrics_of_condition_1e6_are_solved(drift):
    direction = constant([0.3, 1.0], (33, 33))
    metric = mc.Riemannian.needle(direction, 1.0, 1e-3)
    if drift:
        metric = mc.Randers(metric.M, drift * direction / metric.dual().norm(direction).unsqueeze(2))
    distance = distance_map(metric, [[16.0, 16.0]])
    assert distance.isfinite().all()
    assert (distance >= 0).all()


def test_several_nearest_sources_are_sorted_and_agree_with_single_maps():
    metric, sources = METRICS["drift"][:, :, :31, :29], [[3.0, 4.0], [25.5, 20.0], [16.0, 9.0], [5.0, 26.0]]
    nearest = nearest_sources(metric, sources, k=3)
    each = torch.cat([distance_map(metric, [source], order=1) for source in sources], 1)
    least, label = each.sort(1)
    torch.testing.assert_close(nearest.distance[0], least[:, :3], rtol=0.03, atol=0.05)
    assert (nearest.label[0] == label[:, :3]).double().mean() > 0.97
    assert nearest_sources(metric, sources[:2], k=3).label[0, 0, 2].eq(-1).all()


def test_search_stops_at_targets_and_distances():
    whole = distance_map(METRICS["drift"], [[10.0, 10.0]])
    near = distance_map(METRICS["drift"], [[10.0, 10.0]], max_distance=8.0)
    assert torch.equal(near, torch.where(whole <= 8, whole, math.inf))
    stopped = distance_map(METRICS["round"], [[10.0, 10.0]], stop_at=[[10.0, 20.5]])[0, 0]
    assert stopped[10, 20:22].isfinite().all()
    assert stopped.isinf().double().mean() > 0.5


def test_results_do_not_depend_on_threads_or_other_fields():
    metric = mc.Riemannian.cat([METRICS["round"], METRICS["anisotropic"], METRICS["needle"]])
    together = distance_map(metric, [[10.0, 10.0]])
    for n, name in enumerate(("round", "anisotropic", "needle")):
        assert torch.equal(together[n], distance_map(METRICS[name], [[10.0, 10.0]])[0])


def test_distances_in_3d():
    metric = mc.Riemannian(constant([1.0, 0.2, 0.0, 2.0, 0.1, 0.5], (15, 16, 17)))
    exact = metric.norm((torch.stack(lattice((15, 16, 17))) - 7)[None, None])
    distance = distance_map(metric, [[7.0, 7.0, 7.0]])
    assert (distance - exact).abs().mean() < 0.01 * exact.mean()


def test_nearest_sources_are_those_of_least_distance():
    metric, sources = METRICS["anisotropic"], [[10.0, 10.0], [40.5, 20.0], [30.0, 55.0]]
    nearest = nearest_sources(metric, sources)
    each = torch.cat([distance_map(metric, [source]) for source in sources], 1)
    least, label = each.min(1)
    torch.testing.assert_close(nearest.distance[:, 0, 0], least, rtol=0.02, atol=0.02)
    assert (nearest.label[:, 0, 0] == label).double().mean() > 0.99


def test_masked_pixels_are_walls():
    mask = torch.ones(SIZE, dtype=torch.bool)
    mask[30, 1:] = False
    distance = distance_map(METRICS["needle"], [[10.0, 50.0]], mask=mask)[0, 0]
    assert distance[30, 1:].isinf().all()
    assert distance[40, 50] > 1.5 * distance_map(METRICS["needle"], [[10.0, 50.0]])[0, 0, 40, 50]
    mask[30] = False
    distance = distance_map(METRICS["needle"], [[10.0, 50.0]], mask=mask)[0, 0]
    assert distance[:30].isfinite().all()
    assert distance[31:].isinf().all()


def test_balls_contain_the_pixels_within_their_radius():
    ball = geodesic_ball(METRICS["drift"], [30.0, 30.0], 9.0)
    exact = METRICS["drift"].norm((torch.stack(lattice(SIZE)) - 30)[None, None]) <= 9
    assert (ball != exact).sum() <= 10


def test_gradients_by_metric_and_initial_distances():
    torch.manual_seed(0)
    entries = torch.rand(1, 1, 3, 5, 6, dtype=torch.float64) + torch.tensor([2.0, 0.0, 2.0]).view(1, 1, 3, 1, 1)
    omega = 0.8 * torch.rand(1, 1, 2, 5, 6, dtype=torch.float64) - 0.4
    initial = torch.tensor([0.0, 0.3], dtype=torch.float64)

    def distances(initial, M, omega):
        return distance_map(mc.Randers(M, omega), [[1.2, 1.4], [3.0, 4.0]], initial=initial, order=1, tolerance=0)

    def riemannian(initial, M):
        return distance_map(mc.Riemannian(M), [[1.2, 1.4], [3.0, 4.0]], initial=initial)

    inputs = [t.requires_grad_() for t in (initial, entries, omega)]
    assert torch.autograd.gradcheck(distances, inputs, eps=1e-6, atol=1e-5)
    assert torch.autograd.gradcheck(riemannian, inputs[:2], eps=1e-6, atol=1e-5)


def test_gradients_of_strong_drifts_are_bounded():
    angle = 6.283 * torch.rand(40, 40)
    omega = 0.9 * torch.stack([angle.sin(), angle.cos()])[None, None]
    metric = mc.Randers(constant([1.0, 0.0, 1.0], (40, 40)), omega)
    initial = torch.zeros(1, requires_grad=True)
    with pytest.raises(ValueError, match=r"`order` \(=2\) must be 1 for gradients of a Randers metric"):
        distance_map(metric, [[20.0, 20.0]], initial=initial)
    distance_map(metric, [[20.0, 20.0]], initial=initial, order=1).sum().backward()
    assert initial.grad.item() == pytest.approx(40 * 40, rel=1e-3)  # each distance grows like the initial one


def test_gradients_of_pixels_that_depend_on_each_other():
    torch.manual_seed(0)
    angle = 6.283 * torch.rand(10, 9, dtype=torch.float64)
    omega = (0.7 * torch.stack([angle.sin(), angle.cos()])[None, None]).requires_grad_()
    M = constant([1.1, 0.1, 1.3], (10, 9)).clone().requires_grad_()

    def distances(M, omega):
        return distance_map(mc.Randers(M, omega), [[0.0, 0.0]], order=1, tolerance=0)

    field = solve(
        mc.Randers(M, omega).detach(),
        _problem.Sources.of(mc.Randers(M, omega), [[0.0, 0.0]], None),
        None,
        order=1,
        tolerance=0,
        keeps_stencils=True,
    ).fields[0]
    order, ends = _adjoint.dependents_first(field.distance, field.choice, field.offsets, (9, 1))
    assert len(ends) < len(order) == 90  # some components have several pixels
    assert torch.autograd.gradcheck(distances, (M, omega), eps=1e-6, atol=1e-5)


def test_copies_from_other_devices_are_announced_once(monkeypatch):
    metric = METRICS["round"][:, :, :5, :5]
    monkeypatch.setattr(mc.Riemannian, "device", property(lambda self: torch.device("meta")))
    _problem._say_where.cache_clear()
    with pytest.warns(RuntimeWarning, match="distances are computed on the CPU: `metric`, on meta, is copied"):
        assert distance_map(metric, [[2.0, 2.0]]).device.type == "meta"
    with warnings.catch_warnings(action="error"):
        distance_map(metric, [[2.0, 2.0]])


def test_a_warning_states_that_the_bound_of_acceptances_was_reached(monkeypatch):
    monkeypatch.setattr(_solver, "_MOST_VISITS", 1)
    with pytest.warns(RuntimeWarning, match="distances may be too long: pixels were accepted more than 1 times"):
        distance_map(METRICS["strong drift"], [[30.0, 30.0]], tolerance=0)
    with pytest.warns(RuntimeWarning, match="accepted more than 1 times"):
        nearest_sources(METRICS["strong drift"], [[30.0, 30.0], [3.0, 5.0]], k=2, tolerance=0)


def test_without_numba_the_slow_solver_says_how_long_it_takes(monkeypatch):
    metric = METRICS["round"][:, :, :9, :9]
    monkeypatch.setattr("metricconv.ops.cpu.missing_dependency", lambda: "numba is not installed")
    with pytest.warns(RuntimeWarning, match="numba is not installed: distances are computed by a slow solver"):
        distance = distance_map(metric, [[2.0, 2.0], [6.0, 6.0]], initial=[0.0, 1.0])
    monkeypatch.undo()
    expected = distance_map(metric, [[2.0, 2.0], [6.0, 6.0]], initial=[0.0, 1.0])
    torch.testing.assert_close(distance, expected, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"sources": [[2.0, 70.0]]}, ValueError, r"`sources` must lie within the image, of size \(61, 61\)"),
        ({"sources": [2.0, 7.0]}, ValueError, r"`sources` must be \(N, 2\)"),
        ({"initial": [1.0, 2.0]}, ValueError, "`initial` must be a number"),
        ({"initial": math.inf}, ValueError, "`initial` must be finite"),
        ({"mask": torch.zeros(SIZE, dtype=torch.bool)}, ValueError, "`sources` must lie where `mask` is True"),
        ({"mask": torch.ones(SIZE)}, TypeError, "`mask` must hold bools"),
        ({"order": 3}, ValueError, r"`order` \(=3\) must be 1 or 2"),
        ({"tolerance": -1}, ValueError, r"`tolerance` \(=-1\)"),
        ({"max_distance": -1}, ValueError, r"`max_distance` \(=-1\)"),
        ({"metric": mc.Riemannian(constant([1.0, 2.0, 1.0], SIZE))}, ValueError, "`metric` must be positive"),
        ({"metric": mc.Riemannian.isotropic(1.0, 1)}, ValueError, "`metric` must have 2 or 3 spatial axes, got 1"),
    ],
)
def test_bad_arguments_are_named(change, error, message):
    arguments = {"metric": METRICS["round"], "sources": [[2.0, 7.0]]}
    with pytest.raises(error, match=message):
        distance_map(**(arguments | change))
