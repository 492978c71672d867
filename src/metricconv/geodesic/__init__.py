"""Distances, shortest paths and regions of a metric on an image, and interpolation along its structure."""

from .distance import NearestSources, distance_map, geodesic_ball, nearest_sources
from .interpolation import interpolate
from .paths import path_length, shortest_path, shortest_paths
from .regions import superpixels
from .segmentation import segment
from .surfaces import surface_metric, tube_metric

__all__ = [
    "NearestSources",
    "distance_map",
    "geodesic_ball",
    "interpolate",
    "nearest_sources",
    "path_length",
    "segment",
    "shortest_path",
    "shortest_paths",
    "superpixels",
    "surface_metric",
    "tube_metric",
]
