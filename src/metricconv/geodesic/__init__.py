"""Distances, nearest sources and shortest paths of a metric on an image."""

from .distance import NearestSources, distance_map, geodesic_ball, nearest_sources
from .paths import path_length, shortest_path, shortest_paths
from .surfaces import surface_metric, tube_metric

__all__ = [
    "NearestSources",
    "distance_map",
    "geodesic_ball",
    "nearest_sources",
    "path_length",
    "shortest_path",
    "shortest_paths",
    "surface_metric",
    "tube_metric",
]
