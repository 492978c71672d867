"""The operator of Theorem 1, which sums an image over the support of each pixel, and the backends that compute it."""

from ._warmup import warmup
from .flops import fvcore_handles
from .functional import (
    check_finite,
    deform_conv2d,
    metric_conv,
    metric_conv1d,
    metric_conv2d,
    metric_conv3d,
    support_conv,
)
from .fused import parametrize
from .report import BackendReport, BackendState, backend_report

__all__ = [
    "BackendReport",
    "BackendState",
    "backend_report",
    "check_finite",
    "deform_conv2d",
    "fvcore_handles",
    "metric_conv",
    "metric_conv1d",
    "metric_conv2d",
    "metric_conv3d",
    "parametrize",
    "support_conv",
    "warmup",
]
