"""Properties of all metrics."""

import copy
import math
import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch

import metricconv as mc
from helpers import make_metric, norm_of, randers, riemannian, sphere
from metricconv.metrics.base import ball_volume
from shapes import CLOSED, KINDS, make_shape

ELLIPSOIDS = ("riemannian", "randers")
EVERY = (*ELLIPSOIDS, *KINDS)
kinds = pytest.mark.parametrize("kind", ELLIPSOIDS)
every = pytest.mark.parametrize("kind", EVERY)
closed = pytest.mark.parametrize("kind", (*ELLIPSOIDS, *CLOSED))
dims = pytest.mark.parametrize("dim", [1, 2, 3, 4])
some_dims = pytest.mark.parametrize("dim", [1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])


@every
@some_dims
def test_unit_vectors_have_norm_one(kind, dim):
    metric = make_shape(kind, dim, 2, 3, (2,) * dim)
    length = metric.norm(metric.unit_vectors(sphere(dim, 32)))
    torch.testing.assert_close(length, torch.ones_like(length))


@kinds
@dims
def test_unit_vectors_have_given_directions(kind, dim):
    directions = sphere(dim, 32)
    points = make_metric(kind, dim).unit_vectors(directions).flatten(2).view(-1, dim)
    torch.testing.assert_close(torch.nn.functional.normalize(points, dim=1), directions)


@closed
@some_dims
def test_dual_of_dual_is_the_metric(kind, dim):
    metric = make_shape(kind, dim, 2, 2)
    for name, tensor in metric.dual().dual().tensors().items():
        torch.testing.assert_close(tensor, metric.tensors()[name])


@kinds
@dims
def test_dual_norm_is_maximum_over_unit_ball(kind, dim):
    metric, covectors = make_metric(kind, dim), torch.randn(5, dim, dtype=torch.float64)
    ball = metric.unit_vectors(sphere(dim)).reshape(-1, dim)
    largest = (covectors @ ball.T).amax(1)
    dual = norm_of(metric.dual(), covectors).flatten()
    assert (largest <= dual + 1e-12).all()
    assert (largest >= dual * (0.9 if dim == 4 else 0.99)).all()


@pytest.mark.parametrize("kind", [*ELLIPSOIDS, "asymmetric", "orthant", "half_space", "intersection"])
@pytest.mark.parametrize("dim", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_gradient_of_dual_norm_attains_the_maximum(kind, dim):
    metric = make_shape(kind, dim, 2, 2)
    v = torch.randn(2, 2, dim, *(1,) * dim, dtype=torch.float64, requires_grad=True)
    dual = metric.dual().norm(v)
    (u,) = torch.autograd.grad(dual.sum(), v)
    torch.testing.assert_close(metric.norm(u), torch.ones_like(dual))
    torch.testing.assert_close((u * v).sum(2), dual)


@every
@some_dims
def test_triangle_inequality(kind, dim):
    metric = make_shape(kind, dim, 3, 2)
    u, v = torch.randn(2, 3, 2, 200, dim, *(1,) * dim, dtype=torch.float64)
    assert (metric.norm(u + v) <= metric.norm(u) + metric.norm(v) + 1e-12).all()


@every
@some_dims
@pytest.mark.parametrize("factor", [1e-3, 2.5, 1e3])
def test_positive_homogeneity(kind, dim, factor):
    metric, u = make_shape(kind, dim), sphere(dim, 16)
    torch.testing.assert_close(norm_of(metric, factor * u), factor * norm_of(metric, u))


@kinds
@dims
def test_bounding_radius_bounds_unit_vectors(kind, dim):
    metric = make_metric(kind, dim, 3)
    longest = metric.unit_vectors(sphere(dim)).norm(dim=3).amax(2)
    assert (longest <= metric.bounding_radius * (1 + 1e-12)).all()
    assert (metric.bounding_radius < 1.7 * longest).all()


@kinds
@dims
def test_volume_agrees_with_integral(kind, dim):
    metric = make_metric(kind, dim, 3)
    reach = metric.unit_vectors(sphere(dim, 2**16)).norm(dim=3)
    expected = ball_volume(dim) * reach.pow(dim).mean(2)  # the integral of ρ^{d−1} along each direction
    torch.testing.assert_close(metric.volume, expected, rtol=1e-9 if dim < 3 else 0.04, atol=0)


@kinds
def test_area_agrees_with_polygon_of_unit_vectors(kind):
    metric = make_metric(kind, 2)
    y, x = metric.unit_vectors(sphere(2)).view(-1, 2).unbind(1)
    polygon = (y.roll(-1) * x - x.roll(-1) * y).sum() / 2
    torch.testing.assert_close(metric.volume.item(), polygon.item(), rtol=1e-5, atol=0)


@every
@some_dims
def test_scaled_by_a_number_scales_unit_vectors(kind, dim):
    metric, u = make_shape(kind, dim), sphere(dim, 16)
    torch.testing.assert_close(metric.scaled(2.5).unit_vectors(u), 2.5 * metric.unit_vectors(u))
    torch.testing.assert_close(metric.scaled(np.float32(2.5)).tensors(), metric.scaled(2.5).tensors())


@pytest.mark.parametrize("kind", [k for k in EVERY if k not in ("half_space", "polytope")])
@some_dims
def test_scaled_per_axis_scales_components(kind, dim):
    metric, radii = make_shape(kind, dim), [0.5, 2.0, 3.0, 1.5][:dim]
    stretched = metric.unit_vectors(sphere(dim, 16)).reshape(-1, dim) * torch.tensor(radii).double()
    length = norm_of(metric.scaled(radii), stretched)
    torch.testing.assert_close(length, torch.ones_like(length))


@every
@some_dims
def test_norm_of_several_vectors_per_pixel(kind, dim):
    metric = make_shape(kind, dim, 2, 2, (3,) * dim)
    u = torch.randn(2, 2, 5, dim, *(3,) * dim, dtype=torch.float64)
    each = torch.stack([metric.norm(v) for v in u.unbind(2)], 2)
    torch.testing.assert_close(metric.norm(u), each)


@every
def test_pixels_images_and_groups_are_independent(kind):
    metric, u = make_shape(kind, 2, 3, 2, (4, 5)), sphere(2, 8)
    together = metric.unit_vectors(u)
    for b, g, y, x in [(0, 0, 0, 0), (2, 1, 3, 4), (1, 0, 2, 1)]:
        alone = metric[b, g, y, x].unit_vectors(u)
        torch.testing.assert_close(alone, together[b : b + 1, g : g + 1, :, :, y : y + 1, x : x + 1])


@kinds
@pytest.mark.parametrize(
    ("index", "batch", "spatial"),
    [
        (1, 1, (4, 5)),
        (-1, 1, (4, 5)),
        (slice(0, 2), 2, (4, 5)),
        ((slice(None), 0, 2), 3, (1, 5)),
        ((slice(None), slice(None), slice(1, 3), -1), 3, (2, 1)),
        ((..., 2), 3, (4, 1)),
        ((0, ..., slice(1, 4)), 1, (4, 3)),
        ((torch.tensor([2, 0]),), 2, (4, 5)),
    ],
)
def test_indexing_keeps_all_axes(kind, index, batch, spatial):
    metric = make_metric(kind, 2, 3, 2, (4, 5))
    part = metric[index]
    assert (part.batch, tuple(part.spatial)) == (batch, spatial)
    for name, tensor in metric.tensors().items():
        for result, whole in zip(part.tensors()[name].unbind(2), tensor.unbind(2), strict=True):
            torch.testing.assert_close(result.reshape(whole[index].shape), whole[index])


@kinds
def test_index_out_of_range_raises(kind):
    metric = make_metric(kind, 2, 3, 2, (4, 5))
    with pytest.raises(IndexError, match=r"index 3 .* size 3"):
        metric[3]
    with pytest.raises(IndexError, match=r"4 axes .* 5 indices"):
        metric[0, 0, 0, 0, 0]


@kinds
def test_iteration_is_over_images(kind):
    metric = make_metric(kind, 2, 3)
    images = list(metric)
    assert len(images) == 3
    for name, tensor in type(metric).cat(images).tensors().items():
        torch.testing.assert_close(tensor, metric.tensors()[name])


@kinds
def test_half_precision_becomes_float32(kind):
    metric = make_metric(kind, 2)
    for dtype in (torch.float16, torch.bfloat16):
        half = metric.map(lambda t, dtype=dtype: t.to(dtype))
        assert half.dtype == torch.float32
        assert metric.to(dtype).dtype == torch.float32
    assert metric.to(torch.float64).dtype == torch.float64


@kinds
def test_to_preserves_graph_and_detach_does_not(kind):
    metric = make_metric(kind, 2)
    metric.M.requires_grad_()
    assert metric.to(torch.float32).M.requires_grad
    assert not metric.detach().M.requires_grad


@kinds
def test_unit_vectors_are_at_most_a_million_pixels_long(kind):
    family = {"riemannian": mc.Riemannian, "randers": mc.Randers}[kind]
    for radius, length in ((5e5, 5e5), (2e6, 1e6)):  # F = 2e-6 and 5e-7
        points = family.isotropic(radius).to(torch.float64).unit_vectors(sphere(2, 7))
        torch.testing.assert_close(points.flatten(3), length * sphere(2, 7).view(1, 1, 7, 2), rtol=1e-6, atol=0)


@kinds
def test_norm_and_its_gradient_are_finite_at_zero(kind):
    metric = make_metric(kind, 2).map(lambda t: t.clone().requires_grad_())
    u = torch.zeros(1, 1, 2, 1, 1, dtype=torch.float64, requires_grad=True)
    length = metric.norm(u)
    grads = torch.autograd.grad(length.sum(), [u, *metric.tensors().values()])
    assert length.item() == 0
    assert all(g.isfinite().all() for g in grads)


@kinds
@dims
def test_properties_of_round_balls_have_finite_gradients(kind, dim):
    family = {"riemannian": mc.Riemannian, "randers": mc.Randers}[kind]
    metric = family.isotropic(1.5, dim).map(lambda t: t.clone().requires_grad_())
    for value in (metric.anisotropy, metric.volume, metric.bounding_radius, metric.unit_vectors(sphere(dim, 8))):
        for grad in torch.autograd.grad(value.sum(), list(metric.tensors().values()), allow_unused=True):
            assert grad is None or grad.isfinite().all()


@kinds
@dims
def test_nan_propagates_and_is_not_positive(kind, dim):
    metric = make_metric(kind, dim).map(lambda t: torch.full_like(t, torch.nan))
    assert metric.unit_vectors(sphere(dim, 8)).isnan().all()
    assert metric.bounding_radius.isnan().all()
    assert not metric.is_positive().any()


@kinds
@pytest.mark.parametrize("padding_mode", ["border", "reflect", "circular"])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_at_integer_positions_equals_pixels(kind, dim, padding_mode):
    size = (4, 3, 5)[:dim]
    metric = make_metric(kind, dim, 2, 2, size)
    position = torch.stack(torch.meshgrid(*(torch.arange(n).double() for n in size), indexing="ij"))
    for name, tensor in metric.at(position[None], padding_mode).tensors().items():
        torch.testing.assert_close(tensor, metric.tensors()[name])


@kinds
def test_at_is_linear_between_pixels(kind):
    metric = make_metric(kind, 1, 2, 1, (4,))
    interpolated = metric.at(torch.tensor([1.25, 2.75, 9.0]).double().view(1, 1, 3))
    for name, t in metric.tensors().items():
        expected = torch.stack(
            [0.75 * t[..., 1] + 0.25 * t[..., 2], 0.25 * t[..., 2] + 0.75 * t[..., 3], t[..., 3]], -1
        )
        torch.testing.assert_close(interpolated.tensors()[name], expected)


@kinds
def test_at_is_continuous(kind):
    metric = make_metric(kind, 2, 1, 1, (5, 5))
    steps = torch.linspace(-1, 5, 601).double()
    field = metric.at(torch.stack([steps, 0.7 * steps])[None, :, None, :])
    jumps = [(b - a).abs().max().item() for a, b in pairwise(field.M.unbind(-1))]
    assert max(jumps) < 0.05


@kinds
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_at_preserves_positivity_and_bound_of_asymmetry(kind, dim):
    metric = make_metric(kind, dim, 1, 2, (4,) * dim, **({"asymmetry": 0.97} if kind == "randers" else {}))
    interpolated = metric.at(torch.rand(3, dim, *(8,) * dim).double() * 5 - 1)
    assert (interpolated.batch, interpolated.groups, tuple(interpolated.spatial)) == (3, 2, (8,) * dim)
    assert interpolated.is_positive().all()
    assert interpolated.asymmetry.max() <= metric.asymmetry.max() + 1e-12


@kinds
def test_at_of_constant_metric(kind):
    metric = make_metric(kind, 2)
    field = metric.at(torch.randn(2, 2, 3, 4).double() * 100)
    torch.testing.assert_close(field.M, metric.M.expand(2, 1, 3, 3, 4))


@kinds
def test_invalid_arguments_of_at_raise(kind):
    metric = make_metric(kind, 2, 3, 1, (4, 4))
    with pytest.raises(ValueError, match=r"`padding_mode` \(='zeros'\)"):
        metric.at(torch.zeros(1, 2, 4, 4), "zeros")
    with pytest.raises(ValueError, match=r"`position` must be \(B, 2, \*out\), .*got shape \(1, 3, 4, 4\)"):
        metric.at(torch.zeros(1, 3, 4, 4))
    with pytest.raises(ValueError, match=r"`position` \(batch 2\) must have the batch 3 of the metric"):
        metric.at(torch.zeros(2, 2, 4, 4))


@kinds
def test_invalid_fields_raise(kind):
    family = {"riemannian": mc.Riemannian, "randers": mc.Randers}[kind]
    rest = {} if kind == "riemannian" else {"omega": torch.zeros(1, 1, 2, 1, 1)}
    with pytest.raises(ValueError, match=r"\(B, G, 3, \*spatial\).*got shape \(1, 1, 4, 2, 2\)"):
        family(torch.ones(1, 1, 4, 2, 2), **rest)
    with pytest.raises(ValueError, match=r"must be .*, got .*\(3, 2\)"):
        family(torch.ones(3, 2), **rest)
    with pytest.raises(TypeError, match=r"`M` must hold floating-point numbers, got dtype torch.int64"):
        family(torch.ones(1, 1, 3, 2, 2, dtype=torch.int64), **rest)
    with pytest.raises(TypeError, match=r"`M` must be a torch.Tensor, got list"):
        family([1.0, 0.0, 1.0], **rest)
    with pytest.raises(ValueError, match=r"`directions` must be \(P, 2\), got shape \(4, 3\)"):
        family.isotropic(1.0).unit_vectors(torch.ones(4, 3))


@kinds
@pytest.mark.parametrize("radius", [0, -1.0, math.inf, (1.0, 2.0, 3.0), (1.0, -2.0)])
def test_scaled_by_invalid_radius_raises(kind, radius):
    with pytest.raises(ValueError, match=r"`radius` \(=.*must be positive"):
        make_metric(kind, 2).scaled(radius)


@kinds
@pytest.mark.parametrize("radius", [0.0, -2.0, math.inf, math.nan])
def test_isotropic_of_invalid_radius_raises(kind, radius):
    with pytest.raises(ValueError, match=rf"`radius` \(={radius}\) must be positive"):
        {"riemannian": mc.Riemannian, "randers": mc.Randers}[kind].isotropic(radius)


@kinds
def test_random_metrics_of_helpers_are_positive(kind):
    assert riemannian(3, 20, 2).is_positive().all()
    torch.testing.assert_close(randers(3, 20).asymmetry, torch.full((20, 1, 1, 1, 1), 0.6).double())


@kinds
@pytest.mark.parametrize("shape", [(1, 1, 3, 1, 1), (1, 1, 1, 1, 1), (2,)])
def test_vectors_of_wrong_shape_raise(kind, shape):
    with pytest.raises(ValueError, match=r"`u` must be \(B, G, 2, \*spatial\)"):
        make_metric(kind, 2).norm(torch.ones(shape))


@kinds
def test_numpy_integers_as_index(kind):
    metric = make_metric(kind, 2, 3, 1, (4, 5))
    assert torch.equal(metric[np.int64(1), :, np.int32(2)].M, metric[1, :, 2].M)


@kinds
def test_repr_is_short(kind):
    expected = f"{kind.title()}(batch=3, groups=2, spatial=(4, 5), dtype=torch.float64, device='cpu')"
    assert repr(make_metric(kind, 2, 3, 2, (4, 5))) == expected


@kinds
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_and_pickles_have_equal_tensors(kind, duplicate):
    metric = make_metric(kind, 2, 3, 2, (4, 5))
    result = duplicate(metric)
    assert type(result) is type(metric)
    assert all(torch.equal(t, metric.tensors()[name]) for name, t in result.tensors().items())
