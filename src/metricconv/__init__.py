"""Convolutions whose support is the unit ball of an explicit metric."""

from . import _startup as _startup
from . import conversion, filters, geodesic, metrics, nn, ops, stencils, supports
from .conversion import convert, to_conv
from .metrics import AsymmetricQuadratic, HalfSpaceGauge, Metric, OrthantNorm, Randers, Riemannian, SoftIntersection
from .ops import (
    backend_report,
    check_finite,
    deform_conv2d,
    metric_conv,
    metric_conv1d,
    metric_conv2d,
    metric_conv3d,
    support_conv,
    warmup,
)
from .supports import Deformable, Dilated, GeodesicBall, Grid, Shifted, Support, TangentBall

__version__ = "0.2.0"

__all__ = [
    "AsymmetricQuadratic",
    "Deformable",
    "Dilated",
    "GeodesicBall",
    "Grid",
    "HalfSpaceGauge",
    "Metric",
    "OrthantNorm",
    "Randers",
    "Riemannian",
    "Shifted",
    "SoftIntersection",
    "Support",
    "TangentBall",
    "backend_report",
    "check_finite",
    "conversion",
    "convert",
    "deform_conv2d",
    "filters",
    "geodesic",
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
    "to_conv",
    "warmup",
]
