"""Helpers for tests of parametrizations: raw parameters, the metrics' matrices and drifts, checks of metrics."""

import torch
from torch import Tensor

import metricconv as mc
from helpers import norm_of, sphere
from metricconv.metrics import PARAMETRIZATIONS, EllipsoidParametrization, Parametrization, _symmetric

LARGEST, DENORMAL = 3.4028234663852886e38, 1e-45
EXTREMES = [0.0, -0.0, 1e4, -1e4, 1e30, -1e30, LARGEST, -LARGEST, DENORMAL, -1e-40]


ELLIPSOIDS = {name: cls for name, cls in PARAMETRIZATIONS.items() if issubclass(cls, EllipsoidParametrization)}


def field(values: Tensor, dim: int) -> Tensor:
    """Return (pixels, channels) as raw parameters (pixels, 1, channels, 1, …)."""
    return values.view(*values.shape[:1], 1, values.shape[1], *(1,) * dim)


def random_raw(parametrization: Parametrization, pixels: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return field(torch.randn(pixels, parametrization.channels, dtype=dtype), parametrization.dim)


def matrices(metric: mc.Metric) -> Tensor:
    """Return M as (pixels, d, d), in float64."""
    return _symmetric.full(metric.M.double()).flatten(0, -3)


def drifts(metric: mc.Randers) -> Tensor:
    """Return ω as (pixels, d), in float64."""
    return metric.omega.double().movedim(2, -1).flatten(0, -2)


def assert_sound(
    parametrization: Parametrization, raw: Tensor, start: Tensor | None = None, gain: Tensor | None = None
) -> None:
    """Assert positivity, bounds and finite derivatives of the metrics of start + gain·raw."""
    raw = raw.requires_grad_()
    metric = parametrization(raw, start, gain)
    assert all(t.isfinite().all() for t in metric.tensors().values())

    (gradient,) = torch.autograd.grad(sum(t.sum() for t in metric.tensors().values()), raw)
    # Of a nearly degenerate frame they may exceed the range of half precision, but are not NaN.
    assert not gradient.isnan().any() if raw.element_size() == 2 else gradient.isfinite().all()

    metric = metric.detach()
    eigenvalues, eigenvectors = torch.linalg.eigh(matrices(metric))
    assert (eigenvalues[:, 0] >= parametrization.smallest_eigenvalue * (1 - 1e-3)).all()

    if isinstance(metric, mc.Randers):
        along = (eigenvectors.mT @ drifts(metric).unsqueeze(-1)).squeeze(-1)
        asymmetry = (along.square() / eigenvalues).sum(-1).sqrt()
        assert (asymmetry <= parametrization.max_asymmetry * (1 + 1e-3)).all()

    # In float32, in all directions and along the axes of each ball.
    axes = torch.cat([eigenvectors, -eigenvectors], -1).mT.float()
    axes = axes.view(*metric.M.shape[:2], -1, metric.dim, *metric.spatial)
    assert (metric.norm(axes) > 0).all()
    assert (norm_of(metric, sphere(metric.dim, 256).float()) > 0).all()
    assert (axes.norm(dim=3) / metric.norm(axes)).max() < parametrization.max_reach
    assert metric.unit_vectors(sphere(metric.dim, 256)).norm(dim=3).max() < parametrization.max_reach
    assert metric.to(torch.float64).bounding_radius.max() < parametrization.max_reach
