"""Wrong calls of the public API that mypy must reject. Checked by test_typing.py, never run.

Every line has a ``type: ignore`` with the expected error code. mypy reports an ignore that it does not need, so that a
call which it accepts fails the check.
"""

from torch import Tensor, nn

import metricconv as mc
from metricconv.conversion import convert
from metricconv.nn import DeformableConv2d, DilatedConv2d, MetricConv1d, MetricConv2d, MetricConv3d, ShiftedConv2d


def arguments_of_an_ordinary_convolution() -> None:
    MetricConv2d("three", 8)  # type: ignore[call-arg, arg-type]
    MetricConv1d(3, 8)  # type: ignore[call-arg]
    MetricConv3d(3, 8, "3")  # type: ignore[arg-type]
    MetricConv2d(3, 8, 3.0)  # type: ignore[arg-type]
    MetricConv2d(3, 8, 3, stride="2")  # type: ignore[arg-type]
    MetricConv2d(3, 8, 3, padding=0.5)  # type: ignore[arg-type]
    MetricConv2d(3, 8, 3, padding_mode=0)  # type: ignore[arg-type]
    MetricConv2d(3, 8, 3, dtype="float32")  # type: ignore[arg-type]
    DeformableConv2d(3, 8)  # type: ignore[call-arg]
    ShiftedConv2d(3, None, 3)  # type: ignore[arg-type]
    DilatedConv2d(3, 8, 3, bias="yes")  # type: ignore[arg-type]


def options_of_adaptive_convolutions(metric: mc.Metric) -> None:
    MetricConv2d(3, 8, 3, 1, 0, 1, 1, True, "zeros", "spectral7")  # type: ignore[call-arg]
    MetricConv2d(3, 8, 3, parametrisation="cholesky")  # type: ignore[call-arg]
    MetricConv2d(3, 8, 3, parametrization=7)  # type: ignore[arg-type]
    MetricConv2d(3, 8, 3, metric=lambda x: x)  # type: ignore[arg-type, return-value]
    MetricConv2d(3, 8, 3, radius="wide")  # type: ignore[arg-type]
    MetricConv2d(3, 8, 3, steps=2.5)  # type: ignore[arg-type]
    MetricConv2d(3, 8, 3, metric_groups="all")  # type: ignore[arg-type]
    DeformableConv2d(3, 8, 3, ball="geodesic")  # type: ignore[call-arg]
    ShiftedConv2d(3, 8, 3, metric=metric)  # type: ignore[call-arg]


def conversion(conv: nn.Conv2d) -> None:
    MetricConv2d.from_conv2d(nn.Conv1d(3, 8, 3))  # type: ignore[arg-type]
    MetricConv2d.from_conv2d(conv, kernel_size=3)  # type: ignore[call-arg]
    MetricConv2d.from_conv2d(conv, metric_groups="2")  # type: ignore[arg-type]
    DeformableConv2d.from_conv(conv, ball="geodesic")  # type: ignore[call-arg]
    convert("resnet18")  # type: ignore[arg-type]
    convert(conv, to=nn.Conv2d)  # type: ignore[arg-type]
    convert(conv, "all", "metric", True)  # type: ignore[call-arg]
    mc.to_conv(conv, True)  # type: ignore[call-arg]


def calls(x: Tensor, weight: Tensor, support: mc.Support, metric: mc.Metric) -> None:
    MetricConv2d(3, 8, 3)([1.0])  # type: ignore[arg-type]
    MetricConv2d(3, 8, 3)(x, x)  # type: ignore[call-arg]
    mc.support_conv(x, support)  # type: ignore[call-arg]
    mc.support_conv(x, metric, weight)  # type: ignore[arg-type]
    mc.support_conv(x, support, weight, padding_mode=0)  # type: ignore[arg-type]
    mc.support_conv(x, support, weight, None, 2)  # type: ignore[call-arg]
    mc.metric_conv(x, metric, weight, None, 2)  # type: ignore[call-arg]
    mc.metric_conv2d(x, metric, weight, steps=2.5)  # type: ignore[arg-type]
    mc.metric_conv3d(x, metric, weight, radius=2)  # type: ignore[call-arg]
    metric.norm([0.0, 1.0])  # type: ignore[arg-type]
    mc.Riemannian.isotropic("2")  # type: ignore[arg-type]
    mc.metrics.gradient_metric(x, drift=1.0)  # type: ignore[arg-type]
