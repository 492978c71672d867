"""Metrics: fields of norms over the pixels of an image, in any dimension, as values."""

from ._geodesics import exp_map, geodesics
from .asymmetric import AsymmetricQuadratic
from .base import Metric, check_positive
from .composite import CompositeMetric, SoftIntersection
from .eikonal import geodesic_distance
from .fit import RandersFit, fit_randers
from .fit_shapes import MetricFit, fit_metric
from .flow import smoothed
from .from_image import IMAGE_METRICS, edge_metric, gradient_metric, image_metric, structure_metric
from .half_space import HalfSpaceGauge, half_space_normals
from .numerical_dual import NumericalDual
from .one_sided import one_sided_metric
from .orthant import OrthantNorm
from .parametrizations import (
    PARAMETRIZATIONS,
    Asymmetric,
    Cholesky,
    EllipsoidParametrization,
    HalfSpace,
    Orthant,
    Parametrization,
    Spectral6,
    Spectral7,
)
from .randers import Randers
from .riemannian import Riemannian

__all__ = [
    "Metric",
    "Randers",
    "Riemannian",
    "AsymmetricQuadratic",
    "OrthantNorm",
    "HalfSpaceGauge",
    "half_space_normals",
    "SoftIntersection",
    "CompositeMetric",
    "NumericalDual",
    "Parametrization",
    "EllipsoidParametrization",
    "Cholesky",
    "Spectral6",
    "Spectral7",
    "Asymmetric",
    "Orthant",
    "HalfSpace",
    "PARAMETRIZATIONS",
    "gradient_metric",
    "edge_metric",
    "structure_metric",
    "one_sided_metric",
    "IMAGE_METRICS",
    "image_metric",
    "geodesics",
    "exp_map",
    "geodesic_distance",
    "smoothed",
    "check_positive",
    "RandersFit",
    "fit_randers",
    "MetricFit",
    "fit_metric",
]
