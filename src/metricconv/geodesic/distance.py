"""Distance maps, nearest sources and geodesic balls of a metric on an image."""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .. import _checks
from .._checks import Vectors
from ..metrics import Metric, Randers
from ..ops import cpu
from . import _problem, _without_numba
from ._problem import Sources

if TYPE_CHECKING:
    from ._solver import FieldSolution, Settings

__all__ = ["NearestSources", "distance_map", "geodesic_ball", "nearest_sources"]


class NearestSources(NamedTuple):
    """The nearest sources of each pixel and their distances, in increasing order.

    Attributes:
        distance: (B, G, k, *spatial); ∞ where fewer than k sources are reached.
        label: (B, G, k, *spatial), int64, index of the source; −1 where fewer are reached.
    """

    distance: Tensor
    label: Tensor


def distance_map(
    metric: Metric,
    sources: Vectors,
    *,
    initial: "Vectors | float | None" = None,
    mask: "Vectors | None" = None,
    stop_at: "Vectors | None" = None,
    max_distance: float | None = None,
    order: int = 2,
    tolerance: float = 1e-2,
) -> Tensor:
    """Return the geodesic distance of each pixel from the nearest source, along paths from the sources.

    The distance u solves the eikonal equation ‖∇u − ω‖_{M⁻¹} = 1 (ω = 0 for a Riemannian metric), by fast marching.
    For the distances *to* points in a Randers metric, pass the metric with −ω.

    Args:
        metric: ``Riemannian`` or ``Randers`` metric, 2-D or 3-D, (B, G, n, *spatial), positive everywhere.
        sources: points in pixels, (y, x) in 2-D, not necessarily on the grid: a tensor, array or nested list (N, d).
        initial: distances at the sources, a number, (N,) or (B, G, N) (default 0).
        mask: bool, (*spatial) or (B, G, *spatial); paths stay where it is True (default everywhere).
        stop_at: points (M, d) after which to stop: pixels farther away than all of them may be left at ∞.
        max_distance: stop at this distance; pixels farther away are ∞.
        order: order of the differences, 1 or 2 (default). Order 1 is less accurate, and monotone in the metric.
        tolerance: of a Randers metric, at least 0 (default 0.01): distances are improved until they change by less than
            this fraction of the distance between neighbors.

    Returns:
        (B, G, *spatial) on the device of the metric, ∞ where no path leads. Differentiable once by the metric, the
        sources and ``initial``; for a Randers metric with ``order=1`` only.

    >>> import metricconv as mc
    >>> flat = mc.Riemannian.isotropic(2.0).expand_to((5, 5))  # length 1 is 2 px
    >>> distance_map(flat, [[2.0, 0.0]])[0, 0, 2]
    tensor([0.0000, 0.5000, 1.0000, 1.5000, 2.0000])
    """
    device = getattr(metric, "device", None)
    metric = _problem.check_metric(metric)
    given = Sources.of(metric, sources, initial)
    domain = _problem.check_mask(metric, mask)
    _problem.check_domain(domain, given.points, "sources")
    targets = None if stop_at is None else _problem.check_points(metric, stop_at, "stop_at")
    solution = solve(
        metric, given, domain, targets=targets, max_distance=max_distance, order=order, tolerance=tolerance
    )
    return solution.distance.to(device)


def nearest_sources(
    metric: Metric,
    sources: Vectors,
    k: int = 1,
    *,
    initial: "Vectors | float | None" = None,
    mask: "Vectors | None" = None,
    max_distance: float | None = None,
    order: int = 2,
    tolerance: float = 1e-2,
) -> NearestSources:
    """Return the k nearest sources of each pixel and their distances.

    ``label[:, :, 0]`` divides the image into geodesic Voronoi cells.

    Args:
        metric, sources, initial, mask, max_distance, order, tolerance: as in ``distance_map``.
        k: number of sources per pixel, at least 1 (default). Time and memory grow with it. Distances are
            differentiable for k = 1 only, and of order 1 otherwise.

    >>> import metricconv as mc
    >>> flat = mc.Riemannian.isotropic(1.0).expand_to((1, 6))
    >>> nearest = nearest_sources(flat, [[0.0, 0.0], [0.0, 5.0]])
    >>> nearest.label[0, 0, 0]
    tensor([[0, 0, 0, 1, 1, 1]])
    """
    device = getattr(metric, "device", None)
    metric = _problem.check_metric(metric)
    k = _checks.whole(k, "k", minimum=1)
    given = Sources.of(metric, sources, initial)
    domain = _problem.check_mask(metric, mask)
    _problem.check_domain(domain, given.points, "sources")
    options: Any = {"max_distance": max_distance, "order": order, "tolerance": tolerance, "wants_labels": True}
    if k > 1:
        found, labels = solve_nearest(metric.detach(), given, domain, k, **options)
        return NearestSources(found.to(device), labels.to(device))
    solution = solve(metric, given, domain, **options)
    return NearestSources(solution.distance.unsqueeze(2).to(device), solution.label.unsqueeze(2).to(device))


def geodesic_ball(
    metric: Metric, center: Vectors, radius: float, *, mask: "Vectors | None" = None, order: int = 2
) -> Tensor:
    """Return the pixels within a geodesic distance of a point: bool (B, G, *spatial).

    Args:
        metric, mask, order: as in ``distance_map``.
        center: point in pixels, (d,) or (1, d); with several points (N, d), the union of their balls.
        radius: at least 0; the unit geodesic ball has radius 1.

    >>> import metricconv as mc
    >>> geodesic_ball(mc.Riemannian.isotropic(1.0).expand_to((3, 5)), [1.0, 2.0], 1.0)[0, 0].int()
    tensor([[0, 0, 1, 0, 0],
            [0, 1, 1, 1, 0],
            [0, 0, 1, 0, 0]], dtype=torch.int32)
    """
    radius = _checks.not_negative(radius, "radius")
    points = _checks.vectors(center, "center")
    points = points.unsqueeze(0) if points.dim() == 1 else points
    _problem.check_points(_problem.check_metric(metric), points, "center")
    with torch.no_grad():
        # Rounding errors of the distance must not exclude pixels at exactly this radius.
        return distance_map(metric, points, mask=mask, max_distance=radius * (1 + 1e-5), order=order).isfinite()


class Solution(NamedTuple):
    """Distances (B, G, *spatial), labels (B, G, *spatial) if they are wanted, and the solver's arrays per field."""

    distance: Tensor
    label: Tensor
    fields: "list[FieldSolution]"


def solve(
    metric: Metric,
    sources: Sources,
    domain: Tensor | None,
    *,
    targets: Tensor | None = None,
    max_distance: float | None = None,
    order: int = 2,
    tolerance: float = 1e-2,
    wants_labels: bool = False,
    keeps_stencils: bool = False,
) -> Solution:
    """Solve the eikonal equation for checked arguments."""
    reason = cpu.missing_dependency()
    if reason is not None:
        return Solution(*_without_numba.solve(metric, sources, domain, max_distance, reason, wants_labels), [])
    values, settings = _settings(
        metric, sources, domain, targets, max_distance, order, tolerance, wants_labels, keeps_stencils
    )
    from . import _solver

    tracked = (*metric.tensors().values(), values)
    if order == 2 and isinstance(metric, Randers) and torch.is_grad_enabled() and any(t.requires_grad for t in tracked):
        # Second differences of pixels that depend on each other amplify gradients without bound.
        raise ValueError(f"`order` (={order}) must be 1 for gradients of a Randers metric; or use torch.no_grad()")
    distance, fields = _solver.solve(metric, values, settings)
    if fields is None:
        _problem.not_positive(metric)
    size = (metric.batch, metric.groups, *metric.spatial)
    distance = torch.where(distance <= settings.limit, distance, math.inf).view(size)
    label = torch.zeros(0)
    if wants_labels:
        label = torch.stack([torch.from_numpy(field.label) for field in fields]).long().view(size)
        label = torch.where(distance.isfinite(), label, -1)
    return Solution(distance, label, fields)


@torch.no_grad()
def solve_nearest(
    metric: Metric,
    sources: Sources,
    domain: Tensor | None,
    k: int,
    *,
    max_distance: float | None,
    order: int,
    tolerance: float,
    wants_labels: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return distances and labels (B, G, k, *spatial) of the k nearest sources."""
    reason = cpu.missing_dependency()
    if reason is not None:
        raise NotImplementedError(f"`k` above 1 requires the compiled solver: {reason}")
    values, settings = _settings(metric, sources, domain, None, max_distance, order, tolerance, wants_labels, False)
    from . import _solver

    found = _solver.solve_nearest(metric, values, settings, k)
    if found is None:
        _problem.not_positive(metric)
    distance, label = (t.movedim(2, 1).reshape(metric.batch, metric.groups, k, *metric.spatial) for t in found)
    reached = distance <= settings.limit
    return torch.where(reached, distance, math.inf), torch.where(reached & distance.isfinite(), label, -1)


def _settings(
    metric: Metric,
    sources: Sources,
    domain: Tensor | None,
    targets: Tensor | None,
    max_distance: float | None,
    order: int,
    tolerance: float,
    wants_labels: bool,
    keeps_stencils: bool,
) -> "tuple[Tensor, Settings]":
    """Return the distances of the seeds (F, S) and the settings of the solver."""
    limit = math.inf if max_distance is None else _checks.not_negative(max_distance, "max_distance")
    tolerance = _checks.not_negative(tolerance, "tolerance")
    if _checks.whole(order, "order", minimum=1) > 2:
        raise ValueError(f"`order` (={order}) must be 1 or 2")
    import numpy as np

    from . import _solver

    spatial = tuple(metric.spatial)
    pixels, values, labels = _problem.seeds(metric, sources, domain)
    return values, _solver.Settings(
        spatial=spatial,
        seeds=pixels.numpy(),
        labels=labels.numpy().astype(np.int32),
        domain=None if domain is None else np.ascontiguousarray(domain.flatten(1).numpy()),
        targets=(pixels[:0] if targets is None else _problem.nearest_pixels(targets, spatial).flatten()).numpy(),
        limit=limit,
        order=int(order),
        tolerance=tolerance,
        wants_labels=wants_labels,
        keeps_stencils=keeps_stencils,
    )
