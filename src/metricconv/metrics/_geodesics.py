"""Geodesics of a metric from given points, and the exponential map."""

import torch
from torch import Tensor

from .. import _checks, _compat
from .._checks import Vectors
from .base import Metric, check_positive
from .flow import Vector
from .hamiltonian import flow_field, norm, shoot


def geodesics(
    metric: Metric,
    points: Vectors,
    directions: Vectors,
    length: float | Tensor = 1.0,
    steps: int = 32,
    *,
    padding_mode: str = "border",
) -> Tensor:
    """Return the geodesics from given points in given directions, sampled at distances n·length/steps.

    Args:
        metric: any metric, (B, G, n, *spatial), positive everywhere. This is checked, and so is that all arguments and
            results are finite, except under ``torch.compile`` and ``torch.func``. Metrics other than ``Riemannian`` and
            ``Randers`` take several times as long, and should be smooth: geodesics turn abruptly at corners of balls.
        points: start points in pixels, (y, x) in 2-D: a tensor, array or nested list (N, d) or (B, G, N, d).
        directions: initial directions, of the same shape, of any length. A geodesic along 0 is constant.
        length: length of the geodesics in the metric: a number, or one per geodesic, (N,) or (B, G, N) (default 1).
        steps: number of integration steps, at least 1 (default 32). The error is proportional to 1/steps²; use at least
            one step per pixel.
        padding_mode: padding mode of the metric, "border" (default) or "circular".

    Returns:
        The points of the curves in pixels, (B, G, N, steps + 1, d), differentiable to any order.

    >>> from metricconv import Riemannian
    >>> flat = Riemannian.isotropic(2.0)  # length 1 is 2 px
    >>> geodesics(flat, torch.tensor([[5.0, 5.0]]), torch.tensor([[0.0, 1.0]]), length=3.0, steps=2)[0, 0, 0]
    tensor([[ 5.,  5.],
            [ 5.,  8.],
            [ 5., 11.]])
    """
    field = flow_field(metric, padding_mode=padding_mode)
    if _values_can_be_read():
        check_positive(metric)
    origin = _components(metric, points, "points")
    direction, size = _rescale(_components(metric, directions, "directions"))
    lengths = _checks.vectors(length, "length", metric.dtype).to(metric.device, metric.dtype)
    if lengths.dim() not in (0, 1, 3):
        raise ValueError(f"`length` must be a number, (N,) or (B, G, N), got shape {tuple(lengths.shape)}")
    lengths = lengths.expand(metric.batch, metric.groups, -1).flatten(0, 1) if lengths.dim() else lengths
    _check_counts(points=origin[0], directions=direction[0], length=lengths)
    if _values_can_be_read():
        _checks.finite(lengths, "length")
    lengths = torch.where(size == 0, 0.0, lengths)
    path = [torch.zeros((), dtype=metric.dtype, device=metric.device).expand(len(origin), 1, 1)]
    path += [torch.stack(segment.at(1.0)) for segment in shoot(field, origin, direction, lengths, steps)]
    displacement = torch.stack(torch.broadcast_tensors(*path), -1)  # [d, B·G, N, steps + 1]
    curve = displacement + torch.stack(torch.broadcast_tensors(*origin)).unsqueeze(-1)
    return _in_range(curve.movedim(0, -1).unflatten(0, (metric.batch, metric.groups)))


def exp_map(
    metric: Metric, points: Vectors, vectors: Vectors, steps: int = 32, *, padding_mode: str = "border"
) -> Tensor:
    """Return exp_x(v): the end point of the geodesic from x in direction v of length F_x(v).

    Args:
        metric, steps, padding_mode: as in ``geodesics``.
        points: x in pixels, a tensor, array or nested list (N, d) or (B, G, N, d).
        vectors: v in pixels, of the same shape. The derivative by v = 0 is defined as 0.

    Returns:
        The end points in pixels, (B, G, N, d).

    >>> from metricconv import Riemannian
    >>> exp_map(Riemannian.isotropic(2.0), torch.tensor([[5.0, 5.0]]), torch.tensor([[1.0, 2.0]]))
    tensor([[[[6., 7.]]]])
    """
    field = flow_field(metric, padding_mode=padding_mode)
    if _values_can_be_read():
        check_positive(metric)
    origin = _components(metric, points, "points")
    direction, size = _rescale(_components(metric, vectors, "vectors"))
    _check_counts(points=origin[0], vectors=direction[0])
    length = size * norm(field, origin, direction)
    for segment in shoot(field, origin, direction, length, steps):
        displacement = segment.at(1.0)
    end = torch.stack(torch.broadcast_tensors(*(o + x for o, x in zip(origin, displacement, strict=True))), -1)
    return _in_range(end.unflatten(0, (metric.batch, metric.groups)))


def _values_can_be_read() -> bool:
    """Return whether checks may depend on values, which ``torch.compile`` and ``torch.func`` hide."""
    return not torch.compiler.is_compiling() and not _compat.functorch_active()


def _in_range(points: Tensor) -> Tensor:
    """Check that points (B, G, N, …) of geodesics are in the range of their dtype, and return them."""
    if _values_can_be_read():
        bad = ~points.isfinite().flatten(3).all(3)
        if bool(bad.any()):
            raise ValueError(
                f"the geodesic at index {tuple(bad.nonzero()[0].tolist())} exceeds the range of {points.dtype}: it is "
                "too long, or the unit balls of `metric` are too large or too small"
            )
    return points


def _components(metric: Metric, vectors: Vectors, name: str) -> Vector:
    """Expand vectors (N, d) or (B, G, N, d) to all fields and return their d components (B·G, N)."""
    vectors = _checks.vectors(vectors, name)
    fields = zip(vectors.shape[:-2], (metric.batch, metric.groups), strict=False)
    if vectors.dim() not in (2, 4) or vectors.shape[-1] != metric.dim or any(n not in (1, m) for n, m in fields):
        raise ValueError(
            f"`{name}` must be (N, {metric.dim}) or, for this metric, ({metric.batch}, {metric.groups}, N, "
            f"{metric.dim}), got shape {tuple(vectors.shape)}"
        )
    if _values_can_be_read():
        _checks.finite(vectors, name)
    expanded = vectors.to(metric.device, metric.dtype).expand(metric.batch, metric.groups, *vectors.shape[-2:])
    return expanded.flatten(0, 1).unbind(-1)


def _rescale(vector: Vector) -> tuple[Vector, Tensor]:
    """Return vectors divided by their largest component, and that component; 0 becomes the last unit vector."""
    size = torch.stack(torch.broadcast_tensors(*vector)).detach().abs().amax(0)
    zero = size == 0
    *first, last = (x / torch.where(zero, 1.0, size) for x in vector)
    return (*first, torch.where(zero, 1.0, last)), size


def _check_counts(**curves: Tensor) -> None:
    """Check that tensors (B·G, N) have the same N, or N = 1, which broadcasts."""
    counts = {name: t.shape[-1] for name, t in curves.items() if t.dim() and t.shape[-1] != 1}
    if len(set(counts.values())) > 1:
        raise ValueError(
            f"{', '.join(f'`{name}`' for name in counts)} must have the same length N, got {list(counts.values())}"
        )
