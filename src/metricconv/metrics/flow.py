"""The geodesic flow of a metric, and its integration.

A geodesic x(t) of F(u) = √(uᵀMu) + ωᵀu at unit speed, F(ẋ) = 1, is determined by its momentum q = p − ω:

    n = |q|_{M⁻¹},   e = M⁻¹q / n,   c = 1 + ωᵀe,
    ẋ = e / c,       q̇_k = (n/c) (½ eᵀ(∂_k M)e + Σ_j (∂_k ω_j − ∂_j ω_k) e_j).

ẋ has unit speed for any q, and the flow is homogeneous in q, which may be rescaled. ω affects the path only through its
curl. Derivatives are central differences. M, ω, its curl and ∂_k M are interpolated multilinearly between pixels, which
keeps the metric positive. With "border" padding, the metric is constant along each axis outside of the image.

The integrator has order 2 and evaluates the field once per step, at the predicted midpoint. Its state is the
displacement x, the step w = hẋ, the bend b = h²ẍ and the momentum q.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _checks, _interpolation
from . import _symmetric
from .base import Metric
from .randers import Randers
from .riemannian import Riemannian

__all__ = [
    "METRIC_PADDING_MODES",
    "FlowField",
    "Local",
    "Segment",
    "Vector",
    "check_geodesics_supported",
    "metric_padding",
    "norm",
    "rates",
    "shoot",
    "smoothed",
]

METRIC_PADDING_MODES = ("border", "circular")

# Lower bound of the pivots of M in the elimination, relative to its diagonal: rounding errors of float32.
_LEAST_PIVOT = 1e-6
# Lower bound of F(e) for |e|_M = 1, which bounds the Euclidean speed of paths.
_LEAST_NORM = 1e-3

Vector = tuple[Tensor, ...]  # d components, in tensor-axis order


def metric_padding(padding_mode: str) -> str:
    """Return the padding mode of a metric for an image with ``padding_mode``: "circular" or "border".

    A metric is padded neither by zeros, which are not positive, nor by reflection.
    """
    return "circular" if padding_mode == "circular" else "border"


def smoothed(metric: Metric, passes: int = 1, *, padding_mode: str = "border") -> Metric:
    """Return the metric averaged over 3^d pixels, with weights ¼ ½ ¼ along each axis.

    The set of positive (M, ω) with ‖ω‖_{M⁻¹} ≤ 1 − ε is convex, so bounds of a metric also hold for its averages.

    Args:
        metric: any metric, (B, G, n, *spatial).
        passes: number of passes, at least 0 (default 1).
        padding_mode: padding mode of the metric, "border" (default) or "circular".

    >>> smoothed(Riemannian(torch.tensor([1.0, 5.0, 1.0]).view(1, 1, 1, 3))).M.flatten()
    tensor([2., 3., 2.])
    """
    _checks.instance_of(metric, Metric, "metric")
    passes = _checks.whole(passes, "passes", minimum=0)
    circular = _checks.padding_mode(padding_mode, choices=METRIC_PADDING_MODES) == "circular"

    def average(field: Tensor) -> Tensor:
        for axis in range(3, field.dim()):
            before, after = _neighbors(field, axis, circular)
            field = 0.25 * (before + after) + 0.5 * field
        return field

    for _ in range(passes):
        metric = metric.map(average)
    return metric


def check_geodesics_supported(metric: Metric) -> None:
    """Check that the geodesic flow is implemented for a metric."""
    if type(metric) not in (Riemannian, Randers):
        raise TypeError(f"`metric` must be Riemannian or Randers for geodesics, got {type(metric).__name__}")


class Local(NamedTuple):
    """A metric and its derivatives at N positions; all tensors broadcast to (…, B·G, N)."""

    M: dict[tuple[int, int], Tensor]
    omega: Vector | None
    curl: dict[tuple[int, int], Tensor]  # (k, j) → ∂_k ω_j − ∂_j ω_k, both orders
    slopes: list[dict[tuple[int, int], Tensor]]  # k → ∂_k M


@dataclasses.dataclass(frozen=True)
class FlowField:
    """A metric and its derivatives at the nodes of a grid, packed for interpolation.

    Args:
        nodes: (B·G, n, *size), for all images and groups: M, ω and its curl if the metric has a drift, ∂_k M; in 2-D
            n = 12, or 9 without drift. With "border" padding there is one more node on each side, with derivatives 0.
        spacing: pixels between nodes along each axis.
        padding_mode: "border" or "circular".
        has_drift: whether the metric has a drift ω.
    """

    nodes: Tensor
    spacing: tuple[float, ...]
    padding_mode: str
    has_drift: bool

    @classmethod
    def of(cls, metric: Metric, spacing: Sequence[float] | None = None, padding_mode: str = "border") -> "FlowField":
        """Return the field of a metric whose nodes are ``spacing`` pixels apart (default 1)."""
        check_geodesics_supported(metric)
        padding_mode = _checks.padding_mode(padding_mode, choices=METRIC_PADDING_MODES)
        circular = padding_mode == "circular"
        tensors = {name: t.flatten(0, 1) for name, t in metric.tensors().items()}  # [B·G, ·, *spatial]
        steps = tuple(spacing) if spacing is not None else (1.0,) * metric.dim

        def derivative(field: Tensor, axis: int) -> Tensor:
            before, after = _neighbors(field, 2 + axis, circular)
            return (after - before) / (2 * steps[axis])

        values, slopes = [tensors["M"]], [derivative(tensors["M"], axis) for axis in range(metric.dim)]
        omega = tensors.get("omega")
        if omega is not None:
            values.append(omega)
            jacobian = [derivative(omega, axis) for axis in range(metric.dim)]
            planes = _symmetric.planes(metric.dim)
            slopes = [jacobian[k][:, j : j + 1] - jacobian[j][:, k : k + 1] for k, j in planes] + slopes
        packed = [torch.cat(values, 1), torch.cat(slopes, 1)]
        if not circular:
            packed = [_replicate(packed[0]), torch.nn.functional.pad(packed[1], (1, 1) * metric.dim)]
        return cls(torch.cat(packed, 1), steps, padding_mode, omega is not None)

    @property
    def dim(self) -> int:
        """The number d of spatial axes."""
        return len(self.spacing)

    @property
    def fields(self) -> int:
        """The number B·G of fields."""
        return self.nodes.shape[0]

    @property
    def size(self) -> tuple[int, ...]:
        """The number of nodes along each axis."""
        return tuple(self.nodes.shape[2:])

    @property
    def table(self) -> Tensor:
        """The nodes of all images and groups as rows, (B·G·S, n), with S nodes per field."""
        return self.nodes.movedim(1, -1).flatten(0, -2)

    def interpolate(self, origin: Vector, displacement: Vector | None = None) -> Local:
        """Return the metric at origin (in nodes) + displacement (in pixels); components broadcast with (…, B·G, N)."""
        if displacement is None:
            positions = list(origin)
        else:
            positions = [o + x / step for o, x, step in zip(origin, displacement, self.spacing, strict=True)]
        margin = self.padding_mode == "border"
        position = torch.stack(torch.broadcast_tensors(*positions)) + margin  # [d, …, B·G or 1, N]
        position = position.movedim((-2, 0), (0, -1)).expand(self.fields, *(-1,) * (position.dim() - 1))
        return self._unpack(_interpolation.interpolate(self.nodes, position, self.padding_mode).movedim(0, -2))

    def _unpack(self, rows: Tensor) -> Local:
        """Return the components of interpolated nodes (n, …)."""
        components = iter(rows.unbind(0))

        def symmetric() -> dict[tuple[int, int], Tensor]:
            upper = {pair: next(components) for pair in _symmetric.pairs(self.dim)}
            return upper | {(j, i): m for (i, j), m in upper.items()}

        M = symmetric()
        omega, curl = None, {}
        if self.has_drift:
            omega = tuple(next(components) for _ in range(self.dim))
            curl = {plane: next(components) for plane in _symmetric.planes(self.dim)}
            curl |= {(j, k): -b for (k, j), b in curl.items()}
        return Local(M, omega, curl, [symmetric() for _ in range(self.dim)])


def rates(local: Local, q: Vector) -> tuple[Vector, Vector]:
    """Return the velocity ẋ and the rate q̇ of the momentum."""
    raised, square = _solve(local.M, q)
    norm = square.sqrt()
    e = tuple(x / norm for x in raised)
    c = _norm_ratio(local, e, unit=True)
    force = []
    for k, slope in enumerate(local.slopes):
        component = 0.5 * _quadratic(slope, e)
        for j in range(len(e)):
            if (k, j) in local.curl:
                component = component + local.curl[k, j] * e[j]
        force.append(component * (norm / c))
    return tuple(x / c for x in e), tuple(force)


class Segment(NamedTuple):
    """One step of a geodesic, a parabola, in pixels.

    Attributes:
        start: displacement of the start of the step from the start of the geodesic.
        step: displacement of the end of the step from its start.
        bend: second derivative of the parabola by the fraction of the step.
    """

    start: Vector
    step: Vector
    bend: Vector

    def at(self, fraction: float) -> Vector:
        """Return the displacement from the start of the geodesic after a fraction of the step, in (0, 1]."""
        if fraction == 1:
            return tuple(x + w for x, w in zip(self.start, self.step, strict=True))
        sag = 0.5 * fraction * (1 - fraction)
        return tuple(x + fraction * w - sag * b for x, w, b in zip(self.start, self.step, self.bend, strict=True))


def shoot(field: FlowField, origin: Vector, direction: Vector, length: Tensor, steps: int) -> Iterator[Segment]:
    """Integrate geodesics, and yield their steps.

    Args:
        field: the metric and its derivatives.
        origin: start points, in nodes of the field; components that broadcast with (…, B·G, N).
        direction: initial directions, not 0; likewise.
        length: length of the geodesics in the metric; likewise.
        steps: number of steps, at least 1.
    """
    steps = _checks.whole(steps, "steps", minimum=1)
    local = field.interpolate(origin)
    length_M = _symmetric_norm(local, direction)
    e = tuple(u / length_M for u in direction)
    h = length / steps
    w = tuple(h * x / _norm_ratio(local, e, unit=True) for x in e)
    q = _matvec(local.M, e)
    x = b = tuple(torch.zeros_like(component) for component in w)
    for n in range(steps):
        # The flow does not depend on the scale of q, whose square might overflow.
        scale = torch.stack(q).detach().abs().amax(0)
        q = tuple(component / scale for component in q)
        local = field.interpolate(origin, tuple(x_ + 0.5 * w_ + 0.25 * b_ for x_, w_, b_ in zip(x, w, b, strict=True)))
        _, rate = rates(local, q)
        velocity, rate = rates(local, tuple(q_ + 0.5 * h * f for q_, f in zip(q, rate, strict=True)))
        step = tuple(h * v for v in velocity)
        # Velocities are those of midpoints: half a step after the start, then one step after the previous one.
        b = tuple((1 if n else 2) * (new - old) for new, old in zip(step, w, strict=True))
        yield Segment(x, step, b)
        x = tuple(x_ + w_ for x_, w_ in zip(x, step, strict=True))
        q = tuple(q_ + h * f for q_, f in zip(q, rate, strict=True))
        w = step


def norm(local: Local, u: Vector) -> Tensor:
    """Return F(u) = |u|_M + ωᵀu for u ≠ 0."""
    return _symmetric_norm(local, u) * _norm_ratio(local, u)


def _symmetric_norm(local: Local, u: Vector) -> Tensor:
    """Return |u|_M for u ≠ 0, with the lower bound that follows from that of the pivots."""
    floor = _symmetric.sum_of_products([_LEAST_PIVOT * local.M[k, k] for k in range(len(u))], [x * x for x in u])
    return torch.maximum(_quadratic(local.M, u), floor).sqrt()


def _norm_ratio(local: Local, u: Vector, unit: bool = False) -> Tensor:
    """Return F(u) / |u|_M = 1 + ωᵀu / |u|_M, at least ``_LEAST_NORM``; ``unit`` states that |u|_M = 1."""
    if local.omega is None:
        return torch.ones((), dtype=u[0].dtype, device=u[0].device)
    along = _symmetric.sum_of_products(local.omega, u)
    return (1 + (along if unit else along / _symmetric_norm(local, u))).clamp_min(_LEAST_NORM)


def _quadratic(m: dict[tuple[int, int], Tensor], v: Vector) -> Tensor:
    """Return vᵀ M v."""
    return _symmetric.sum_of_products(_matvec(m, v), v)


def _matvec(m: dict[tuple[int, int], Tensor], v: Vector) -> Vector:
    """Return M v."""
    axes = range(len(v))
    return tuple(_symmetric.sum_of_products([m[i, j] for j in axes], v) for i in axes)


def _solve(matrix: dict[tuple[int, int], Tensor], q: Vector) -> tuple[Vector, Tensor]:
    """Return M⁻¹q and qᵀM⁻¹q by elimination (M = LDLᵀ), with a lower bound on the pivots."""
    m, z, dim = dict(matrix), list(q), len(q)
    pivots: list[Tensor] = []
    for k in range(dim):
        pivots.append(torch.maximum(m[k, k], _LEAST_PIVOT * matrix[k, k]) if k else m[k, k])
        for i in range(k + 1, dim):
            ratio = m[k, i] / pivots[k]
            z[i] = z[i] - ratio * z[k]
            for j in range(i, dim):
                m[i, j] = m[i, j] - ratio * m[k, j]
    scaled = [a / pivot for a, pivot in zip(z, pivots, strict=True)]
    square = _symmetric.sum_of_products(scaled, z)
    for k in reversed(range(dim)):
        for i in range(k + 1, dim):
            scaled[k] = scaled[k] - m[k, i] / pivots[k] * scaled[i]
    return tuple(scaled), square


def _neighbors(field: Tensor, axis: int, circular: bool) -> tuple[Tensor, Tensor]:
    """Return the values of the previous and the next pixel along an axis, with border or circular padding."""
    size = field.shape[axis]
    first, last = field.narrow(axis, 0, 1), field.narrow(axis, size - 1, 1)
    before = torch.cat([last if circular else first, field.narrow(axis, 0, size - 1)], axis)
    after = torch.cat([field.narrow(axis, 1, size - 1), first if circular else last], axis)
    return before, after


def _replicate(field: Tensor) -> Tensor:
    """Pad a field (F, n, *spatial) by one pixel on each side, with the values of the border."""
    for axis in range(2, field.dim()):
        size = field.shape[axis]
        field = torch.cat([field.narrow(axis, 0, 1), field, field.narrow(axis, size - 1, 1)], axis)
    return field
