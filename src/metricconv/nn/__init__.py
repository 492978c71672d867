"""Adaptive convolutions as modules: a predictor, a support and weights."""

from .base import AdaptiveConv
from .baselines import DeformableConv2d, DilatedConv2d, ShiftedConv2d
from .graphs import capture
from .metric import MetricConv, MetricConv1d, MetricConv2d, MetricConv3d
from .training import (
    adaptive_layers,
    geometry_l1,
    param_groups,
    record_supports,
    reset_geometry,
    set_geometry_gain,
)

__all__ = [
    "AdaptiveConv",
    "DeformableConv2d",
    "DilatedConv2d",
    "MetricConv",
    "MetricConv1d",
    "MetricConv2d",
    "MetricConv3d",
    "ShiftedConv2d",
    "adaptive_layers",
    "capture",
    "geometry_l1",
    "param_groups",
    "record_supports",
    "reset_geometry",
    "set_geometry_gain",
]
