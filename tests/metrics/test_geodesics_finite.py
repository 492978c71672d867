"""No geodesic of finite arguments is NaN or infinite: it is finite, or an error says why it cannot be."""

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import metricconv as mc
from metricconv.metrics import exp_map, geodesics
from raw_parameters import ELLIPSOIDS, EXTREMES

every = pytest.mark.parametrize("parametrization", [*ELLIPSOIDS])
bounded = hypothesis.settings(max_examples=25, derandomize=True, deadline=None)
dims, steps, modes = st.integers(1, 3), st.integers(1, 5), st.sampled_from(["border", "circular"])
dtypes = st.sampled_from([torch.float32, torch.float64])
moderate = st.floats(-1e6, 1e6, width=32)
anything = st.floats(width=32, allow_nan=False, allow_infinity=False)


def draw_metric(data: st.DataObject, name: str, dim: int, dtype: torch.dtype) -> mc.Metric:
    """Draw raw parameters of up to three pixels per axis, some of them extreme, and return their metric."""
    parametrization = ELLIPSOIDS[name](dim=dim, eps_omega=data.draw(st.sampled_from([0.05, 0.5, 1])))
    size = tuple(data.draw(st.lists(st.integers(1, 3), min_size=dim, max_size=dim)))
    torch.manual_seed(data.draw(st.integers(0, 2**16)))
    raw = 10 ** data.draw(st.integers(-2, 3)) * torch.randn(1, 1, parametrization.channels, *size, dtype=dtype)
    extreme = torch.tensor(EXTREMES, dtype=dtype)[torch.randint(len(EXTREMES), raw.shape)]
    share = data.draw(st.sampled_from([0.0, 0.3, 1.0]))
    return parametrization(torch.where(torch.rand(raw.shape) < share, extreme, raw))


def draw_vectors(data: st.DataObject, dim: int, components: st.SearchStrategy[float]) -> Tensor:
    numbers = data.draw(st.lists(components, min_size=2 * dim, max_size=2 * dim))
    return torch.tensor(numbers, dtype=torch.float64).view(2, dim)


@every
@bounded
@hypothesis.given(data=st.data(), dim=dims, steps=steps, mode=modes, dtype=dtypes)
def test_geodesics_of_moderate_length_are_finite(parametrization, data, dim, steps, mode, dtype):
    metric = draw_metric(data, parametrization, dim, dtype)
    points, vectors = (draw_vectors(data, dim, moderate) for _ in range(2))
    length = data.draw(moderate)
    assert geodesics(metric, points, vectors, length, steps, padding_mode=mode).isfinite().all()
    assert exp_map(metric, points, vectors, steps, padding_mode=mode).isfinite().all()


@every
@bounded
@hypothesis.given(data=st.data(), dim=dims, steps=steps, mode=modes, dtype=dtypes, unit=st.integers(-18, 18))
def test_geodesics_of_any_length_are_finite_or_raise(parametrization, data, dim, steps, mode, dtype, unit):
    metric = draw_metric(data, parametrization, dim, dtype).scaled(10.0**unit)
    points, vectors = (draw_vectors(data, dim, anything) for _ in range(2))
    length = data.draw(anything)
    for curve in (
        lambda: geodesics(metric, points, vectors, length, steps, padding_mode=mode),
        lambda: exp_map(metric, points, vectors, steps, padding_mode=mode),
    ):
        try:
            assert curve().isfinite().all()
        except ValueError as error:
            assert "exceeds the range of torch.float" in str(error) or "`metric` must be positive" in str(error)


@every
@bounded
@hypothesis.given(data=st.data(), steps=steps, mode=modes, smooth=st.integers(0, 1))
def test_samples_of_geodesic_balls_are_finite(parametrization, data, steps, mode, smooth):
    metric = draw_metric(data, parametrization, 2, torch.float32)
    ball = mc.GeodesicBall(metric, mc.stencils.polar(3), steps, smooth, padding_mode=mode)
    assert ball.offsets().isfinite().all()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_arguments_that_are_not_finite_raise(value):
    metric, good, bad = mc.Riemannian.isotropic(2.0), torch.ones(2, 2), torch.tensor([[1.0, 1.0], [1.0, value]])
    at = rf"must be finite, got {value} at index \(1, 1\)"
    with pytest.raises(ValueError, match=f"`points` {at}"):
        geodesics(metric, bad, good)
    with pytest.raises(ValueError, match=f"`directions` {at}"):
        geodesics(metric, good, bad)
    with pytest.raises(ValueError, match=f"`vectors` {at}"):
        exp_map(metric, good, bad)
    with pytest.raises(ValueError, match=f"`length` must be finite, got {value}"):
        geodesics(metric, good, good, torch.tensor([1.0, value]))


def test_geodesics_beyond_the_range_raise():
    far = torch.tensor([[0.0, 1.0], [0.0, 3e38]])
    with pytest.raises(ValueError, match=r"the geodesic at index \(0, 0, 1\) exceeds the range of torch.float32"):
        exp_map(mc.Riemannian.isotropic(2.0), far, far)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_infinite_metrics_are_not_positive(dim):
    assert not mc.Riemannian(torch.full((1, 1, dim * (dim + 1) // 2, *(1,) * dim), torch.inf)).is_positive().any()
