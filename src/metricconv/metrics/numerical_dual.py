"""The dual of any metric, by convex minimization."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from ._integration import ball_volume_by_directions
from .base import Metric
from .composite import CompositeMetric

__all__ = ["NumericalDual"]

# Steps of the golden-section search along each axis; each divides the interval by 1.618, to 1e-9 in the end.
_STEPS = 44
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class NumericalDual(CompositeMetric):
    """The dual F*(v) = max {vᵀu : F(u) ≤ 1} of a metric without a closed form, by search on a hyperplane.

    F*(v) is the inverse of the minimum of the convex function F over the hyperplane vᵀu = 1. The minimum is found by
    golden-section search, nested over the d − 1 axes of the hyperplane: 44^{d−1} evaluations of F. Its first
    derivatives are exact, those of a maximum: the maximizer u by v, −∂F(u) by the parameters of F.

    Args:
        metric: F, positive.

    >>> from metricconv import HalfSpaceGauge
    >>> square = HalfSpaceGauge(torch.ones(1, 1, 4, 1, 1), torch.zeros(1, 1, 1, 1, 1))
    >>> v = torch.tensor([1.0, -2.0]).view(1, 1, 2, 1, 1)
    >>> square.dual().norm(v).round(decimals=4).item()  # |v_y| + |v_x|
    3.0
    """

    metric: Metric

    def norm(self, u: Tensor) -> Tensor:
        """Return F*(u) of covectors u, 0 for u = 0."""
        self.check_vectors(u, "u")
        maximizer = self.maximizer(u)
        return (u * maximizer).sum(-self.dim - 1) / self.metric.norm(maximizer)

    @torch.no_grad()
    def maximizer(self, v: Tensor) -> Tensor:
        """Return directions u, not scaled, that maximize vᵀu / F(u); shapes as for ``norm``."""
        axis = -self.dim - 1
        length = torch.linalg.vector_norm(v, dim=axis, keepdim=True)
        last_axis = torch.eye(self.dim, dtype=v.dtype, device=v.device)[-1].view(-1, *(1,) * self.dim)
        unit = torch.where(length > 0, v / torch.where(length > 0, length, 1), last_axis)
        several = v.dim() == self.dim + 4
        bound = self.metric.bounding_radius.unsqueeze(2) if several else self.metric.bounding_radius
        # |u| ≤ R F(u), so that the minimizer of F is at most R F(unit) from unit.
        reach = bound * self.metric.norm(unit)
        return self._search(unit, _tangents(unit, axis), reach.unsqueeze(axis))

    def dual(self) -> Metric:
        """Return the metric itself."""
        return self.metric

    def is_positive(self) -> Tensor:
        """Return where the metric is positive."""
        return self.metric.is_positive()

    def scaled(self, radius: float | Sequence[float]) -> Self:
        """Return the metric whose unit balls are larger by a factor ``radius``: the dual of a smaller one."""
        inverse = [1 / r for r in radius] if isinstance(radius, Sequence) else 1 / radius
        return dataclasses.replace(self, metric=self.metric.scaled(inverse))

    @property
    def volume(self) -> Tensor:
        """The volume of the unit ball, integrated numerically: (B, G, *spatial)."""
        return ball_volume_by_directions(self)

    @property
    def bounding_radius(self) -> Tensor:
        """An upper bound on the length of covectors in the unit ball, √d times the largest F of an axis."""
        axes = torch.eye(self.dim, dtype=self.dtype, device=self.device)
        directions = torch.cat([axes, -axes]).view(1, 1, -1, self.dim, *(1,) * self.dim)
        return math.sqrt(self.dim) * self.metric.norm(directions).amax(2)

    def _search(self, base: Tensor, tangents: list[Tensor], reach: Tensor) -> Tensor:
        """Return the minimizer of F over base + Σ y_i tangent_i, |y_i| ≤ reach."""
        if not tangents:
            return base

        def best(y: Tensor) -> tuple[Tensor, Tensor]:
            point = self._search(base + y * tangents[0], tangents[1:], reach)
            return point, self.metric.norm(point).unsqueeze(-self.dim - 1)

        low, high = -reach, reach
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        (_, at_left), (_, at_right) = best(left), best(right)
        for _ in range(_STEPS):
            keep_left = at_left <= at_right
            low, high = torch.where(keep_left, low, left), torch.where(keep_left, right, high)
            fresh = torch.where(keep_left, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
            _, value = best(fresh)
            left, right = torch.where(keep_left, fresh, right), torch.where(keep_left, left, fresh)
            at_left, at_right = torch.where(keep_left, value, at_right), torch.where(keep_left, at_left, value)
        return best((low + high) / 2)[0]


def _tangents(unit: Tensor, axis: int) -> list[Tensor]:
    """Return d − 1 orthonormal vectors orthogonal to a field of unit vectors: images of axes by a reflection."""
    first, *others = unit.split(1, axis)
    # The reflection along unit ± first axis maps unit to ∓ the first axis.
    mirror = [first + torch.where(first >= 0, 1.0, -1.0), *others]
    scale = 2 / torch.stack(mirror).square().sum(0)
    axes = range(len(mirror))
    return [torch.cat([float(i == k) - scale * mirror[k] * mirror[i] for i in axes], axis) for k in axes[1:]]
