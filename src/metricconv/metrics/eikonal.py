"""Geodesic distance maps on a grid, by iteration of the Hopf-Lax formula.

The distance d(x) = min ∫F(γ, γ̇) over curves γ from the source to x satisfies, for any closed surface around x,
d(x) = min_y d(y) + d(y, x) over points y of the surface. The surface is the square (in 3-D the cube) of nodes m steps
away, divided into simplices. On each simplex, d is assumed to be linear, and the path to x is assumed to be straight,
with the mean of the metrics at both ends. The minimum then has a closed form:

    min_λ  aᵀλ + √(D + (λ − λ₀)ᵀC(λ − λ₀))    at    λ = λ₀ − C⁻¹a √(D / (1 − aᵀC⁻¹a)).

All nodes are updated in parallel until none changes, which takes as many rounds as the longest path has steps. The
solver is neither differentiable nor fast: ``metricconv.geodesic`` is. It is the reference in tests of the latter, and
replaces it where numba is missing.
"""

import dataclasses
import itertools
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import _checks
from .._checks import Vectors
from . import _symmetric
from .base import Metric, check_positive
from .flow import check_geodesics_supported

__all__ = ["geodesic_distance", "hopf_lax_distance"]

# Initial distance; its square is finite in float32.
_FAR = 1e15
# Rounds between tests for convergence, which synchronize with the device.
_CHECK_INTERVAL = 8

Node = tuple[int, ...]


def geodesic_distance(
    metric: Metric,
    source: Vectors,
    refine: int = 1,
    *,
    reach: int | None = None,
    tolerance: float = 1e-6,
    max_rounds: int | None = None,
) -> Tensor:
    """Deprecated: use ``metricconv.geodesic.distance_map``, which is faster, more accurate and differentiable.

    Args:
        metric, source, refine, reach, tolerance, max_rounds: as in ``metricconv.metrics.eikonal.hopf_lax_distance``.
    """
    warnings.warn(
        "metrics.geodesic_distance is deprecated: use geodesic.distance_map", DeprecationWarning, stacklevel=2
    )
    return hopf_lax_distance(metric, source, refine, reach=reach, tolerance=tolerance, max_rounds=max_rounds)


@torch.no_grad()
def hopf_lax_distance(
    metric: Metric,
    source: Vectors,
    refine: int = 1,
    *,
    reach: int | None = None,
    tolerance: float = 1e-6,
    max_rounds: int | None = None,
) -> Tensor:
    """Return the geodesic distance of every pixel from the nearest of given points, along paths from the points.

    The error is of first order in the grid spacing, and distances are too long, since fronts are assumed to be flat
    between nodes. Mean errors for constant metrics, 10 px from a point:

    | ``refine`` | 1 | 2 | 4 | 8 |
    |---|---|---|---|---|
    | round balls | 1.2 % | 0.8 % | 0.2 % | 0.05 % |
    | anisotropy 3.1 | 2.6 % | 1.6 % | 0.4 % | 0.1 % |

    Errors are larger for higher anisotropy. Over 21 × 21 pixels around the point, the mean (maximum) error for
    anisotropy 10 is 7 % (124 %) with ``refine`` = 1 and 0.3 % (9 %) with 8; for anisotropy 100, 19 % (eleven times the
    distance) and 1.4 % (one and a half times). For a Randers metric, distances to the points are those of −ω.

    Args:
        metric: ``Riemannian`` or ``Randers`` metric, 2-D or 3-D, (B, G, n, *spatial), positive everywhere. It is
            interpolated multilinearly between pixels.
        source: points in pixels, not necessarily on the grid: a tensor, array or nested list (N, d).
        refine: nodes per pixel along each axis, at least 1 (default 1). Memory and time grow at least with its power
            2d − 1.
        reach: distance in nodes of the surface of the Hopf-Lax formula, at least 1. Default: half a pixel, at least 1.
        tolerance: iterate until no distance changes by more, at least 0 (default 1e-6).
        max_rounds: maximum number of rounds, after which an error is raised. Default: 8 times the sum of the numbers of
            nodes along the axes.

    Returns:
        (B, G, *spatial).

    >>> from metricconv import Riemannian
    >>> flat = Riemannian.isotropic(2.0).expand_to((5, 5))  # length 1 is 2 px
    >>> hopf_lax_distance(flat, torch.tensor([[2.0, 0.0]]))[0, 0, 2]
    tensor([0.0000, 0.5000, 1.0000, 1.5000, 2.0000])
    """
    _checks.instance_of(metric, Metric, "metric")
    check_geodesics_supported(metric)
    source = _checks.vectors(source, "source")
    if metric.dim not in (2, 3) or source.dim() != 2 or source.shape[1] != metric.dim or not len(source):
        raise ValueError(
            f"`source` must be (N, d), N at least 1, for a metric with d = 2 or 3 spatial axes, got shape "
            f"{tuple(source.shape)} and {metric.dim} axes"
        )
    refine = _checks.whole(refine, "refine", minimum=1)
    tolerance = _checks.not_negative(tolerance, "tolerance")
    check_positive(metric)
    source = source.to(metric.device, metric.dtype)
    if not bool(((source >= 0) & (source <= source.new_tensor(metric.spatial) - 1)).all()):
        raise ValueError(f"`source` (={source.tolist()}) must lie within the image, of size {tuple(metric.spatial)}")
    fine = _refined(metric, refine)
    reach = _checks.whole(max(refine // 2, 1) if reach is None else reach, "reach", minimum=1)
    simplices = _Simplices.of(fine, reach)
    distance = start = _initial_distances(metric, source, refine, reach)
    rounds = _checks.whole(8 * sum(fine.spatial) if max_rounds is None else max_rounds, "max_rounds", minimum=1)
    for count in itertools.count(1):
        updated = torch.minimum(simplices.update(distance), start)
        if count % _CHECK_INTERVAL == 0 and bool(((distance - updated).abs() <= tolerance).all()):
            break
        if count == rounds:
            raise RuntimeError(f"distances still change after `max_rounds` (={rounds})")
        distance = updated
    pixels = (slice(None, None, refine),) * metric.dim
    return updated[:, :, *pixels]


@dataclasses.dataclass(frozen=True)
class _Simplices:
    """The vertices, edges (and in 3-D triangles) around every node, and the coefficients of the minimum on each.

    Lists are over k = 0, 1, …, the dimension of the simplices. Tensors are (simplices, B, G, *spatial).
    """

    corners: list[list[tuple[Node, ...]]]  # the nodes of each simplex, relative to x
    base: list[Tensor]  # ωᵀ(x − first corner)
    offset: list[Tensor]  # D
    middle: list[list[Tensor]]  # λ₀
    inverse: list[list[list[Tensor]]]  # C⁻¹
    omega_edges: list[list[Tensor]]  # ωᵀ(corner − first corner)
    reach: int

    @classmethod
    def of(cls, metric: Metric, reach: int) -> "_Simplices":
        """Return the simplices ``reach`` nodes away, for the metric on the refined grid, in units of its spacing."""
        corners = _surface(metric.dim, reach)
        parts = [[_measure(metric, reach, simplex) for simplex in of_size] for of_size in corners]

        def stack(k: int, pick: int) -> Tensor:
            return torch.stack([p[pick] for p in parts[k]])

        sizes = range(len(corners))
        return cls(
            corners,
            [stack(k, 0) for k in sizes],
            [stack(k, 1) for k in sizes],
            [list(stack(k, 2).unbind(1)) if k else [] for k in sizes],
            [[list(row.unbind(1)) for row in stack(k, 3).unbind(1)] if k else [] for k in sizes],
            [list(stack(k, 4).unbind(1)) if k else [] for k in sizes],
            reach,
        )

    def update(self, distance: Tensor) -> Tensor:
        """Return the smallest distance of every node over paths through its simplices."""
        dim = distance.dim() - 2
        padded = torch.nn.functional.pad(distance, (self.reach,) * (2 * dim), value=_FAR)
        values = {
            node: _shifted(padded, node, self.reach, distance.shape[2:]) for node in {n for (n,) in self.corners[0]}
        }
        least = distance
        for k, of_size in enumerate(self.corners):
            ends = [torch.stack([values[simplex[i]] for simplex in of_size]) for i in range(k + 1)]
            differences = [end - ends[0] - omega for end, omega in zip(ends[1:], self.omega_edges[k], strict=True)]
            through = ends[0] + self.base[k] + self._minimum(k, differences)
            least = torch.minimum(least, through.amin(0))
        return least

    def _minimum(self, k: int, differences: list[Tensor]) -> Tensor:
        """Return the minimum of aᵀλ + √… over the interior of each simplex, ``_FAR`` if there is none."""
        if not k:
            return self.offset[0].sqrt()
        raised = [_symmetric.sum_of_products(row, differences) for row in self.inverse[k]]  # C⁻¹a
        slack = 1 - _symmetric.sum_of_products(raised, differences)
        root = (self.offset[k] / slack.clamp_min(1e-12)).sqrt()
        position = [middle - s * root for middle, s in zip(self.middle[k], raised, strict=True)]
        inside = (slack > 0) & (sum(position[1:], position[0]) <= 1)
        for coordinate in position:
            inside = inside & (coordinate >= 0)
        # √(D + …) = √(D / slack) at the minimum.
        return torch.where(inside, _symmetric.sum_of_products(differences, position) + root, _FAR)


def _measure(metric: Metric, reach: int, simplex: tuple[Node, ...]) -> tuple[Tensor, ...]:
    """Return ωᵀ(x − first corner), D, λ₀, C⁻¹ and ωᵀ of the edges of one simplex, at every node."""
    tensors = metric.tensors()
    M = _mean(tensors["M"], simplex, reach)
    omega = _mean(tensors["omega"], simplex, reach) if "omega" in tensors else None
    entries = _symmetric.entries(M)
    first, *others = simplex
    edges = [tuple(b - a for a, b in zip(first, other, strict=True)) for other in others]

    def product(u: Sequence[int], v: Sequence[int]) -> Tensor:
        terms = [entries[i, j] * (u[i] * v[j]) for i in range(len(u)) for j in range(len(v)) if u[i] * v[j]]
        return sum(terms[1:], terms[0]) if terms else torch.zeros_like(entries[0, 0])

    def along(u: Sequence[int]) -> Tensor:
        zero = torch.zeros_like(entries[0, 0])
        return zero if omega is None else zero + sum(w * c for w, c in zip(omega.unbind(2), u, strict=True))

    to_center = tuple(-c for c in first)  # from the first corner to x
    square = product(to_center, to_center)
    if not edges:
        return along(to_center), square
    packed = torch.stack([product(edges[i], edges[j]) for i, j in _symmetric.pairs(len(edges))], 2)
    inverse = _symmetric.entries(_symmetric.inverse(packed))
    products = [product(edge, to_center) for edge in edges]
    axes = range(len(edges))
    middle = [_symmetric.sum_of_products([inverse[i, j] for j in axes], products) for i in axes]
    offset = (square - _symmetric.sum_of_products(middle, products)).clamp_min(0)
    rows = torch.stack([torch.stack([inverse[i, j] for j in axes]) for i in axes])
    return along(to_center), offset, torch.stack(middle), rows, torch.stack([along(edge) for edge in edges])


def _surface(dim: int, reach: int) -> list[list[tuple[Node, ...]]]:
    """Return the vertices, edges (and triangles) of a triangulation of the surface |c|_∞ = reach.

    Each unit cell of a face is divided along the paths from its corner nearest the center of the face outwards, which
    preserves the symmetries of the cube. For reach 1 in 2-D there are 8 vertices and 8 edges.
    """
    simplices: set[tuple[Node, ...]] = set()
    for axis, sign in itertools.product(range(dim), (-reach, reach)):
        for cell in itertools.product(range(-reach, reach), repeat=dim - 1):
            nearest = [c if c >= 0 else c + 1 for c in cell]
            outwards = [1 if c >= 0 else -1 for c in cell]
            for order in itertools.permutations(range(dim - 1)):
                corner = list(nearest)
                path = [tuple(corner)]
                for along in order:
                    corner[along] += outwards[along]
                    path.append(tuple(corner))
                simplices.add(tuple((*c[:axis], sign, *c[axis:]) for c in path))
    faces = {tuple(sorted(face)) for s in simplices for k in range(1, dim + 1) for face in itertools.combinations(s, k)}
    return [sorted(face for face in faces if len(face) == k) for k in range(1, dim + 1)]


def _mean(field: Tensor, simplex: tuple[Node, ...], reach: int) -> Tensor:
    """Return the mean of the value of a field at each node and the mean of its values at the corners of a simplex."""
    dim = field.dim() - 3
    padded = torch.nn.functional.pad(field.flatten(0, 1), (reach,) * (2 * dim), mode="replicate")
    padded = padded.unflatten(0, field.shape[:2])
    ends = [_shifted(padded, node, reach, field.shape[3:]) for node in simplex]
    return 0.5 * field + sum(ends[1:], ends[0]) * (0.5 / len(ends))


def _shifted(padded: Tensor, node: Node, reach: int, size: Sequence[int]) -> Tensor:
    """Return a field, padded by ``reach``, at the same position relative to every node."""
    for axis, (step, length) in enumerate(zip(node, size, strict=True), padded.dim() - len(size)):
        padded = padded.narrow(axis, reach + step, length)
    return padded


def _refined(metric: Metric, refine: int) -> Metric:
    """Interpolate a metric to ``refine`` nodes per pixel, in units of the distance between nodes."""
    if refine == 1:
        return metric
    return metric.at(_nodes(metric, refine).unsqueeze(0)).scaled(float(refine))


def _nodes(metric: Metric, refine: int) -> Tensor:
    """Return the positions of the nodes in pixels: (d, *nodes)."""
    axes = [
        torch.arange((n - 1) * refine + 1, dtype=metric.dtype, device=metric.device) / refine for n in metric.spatial
    ]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"))


def _initial_distances(metric: Metric, source: Tensor, refine: int, reach: int) -> Tensor:
    """Return the distances of nodes near the source along straight lines, by Simpson's rule; elsewhere ``_FAR``."""
    nodes = _nodes(metric, refine)
    start = torch.full((), _FAR, dtype=metric.dtype, device=metric.device)
    for point in source:
        position = point.view(-1, *(1,) * metric.dim)
        displacement = nodes - position  # [d, *nodes], in pixels
        close = displacement.abs().amax(0) * refine <= reach * (1 + 1e-6)
        length = sum(
            weight / 6 * metric.at((position + part * displacement).unsqueeze(0)).norm(displacement[None, None])
            for part, weight in ((0.0, 1), (0.5, 4), (1.0, 1))
        )
        start = torch.minimum(start, torch.where(close, length, _FAR))
    return start
