"""Half-space gauges: polytopes with fixed normals and predicted extents, with sharp or rounded corners."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from .. import _checks
from . import _p_norm, _symmetric
from ._integration import ball_volume_by_directions
from .base import Metric, axis_factors, exponent_field

__all__ = ["HalfSpaceGauge", "half_space_normals"]

# Lower bound of extents of a gauge made from points, in pixels, where the pixel is not inside the hull of the points.
_SMALLEST_EXTENT = 1e-3


def half_space_normals(count: int, dim: int = 2) -> Tensor:
    """Return the K unit normals of ``HalfSpaceGauge``, (K, d) in float64.

    In 2-D they are the directions of angles 2πk/K. In other dimensions they are the 2d directions of the axes, or the
    3^d − 1 directions to the neighbors of a pixel. Each set contains −n for each n, except for odd K in 2-D.

    Args:
        count: K, at least 3 in 2-D; otherwise 2d or 3^d − 1.
        dim: number d of spatial axes (default 2).

    >>> half_space_normals(4).round().int().tolist()  # right, down, left, up in (y, x) order
    [[0, 1], [1, 0], [0, -1], [-1, 0]]
    """
    count, dim = _checks.whole(count, "count", minimum=2), _checks.whole(dim, "dim", minimum=1)
    return torch.tensor(_normals(count, dim, "count"), dtype=torch.float64, device="cpu")


def _normals(count: int, dim: int, name: str) -> list[tuple[float, ...]]:
    if dim == 2 and count > 2:
        angles = [2 * math.pi * k / count for k in range(count)]
        return [(math.sin(t), math.cos(t)) for t in angles]
    if count == 2 * dim:
        return [tuple(float(sign * (i == k)) for i in range(dim)) for sign in (1, -1) for k in range(dim)]
    if dim <= 8 and count == 3**dim - 1:
        cells = [cell for cell in itertools.product((-1, 0, 1), repeat=dim) if any(cell)]
        return [tuple(x / math.hypot(*cell) for x in cell) for cell in cells]
    choices = "at least 3" if dim == 2 else f"{2 * dim} or {3 ** min(dim, 8) - 1}"
    raise ValueError(f"`{name}`: the number of half-spaces (={count}) must be {choices} for `dim` (={dim})")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class HalfSpaceGauge(Metric):
    """The metric F(u) = (Σ_k ((n_kᵀu)₊ / h_k)^p)^{1/p}, for the K fixed normals of ``half_space_normals``.

    At p = ∞ the unit ball is the polytope {u : n_kᵀu ≤ h_k}, which approximates any convex shape for large K; for
    smaller p its corners are rounded. The metric is positive for h > 0 and 0 ≤ 1/p ≤ 1. The set of these parameters is
    convex, so averages and interpolated metrics are positive, with extents between those of their terms.

    Args:
        extents: h_k in pixels, (B, G, K, *spatial).
        inverse_p: 1/p, (B, G, 1, *spatial); 0 stands for p = ∞.

    >>> square = HalfSpaceGauge(torch.ones(1, 1, 4, 1, 1), torch.zeros(1, 1, 1, 1, 1))
    >>> square.unit_vectors(torch.tensor([[1.0, 1.0], [0.0, -1.0]])).view(2, 2)
    tensor([[ 1.,  1.],
            [ 0., -1.]])
    """

    extents: Tensor
    inverse_p: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        _normals(self.extents.shape[2], self.dim, "extents")  # raises if there are no such normals
        if self.inverse_p.shape[2] != 1:
            raise ValueError(f"`inverse_p` must be (B, G, 1, *spatial), got shape {tuple(self.inverse_p.shape)}")

    @classmethod
    def from_points(cls, points: Tensor, count: int | None = None, p: float = math.inf) -> Self:
        """Return the metric whose unit ball is the smallest polytope that contains given points and the pixel.

        Extents are at least 10⁻³ pixels, as the pixel must be inside the ball.

        Args:
            points: (B, G, P, d, *spatial), such as the offsets of a support; the unit ball at p = ∞ is the intersection
                of the half-spaces with these normals that contain them.
            count: number K of half-spaces. Default: 64 in 2-D, otherwise 3^d − 1.
            p: exponent, from 1 to infinity (default). Balls with finite p are smaller.

        >>> triangle = torch.tensor([[-1.0, -1.0], [-1.0, 2.0], [2.0, -1.0]]).view(1, 1, 3, 2, 1, 1)
        >>> ball = HalfSpaceGauge.from_points(triangle, count=8)
        >>> ball.unit_vectors(torch.tensor([[1.0, 1.0], [-1.0, -1.0]])).view(2, 2)  # to the long side, to the corner
        tensor([[ 0.5000,  0.5000],
                [-1.0000, -1.0000]])
        """
        shape = tuple(_checks.floating(points, "points").shape)
        dim = len(shape) - 4
        if dim < 1 or shape[3] != dim or not shape[2] or not all(shape[4:]):
            raise ValueError(f"`points` must be (B, G, P, d, *spatial), got shape {shape}")
        z = points.to(torch.promote_types(points.dtype, torch.float32))
        normals = half_space_normals(default_count(dim) if count is None else count, dim).to(z)
        heights = [_symmetric.sum_of_products(z.unbind(3), n.unbind()).amax(2) for n in normals.unbind()]
        extents = torch.stack(heights, 2)
        return cls(extents.clamp_min(_SMALLEST_EXTENT), exponent_field(p, dim).to(z))

    @classmethod
    def wedge(
        cls, direction: Sequence[float], length: float, width: float, back: float = 0.5, count: int | None = None
    ) -> Self:
        """Return the constant 2-D metric whose unit ball is a triangle that widens along a direction.

        Its apex is ``back`` pixels behind the pixel.

        Args:
            direction: (y, x), not 0.
            length: extent along the direction in pixels.
            width: length of the side across the direction in pixels.
            back: distance of the apex (default 0.5).
            count: number K of half-spaces, as in ``from_points``.

        >>> cone = HalfSpaceGauge.wedge((0.0, 1.0), length=5.0, width=6.0)
        >>> cone.unit_vectors(torch.tensor([[0.0, 1.0], [0.0, -1.0]])).view(2, 2)
        tensor([[ 0.0000,  5.0000],
                [ 0.0000, -0.5000]])
        """
        y, x = _direction(direction)
        length, half = _checks.positive(length, "length"), _checks.positive(width, "width") / 2
        back = _checks.positive(back, "back")
        corners = [(-back, 0.0), (length, half), (length, -half)]  # along the direction, across it
        points = torch.tensor([[a * y + c * x, a * x - c * y] for a, c in corners])
        return cls.from_points(points.view(1, 1, 3, 2, 1, 1), count)

    def norm(self, u: Tensor) -> Tensor:
        """Return F(u)."""
        self.check_vectors(u, "u")
        several = u.dim() == self.dim + 4
        normals = half_space_normals(self.extents.shape[2], self.dim).to(u)
        per_normal = normals.t().view(self.dim, -1, *(1,) * (u.dim() - 1))  # [d, K, 1, …]
        along = _symmetric.sum_of_products(per_normal.unbind(), u.unbind(-self.dim - 1)).relu()  # [K, B, G, (P), …]
        inverse = self.extents.reciprocal().movedim(2, 0)
        terms = along * (inverse.unsqueeze(3) if several else inverse)
        return _p_norm.p_norm(terms, self.inverse_p if several else self.inverse_p.squeeze(2))

    def dual(self) -> Metric:
        """Return the dual metric, computed numerically: see ``NumericalDual``."""
        from .numerical_dual import NumericalDual

        return NumericalDual(self)

    def is_positive(self) -> Tensor:
        """Return where all extents are positive and finite and 1/p is in [0, 1]."""
        extents = ((self.extents > 0) & self.extents.isfinite()).all(2)
        return extents & _p_norm.is_convex(self.inverse_p.squeeze(2))

    def scaled(self, radius: float | Sequence[float]) -> Self:
        """Return the metric whose unit balls are larger by a factor ``radius``.

        Factors that differ between axes would change the normals, and raise an error.
        """
        factors = axis_factors(radius, self.dim)
        if len(set(factors)) > 1:
            raise ValueError(f"`radius` (={radius!r}) must be equal along all axes, as the normals are fixed")
        return dataclasses.replace(self, extents=self.extents / factors[0])

    @property
    def volume(self) -> Tensor:
        """The volume of the unit ball, integrated numerically: (B, G, *spatial)."""
        return ball_volume_by_directions(self)

    @property
    def bounding_radius(self) -> Tensor:
        """An upper bound on |u| in the unit ball: (B, G, *spatial).

        It is max h_k divided by a lower bound of the p-norm of all n_kᵀv over unit vectors v: the smallest cosine
        between v and the next normal, or, as Σ (n_kᵀv)₊² = K/2d, K^{1/p} / √(2d) for p ≥ 2.
        """
        count = self.extents.shape[2]
        least = torch.full_like(self.inverse_p.squeeze(2), covering_cosine(count, self.dim))
        if count % 2 == 0:
            norm = count ** self.inverse_p.squeeze(2).clamp_max(0.5) / math.sqrt(2 * self.dim)
            least = torch.maximum(least, norm)
        return self.extents.amax(2) / least


def default_count(dim: int) -> int:
    """Return the default number of half-spaces of a gauge made from points."""
    return 64 if dim == 2 else 3**dim - 1


def covering_cosine(count: int, dim: int) -> float:
    """Return the smallest cosine between any direction and the normal next to it."""
    if dim == 2:
        return math.cos(math.pi / count)
    if count == 2 * dim:
        return 1 / math.sqrt(dim)
    # The worst direction has equal products with all normals (1, …, 1, 0, …, 0)/√m: components ∝ √m − √(m−1).
    return 1 / math.sqrt(sum((math.sqrt(m) - math.sqrt(m - 1)) ** 2 for m in range(1, dim + 1)))


def _direction(direction: Sequence[float]) -> tuple[float, float]:
    numbers = [_checks.number(x) for x in direction] if isinstance(direction, Sequence) else []
    length = math.hypot(*numbers)
    if len(numbers) != 2 or not 0 < length < math.inf:
        raise ValueError(f"`direction` (={direction!r}) must be two numbers (y, x), not 0")
    return numbers[0] / length, numbers[1] / length
