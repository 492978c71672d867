"""Polynomial regression over balls: fixed kernels, systems per pixel, iteration."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

import metricconv as mc
from metricconv import _interpolation
from metricconv.filters import _average, _polynomials, _regression, regression_filter, regression_gradient
from metricconv.metrics import gradient_metric, structure_metric

SIZES = {2: (7, 9), 3: (4, 5, 6)}
SAMPLES = {2: 6, 3: 4}


def image(dim: int, channels: int = 2) -> Tensor:
    return torch.rand(1, channels, *SIZES[dim], dtype=torch.float64, generator=torch.Generator().manual_seed(dim))


def balls(x: Tensor, kind: str) -> mc.TangentBall | mc.GeodesicBall:
    dim = x.dim() - 2
    stencil = _regression.opposite_directions(SAMPLES[dim], dim)
    dilation = _average.centering_dilation(stencil.kernel_size)
    if kind == "asymmetric":
        return mc.TangentBall(gradient_metric(x, eps_omega=0.4, drift="normal"), stencil, dilation)
    make = mc.GeodesicBall if kind == "geodesic" else mc.TangentBall
    return make(structure_metric(x), stencil, dilation=dilation)


def least_squares(x: Tensor, ball: mc.TangentBall | mc.GeodesicBall, order: int, pixel: tuple[int, ...]) -> np.ndarray:
    """Fit by numpy.linalg.lstsq at one pixel; return the coefficients, (terms, C)."""
    dim = x.dim() - 2
    offsets = ball.offsets()[0, 0][(..., *pixel)]  # [P, d]
    position = (torch.tensor(pixel, dtype=torch.float64) + offsets).unsqueeze(0)
    values = _interpolation.interpolate(x, position, "reflect")[0].T.numpy()
    # Written out, as an oracle for ``monomials``.
    v = offsets.numpy()
    columns = [np.ones(len(v))] + [v[:, i] for i in range(dim)] * (order > 0)
    columns += [v[:, i] * v[:, j] for i in range(dim) for j in range(i, dim)] * (order > 1)
    s = ball.stencil.radii.numpy()
    root = np.sqrt(s ** (dim - 1) * np.exp(-2 * s**2))[:, None]
    return np.linalg.lstsq(np.stack(columns, 1) * root, values * root)[0]


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("kind", ["symmetric", "asymmetric", "geodesic"])
def test_fit_equals_weighted_least_squares_at_each_pixel(kind, dim, order):
    x = image(dim)
    ball = balls(x, kind)
    value = _regression._value(x, ball, order, "reflect")[0]
    coefficients = _regression._coefficients(x, ball, order, "reflect")
    for pixel in list(itertools.product(*map(range, SIZES[dim])))[::5]:
        expected = least_squares(x, ball, order, pixel)
        np.testing.assert_allclose(value[(..., *pixel)], expected[0], atol=1e-5)
        np.testing.assert_allclose(coefficients[(..., *pixel)], expected, atol=2e-4)


def test_symmetric_tangent_balls_are_one_convolution(monkeypatch):
    solved = []
    monkeypatch.setattr(_regression, "_coefficients", lambda *arguments: solved.append(arguments))
    assert regression_filter(torch.rand(6, 6), 4).shape == (6, 6) and not solved


@pytest.mark.parametrize("ball", ["tangent", "geodesic"])
@pytest.mark.parametrize("order", [0, 1, 2])
def test_polynomials_up_to_the_order_are_reproduced(order, ball):
    y, x = torch.meshgrid(torch.arange(15.0).double(), torch.arange(15.0).double(), indexing="ij")
    polynomial = 3.0 + (order > 0) * (2 * y - x) + (order > 1) * (y * x)  # bilinear: exact between pixels
    metric = mc.Riemannian(torch.tensor([0.2, 0.1, 0.3], dtype=torch.float64).view(1, 1, 3, 1, 1))
    result = regression_filter(polynomial, 6, metric, order=order, ball=ball)
    torch.testing.assert_close(result[5:-5, 5:-5], polynomial[5:-5, 5:-5], rtol=0, atol=1e-6)
    if order:
        gradient = regression_gradient(polynomial, 6, metric, order=order, ball=ball)[:, 5:-5, 5:-5]
        expected = torch.stack([2 + (order > 1) * x, -1 + (order > 1) * y])[:, 5:-5, 5:-5]
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-5)


def test_gradient_has_an_axis_for_components_before_those_of_the_image():
    volume = np.random.default_rng(0).random((4, 5, 6, 2), dtype=np.float32)
    gradient = regression_gradient(volume, 4, channel_axis=-1)
    assert gradient.shape == (3, 4, 5, 6, 2) and gradient.dtype == np.float32
    color = volume[0].astype(float)
    gradient = regression_gradient(color, 4, channel_axis=-1)
    flipped = regression_gradient(color[::-1].copy(), 4, channel_axis=-1)[:, ::-1]
    np.testing.assert_allclose(flipped, gradient * np.array([-1, 1]).reshape(2, 1, 1, 1), atol=1e-8)


def test_rounds_are_repeated_calls():
    noisy = torch.rand(12, 13, dtype=torch.float64)
    twice = regression_filter(regression_filter(noisy, 4), 4)
    torch.testing.assert_close(regression_filter(noisy, 4, rounds=2), twice)


def test_iteration_stops_when_the_residual_reaches_the_noise():
    noisy = torch.sin(torch.arange(16.0)).double() + torch.rand(16, 16, dtype=torch.float64)
    options = {"samples": 4, "metric": mc.Riemannian.isotropic(2.0), "order": 0}
    results = [regression_filter(noisy, **options, rounds=n) for n in (1, 2, 3)]
    residuals = [float((noisy - r).std(correction=0)) for r in results]
    assert residuals == sorted(residuals)
    finished = []
    sigma = sum(residuals[:2]) / 2
    stopped = regression_filter(noisy, **options, rounds=9, sigma=sigma, progress=lambda *n: finished.append(n))
    torch.testing.assert_close(stopped, results[1])
    assert finished == [(1, 9), (9, 9)]


def test_monomials_and_their_products():
    terms = _polynomials.monomials(2, 3)
    assert terms[:4] == [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)] and len(terms) == 10
    products, index = _polynomials.moments(terms)
    assert len(products) == math.comb(4 + 3, 3)
    assert products[index[1][4]] == (3, 0, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 3}, "`order` (=3) must be 0, 1 or 2"),
        ({"samples": 5}, "`samples` (=5) must be even"),
        ({"samples": 2}, "`samples` (=2) must be at least 4"),
        ({"ball": "square"}, "`ball` (='square') must be one of 'tangent', 'geodesic'"),
        ({"steps": 3}, "`steps` (=3) and `smooth` (=1) require ball='geodesic'"),
        ({"rounds": 0}, "`rounds` (=0) must be at least 1"),
        ({"sigma": 0}, "`sigma` (=0) must be positive"),
    ],
)
def test_invalid_arguments(options, message):
    with pytest.raises(ValueError) as error:
        regression_filter(torch.rand(6, 6), **options)
    assert message in str(error.value)


def test_gradient_needs_a_linear_term():
    with pytest.raises(ValueError, match=r"`order` \(=0\) must be 1 or 2"):
        regression_gradient(torch.rand(6, 6), order=0)
