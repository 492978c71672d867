"""A valid call of every public callable, as keyword arguments created for each call."""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

import metricconv as mc

PUBLIC_MODULES = (
    *("metricconv", "metricconv.conversion", "metricconv.filters", "metricconv.geodesic", "metricconv.large"),
    "metricconv.metrics",
    *("metricconv.metrics.parametrizations", "metricconv.nn", "metricconv.ops", "metricconv.stencils"),
    *("metricconv.supports", "metricconv.viz"),
)
# Classes that users do not construct, abstract ones and values that functions return; and what needs a GPU.
NOT_CALLED = {
    *("capture", "geodesic_distance", "warmup"),  # needs a GPU; deprecated; see tests/ops/test_warmup.py
    *("AdaptiveConv", "CompositeMetric", "EllipsoidParametrization", "Metric", "MetricConv", "Parametrization"),
    *("Spectral", "Support"),
    *("BackendReport", "BackendState", "Ball", "Conversion", "MetricFit", "NearestSources", "RandersFit", "Rays"),
}


def public_callables() -> dict[str, Callable[..., Any]]:
    """Return the callables in ``__all__`` of all public modules, by the name of their module and their own."""
    found: dict[int, tuple[str, Callable[..., Any]]] = {}
    for module in map(importlib.import_module, PUBLIC_MODULES):
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and name not in NOT_CALLED:
                found[id(value)] = (f"{module.__name__.removeprefix('metricconv.')}.{name}", value)
    return dict(found.values())


def image(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def metric(dim: int = 2) -> mc.Randers:
    return mc.Randers.isotropic(1.5, dim).expand_to((6,) * dim)


def network() -> nn.Module:
    return nn.Sequential(mc.nn.MetricConv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 3))


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3))


def field(*components: int, dim: int = 2) -> torch.Tensor:
    return torch.zeros(1, 1, *components, *(6,) * dim)


def _convolution(dim: int = 2) -> dict[str, Any]:
    return {
        "input": image(1, 2, *(6,) * dim),
        "metric": metric(dim),
        "weight": image(3, 2, *(3,) * dim),
        "bias": image(3),
        "padding": 1,
        "stride": 1,
        "dilation": 1,
        "modulation": torch.ones(1, 1, 3**dim, *(6,) * dim),
        "stencil": mc.stencils.square_onion(3, dim),
        "ball": "geodesic" if dim == 2 else "tangent",
        "padding_mode": "zeros",
        "backend": "reference",
    }


def _dask() -> Any:
    return importlib.import_module("dask.array").from_array(image(12, 12).numpy(), chunks=6)


_LAYER = {"in_channels": 2, "out_channels": 2, "kernel_size": 3}
_MODEL = {"model": network}

# Values that are functions of no arguments are called.
_EXAMPLES: dict[str, dict[str, Any] | Callable[[], dict[str, Any]]] = {
    "backend_report": {},
    "check_finite": {},
    "fvcore_handles": {},
    "support_conv": lambda: {
        **{"input": image(1, 2, 6, 6), "support": mc.Grid(3), "weight": image(2, 1, 3, 3), "bias": image(2)},
        **{"padding": 1, "groups": 2, "modulation": torch.ones(1, 1, 9, 6, 6)},
    },
    "metric_conv": _convolution,
    "metric_conv1d": partial(_convolution, 1),
    "metric_conv2d": _convolution,
    "metric_conv3d": partial(_convolution, 3),
    "deform_conv2d": lambda: {
        **{"input": image(1, 2, 6, 6), "offset": torch.zeros(1, 18, 6, 6), "weight": image(2, 2, 3, 3)},
        **{"bias": image(2), "padding": 1, "mask": torch.ones(1, 9, 6, 6)},
    },
    "parametrize": lambda: {
        **{"parametrization": mc.metrics.Cholesky(), "raw": image(1, 1, 5, 6, 6), "start": torch.zeros(5)},
        **{"gain": torch.ones(1), "radius": 2.0},
    },
    "Deformable": lambda: {"displacement": field(9, 2), "kernel_size": 3},
    "Dilated": lambda: {"scale": field(1), "kernel_size": 3},
    "Shifted": lambda: {"shift": field(2), "kernel_size": 3},
    "Grid": {"kernel_size": 3},
    "TangentBall": lambda: {"metric": metric(), "stencil": mc.stencils.polar(3)},
    "GeodesicBall": lambda: {"metric": metric(), "stencil": mc.stencils.polar(3)},
    "from_torchvision_offsets": lambda: {"offset": torch.zeros(1, 18, 6, 6), "kernel_size": 3},
    "to_torchvision_offsets": lambda: {"support": mc.Shifted(field(2), 3)},
    "Stencil": lambda: {"directions": torch.eye(2), "radii": torch.ones(2), "kernel_size": (2, 1)},
    "onion": {"kernel_size": 3},
    "polar": {"kernel_size": 3},
    "square_onion": {"kernel_size": 3},
    "stencil_factory": {"stencil": "polar", "samples": 3},
    "Randers": lambda: {"M": metric().M, "omega": metric().omega},
    "Riemannian": lambda: {"M": metric().M},
    "AsymmetricQuadratic": lambda: {"M": metric().M, "w": metric().omega},
    "OrthantNorm": lambda: {"frame": torch.eye(2).view(1, 1, 4, 1, 1), "extents": field(4) + 1, "inverse_p": field(1)},
    "HalfSpaceGauge": lambda: {"extents": field(8) + 1, "inverse_p": field(1)},
    "half_space_normals": {"count": 8},
    "SoftIntersection": lambda: {"first": metric(), "second": metric()},
    "NumericalDual": lambda: {"metric": metric()},
    "Asymmetric": {},
    "Orthant": {},
    "HalfSpace": {},
    "Cholesky": {},
    "Spectral6": {},
    "Spectral7": {},
    "gradient_metric": lambda: {"image": image(1, 1, 6, 6), "scale": 1.0},
    "edge_metric": lambda: {"image": image(1, 1, 6, 6)},
    "structure_metric": lambda: {"image": image(1, 1, 6, 6)},
    "one_sided_metric": lambda: {"image": image(1, 1, 6, 6)},
    "image_metric": {"metric": "edge"},
    "geodesics": lambda: {"metric": metric(), "points": [[2.0, 2.0]], "directions": [[0.0, 1.0]], "steps": 4},
    "exp_map": lambda: {"metric": metric(), "points": [[2.0, 2.0]], "vectors": [[0.0, 1.0]], "steps": 4},
    "distance_map": lambda: {
        **{"metric": metric(), "sources": [[2.0, 2.0]], "initial": [0.0], "mask": torch.ones(6, 6, dtype=torch.bool)},
        **{"stop_at": [[4.0, 4.0]], "max_distance": 3.0},
    },
    "nearest_sources": lambda: {"metric": metric(), "sources": [[2.0, 2.0], [4.0, 1.0]], "k": 2},
    "geodesic_ball": lambda: {"metric": metric(), "center": [2.0, 2.0], "radius": 1.0},
    "shortest_path": lambda: {"metric": metric(), "start": [2.0, 2.0], "end": [4.0, 1.0]},
    "shortest_paths": lambda: {"metric": metric(), "start": [2.0, 2.0], "ends": [[4.0, 1.0]]},
    "path_length": lambda: {"metric": metric(), "path": [[2.0, 2.0], [4.0, 1.0]]},
    "surface_metric": lambda: {"image": image(1, 1, 6, 6)},
    "tube_metric": lambda: {"image": image(1, 1, 6, 6)},
    "segment": lambda: {"image": image(6, 6), "scribbles": np.eye(6, dtype=np.int64)},
    "superpixels": lambda: {"image": image(6, 6), "n_segments": 4},
    "interpolate": lambda: {"samples": torch.eye(6).log().where(torch.eye(6) > 0, torch.nan), "guide": image(6, 6)},
    "smoothed": lambda: {"metric": metric()},
    "check_positive": lambda: {"metric": metric()},
    "fit_randers": lambda: {"offsets": image(1, 1, 9, 2, 4, 4), "levels": [1.0] * 9, "refinements": 1},
    "fit_metric": lambda: {"offsets": image(1, 1, 9, 2, 2, 2), "levels": [1.0] * 9, "family": "half_space"},
    **dict.fromkeys(("DeformableConv2d", "DilatedConv2d", "ShiftedConv2d"), _LAYER),
    **dict.fromkeys(("MetricConv1d", "MetricConv2d", "MetricConv3d"), _LAYER),
    "adaptive_layers": _MODEL,
    "geometry_l1": _MODEL,
    "record_supports": _MODEL,
    "reset_geometry": _MODEL,
    "set_geometry_gain": {"model": network, "gain": 0.5},
    "param_groups": {"model": network, "lr": 0.1},
    "convert": {"model": convolutions, "padding_mode": "zeros", "metric_groups": 1},
    "plan_conversion": {"model": convolutions},
    "register_conversion": {"kind": "no.such.Class", "rule": lambda: print},
    "to_conv": _MODEL,
    **{f"filters.{name}": lambda: {"image": image(9, 9)} for name in ("box_filter", "dilated_filter")},
    "filters.interpolated_filter": lambda: {"image": image(9, 9)},
    "filters.random_deformable_filter": lambda: {"image": image(9, 9)},
    "filters.anisotropic_diffusion": lambda: {"image": image(9, 9)},
    "filters.tangent_filter": lambda: {"image": image(9, 9), "samples": 3},
    "filters.geodesic_filter": lambda: {"image": image(9, 9), "samples": 3},
    "AnisotropicDiffusion": {},
    "filters.regression_filter": lambda: {"image": image(9, 9), "samples": 4},
    "filters.regression_gradient": lambda: {"image": image(9, 9), "samples": 4},
    "filters.denoise": lambda: {"image": image(9, 9), "sigma": 0.1},
    "filters.estimate_noise": lambda: {"image": image(20, 20)},
    "large.denoise": {"image": _dask, "sigma": 0.1},
    **{f"{name}Filter": {} for name in ("Box", "Dilated", "Interpolated", "RandomDeformable", "Tangent", "Geodesic")},
    **{f"large.{name}_filter": {"image": _dask} for name in ("box", "dilated", "interpolated")},
    **{f"large.{name}_filter": {"image": _dask, "samples": 3} for name in ("tangent", "geodesic")},
    "GradCAM": {"model": convolutions, "layer": "0"},
    "example_supports": lambda: {"image": np.eye(9), "kernel_size": 3},
    "plot_gradcam": lambda: {"images": image(1, 1, 6, 6), "methods": {"net": (network(), "0")}},
    "plot_metric_field": lambda: {"metric": metric(), "image": np.eye(6), "count": 2},
    "plot_receptive_field": lambda: {"model": convolutions(), "image": image(1, 1, 6, 6), "point": (1, 1)},
    "plot_supports": lambda: {"image": np.eye(6), "point": (2, 2), "supports": {"grid": mc.Grid(3)}},
    "plot_unit_balls": lambda: {"source": metric(), "image": np.eye(6), "points": 1},
    "receptive_field": lambda: {"model": convolutions(), "image": image(1, 1, 6, 6), "point": (1, 1)},
    "unit_balls": lambda: {"source": metric(), "points": 1},
}

# Calls of methods, with the arguments after ``self``.
METHODS: dict[str, tuple[Callable[..., Any], Callable[[], dict[str, Any]]]] = {
    "MetricConv2d.forward": (mc.nn.MetricConv2d(2, 2, 3, padding=1).forward, lambda: {"x": image(1, 2, 6, 6)}),
    "GeodesicConv2d.forward": (
        mc.nn.MetricConv2d(2, 2, 3, padding=1, ball="geodesic", padding_mode="reflect").forward,
        lambda: {"x": image(1, 2, 6, 6)},
    ),
    "DeformableConv2d.forward": (
        mc.nn.DeformableConv2d(2, 2, 3, padding=1, padding_mode="circular").forward,
        lambda: {"x": image(1, 2, 6, 6)},
    ),
    "AnisotropicDiffusion.forward": (
        mc.filters.AnisotropicDiffusion(0.1).forward,
        lambda: {"images": image(1, 2, 6, 6)},
    ),
    "BoxFilter.forward": (mc.filters.BoxFilter(3).forward, lambda: {"images": image(1, 2, 6, 6)}),
    "Cholesky.__call__": (mc.metrics.Cholesky().__call__, lambda: {"raw": image(1, 1, 5, 6, 6)}),
    "Riemannian.isotropic": (mc.Riemannian.isotropic, lambda: {"radius": 2.0}),
    "Riemannian.needle": (
        mc.Riemannian.needle,
        lambda: {"direction": torch.ones(1, 1, 2, 6, 6), "length": 2.0, "width": 1.0},
    ),
    "AsymmetricQuadratic.half_disc": (
        mc.AsymmetricQuadratic.half_disc,
        lambda: {"direction": torch.ones(1, 1, 2, 6, 6), "radius": 2.0, "back": 1.0},
    ),
    "OrthantNorm.box": (mc.OrthantNorm.box, lambda: {"forward": [2.0, 1.0]}),
    "HalfSpaceGauge.wedge": (
        mc.HalfSpaceGauge.wedge,
        lambda: {"direction": [0.0, 1.0], "length": 3.0, "width": 2.0},
    ),
    "HalfSpaceGauge.from_points": (mc.HalfSpaceGauge.from_points, lambda: {"points": image(1, 1, 5, 2, 6, 6)}),
    "Randers.from_zermelo": (
        mc.Randers.from_zermelo,
        lambda: {"ellipsoid": mc.Riemannian.isotropic(2.0), "wind": torch.zeros(1, 1, 2, 6, 6)},
    ),
    "Metric.norm": (metric().norm, lambda: {"u": torch.ones(1, 1, 2, 6, 6)}),
    "Metric.at": (metric().at, lambda: {"position": image(1, 2, 4, 4)}),
    "Metric.expand_to": (metric().expand_to, lambda: {"size": (6, 6)}),
    "Metric.scaled": (metric().scaled, lambda: {"radius": 2.0}),
    "Metric.unit_vectors": (metric().unit_vectors, lambda: {"directions": torch.eye(2)}),
}


def example(name: str) -> dict[str, Any]:
    """Return the keyword arguments of a valid call of a callable of ``public_callables``; KeyError without one."""
    found = _EXAMPLES[name] if name in _EXAMPLES else _EXAMPLES[name.rpartition(".")[2]]
    found = found() if callable(found) else found
    makers = (network, convolutions, _dask)
    return {key: value() if callable(value) and value in makers else value for key, value in found.items()}
