"""Checked arguments of the solver, and distances near the sources."""

import dataclasses
import functools
import itertools
import math
import warnings
from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from .. import _checks
from .._checks import Vectors
from ..metrics import Metric, check_positive
from ..metrics.flow import check_geodesics_supported

# Nodes around each source whose distance is that along a straight line: up to so many pixels away along each axis.
_SEED_RADIUS = {2: 4, 3: 2}
_MOST_SEEDS = 2**20


@dataclasses.dataclass(frozen=True)
class Sources:
    """Points with initial distances.

    Args:
        points: (N, d), in pixels.
        initial: (F, N), for F = B·G fields.
    """

    points: Tensor
    initial: Tensor

    @classmethod
    def of(cls, metric: Metric, points: Vectors, initial: "Vectors | float | None", name: str = "sources") -> "Sources":
        """Check points and their initial distances: a number, (N,) or (B, G, N)."""
        checked = check_points(metric, points, name)
        fields = metric.batch * metric.groups
        if initial is None:
            return cls(checked, torch.zeros(fields, len(checked), dtype=metric.dtype))
        values = _checks.vectors(initial, "initial", metric.dtype).to("cpu", metric.dtype)
        shapes = [(), (len(checked),), (metric.batch, metric.groups, len(checked))]
        if tuple(values.shape) not in shapes:
            raise ValueError(
                f"`initial` must be a number, (N,) or (B, G, N), one of {shapes}, got {tuple(values.shape)}"
            )
        _checks.finite(values, "initial")
        return cls(checked, values.expand(metric.batch, metric.groups, len(checked)).flatten(0, 1))


def check_metric(metric: Metric) -> Metric:
    """Check that the solver supports a metric, and return it on the CPU."""
    _checks.instance_of(metric, Metric, "metric")
    check_geodesics_supported(metric)
    if metric.dim not in (2, 3):
        raise ValueError(f"`metric` must have 2 or 3 spatial axes, got {metric.dim}")
    if 0 in (metric.batch, metric.groups):
        raise ValueError(f"`metric` must not be empty, got batch {metric.batch} and {metric.groups} groups")
    for tensor in metric.tensors().values():
        _checks.with_values(tensor, "metric")
    if metric.device.type != "cpu":
        _say_where(str(metric.device))
    return metric.to("cpu")


@functools.cache
def _say_where(device: str) -> None:
    """Warn, once per device, that distances are computed on the CPU."""
    warnings.warn(f"distances are computed on the CPU: `metric`, on {device}, is copied", RuntimeWarning, stacklevel=4)


def check_points(metric: Metric, points: Vectors, name: str) -> Tensor:
    """Check points (N, d) within the image, and return them in the dtype of the metric."""
    checked = _checks.vectors(points, name)
    if checked.dim() != 2 or checked.shape[1] != metric.dim or not len(checked):
        raise ValueError(f"`{name}` must be (N, {metric.dim}), N at least 1, got shape {tuple(checked.shape)}")
    checked = checked.to("cpu", metric.dtype)
    inside = ((checked >= 0) & (checked <= checked.new_tensor(metric.spatial) - 1)).all(1)
    if not bool(inside.all()):
        outside = checked[~inside][0].tolist()
        raise ValueError(f"`{name}` must lie within the image, of size {tuple(metric.spatial)}, got {outside}")
    return checked


def check_mask(metric: Metric, mask: "Vectors | None") -> Tensor | None:
    """Check a mask (*spatial) or (B, G, *spatial), and return it as (F, *spatial)."""
    if mask is None:
        return None
    try:
        domain = torch.as_tensor(mask, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise TypeError(f"`mask` must be a tensor or array of bools, got {type(mask).__name__}") from None
    _checks.with_values(_checks.dense(domain, "mask"), "mask")
    if domain.dtype != torch.bool:
        raise TypeError(f"`mask` must hold bools, got dtype {domain.dtype}")
    size = (metric.batch, metric.groups, *metric.spatial)
    spatial = domain.shape[-metric.dim :] if domain.dim() in (metric.dim, metric.dim + 2) else ()
    if tuple(spatial) != tuple(metric.spatial) or any(
        n not in (1, m) for n, m in zip(domain.shape[: -metric.dim], size, strict=False)
    ):
        raise ValueError(f"`mask` must be {size[2:]} or {size}, got shape {tuple(domain.shape)}")
    return domain.expand(size).flatten(0, 1)


def check_domain(domain: Tensor | None, points: Tensor, name: str) -> None:
    """Check that the pixels nearest to points are not masked."""
    if domain is None:
        return
    seen = domain.flatten(1)[:, _index(points.round().long(), domain.shape[1:])]  # [F, N]
    if not bool(seen.all()):
        blocked = points[~seen.all(0)][0].tolist()
        raise ValueError(f"`{name}` must lie where `mask` is True, got {blocked}")


def pitches(spatial: Sequence[int]) -> tuple[int, ...]:
    """Return the distance in memory of neighbors along each axis."""
    return tuple(math.prod(spatial[k + 1 :]) for k in range(len(spatial)))


def nearest_pixels(points: Tensor, spatial: tuple[int, ...]) -> Tensor:
    """Return the indices of the pixels at the corners of the cell around each point: (N, 2^d)."""
    index = torch.zeros(len(points), 1, dtype=torch.long)
    for axis, size in enumerate(spatial):
        ends = torch.stack([points[:, axis].floor(), points[:, axis].ceil()], 1).long().clamp(0, size - 1)
        index = (index.unsqueeze(2) * size + ends.unsqueeze(1)).flatten(1)
    return index


def seeds(metric: Metric, sources: Sources, domain: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return pixels near the sources (S,), their distances (F, S), ∞ behind walls, and their sources (S,).

    The distance is the length of the straight line from the source, by Simpson's rule. It is differentiable.
    """
    dim, points = metric.dim, sources.points
    radius = _SEED_RADIUS[dim]
    while radius > 1 and len(points) * (2 * radius + 1) ** dim > _MOST_SEEDS:
        radius -= 1
    box = torch.tensor(list(itertools.product(range(-radius, radius + 1), repeat=dim)))  # [n, d]
    nodes = points.round().long().unsqueeze(1) + box  # [N, n, d]
    size = torch.tensor(metric.spatial)
    inside = ((nodes >= 0) & (nodes < size)).all(2)  # [N, n]
    nodes = torch.minimum(nodes.clamp_min(0), size - 1)
    pixels = _index(nodes, metric.spatial)
    reached = inside.expand(metric.batch * metric.groups, *inside.shape)
    if domain is not None:
        # A node is visible if no pixel of the box between it and the source is masked.
        between = ((box * box[:, None] >= 0) & (box.abs() <= box[:, None].abs())).all(2)  # [n, n]
        blocked = (~domain.flatten(1)[:, pixels] & inside).to(metric.dtype) @ between.to(metric.dtype).T
        reached = reached & (blocked == 0)
    displacement = _field(nodes - points.unsqueeze(1), dim)  # [1, d, N, n, …]
    origin = _field(points.unsqueeze(1), dim)
    length = sum(
        weight / 6 * metric.at(origin + part * displacement).norm(displacement.unsqueeze(1))
        for part, weight in ((0.0, 1), (0.5, 4), (1.0, 1))
    )
    assert isinstance(length, Tensor)
    distances = length.flatten(0, 1).view(-1, *inside.shape) + sources.initial.unsqueeze(2)
    distances = torch.where(reached, distances, math.inf)
    labels = torch.arange(len(points)).unsqueeze(1).expand(inside.shape)
    used = inside.flatten()
    return pixels.flatten()[used], distances.flatten(1)[:, used], labels.flatten()[used]


def _index(nodes: Tensor, spatial: Sequence[int]) -> Tensor:
    """Return the indices of pixels (…, d) of an image in row-major order."""
    index = torch.zeros(nodes.shape[:-1], dtype=torch.long)
    for axis, size in enumerate(spatial):
        index = index * size + nodes[..., axis]
    return index


def _field(vectors: Tensor, dim: int) -> Tensor:
    """Return vectors (N, n, d) as a field (1, d, N, n, 1, …) with ``dim`` spatial axes."""
    return vectors.movedim(2, 0).unsqueeze(0).reshape(1, dim, *vectors.shape[:2], *(1,) * (dim - 2))


def not_positive(metric: Metric) -> NoReturn:
    """Raise the error that names the first pixel at which a metric is not positive."""
    check_positive(metric)
    raise ValueError("`metric` must be positive: M must be positive definite and finite, ‖ω‖_{M⁻¹} below 1")
