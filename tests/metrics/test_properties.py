"""Properties of parametrized metrics, for random and for extreme raw parameters."""

import itertools

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import metricconv as mc
from helpers import norm_of
from metricconv.metrics import Parametrization
from raw_parameters import ELLIPSOIDS, EXTREMES, field

PIXELS, VECTORS = 2, 4
# ε_ω bounds the condition of the dual metric, and so the accuracy of the dual of the dual.
CASES = [
    cls(dim=dim, eps_omega=eps) for cls in ELLIPSOIDS.values() for dim, eps in itertools.product((1, 2, 3), (0.1, 1))
]
every = pytest.mark.parametrize("parametrization", CASES, ids=str)
bounded = hypothesis.settings(max_examples=12, derandomize=True, deadline=None)

parameters = st.sampled_from(EXTREMES) | st.floats(-5, 5, width=32)
components = st.floats(-4, 4, width=32)


def draw_metric(data: st.DataObject, parametrization: Parametrization) -> mc.Metric:
    """Draw a metric (PIXELS, 1, n, 1, …) in float64."""
    count = PIXELS * parametrization.channels
    raw = torch.tensor(data.draw(st.lists(parameters, min_size=count, max_size=count)), dtype=torch.float64)
    return parametrization(field(raw.view(PIXELS, -1), parametrization.dim))


def draw_vectors(data: st.DataObject, dim: int) -> Tensor:
    """Draw vectors (VECTORS, d) in float64, not 0."""
    count = VECTORS * dim
    vectors = torch.tensor(data.draw(st.lists(components, min_size=count, max_size=count)), dtype=torch.float64)
    vectors = vectors.view(VECTORS, dim)
    vectors[:, 0] += torch.where(vectors.abs().amax(1) < 1e-3, 1.0, 0.0)
    return vectors


@every
@bounded
@hypothesis.given(data=st.data())
def test_norm_is_positive(parametrization, data):
    metric, u = draw_metric(data, parametrization), draw_vectors(data, parametrization.dim)
    assert metric.is_positive().all()
    assert (norm_of(metric, u) > 0).all() and (norm_of(metric, -u) > 0).all()


@every
@bounded
@hypothesis.given(data=st.data())
def test_unit_vectors_have_norm_one(parametrization, data):
    metric, u = draw_metric(data, parametrization), draw_vectors(data, parametrization.dim)
    length = metric.norm(metric.unit_vectors(u))
    torch.testing.assert_close(length, torch.ones_like(length))


@every
@bounded
@hypothesis.given(data=st.data())
def test_dual_of_dual_is_the_metric(parametrization, data):
    metric = draw_metric(data, parametrization)
    for name, tensor in metric.dual().dual().tensors().items():
        scale = metric.M.abs().amax(2, keepdim=True) ** (1.0 if name == "M" else 0.5)
        torch.testing.assert_close(tensor / scale, metric.tensors()[name] / scale, rtol=0, atol=1e-6)


@every
@bounded
@hypothesis.given(data=st.data())
def test_product_is_bounded_by_norm_times_dual_norm(parametrization, data):
    metric = draw_metric(data, parametrization)
    u, v = draw_vectors(data, parametrization.dim), draw_vectors(data, parametrization.dim)
    bound = norm_of(metric, u) * norm_of(metric.dual(), v)
    product = (u * v).sum(1).view(1, 1, -1, *(1,) * metric.dim)
    assert (product <= bound * (1 + 1e-6)).all()


@every
@bounded
@hypothesis.given(data=st.data())
def test_triangle_inequality(parametrization, data):
    metric = draw_metric(data, parametrization)
    u, v = draw_vectors(data, parametrization.dim), draw_vectors(data, parametrization.dim)
    assert (norm_of(metric, u + v) <= (norm_of(metric, u) + norm_of(metric, v)) * (1 + 1e-9)).all()


@every
@bounded
@hypothesis.given(data=st.data(), factor=st.floats(1e-6, 1e6))
def test_positive_homogeneity(parametrization, data, factor):
    metric, u = draw_metric(data, parametrization), draw_vectors(data, parametrization.dim)
    torch.testing.assert_close(norm_of(metric, factor * u), factor * norm_of(metric, u))


@every
@bounded
@hypothesis.given(data=st.data())
def test_bounding_radius_and_asymmetry_are_bounded(parametrization, data):
    metric = draw_metric(data, parametrization)
    assert (metric.bounding_radius <= parametrization.max_reach).all()
    assert (metric.asymmetry <= parametrization.max_asymmetry * (1 + 1e-9)).all()
