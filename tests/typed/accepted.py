"""Calls of the public API that mypy accepts, with the types that it infers. Checked by test_typing.py, never run."""

from typing import assert_type

import torch
from torch import Tensor, nn

import metricconv as mc
from metricconv import Metric, Randers, Riemannian, Support
from metricconv.conversion import convert, plan_conversion
from metricconv.nn import (
    AdaptiveConv,
    DeformableConv2d,
    DilatedConv2d,
    MetricConv1d,
    MetricConv2d,
    MetricConv3d,
    ShiftedConv2d,
    adaptive_layers,
    geometry_l1,
    record_supports,
)


def layers(x: Tensor, metric: Metric) -> None:
    assert_type(MetricConv1d(3, 8, 3)(x), Tensor)
    assert_type(MetricConv2d(3, 8, (3, 5), stride=[2, 1], padding="same", padding_mode="replicate")(x), Tensor)
    assert_type(MetricConv3d(3, 8, 3, 1, 0, 1, 1, False, "circular", dtype=torch.float64)(x), Tensor)
    assert_type(DeformableConv2d(3, 8, 3, modulation=True, metric_groups=3)(x), Tensor)
    assert_type(ShiftedConv2d(3, 8, 3, device="cpu")(x), Tensor)
    assert_type(DilatedConv2d(3, 8, 3, device=torch.device("cpu"), backend="reference")(x), Tensor)
    layer = MetricConv2d(3, 8, 3, parametrization=mc.metrics.Cholesky(), stencil=mc.stencils.onion(3), ball="geodesic")
    assert_type(layer.forward(x), Tensor)
    assert_type(layer.predict_support(x), tuple[Support, Tensor | None])
    assert_type(layer.weight, Tensor)
    assert_type(layer.bias, Tensor | None)
    MetricConv2d(3, 8, 3, metric=metric)
    MetricConv2d(3, 8, 3, metric="gradient")
    MetricConv2d(3, 8, 3, metric=mc.metrics.gradient_metric)
    MetricConv2d(3, 8, 3, metric=lambda x: mc.metrics.edge_metric(x, alpha=5.0))


def layers_from_convolutions(conv: nn.Conv2d) -> None:
    assert_type(MetricConv1d.from_conv1d(nn.Conv1d(3, 8, 3)), MetricConv1d)
    assert_type(MetricConv2d.from_conv2d(conv, ball="geodesic", steps=3, padding_mode="border"), MetricConv2d)
    assert_type(MetricConv3d.from_conv3d(nn.Conv3d(3, 8, 3), metric_groups=3), MetricConv3d)
    assert_type(MetricConv2d.from_conv(conv, radius=2.0, padding="same"), MetricConv2d)
    assert_type(DeformableConv2d.from_conv(conv, modulation=True), DeformableConv2d)


def networks(net: nn.Module) -> None:
    assert_type(convert(net, select="last_stage", to=ShiftedConv2d, metric_groups=2), nn.Module)
    assert_type(convert(net, lambda name, conv: conv.groups == 1, inplace=True), nn.Module)
    assert_type(mc.convert(net, ["layer3.*", "layer4.*"], "deformable", report=print), nn.Module)
    assert_type(mc.to_conv(net, inplace=True, report=print), nn.Module)
    assert_type([c.reason for c in plan_conversion(net, to="metric")], list[str])
    assert_type(geometry_l1(net), Tensor)
    assert_type(dict(adaptive_layers(net)), dict[str, AdaptiveConv])
    with record_supports(net) as supports:
        assert_type(supports, dict[str, Support])


def operators(x: Tensor, weight: Tensor, support: Support, metric: Metric) -> None:
    assert_type(mc.support_conv(x, support, weight, stride=(2, 1), padding=1, padding_mode="border"), Tensor)
    assert_type(mc.metric_conv(x, metric, weight), Tensor)
    assert_type(mc.metric_conv(x, metric, weight, ball="geodesic", steps=3, smooth=0), Tensor)
    assert_type(mc.metric_conv2d(x, metric, weight, padding=1, ball="geodesic"), Tensor)
    assert_type(support.offsets(), Tensor)
    assert_type(support.spatial, torch.Size)


def metrics(image: Tensor, metric: Metric) -> None:
    assert_type(metric.norm(image), Tensor)
    assert_type(metric.unit_vectors(image), Tensor)
    assert_type(metric.is_positive(), Tensor)
    assert_type(metric.dual(), Metric)
    assert_type(Randers.isotropic(2.0).dual(), Randers)
    assert_type(Riemannian.isotropic(2.0, dim=3).scaled((1.0, 2.0, 3.0)), Riemannian)
    assert_type(Riemannian.isotropic(image).to(torch.float64).at(image), Riemannian)
    assert_type(mc.metrics.gradient_metric(image, eps_omega=0.5), Riemannian | Randers)
    assert_type(mc.metrics.edge_metric(image), Riemannian)
    assert_type(mc.metrics.structure_metric(image), Riemannian)
    assert_type(mc.TangentBall(metric, mc.stencils.polar(5)).offsets(slice(3)), Tensor)
