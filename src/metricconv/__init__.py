"""Convolutions whose support is the unit ball of an explicit metric."""

from . import metrics, ops, stencils, supports
from .metrics import Metric, Randers, Riemannian
from .ops import check_finite, deform_conv2d, metric_conv, support_conv
from .supports import Deformable, Dilated, Grid, Shifted, Support, TangentBall

__version__ = "0.1.0"

__all__ = [
    "Deformable",
    "Dilated",
    "Grid",
    "Metric",
    "Randers",
    "Riemannian",
    "Shifted",
    "Support",
    "TangentBall",
    "check_finite",
    "deform_conv2d",
    "metric_conv",
    "metrics",
    "ops",
    "stencils",
    "support_conv",
    "supports",
]
