"""Fits of any family: the metric is recovered from its own balls, grids are boxes, hulls are polytopes."""

import pytest
import torch

import metricconv as mc
from metricconv.metrics import fit_metric, fit_randers
from metricconv.metrics.fit_shapes import FIT_FAMILIES
from shapes import make_shape

GRIDS = {
    "standard": mc.Grid(5),
    "rectangular": mc.Grid((3, 5)),
    "dilated": mc.Dilated(torch.full((1, 1, 1, 2, 2), 2.5), 5),
    "shifted": mc.Shifted(torch.tensor([0.8, -1.1]).view(1, 1, 2, 1, 1), 3),
}


@pytest.mark.parametrize("name", ["standard", "dilated"])
def test_centered_grids_are_boxes_exactly(name):
    fit = fit_metric(GRIDS[name], family="orthant")
    assert fit.residual.max() < 1e-6


@pytest.mark.parametrize("family", FIT_FAMILIES)
def test_residual_is_the_distance_of_samples_along_their_rays(family):
    offsets = torch.randn(1, 2, 9, 2, 3, 2)
    fit = fit_metric(offsets, 1.0, family=family)
    assert fit.metric.is_positive().all() and fit.residual.shape == (1, 2, 3, 2)
    length = offsets.norm(dim=3)
    distance = length - length / fit.metric.norm(offsets)
    torch.testing.assert_close(fit.residual, distance.square().mean(2).sqrt(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["asymmetric", "orthant"])
def test_family_explains_its_own_balls_better_than_randers(kind):
    metric = make_shape(kind, 2, 1, 1, (2, 3))
    ball = mc.TangentBall(metric, mc.stencils.onion(7))
    fit = fit_metric(ball, family=kind)
    assert fit.residual.mean() < 0.03
    assert fit.residual.mean() < 0.6 * fit_randers(ball).residual.mean()


def test_half_space_is_the_gauge_of_the_convex_hull():
    triangle = torch.tensor([[-1.0, -1.0], [-1.0, 2.0], [2.0, -1.0]]).view(1, 1, 3, 2, 1, 1)
    fit = fit_metric(triangle, 1.0, family="half_space")
    inside = torch.tensor([[-0.9, -0.9], [0.4, 0.5]]).view(1, 1, 2, 2, 1, 1)
    outside = torch.tensor([[-1.1, 0.0], [0.6, 0.6]]).view(1, 1, 2, 2, 1, 1)
    assert (fit.metric.norm(inside) < 1).all() and (fit.metric.norm(outside) > 1).all()
    assert fit.residual < 0.02


def test_pixels_are_fitted_independently():
    offsets = torch.randn(1, 1, 9, 2, 2, 2).double()
    together = fit_metric(offsets, 1.0, family="orthant").residual
    alone = fit_metric(offsets[..., 1:, 1:], 1.0, family="orthant").residual
    torch.testing.assert_close(together[..., 1:, 1:], alone)


def test_invalid_arguments_raise():
    with pytest.raises(ValueError, match=r"`family` \(='oval'\) must be one of 'randers', 'asymmetric'"):
        fit_metric(mc.Grid(3), family="oval")
    with pytest.raises(ValueError, match="`offsets` must be"):
        fit_metric(torch.randn(3, 2), family="orthant")
    with pytest.raises(TypeError, match=r"`offsets` must be a torch\.Tensor or a Support"):
        fit_metric(None, family="half_space")
