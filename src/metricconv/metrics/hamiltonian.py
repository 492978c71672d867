"""The geodesic flow of any metric, by Hamilton's equations.

With the momentum p, the unit-speed geodesics of F follow H(x, p) = F*_x(p):

    ẋ = ∂H/∂p = the v of F(v) = 1 that maximizes pᵀv,    ṗ_k = −∂H/∂x_k = F*(p) ∂F_x(v)/∂x_k.

The derivative of F by x is that by the parameters θ of the metric times ∂_k θ, so that only the gradient of the dual
norm is needed, in closed form or numerical. As in ``flow``, θ and its central differences are interpolated
multilinearly between pixels, and the integrator has order 2 and evaluates the metric once per step, at the predicted
midpoint.

This is the plain PyTorch path for metrics other than ``Riemannian`` and ``Randers``, which have formulas of their own.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .. import _checks, _interpolation
from . import flow
from .base import SMALLEST_NORM, Metric
from .flow import METRIC_PADDING_MODES, FlowField, Segment, Vector
from .randers import Randers
from .riemannian import Riemannian

__all__ = ["HamiltonianField", "flow_field", "norm", "shoot"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class HamiltonianField:
    """A metric and the derivatives of its parameters at the nodes of a grid, packed for interpolation.

    Args:
        metric: the metric.
        nodes: (B·G, n (1 + d), *size), the parameters θ and ∂_k θ for each axis; with "border" padding there is one
            more node on each side, with derivatives 0.
        spacing: pixels between nodes along each axis.
        padding_mode: "border" or "circular".
    """

    metric: Metric
    nodes: Tensor
    spacing: tuple[float, ...]
    padding_mode: str

    @classmethod
    def of(
        cls, metric: Metric, spacing: Sequence[float] | None = None, padding_mode: str = "border"
    ) -> "HamiltonianField":
        """Return the field of a metric whose nodes are ``spacing`` pixels apart (default 1)."""
        _checks.instance_of(metric, Metric, "metric")
        padding_mode = _checks.padding_mode(padding_mode, choices=METRIC_PADDING_MODES)
        steps = tuple(map(float, spacing)) if spacing is not None else (1.0,) * metric.dim
        values = torch.cat(list(metric.tensors().values()), 2).flatten(0, 1)  # [B·G, n, *spatial]
        circular = padding_mode == "circular"
        slopes = [_derivative(values, axis, step, circular) for axis, step in enumerate(steps)]
        if not circular:
            padding = (1, 1) * metric.dim
            slopes = [torch.nn.functional.pad(slope, padding) for slope in slopes]
            for axis in range(2, values.dim()):
                ends = (values.narrow(axis, 0, 1), values.narrow(axis, values.shape[axis] - 1, 1))
                values = torch.cat([ends[0], values, ends[1]], axis)
        return cls(metric, torch.cat([values, *slopes], 1), steps, padding_mode)

    @property
    def dim(self) -> int:
        """The number d of spatial axes."""
        return len(self.spacing)

    @property
    def fields(self) -> int:
        """The number B·G of fields."""
        return self.nodes.shape[0]

    def at(self, origin: Vector, displacement: Vector | None = None) -> tuple[Metric, list[Metric]]:
        """Return the metric at origin (in nodes) + displacement (in pixels), and its derivatives along each axis.

        Components broadcast with (…, B·G, N). The metrics are fields (B·G, M, n, 1, …) of M points each.
        """
        positions = list(origin)
        if displacement is not None:
            positions = [o + x / step for o, x, step in zip(origin, displacement, self.spacing, strict=True)]
        margin = self.padding_mode == "border"
        position = torch.stack(torch.broadcast_tensors(*positions)) + margin  # [d, …, B·G or 1, N]
        position = position.movedim((-2, 0), (0, -1)).expand(self.fields, *(-1,) * (position.dim() - 1))
        rows = _interpolation.interpolate(self.nodes, position.flatten(1, -2), self.padding_mode)  # [B·G, n(1+d), M]
        value, *slopes = rows.movedim(1, 2).chunk(1 + self.dim, 2)
        return self._metric(value), [self._metric(slope) for slope in slopes]

    def shoot(self, origin: Vector, direction: Vector, length: Tensor, steps: int) -> Iterator[Segment]:
        """Integrate geodesics, and yield their steps; arguments as for ``flow.shoot``."""
        steps = _checks.whole(steps, "steps", minimum=1)
        shape = torch.broadcast_shapes(
            (self.fields, 1), *(t.shape for t in (*origin, *direction, length))
        )  # […, B·G, N]
        start = tuple(component.expand(shape) for component in origin)
        h = (length / steps).expand(shape)
        metric, _ = self.at(start)
        u = _pack(tuple(component.expand(shape) for component in direction), self.dim)
        velocity = u / metric.norm(u).clamp_min(SMALLEST_NORM).unsqueeze(2)
        p = _gradient(metric, velocity)
        w = tuple(h * v for v in _unpack(velocity, shape))
        x = b = tuple(torch.zeros_like(component) for component in w)
        for n in range(steps):
            middle = tuple(x_ + 0.5 * w_ + 0.25 * b_ for x_, w_, b_ in zip(x, w, b, strict=True))
            metric, slopes = self.at(start, middle)
            step_length = _pack((h,), self.dim)
            _, rate = self._rates(metric, slopes, p)
            velocity, rate = self._rates(metric, slopes, p + 0.5 * step_length * rate)
            step = tuple(h * v for v in _unpack(velocity, shape))
            # Velocities are those of midpoints: half a step after the start, then one step after the previous one.
            b = tuple((1 if n else 2) * (new - old) for new, old in zip(step, w, strict=True))
            yield Segment(x, step, b)
            x = tuple(x_ + w_ for x_, w_ in zip(x, step, strict=True))
            p = p + step_length * rate
            w = step

    def norm(self, origin: Vector, u: Vector) -> Tensor:
        """Return F(u) at points (B·G, N)."""
        shape = torch.broadcast_shapes((self.fields, 1), *(t.shape for t in (*origin, *u)))
        metric, _ = self.at(tuple(component.expand(shape) for component in origin))
        return metric.norm(_pack(tuple(t.expand(shape) for t in u), self.dim)).view(shape)

    def _rates(self, metric: Metric, slopes: list[Metric], p: Tensor) -> tuple[Tensor, Tensor]:
        """Return the velocity ẋ and the rate ṗ of the momentum, (B·G, M, d, 1, …)."""
        dual = metric.dual()
        velocity = _gradient(dual, p)
        names = list(metric.tensors())
        graph = _needs_graph(metric, velocity)
        with torch.enable_grad():
            # Views: the derivative is that at a fixed velocity, which depends on the same parameters.
            inputs = {
                name: t.view_as(t) if t.requires_grad else t.detach().requires_grad_()
                for name, t in metric.tensors().items()
            }
            given = iter(inputs.values())
            norm = metric.map(lambda t: next(given)).norm(velocity)
            derivatives = torch.autograd.grad(norm.sum(), list(inputs.values()), create_graph=graph, allow_unused=True)
        size = dual.norm(p)
        rate = []
        for slope in slopes:
            tensors = slope.tensors()
            terms = [(d * tensors[name]).sum(2) for name, d in zip(names, derivatives, strict=True) if d is not None]
            rate.append(size * sum(terms[1:], terms[0]))
        return velocity, torch.stack(rate, 2)

    def _metric(self, rows: Tensor) -> Metric:
        """Return the metric of interpolated nodes (B·G, M, n)."""
        counts = [t.shape[2] for t in self.metric.tensors().values()]
        parts = iter(rows.reshape(*rows.shape, *(1,) * self.dim).split(counts, 2))
        return self.metric.map(lambda t: next(parts))


def flow_field(
    metric: Metric, spacing: Sequence[float] | None = None, padding_mode: str = "border"
) -> FlowField | HamiltonianField:
    """Return the field of a metric for ``shoot``, with formulas of its own if it is Riemannian or Randers."""
    _checks.instance_of(metric, Metric, "metric")
    if type(metric) in (Riemannian, Randers):
        return FlowField.of(metric, spacing, padding_mode)
    return HamiltonianField.of(metric, spacing, padding_mode)


def shoot(
    field: FlowField | HamiltonianField, origin: Vector, direction: Vector, length: Tensor, steps: int
) -> Iterator[Segment]:
    """Integrate geodesics, and yield their steps; arguments as for ``flow.shoot``."""
    if isinstance(field, FlowField):
        return flow.shoot(field, origin, direction, length, steps)
    return field.shoot(origin, direction, length, steps)


def norm(field: FlowField | HamiltonianField, origin: Vector, u: Vector) -> Tensor:
    """Return F(u) at points (B·G, N), for u ≠ 0."""
    if isinstance(field, FlowField):
        return flow.norm(field.interpolate(origin), u)
    return field.norm(origin, u)


def _gradient(metric: Metric, u: Tensor) -> Tensor:
    """Return ∇F(u) for vectors (B·G, M, d, 1, …)."""
    graph = _needs_graph(metric, u)
    with torch.enable_grad():
        at = u if u.requires_grad else u.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(metric.norm(at).sum(), at, create_graph=graph)
    return gradient


def _needs_graph(metric: Metric, u: Tensor) -> bool:
    """Return whether gradients of the norm must be differentiable themselves."""
    return torch.is_grad_enabled() and (u.requires_grad or any(t.requires_grad for t in metric.tensors().values()))


def _pack(vector: Vector, dim: int) -> Tensor:
    """Return components (…, B·G, N) as (B·G, M, n, 1, …)."""
    rows = torch.stack(vector, -1).movedim(-3, 0)  # [B·G, …, N, n]
    return rows.reshape(rows.shape[0], -1, len(vector), *(1,) * dim)


def _unpack(field: Tensor, shape: torch.Size) -> Vector:
    """Return a field (B·G, M, n, 1, …) as components (…, B·G, N)."""
    rows = field.flatten(2).unflatten(1, (*shape[:-2], shape[-1])).movedim(0, -3)
    return rows.unbind(-1)


def _derivative(field: Tensor, axis: int, step: float, circular: bool) -> Tensor:
    """Return central differences of a field (F, n, *spatial) along a spatial axis."""
    axis, size = axis + 2, field.shape[axis + 2]
    first, last = field.narrow(axis, 0, 1), field.narrow(axis, size - 1, 1)
    before = torch.cat([last if circular else first, field.narrow(axis, 0, size - 1)], axis)
    after = torch.cat([field.narrow(axis, 1, size - 1), first if circular else last], axis)
    return (after - before) / (2 * step)
