"""Geodesics of any metric: straight where it is constant, unit speed, order 2, equal to the formulas of Randers."""

import math

import pytest
import torch

import metricconv as mc
from helpers import make_metric
from metricconv.metrics import exp_map, geodesics, smoothed
from metricconv.metrics.flow import FlowField, shoot
from metricconv.metrics.hamiltonian import HamiltonianField
from shapes import make_shape

START, RIGHT = torch.tensor([[4.0, 4.5], [5.0, 3.0]]).double(), torch.tensor([[0.3, 1.0], [-1.0, 0.2]]).double()


def components(points: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return points.unsqueeze(0).unbind(-1)


def ends(field, length, steps, shooting=None):
    """Return the end points of the geodesics, (N, d), relative to their starts."""
    shooting = field.shoot if shooting is None else shooting
    *_, last = shooting(components(START), components(RIGHT), torch.tensor(length).double(), steps)
    return torch.stack(last.at(1.0), -1)[0]


@pytest.mark.parametrize("kind", ["asymmetric", "orthant", "half_space", "intersection"])
def test_rays_are_straight_in_constant_metrics_and_have_given_length(kind):
    metric = make_shape(kind).expand_to((9, 9))
    end = ends(HamiltonianField.of(metric), 2.5, 3)
    expected = 2.5 * metric[0, 0, 0, 0].unit_vectors(RIGHT)[0, 0, :, :, 0, 0]
    torch.testing.assert_close(end, expected, rtol=1e-5, atol=1e-5)


def varying(kind: str) -> mc.Metric:
    """Return a smooth metric field."""
    metric = (
        make_shape(kind, 2, spatial=(9, 9)) if kind in ("asymmetric", "orthant") else make_metric(kind, 2, 1, 1, (9, 9))
    )
    return smoothed(metric, 6)


@pytest.mark.parametrize("kind", ["asymmetric", "orthant"])
def test_speed_is_one(kind):
    field = HamiltonianField.of(varying(kind))
    segments = list(field.shoot(components(START), components(RIGHT), torch.tensor(2.0).double(), 64))
    for segment in segments[::16]:
        middle = tuple(x + 0.5 * w for x, w in zip(segment.start, segment.step, strict=True))
        position = tuple(o + m for o, m in zip(components(START), middle, strict=True))
        speed = field.norm(position, tuple(w * 32 for w in segment.step))
        torch.testing.assert_close(speed, torch.ones_like(speed), rtol=1e-3, atol=0)


@pytest.mark.parametrize("kind", ["riemannian", "asymmetric", "orthant"])
def test_error_is_of_order_two(kind):
    field = HamiltonianField.of(varying(kind))
    exact = ends(field, 1.0, 256)
    errors = [(ends(field, 1.0, steps) - exact).norm() for steps in (2, 16)]
    assert errors[1] < errors[0] / 10


def test_riemannian_path_equals_the_special_one():
    metric = varying("riemannian")
    special = FlowField.of(metric)
    for steps in (1, 2, 7):
        expected = ends(special, 2.0, steps, lambda *a: shoot(special, *a))
        torch.testing.assert_close(ends(HamiltonianField.of(metric), 2.0, steps), expected, rtol=1e-9, atol=1e-9)


def test_randers_path_equals_the_special_one_for_a_linear_field():
    y, x = torch.meshgrid(torch.arange(9.0), torch.arange(9.0), indexing="ij")
    M = torch.stack([1 + 0.05 * y, 0.01 * x, 1 + 0.05 * x])[None, None].double()
    metric = mc.Randers(M, torch.stack([0.03 * x, 0.02 * y - 0.1])[None, None].double())
    special = FlowField.of(metric)
    expected = ends(special, 2.0, 128, lambda *a: shoot(special, *a))
    torch.testing.assert_close(ends(HamiltonianField.of(metric), 2.0, 128), expected, rtol=0, atol=2e-5)


def test_paths_are_differentiable_by_the_metric():
    metric = varying("asymmetric").map(lambda t: t.clone().requires_grad_())

    def end(*tensors):
        return ends(HamiltonianField.of(mc.AsymmetricQuadratic(*tensors)), 1.5, 2)

    tensors = list(metric.tensors().values())
    step = [torch.randn_like(t) for t in tensors]
    grads = torch.autograd.grad(end(*tensors).square().sum(), tensors)
    fixed = [t.detach() for t in tensors]
    shifted = [end(*(t + s * 1e-6 * d for t, d in zip(fixed, step, strict=True))).square().sum() for s in (-1, 1)]
    slope = sum((g * d).sum() for g, d in zip(grads, step, strict=True))
    torch.testing.assert_close(slope, (shifted[1] - shifted[0]) / 2e-6, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("kind", ["asymmetric", "orthant", "half_space", "intersection"])
def test_paths_do_not_depend_on_whether_gradients_are_required(kind):
    metric = make_shape(kind, 2, 1, 1, (4, 5))
    with_gradients = metric.map(lambda t: t.clone().requires_grad_())
    expected, found = (mc.GeodesicBall(m, mc.stencils.onion(3)).offsets() for m in (metric, with_gradients))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 4.0, math.inf])
def test_paths_along_the_axes_of_an_orthant_norm_have_finite_gradients(p):
    box = mc.OrthantNorm.box([1.0, 1.5], p=p).expand_to((4, 5))
    metric = box.map(lambda t: t.double().requires_grad_())
    offsets = mc.GeodesicBall(metric, mc.stencils.onion(3)).offsets()
    grads = torch.autograd.grad(offsets.square().sum(), list(metric.tensors().values()))
    assert offsets.isfinite().all() and all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("kind", ["asymmetric", "orthant", "half_space"])
def test_geodesic_ball_equals_tangent_ball_for_constant_metric(kind):
    metric = make_shape(kind).expand_to((5, 6))
    stencil = mc.stencils.onion(3)
    expected = mc.TangentBall(metric, stencil).offsets()
    torch.testing.assert_close(mc.GeodesicBall(metric, stencil).offsets(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_geodesic_layer_of_a_family_starts_as_the_ordinary_convolution_and_learns(backend):
    conv = torch.nn.Conv2d(1, 2, 3, padding=1)
    layer = mc.nn.MetricConv2d.from_conv2d(conv, ball="geodesic", parametrization="asymmetric", backend=backend)
    x = torch.randn(1, 1, 6, 7)
    torch.testing.assert_close(layer(x), conv(x), rtol=0, atol=1e-4)
    layer(x).square().sum().backward()
    assert layer.predictor.weight.grad.isfinite().all() and layer.predictor.weight.grad.abs().max() > 0


def test_geodesics_and_exponential_map_take_any_metric():
    metric = varying("asymmetric")
    curve = geodesics(metric, START, RIGHT, length=1.0, steps=8)
    ray = RIGHT / metric.at(START.t()[None, :, :, None]).norm(RIGHT.t()[None, None, :, :, None])[0, 0].double()
    torch.testing.assert_close(exp_map(metric, START, ray, steps=8), curve[:, :, :, -1])
    assert geodesics(metric, START, 0 * RIGHT, length=1.0, steps=2).isfinite().all()
