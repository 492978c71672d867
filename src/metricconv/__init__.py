"""Convolutions whose support is the unit ball of an explicit metric."""

from . import filters, metrics, nn, ops, stencils, supports
from .convert import convert
from .metrics import Metric, Randers, Riemannian
from .ops import (
    backend_report,
    check_finite,
    deform_conv2d,
    metric_conv,
    metric_conv1d,
    metric_conv2d,
    metric_conv3d,
    support_conv,
)
from .supports import Deformable, Dilated, GeodesicBall, Grid, HeatBall, Shifted, Support, TangentBall

__version__ = "0.1.0"

__all__ = [
    "Deformable",
    "Dilated",
    "GeodesicBall",
    "Grid",
    "HeatBall",
    "Metric",
    "Randers",
    "Riemannian",
    "Shifted",
    "Support",
    "TangentBall",
    "backend_report",
    "check_finite",
    "convert",
    "deform_conv2d",
    "filters",
    "metric_conv",
    "metric_conv1d",
    "metric_conv2d",
    "metric_conv3d",
    "metrics",
    "nn",
    "ops",
    "stencils",
    "support_conv",
    "supports",
]
