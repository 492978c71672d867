"""What a metric is: value objects over a field of pixels, in any dimension."""

from .base import Metric
from .randers import Randers
from .riemannian import Riemannian

__all__ = ["Metric", "Randers", "Riemannian"]
