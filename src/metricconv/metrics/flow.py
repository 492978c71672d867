"""The geodesic flow of a metric: where one arrives by going straight ahead, as the metric sees it.

A geodesic x(t) of F(u) = √(uᵀMu) + ωᵀu, run at unit speed, F(ẋ) = 1, follows its momentum without gauge q = p − ω:

    n = |q|_{M⁻¹},   e = M⁻¹q / n,   c = 1 + ωᵀe,
    ẋ = e / c,       q̇_k = (n/c) (½ eᵀ(∂_k M)e + Σ_j (∂_k ω_j − ∂_j ω_k) e_j).

ẋ has unit speed whatever q is, and the flow is homogeneous in q, which may be rescaled at will. Only the curl of ω
bends a path. Between pixels M, ω, its curl and the ∂_k M, by central differences, are interpolated multilinearly, which
keeps a metric positive. Past the border the field goes on with the border's values and no gradients, or starts anew
("circular").

The integrator is of order 2 and looks the field up once a step, at the predicted midpoint. Its state is four vectors:
displacement x, stride w = hẋ, bend b = h²ẍ and momentum q.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _checks, _interpolation
from .._checks import Vectors
from . import _symmetric
from .base import Metric
from .randers import Randers
from .riemannian import Riemannian

PADDING_MODES = ("border", "circular")

# What elimination leaves of a diagonal entry of M is at least this part of it: float32 knows no less of it.
_LEAST_PIVOT = 1e-6
# The least F(e) with |e|_M = 1: no drift makes a path faster than a thousand times.
_LEAST_NORM = 1e-3

Vector = tuple[Tensor, ...]  # d components, in tensor-axis order


def geodesics(
    metric: Metric,
    points: Vectors,
    directions: Vectors,
    length: float | Tensor = 1.0,
    steps: int = 32,
    *,
    padding_mode: str = "border",
) -> Tensor:
    """Trace the geodesics that leave some points in some directions, at equal steps of length/steps.

    Args:
        metric: ``Riemannian`` or ``Randers``, (B, G, …, *spatial), positive everywhere: ``check_positive`` looks, but
            not in ``torch.compile`` and ``torch.func``, where there are no numbers to look at.
        points: (N, d), or (B, G, N, d), in pixels: (y, x) in 2-D. A tensor, an array or lists, of whole numbers or not.
        directions: of the same shape; their lengths do not matter. Along a vector of 0 the curve stays where it is.
        length: how far to go, as the metric measures it: a number, or one for each curve, (N,) or (B, G, N).
        steps: of the integrator; its error falls with their square. One a pixel or more.
        padding_mode: how the metric goes on past the border, by its "border" values or "circular".

    Returns:
        (B, G, N, steps + 1, d), in pixels, the points first. Differentiable to everything, to any order.

    >>> flat = Riemannian.isotropic(2.0)  # a length of 1 is 2 px
    >>> geodesics(flat, torch.tensor([[5.0, 5.0]]), torch.tensor([[0.0, 1.0]]), length=3.0, steps=2)[0, 0, 0]
    tensor([[ 5.,  5.],
            [ 5.,  8.],
            [ 5., 11.]])
    """
    field = FlowField.of(metric, padding_mode=padding_mode)
    _check_positive_if_known(metric)
    origin, (direction, size) = _curves(metric, points, "points"), _headed(_curves(metric, directions, "directions"))
    try:
        run = torch.as_tensor(length, dtype=metric.dtype, device=metric.device)
    except TypeError:
        raise TypeError(f"`length` (={length!r}) must be a number, (N,) or (B, G, N)") from None
    if run.dim() not in (0, 1, 3):
        raise ValueError(f"`length` must be a number, (N,) or (B, G, N), got shape {tuple(run.shape)}")
    run = run.expand(metric.batch, metric.groups, -1).flatten(0, 1) if run.dim() else run
    _check_counts(points=origin[0], directions=direction[0], length=run)
    run = torch.where(size == 0, 0.0, run)
    path = [torch.zeros((), dtype=metric.dtype, device=metric.device).expand(len(origin), 1, 1)]
    path += [torch.stack(segment.at(1.0)) for segment in shoot(field, origin, direction, run, steps)]
    moved = torch.stack(torch.broadcast_tensors(*path), -1)  # [d, B·G, N, steps + 1]
    curve = moved + torch.stack(torch.broadcast_tensors(*origin)).unsqueeze(-1)
    return curve.movedim(0, -1).unflatten(0, (metric.batch, metric.groups))


def exp_map(
    metric: Metric, points: Vectors, vectors: Vectors, steps: int = 32, *, padding_mode: str = "border"
) -> Tensor:
    """Return exp_x(v): where the geodesic arrives that leaves x along v and is F_x(v) long.

    Args:
        metric, steps, padding_mode: as in ``geodesics``.
        points: x, (N, d) or (B, G, N, d), in pixels.
        vectors: v, of the same shape. A vector of 0 stays where it is, and its derivative is taken to be 0 there.

    Returns:
        (B, G, N, d), in pixels.

    >>> exp_map(Riemannian.isotropic(2.0), torch.tensor([[5.0, 5.0]]), torch.tensor([[1.0, 2.0]]))
    tensor([[[[6., 7.]]]])
    """
    field = FlowField.of(metric, padding_mode=padding_mode)
    _check_positive_if_known(metric)
    origin, (direction, size) = _curves(metric, points, "points"), _headed(_curves(metric, vectors, "vectors"))
    _check_counts(points=origin[0], vectors=direction[0])
    local = field.read(origin)
    length = size * _euclidean(local, direction) * _tilt(local, direction)
    for segment in shoot(field, origin, direction, length, steps):
        moved = segment.at(1.0)
    arrived = torch.stack(torch.broadcast_tensors(*(o + x for o, x in zip(origin, moved, strict=True))), -1)
    return arrived.unflatten(0, (metric.batch, metric.groups))


def metric_padding(padding_mode: str) -> str:
    """Return how a metric goes on past the border of an image that goes on by ``padding_mode``.

    It has no zeros and no mirror images there: where the image does not start anew, it stays as it is at the border.
    """
    return "circular" if padding_mode == "circular" else "border"


def smoothed(metric: Metric, passes: int = 1, *, padding_mode: str = "border") -> Metric:
    """Return the metric averaged with weights ¼ ½ ¼ along each axis, so many times. It stays positive.

    The set of positive (M, ω) with ‖ω‖_{M⁻¹} ≤ 1 − ε is convex: what bounds a metric bounds its averages too.
    """
    passes = _checks.whole(passes, "passes", minimum=0)
    circular = _checks.one_of(padding_mode, PADDING_MODES, "padding_mode") == "circular"

    def average(field: Tensor) -> Tensor:
        for axis in range(3, field.dim()):
            before, after = _neighbours(field, axis, circular)
            field = 0.25 * (before + after) + 0.5 * field
        return field

    for _ in range(passes):
        metric = metric.map(average)
    return metric


@torch.no_grad()
def check_positive(metric: Metric) -> None:
    """Refuse a metric that is not positive, naming the first such pixel. Synchronises with the device.

    >>> check_positive(Riemannian(torch.tensor([1.0, 2.0, 1.0]).view(1, 1, 3, 1, 1)))
    Traceback (most recent call last):
        ...
    ValueError: `metric` must be positive; it is not at index (0, 0, 0, 0) (1 such of 1 pixels): M = [1.0, 2.0, 1.0]
    """
    _checks.instance_of(metric, Metric, "metric")
    bad = ~metric.is_positive()
    if bool(bad.any()):
        b, g, *pixel = place = tuple(bad.nonzero()[0].tolist())
        numbers = {name: t[(b, g, slice(None), *pixel)].tolist() for name, t in metric.tensors().items()}
        raise ValueError(
            f"`metric` must be positive; it is not at index {place} ({int(bad.sum())} such of {bad.numel()} pixels): "
            + ", ".join(f"{name} = {value}" for name, value in numbers.items())
        )


def check_known(metric: Metric) -> None:
    """Refuse a metric whose geodesics have no equations here."""
    if type(metric) not in (Riemannian, Randers):
        raise TypeError(f"geodesics know Riemannian and Randers metrics, got {type(metric).__name__}")


def _check_positive_if_known(metric: Metric) -> None:
    """Refuse a metric that is not positive, unless a compiler or ``torch.func`` keeps its numbers from us."""
    if not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active():
        check_positive(metric)


class Local(NamedTuple):
    """What the flow needs to know of a metric at some places, each number a tensor of their shape."""

    M: dict[tuple[int, int], Tensor]
    omega: Vector | None
    curl: dict[tuple[int, int], Tensor]  # (k, j) → ∂_k ω_j − ∂_j ω_k, both orders
    slopes: list[dict[tuple[int, int], Tensor]]  # k → ∂_k M


@dataclasses.dataclass(frozen=True)
class FlowField:
    """A metric and its derivatives, packed to be looked up: n numbers a node, in 2-D 12 (without drift, 9).

    Args:
        nodes: (B·G, n, *size), for all images and groups: M, then ω and its curl if there are any, then ∂_k M; with
            "border" one node more on either side of an axis, without gradients.
        spacing: pixels between nodes.
        padding_mode: "border" or "circular".
        drift: whether there is an ω.
    """

    nodes: Tensor
    spacing: tuple[float, ...]
    padding_mode: str
    drift: bool

    @classmethod
    def of(cls, metric: Metric, spacing: Sequence[float] | None = None, padding_mode: str = "border") -> "FlowField":
        """Take the derivatives of a metric whose nodes are ``spacing`` (1 by default) pixels apart, and pack."""
        check_known(metric)
        circular = _checks.one_of(padding_mode, PADDING_MODES, "padding_mode") == "circular"
        tensors = {name: t.flatten(0, 1) for name, t in metric.tensors().items()}  # [B·G, ·, *spatial]
        steps = tuple(spacing) if spacing is not None else (1.0,) * metric.dim

        def derivative(field: Tensor, axis: int) -> Tensor:
            before, after = _neighbours(field, 2 + axis, circular)
            return (after - before) / (2 * steps[axis])

        values, slopes = [tensors["M"]], [derivative(tensors["M"], axis) for axis in range(metric.dim)]
        omega = tensors.get("omega")
        if omega is not None:
            values.append(omega)
            turns = [derivative(omega, axis) for axis in range(metric.dim)]
            planes = _symmetric.planes(metric.dim)
            slopes = [turns[k][:, j : j + 1] - turns[j][:, k : k + 1] for k, j in planes] + slopes
        packed = [torch.cat(values, 1), torch.cat(slopes, 1)]
        if not circular:
            packed = [_bordered(packed[0]), torch.nn.functional.pad(packed[1], (1, 1) * metric.dim)]
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
        """The numbers by rows: (B·G·S, n), for S nodes of all images and groups."""
        return self.nodes.movedim(1, -1).flatten(0, -2)

    def read(self, origin: Vector, displacement: Vector | None = None) -> Local:
        """Interpolate at origin (in nodes) + displacement (in pixels); shapes that broadcast with (…, B·G, N)."""
        if displacement is None:
            places = list(origin)
        else:
            places = [o + x / step for o, x, step in zip(origin, displacement, self.spacing, strict=True)]
        margin = self.padding_mode == "border"
        position = torch.stack(torch.broadcast_tensors(*places)) + margin  # [d, …, B·G or 1, N]
        position = position.movedim((-2, 0), (0, -1)).expand(self.fields, *(-1,) * (position.dim() - 1))
        return self._unpack(_interpolation.interpolate(self.nodes, position, self.padding_mode).movedim(0, -2))

    def _unpack(self, rows: Tensor) -> Local:
        """Name the numbers: rows (n, …)."""
        numbers = iter(rows.unbind(0))

        def symmetric() -> dict[tuple[int, int], Tensor]:
            upper = {pair: next(numbers) for pair in _symmetric.pairs(self.dim)}
            return upper | {(j, i): m for (i, j), m in upper.items()}

        M = symmetric()
        omega, curl = None, {}
        if self.drift:
            omega = tuple(next(numbers) for _ in range(self.dim))
            curl = {plane: next(numbers) for plane in _symmetric.planes(self.dim)}
            curl |= {(j, k): -b for (k, j), b in curl.items()}
        return Local(M, omega, curl, [symmetric() for _ in range(self.dim)])


def flow(local: Local, q: Vector) -> tuple[Vector, Vector]:
    """Return the velocity ẋ and the rate of momentum q̇."""
    raised, square = _solve(local.M, q)
    norm = square.sqrt()
    e = tuple(x / norm for x in raised)
    c = _tilt(local, e, unit=True)
    force = []
    for k, slope in enumerate(local.slopes):
        pull = 0.5 * _quadratic(slope, e)
        for j in range(len(e)):
            if (k, j) in local.curl:
                pull = pull + local.curl[k, j] * e[j]
        force.append(pull * (norm / c))
    return tuple(x / c for x in e), tuple(force)


class Segment(NamedTuple):
    """One step of a geodesic, a parabola: displacements from the curve's first point, in pixels."""

    start: Vector
    stride: Vector
    bend: Vector

    def at(self, fraction: float) -> Vector:
        """Return the displacement after a fraction of the step, in (0, 1]."""
        if fraction == 1:
            return tuple(x + w for x, w in zip(self.start, self.stride, strict=True))
        sag = 0.5 * fraction * (1 - fraction)
        return tuple(x + fraction * w - sag * b for x, w, b in zip(self.start, self.stride, self.bend, strict=True))


def shoot(field: FlowField, origin: Vector, direction: Vector, length: Tensor, steps: int) -> Iterator[Segment]:
    """Trace geodesics step by step.

    Args:
        field: what is looked up.
        origin: the first points, in nodes of the field; components that broadcast with (…, B·G, N).
        direction: the first directions, of any length but 0.
        length: how far to go, broadcasting likewise.
        steps: their number, at least 1.
    """
    steps = _checks.whole(steps, "steps", minimum=1)
    local = field.read(origin)
    norm = _euclidean(local, direction)
    e = tuple(u / norm for u in direction)
    h = length / steps
    w = tuple(h * x / _tilt(local, e, unit=True) for x in e)
    q = _matvec(local.M, e)
    x = b = tuple(torch.zeros_like(component) for component in w)
    for n in range(steps):
        # A constant for autograd: nothing that follows depends on the size of q, whose square might overflow.
        scale = torch.stack(q).detach().abs().amax(0)
        q = tuple(component / scale for component in q)
        local = field.read(origin, tuple(x_ + 0.5 * w_ + 0.25 * b_ for x_, w_, b_ in zip(x, w, b, strict=True)))
        _, rate = flow(local, q)
        velocity, rate = flow(local, tuple(q_ + 0.5 * h * f for q_, f in zip(q, rate, strict=True)))
        stride = tuple(h * v for v in velocity)
        # Strides are those of midpoints, half a step after the start and one step after each other.
        b = tuple((1 if n else 2) * (new - old) for new, old in zip(stride, w, strict=True))
        yield Segment(x, stride, b)
        x = tuple(x_ + w_ for x_, w_ in zip(x, stride, strict=True))
        q = tuple(q_ + h * f for q_, f in zip(q, rate, strict=True))
        w = stride


def _euclidean(local: Local, u: Vector) -> Tensor:
    """Return |u|_M, at least what the least pivots would make of it, for every u but 0."""
    floor = _symmetric.sum_of_products([_LEAST_PIVOT * local.M[k, k] for k in range(len(u))], [x * x for x in u])
    return torch.maximum(_quadratic(local.M, u), floor).sqrt()


def _tilt(local: Local, u: Vector, unit: bool = False) -> Tensor:
    """Return F(u) / |u|_M = 1 + ωᵀu / |u|_M, at least what the drift may leave; ``unit`` says that |u|_M = 1."""
    if local.omega is None:
        return torch.ones((), dtype=u[0].dtype, device=u[0].device)
    along = _symmetric.sum_of_products(local.omega, u)
    return (1 + (along if unit else along / _euclidean(local, u))).clamp_min(_LEAST_NORM)


def _quadratic(m: dict[tuple[int, int], Tensor], v: Vector) -> Tensor:
    """Return vᵀ M v."""
    return _symmetric.sum_of_products(_matvec(m, v), v)


def _matvec(m: dict[tuple[int, int], Tensor], v: Vector) -> Vector:
    """Return M v."""
    axes = range(len(v))
    return tuple(_symmetric.sum_of_products([m[i, j] for j in axes], v) for i in axes)


def _solve(matrix: dict[tuple[int, int], Tensor], q: Vector) -> tuple[Vector, Tensor]:
    """Return M⁻¹q and qᵀM⁻¹q by elimination (M = LDLᵀ), with pivots kept positive."""
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


def _neighbours(field: Tensor, axis: int, circular: bool) -> tuple[Tensor, Tensor]:
    """Return the field moved by one pixel either way along an axis, with the border's values or the other side's."""
    size = field.shape[axis]
    first, last = field.narrow(axis, 0, 1), field.narrow(axis, size - 1, 1)
    before = torch.cat([last if circular else first, field.narrow(axis, 0, size - 1)], axis)
    after = torch.cat([field.narrow(axis, 1, size - 1), first if circular else last], axis)
    return before, after


def _bordered(field: Tensor) -> Tensor:
    """Repeat the border's values once on every side of a field (F, n, *spatial)."""
    for axis in range(2, field.dim()):
        size = field.shape[axis]
        field = torch.cat([field.narrow(axis, 0, 1), field, field.narrow(axis, size - 1, 1)], axis)
    return field


def _curves(metric: Metric, vectors: Vectors, name: str) -> Vector:
    """Spread vectors (N, d) or (B, G, N, d) over every field: d components (B·G, N)."""
    vectors = _checks.vectors(vectors, name)
    fields = zip(vectors.shape[:-2], (metric.batch, metric.groups), strict=False)
    if vectors.dim() not in (2, 4) or vectors.shape[-1] != metric.dim or any(n not in (1, m) for n, m in fields):
        raise ValueError(
            f"`{name}` must be (N, {metric.dim}) or, for this metric, ({metric.batch}, {metric.groups}, N, "
            f"{metric.dim}), got shape {tuple(vectors.shape)}"
        )
    spread = vectors.to(metric.device, metric.dtype).expand(metric.batch, metric.groups, *vectors.shape[-2:])
    return spread.flatten(0, 1).unbind(-1)


def _headed(vector: Vector) -> tuple[Vector, Tensor]:
    """Return vectors divided by their largest component, any direction in place of 0, and that component."""
    size = torch.stack(torch.broadcast_tensors(*vector)).detach().abs().amax(0)
    still = size == 0
    *first, last = (x / torch.where(still, 1.0, size) for x in vector)
    return (*first, torch.where(still, 1.0, last)), size


def _check_counts(**curves: Tensor) -> None:
    """Refuse tensors (B·G, N) that do not speak of as many curves; one may stand for all."""
    counts = {name: t.shape[-1] for name, t in curves.items() if t.dim() and t.shape[-1] != 1}
    if len(set(counts.values())) > 1:
        raise ValueError(f"{', '.join(f'`{name}`' for name in counts)} must be as many, got {list(counts.values())}")
