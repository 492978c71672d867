"""The one operator of Theorem 1, and the engines that compute it."""

from .functional import (
    check_finite,
    deform_conv2d,
    metric_conv,
    metric_conv1d,
    metric_conv2d,
    metric_conv3d,
    support_conv,
)
from .report import BackendReport, EngineState, backend_report

__all__ = [
    "BackendReport",
    "EngineState",
    "backend_report",
    "check_finite",
    "deform_conv2d",
    "metric_conv",
    "metric_conv1d",
    "metric_conv2d",
    "metric_conv3d",
    "support_conv",
]
