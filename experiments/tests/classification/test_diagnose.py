"""The diagnosis: what is known about a support is what it finds."""

import math

import pytest
import torch
from torch import nn

import metricconv as mc
from metricconv.nn import DeformableConv2d, MetricConv2d
from metricconv_experiments.classification import diagnose


def found(layer, images=None):
    images = torch.randn(2, 1, 12, 12) if images is None else images
    statistics = diagnose.diagnose("a", nn.Sequential(layer), [(images, torch.zeros(len(images)))])
    return {s.quantity: s for s in statistics}


def test_initial_layer_has_round_centered_balls_of_kernel_size():
    seen = found(MetricConv2d(1, 2, 3, padding=2, dilation=2))
    assert seen["radius"].median == pytest.approx(2, rel=1e-4) and seen["anisotropy"].median == pytest.approx(
        1, rel=1e-4
    )
    assert seen["growth"].median == pytest.approx(1, rel=1e-4)  # dilated or not
    assert seen["asymmetry"].high < 1e-3 and seen["shift"].high < 1e-2 and "residual" not in seen
    assert seen["radius"].pixels == 2 * 12 * 12


def test_fitted_metric_has_zero_residual_only_for_balls():
    plain = found(DeformableConv2d(1, 2, 3, padding=1))
    assert plain["radius"].median == pytest.approx(1, rel=1e-3) and plain["residual"].high < 1e-4
    torn = DeformableConv2d(1, 2, 3, padding=1)
    nn.init.normal_(torn.predictor.bias, std=2.0)
    assert found(torn)["residual"].median > 0.2


def test_balls_of_the_gradient_metric_align_with_edges():
    image = torch.zeros(1, 1, 24, 24)
    yy, xx = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    image[0, 0] = torch.sigmoid(xx - yy / 2 - 6)
    along = MetricConv2d(1, 1, 3, padding=1, metric=mc.metrics.gradient_metric)
    assert found(along, image)["alignment"].mean > 0.9

    def across(x):
        yy, yx, xx = mc.metrics.gradient_metric(x).M.unbind(2)
        return mc.Riemannian(torch.stack([xx, -yx, yy], 2))

    assert found(MetricConv2d(1, 1, 3, padding=1, metric=across), image)["alignment"].mean < -0.9


def test_growth_is_relative_to_the_initial_radius():
    layer = MetricConv2d(1, 2, 3, padding=2, dilation=2)
    nn.init.constant_(layer.predictor.bias[4:5].data, -1.0)  # the scale of the eigenvalues: smaller ones, larger balls
    seen = found(layer)
    assert seen["growth"].median > 1.05 and seen["growth"].median == pytest.approx(seen["radius"].median / 2, rel=1e-4)


def test_edges_are_orthogonal_to_the_gradient():
    ramp = torch.arange(8.0).expand(1, 1, 8, 8)  # grows to the right: edges run down, θ = π/2
    inside = diagnose.edge_directions(ramp)[0, :, 3, 3]
    torch.testing.assert_close(inside, torch.tensor([math.cos(math.pi), 0.0]), atol=1e-6, rtol=0)


def test_network_without_adaptive_layers_raises():
    with pytest.raises(ValueError, match="no adaptive convolution"):
        found(nn.Conv2d(1, 1, 3))
