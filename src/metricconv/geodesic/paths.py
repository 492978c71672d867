"""Shortest paths of a metric on an image, and their lengths."""

import torch
from torch import Tensor

from .. import _checks
from .._checks import Vectors
from ..metrics import Metric
from ..ops import cpu
from . import _problem, distance

__all__ = ["path_length", "shortest_path", "shortest_paths"]


def shortest_path(
    metric: Metric,
    start: Vectors,
    end: Vectors,
    *,
    mask: "Vectors | None" = None,
    order: int = 2,
    step: float = 0.5,
) -> Tensor:
    """Return the shortest path from one point to another, with positions between pixels.

    The distance map of the start is followed back from the end. In a Randers metric the path from end to start differs
    in general.

    Args:
        metric: ``Riemannian`` or ``Randers`` metric of one image and group, (1, 1, n, *spatial), 2-D or 3-D.
        start, end: points in pixels, not necessarily on the grid, (d,).
        mask, order: as in ``distance_map``.
        step: distance of consecutive points in pixels, positive (default 0.5).

    Returns:
        Points in pixels from ``start`` to ``end``, (n, d).

    >>> import metricconv as mc
    >>> flat = mc.Riemannian.isotropic(1.0).expand_to((5, 9))
    >>> path = shortest_path(flat, [2.0, 0.0], [2.0, 8.0])
    >>> path[0], path[-1], path_length(flat, path)
    (tensor([2., 0.]), tensor([2., 8.]), tensor(8.))
    """
    return _paths(metric, start, _one(end, "end"), mask, order, step, "end")[0]


def shortest_paths(
    metric: Metric,
    start: Vectors,
    ends: Vectors,
    *,
    mask: "Vectors | None" = None,
    order: int = 2,
    step: float = 0.5,
) -> list[Tensor]:
    """Return the shortest paths from one point to each of several points, from one distance map.

    Args:
        metric, start, mask, order, step: as in ``shortest_path``.
        ends: points in pixels, (M, d).

    Returns:
        M paths, each (n, d). Paths merge towards the start: together they form a tree.
    """
    return _paths(metric, start, _checks.vectors(ends, "ends"), mask, order, step, "ends")


def path_length(metric: Metric, path: Vectors) -> Tensor:
    """Return the length of a polyline in a metric, a scalar, from its first to its last point.

    The metric is taken at the middle of each segment.

    Args:
        metric: ``Riemannian`` or ``Randers`` metric of one image and group, (1, 1, n, *spatial).
        path: (n, d), n at least 1, in pixels.
    """
    metric = _single(_problem.check_metric(metric))
    points = _problem.check_points(metric, path, "path")
    if len(points) == 1:
        return points.new_zeros(())
    trailing = (1,) * (metric.dim - 1)
    middle, edges = 0.5 * (points[1:] + points[:-1]), points[1:] - points[:-1]
    fields = metric.at(middle.T.reshape(1, metric.dim, -1, *trailing))
    return fields.norm(edges.T.reshape(1, 1, metric.dim, -1, *trailing)).sum()


def _one(point: Vectors, name: str) -> Tensor:
    """Check one point, (d,) or (1, d), and return it as (1, d)."""
    checked = _checks.vectors(point, name)
    checked = checked.unsqueeze(0) if checked.dim() == 1 else checked
    if checked.dim() != 2 or len(checked) != 1:
        raise ValueError(f"`{name}` must be one point (d,), got shape {tuple(checked.shape)}")
    return checked


def _single(metric: Metric) -> Metric:
    """Check that a metric has one image and one group."""
    if metric.batch * metric.groups != 1:
        raise ValueError(f"`metric` must have one image and group, got {metric.batch} and {metric.groups}")
    return metric


@torch.no_grad()
def _paths(
    metric: Metric,
    start: Vectors,
    ends: Tensor,
    mask: "Vectors | None",
    order: int,
    step: float,
    name: str,
) -> list[Tensor]:
    """Return the paths from a start to several ends; ``name`` is that of the argument."""
    device = getattr(metric, "device", None)
    metric = _single(_problem.check_metric(metric).detach())
    step = _checks.positive(step, "step")
    first = _problem.check_points(metric, _one(start, "start"), "start")
    ends = _problem.check_points(metric, ends, name)
    domain = _problem.check_mask(metric, mask)
    _problem.check_domain(domain, first, "start")
    _problem.check_domain(domain, ends, name)
    reason = cpu.missing_dependency()
    if reason is not None:
        raise NotImplementedError(f"paths require the compiled solver: {reason}")
    sources = _problem.Sources.of(metric, first, None)
    solution = distance.solve(metric, sources, domain, targets=ends, order=order, keeps_stencils=True)
    import numpy as np

    from . import _tracing

    (field,) = solution.fields
    shape = tuple(metric.spatial)
    pitches = _problem.pitches(metric.spatial)
    room = np.empty((int(20 * metric.spatial.numel() / min(step, 1.0)) + 100, metric.dim))
    paths = []
    for end in ends:
        count = _tracing.trace(
            field.metric, field.drift, shape, pitches, field.offsets, field.weights, field.drifts, field.distance,
            field.choice, first[0].double().numpy(), end.double().numpy(), step, room,
        )  # fmt: skip
        if not count:
            raise ValueError(f"`{name}` cannot be reached from `start`: no path within `mask` leads to {end.tolist()}")
        paths.append(torch.from_numpy(room[:count][::-1].copy()).to(metric.dtype).to(device))
    return paths
