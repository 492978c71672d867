"""Randers metrics: F(u) = √(uᵀMu) + ωᵀu."""

import math

import pytest
import torch

import metricconv as mc
from helpers import norm_of, randers, riemannian, sphere
from metricconv.metrics import _symmetric

dims = pytest.mark.parametrize("dim", [1, 2, 3, 4])


def metric_of(packed: tuple[float, ...], omega: tuple[float, ...]) -> mc.Randers:
    ones = (1,) * len(omega)
    M, w = (torch.tensor(values, dtype=torch.float64).view(1, 1, -1, *ones) for values in (packed, omega))
    return mc.Randers(M, w)


def test_ball_is_shifted_away_from_omega():
    metric = metric_of((1.0, 0.0, 1.0), (0.0, 0.5))  # ω points right, so the ball is shifted to the left
    right, down, left, up = metric.unit_vectors(mc.stencils.polar(4).directions[:4]).view(4, 2).tolist()
    assert right == pytest.approx([0, 2 / 3])
    assert left == pytest.approx([0, -2])
    assert down == pytest.approx([1, 0])
    assert up == pytest.approx([-1, 0])


@dims
def test_randers_without_omega_is_riemannian(dim):
    base, u = riemannian(dim, 2, 2), sphere(dim, 20)
    for metric in (mc.Randers.from_riemannian(base), mc.Randers(base.M, torch.zeros(1, 1, dim, *(1,) * dim))):
        torch.testing.assert_close(norm_of(metric, u), norm_of(base, u))
        torch.testing.assert_close(metric.dual().M, base.dual().M)
        for name in ("anisotropy", "asymmetry", "volume", "bounding_radius", "is_positive"):
            result, expected = getattr(metric, name), getattr(base, name)
            torch.testing.assert_close(*((result(), expected()) if callable(result) else (result, expected)))


def test_isotropic_and_needle_equal_riemannian():
    direction = torch.randn(1, 1, 2, 1, 1)
    assert torch.equal(mc.Randers.isotropic(2.0).M, mc.Riemannian.isotropic(2.0).M)
    assert torch.equal(mc.Randers.needle(direction, 3.0, 1.0).M, mc.Riemannian.needle(direction, 3.0, 1.0).M)
    assert not mc.Randers.needle(direction, 3.0, 1.0).omega.any()


@pytest.mark.parametrize(
    ("packed", "omega", "positive"),
    [
        ((1.0,), (0.99,), True),
        ((1.0,), (-1.0,), False),
        ((4.0,), (1.9,), True),
        ((1.0, 0.0, 1.0), (0.6, 0.7), True),
        ((1.0, 0.0, 1.0), (0.8, 0.7), False),
        ((1.0, 0.0, 1.0), (0.0, 1.0), False),
        ((1.0, 0.0, 0.01), (0.5, 0.0), True),
        ((1.0, 0.0, 0.01), (0.0, 0.5), False),
        ((-1.0, 0.0, -1.0), (0.0, 0.0), False),
        ((1.0, 2.0, 1.0), (0.0, 0.0), False),
        ((1.0, 0.0, 1.0), (math.nan, 0.0), False),
        ((1.0, 0.0, 0.0, 1.0, 0.0, 1.0), (0.5, 0.5, 0.5), True),
        ((1.0, 0.0, 0.0, 1.0, 0.0, 1.0), (0.6, 0.6, 0.6), False),
        ((0.0,) * 6, (0.0,) * 3, False),
    ],
)
def test_is_positive_if_and_only_if_dual_norm_of_omega_is_less_than_one(packed, omega, positive):
    metric = metric_of(packed, omega)
    assert metric.is_positive().item() is positive
    if math.isfinite(sum(omega)) and min(packed) >= 0 and any(packed):
        assert (norm_of(metric, sphere(len(omega), 20_000)).min() > 1e-3).item() is positive


@dims
def test_asymmetry_is_largest_relative_difference_of_opposite_directions(dim):
    metric, u = randers(dim, 3, asymmetry=0.8), sphere(dim, 2**15)
    forward, backward = norm_of(metric, u), norm_of(metric, -u)
    largest = ((forward - backward) / (forward + backward)).amax(2)
    assert (largest <= metric.asymmetry + 1e-12).all()
    torch.testing.assert_close(metric.asymmetry, largest, rtol=0.02, atol=0)


@dims
def test_norm_is_bounded_by_symmetric_part(dim):
    metric, u = randers(dim, 2, asymmetry=0.95), sphere(dim, 200)
    symmetric = norm_of(mc.Riemannian(metric.M), u)
    assert (norm_of(metric, u) >= (0.05 - 1e-12) * symmetric).all()


@dims
def test_unit_ball_of_from_zermelo_is_translated_ellipsoid(dim):
    ellipsoid, wind = riemannian(dim, 2), torch.randn(2, 1, dim, *(1,) * dim, dtype=torch.float64)
    wind = 0.7 * wind / ellipsoid.norm(wind).unsqueeze(2)
    metric = mc.Randers.from_zermelo(ellipsoid, wind)
    assert metric.is_positive().all()
    length = metric.norm(ellipsoid.unit_vectors(sphere(dim, 50)) + wind.unsqueeze(2))
    torch.testing.assert_close(length, torch.ones_like(length))


@dims
def test_zermelo_and_from_zermelo_are_inverse(dim):
    metric = randers(dim, 3, 2)
    ellipsoid, wind = metric.zermelo()
    result = mc.Randers.from_zermelo(ellipsoid, wind)
    torch.testing.assert_close(result.M, metric.M)
    torch.testing.assert_close(result.omega, metric.omega)


@dims
def test_zermelo_wind_is_center_of_ball(dim):
    metric = randers(dim)
    _, wind = metric.zermelo()
    points = metric.unit_vectors(sphere(dim, 50)).reshape(-1, dim)
    mirrored = 2 * wind.flatten() - points
    torch.testing.assert_close(norm_of(metric, mirrored), torch.ones(1, 1, len(points), *(1,) * dim).double())


def test_ball_that_excludes_its_pixel_is_not_positive():
    strong = torch.tensor([0.0, 1.5]).view(1, 1, 2, 1, 1)
    assert not mc.Randers.from_zermelo(mc.Riemannian.isotropic(1.0), strong).is_positive().any()


def test_gradients_are_finite_without_omega():
    metric = mc.Randers.isotropic(1.0).map(lambda t: t.clone().requires_grad_())
    ellipsoid, wind = metric.zermelo()
    values = [metric.asymmetry, metric.volume, metric.bounding_radius, metric.dual().M, ellipsoid.M, wind]
    for value in values:
        for grad in torch.autograd.grad(value.sum(), [metric.M, metric.omega], retain_graph=True, allow_unused=True):
            assert grad is None or grad.isfinite().all()


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_norm_and_dual_agree_with_agd(dim):
    agd = pytest.importorskip("agd.Metrics")
    metric, u = randers(dim, 6), torch.randn(6, 1, dim, *(1,) * dim, dtype=torch.float64)

    def components_first(field: torch.Tensor) -> torch.Tensor:
        """Convert (B, 1, d, 1, …) in (y, x) order to (d, B) in (x, y) order, as in agd."""
        return field.view(6, dim).T.flip(0)

    matrix = _symmetric.full(metric.M).view(6, dim, dim).permute(1, 2, 0).flip(0, 1)
    expected = agd.Rander(matrix.numpy(), components_first(metric.omega).numpy())
    v = components_first(u).numpy()
    torch.testing.assert_close(metric.norm(u).flatten(), torch.from_numpy(expected.norm(v)))
    torch.testing.assert_close(metric.dual().norm(u).flatten(), torch.from_numpy(expected.dual().norm(v)))


def test_zermelo_agrees_with_agd():
    agd = pytest.importorskip("agd.Metrics")
    ellipsoid, wind = riemannian(2), 0.3 * torch.randn(1, 1, 2, 1, 1).double()
    expected = agd.Rander.from_Zermelo(_symmetric.full(ellipsoid.M).view(2, 2).numpy(), wind.flatten().numpy())
    result = mc.Randers.from_zermelo(ellipsoid, wind)
    torch.testing.assert_close(_symmetric.full(result.M).view(2, 2), torch.from_numpy(expected.m))
    torch.testing.assert_close(result.omega.flatten(), torch.from_numpy(expected.w))


def test_fields_of_inconsistent_shape_raise():
    M = torch.ones(2, 1, 3, 4, 4)
    with pytest.raises(ValueError, match=r"`omega` must be \(B, G, 2, \*spatial\), got shape \(2, 1, 3, 4, 4\)"):
        mc.Randers(M, torch.zeros(2, 1, 3, 4, 4))
    with pytest.raises(ValueError, match=r"must agree in batch, groups and spatial size, got .*\(3, 1, 2, 4, 4\)"):
        mc.Randers(M, torch.zeros(3, 1, 2, 4, 4))


def test_fields_broadcast_and_promote_dtypes():
    metric = mc.Randers(torch.ones(1, 1, 3, 1, 1, dtype=torch.float16), torch.zeros(2, 3, 2, 4, 5, dtype=torch.float64))
    assert metric.dtype == torch.float64
    assert (metric.batch, metric.groups, metric.spatial) == (2, 3, (4, 5))
    assert metric.M.shape == (2, 3, 3, 4, 5)
