"""Properties of the metrics beyond ellipsoids: each invariant of the theory for every family."""

import copy
import math
import pickle

import pytest
import torch

import metricconv as mc
from helpers import norm_of, sphere
from metricconv.metrics import NumericalDual, smoothed
from metricconv.metrics.base import ball_volume
from shapes import CLOSED, KINDS, make_shape

kinds = pytest.mark.parametrize("kind", KINDS)
closed = pytest.mark.parametrize("kind", CLOSED)
dims = pytest.mark.parametrize("dim", [1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])


@kinds
@dims
def test_norm_is_positive(kind, dim):
    metric = make_shape(kind, dim, 3)
    assert metric.is_positive().all() and metric.is_positive().shape == (3, 1, *(1,) * dim)
    assert (norm_of(metric, sphere(dim)) > 0.1).all()


@kinds
@dims
def test_bounding_radius_bounds_unit_vectors(kind, dim):
    metric = make_shape(kind, dim, 20)
    longest = metric.unit_vectors(sphere(dim)).norm(dim=3).amax(2)
    assert (longest <= metric.bounding_radius * (1 + 1e-12)).all()
    loose = 1.8 if kind in CLOSED else 4 * math.sqrt(dim)
    assert (metric.bounding_radius < loose * longest).all()


@kinds
@dims
def test_volume_agrees_with_integral(kind, dim):
    metric = make_shape(kind, dim, 3)
    reach = metric.unit_vectors(sphere(dim, 2**15)).norm(dim=3)
    expected = ball_volume(dim) * reach.pow(dim).mean(2)
    torch.testing.assert_close(metric.volume, expected, rtol=1e-5 if dim < 3 else 0.04, atol=0)


@pytest.mark.parametrize("kind", ["half_space", "polytope"])
def test_gauge_scaled_per_axis_raises(kind):
    with pytest.raises(ValueError, match=r"`radius` \(=\(1.0, 2.0\)\) must be equal along all axes"):
        make_shape(kind).scaled((1.0, 2.0))


@pytest.mark.parametrize("kind", ["half_space", "polytope", "intersection"])
def test_dual_of_numerical_dual_is_the_metric(kind):
    metric = make_shape(kind)
    assert metric.dual().dual() is metric


@kinds
@pytest.mark.parametrize("dim", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_dual_norm_is_maximum_over_unit_ball(kind, dim):
    metric, covectors = make_shape(kind, dim), torch.randn(3, dim, dtype=torch.float64)
    ball = metric.unit_vectors(sphere(dim)).reshape(-1, dim)
    largest = (covectors @ ball.T).amax(1)
    dual = norm_of(metric.dual(), covectors).flatten()
    assert (largest <= dual + 1e-9).all()
    assert (largest >= dual * 0.9).all()


@closed
@pytest.mark.parametrize("dim", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_numerical_dual_equals_closed_form(kind, dim):
    metric, covectors = make_shape(kind, dim), torch.randn(3, dim, dtype=torch.float64)
    expected = norm_of(metric.dual(), covectors)
    torch.testing.assert_close(norm_of(NumericalDual(metric), covectors), expected, rtol=1e-7, atol=0)


@pytest.mark.parametrize("kind", ["asymmetric", "orthant", "half_space", "intersection"])
def test_numerical_dual_has_gradients_of_parameters(kind):
    metric = make_shape(kind)
    tensors = [t.clone().requires_grad_() for t in metric.tensors().values()]
    v = torch.randn(1, 1, 2, 1, 1, dtype=torch.float64)

    def dual(*values):
        given = iter(values)
        return NumericalDual(metric.map(lambda t: next(given))).norm(v)

    assert torch.autograd.gradcheck(dual, tensors, atol=1e-5)


@kinds
@dims
def test_gradcheck_of_norm(kind, dim):
    metric = make_shape(kind, dim)
    tensors = [
        t.clone().requires_grad_(not (t.shape[2] == 1 and kind in ("box", "polytope")))
        for t in metric.tensors().values()
    ]
    u = torch.randn(1, 1, 3, dim, *(1,) * dim, dtype=torch.float64, requires_grad=True)

    def norm(u, *values):
        given = iter(values)
        return metric.map(lambda t: next(given)).norm(u)

    assert torch.autograd.gradcheck(norm, (u, *tensors))


@kinds
def test_norm_and_its_gradient_are_finite_at_zero(kind):
    metric = make_shape(kind).map(lambda t: t.clone().requires_grad_())
    u = torch.zeros(1, 1, 2, 1, 1, dtype=torch.float64, requires_grad=True)
    length = metric.norm(u)
    grads = torch.autograd.grad(length.sum(), [u, *metric.tensors().values()])
    assert length.item() == 0
    assert all(g.isfinite().all() for g in grads)


@kinds
@dims
def test_interpolated_and_smoothed_metrics_are_positive_and_bounded(kind, dim):
    metric = make_shape(kind, dim, 2, 2, (4, 3, 4, 3)[:dim])
    between = metric.at(torch.rand(2, dim, *(5,) * dim).double() * 5 - 1)
    for averaged in (between, smoothed(metric, 2)):
        assert averaged.is_positive().all()
        longest = averaged.unit_vectors(sphere(dim, 64)).norm(dim=3).amax()
        # The frames of averages are not orthonormal: their balls are longer by at most 1/cos of half the rotations.
        assert longest <= metric.bounding_radius.max() * (1.25 if "frame" in metric.tensors() else 1 + 1e-9)


@kinds
def test_images_concatenate_and_copies_are_equal(kind):
    metric = make_shape(kind, 2, 3, 1, (2, 2))
    joined = type(metric).cat(list(metric))
    for other in (joined, copy.deepcopy(metric), pickle.loads(pickle.dumps(metric)), metric.to(torch.float64)):
        for name, tensor in metric.tensors().items():
            assert torch.equal(other.tensors()[name], tensor)
    assert "batch=3, groups=1, spatial=(2, 2), dtype=torch.float64" in repr(metric)


@kinds
def test_half_precision_becomes_float32(kind):
    metric = make_shape(kind)
    for dtype in (torch.float16, torch.bfloat16):
        assert metric.to(dtype).dtype == torch.float32


@kinds
@dims
def test_nan_propagates_and_is_not_positive(kind, dim):
    metric = make_shape(kind, dim)
    metric = metric.map(lambda t: torch.full_like(t, torch.nan) if t.shape[2] > 1 or dim == 1 else t)
    assert metric.unit_vectors(sphere(dim, 8)).isnan().all()
    assert not metric.is_positive().any()


@kinds
def test_norm_in_float32_agrees_with_float64(kind):
    metric, u = make_shape(kind, 2, 50), sphere(2, 64)
    narrow = metric.to(torch.float32).norm(u.float().view(1, 1, 64, 2, 1, 1))
    torch.testing.assert_close(narrow.double(), norm_of(metric, u), rtol=2e-5, atol=0)


@kinds
def test_backends_take_balls_of_the_family(kind):
    ball = mc.TangentBall(make_shape(kind, 2, 1, 1, (5, 6)), mc.stencils.onion(3))
    x, w = torch.randn(1, 2, 5, 6).double(), torch.randn(3, 2, 3, 3).double()
    expected = mc.support_conv(x, ball, w, padding=1, backend="reference")
    torch.testing.assert_close(mc.support_conv(x, ball, w, padding=1), expected)
