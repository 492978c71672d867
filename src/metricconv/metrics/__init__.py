"""What a metric is: value objects over a field of pixels, in any dimension."""

from .base import Metric
from .eikonal import geodesic_distance
from .fit import RandersFit, fit_randers
from .flow import check_positive, exp_map, geodesics, smoothed
from .from_image import edge_metric, gradient_metric, structure_metric
from .parametrizations import PARAMETRIZATIONS, Cholesky, Parametrization, Spectral6, Spectral7
from .randers import Randers
from .riemannian import Riemannian

__all__ = [
    "Metric",
    "Randers",
    "Riemannian",
    "Parametrization",
    "Cholesky",
    "Spectral6",
    "Spectral7",
    "PARAMETRIZATIONS",
    "gradient_metric",
    "edge_metric",
    "structure_metric",
    "geodesics",
    "exp_map",
    "geodesic_distance",
    "smoothed",
    "check_positive",
    "RandersFit",
    "fit_randers",
]
