"""Metrics made of other metrics: soft intersections of unit balls."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from .. import _checks
from . import _p_norm
from ._integration import ball_volume_by_directions
from .base import Metric, check_exponent

__all__ = ["CompositeMetric", "SoftIntersection"]


class CompositeMetric(Metric):
    """Base class of metrics whose fields are metrics, and numbers. Its tensors are those of the parts."""

    def __post_init__(self) -> None:
        parts = self.parts()
        for name, part in parts.items():
            _checks.instance_of(part, Metric, name)
        dims = {name: part.dim for name, part in parts.items()}
        if len(set(dims.values())) > 1:
            raise ValueError(f"{' and '.join(f'`{n}`' for n in parts)} must have equally many spatial axes, got {dims}")
        fields = {name: (part.batch, part.groups, *part.spatial) for name, part in parts.items()}
        try:
            batch, groups, *spatial = torch.broadcast_shapes(*fields.values())
        except RuntimeError:
            names = " and ".join(f"`{name}`" for name in parts)
            raise ValueError(f"{names} must agree in batch, groups and spatial size, got {fields}") from None
        dtype = functools.reduce(torch.promote_types, (part.dtype for part in parts.values()))
        for name, part in parts.items():
            if fields[name] != (batch, groups, *spatial) or part.dtype != dtype:
                whole = part.map(lambda t: t.to(dtype).expand(batch, groups, t.shape[2], *spatial))
                object.__setattr__(self, name, whole)

    def parts(self) -> dict[str, Metric]:
        """Return the metrics of which this one is made, by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.type in (Metric, "Metric")}

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of all parts, by the names of the part and the tensor."""
        parts = self.parts().items()
        return {f"{name}.{key}": tensor for name, part in parts for key, tensor in part.tensors().items()}

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the metric with ``function`` applied to each tensor of its parts."""
        return dataclasses.replace(self, **{name: part.map(function) for name, part in self.parts().items()})

    @classmethod
    def cat(cls, metrics: Sequence[Self]) -> Self:
        """Return one metric with the images of several metrics of this class, concatenated."""
        if not metrics or any(type(metric) is not cls for metric in metrics):
            raise TypeError(f"`metrics` must be one or more {cls.__name__}")
        first, parts = metrics[0], [metric.parts() for metric in metrics]
        joined = {name: type(part).cat([other[name] for other in parts]) for name, part in parts[0].items()}
        return dataclasses.replace(first, **joined)

    def _any(self) -> Tensor:
        return next(iter(self.tensors().values()))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SoftIntersection(CompositeMetric):
    """The metric F(u) = (F_1(u)^p + F_2(u)^p)^{1/p}, whose unit balls are soft intersections of those of F_1 and F_2.

    At p = ∞ they are the intersections. For smaller p they are smaller, with rounded corners. Parameters for which both
    metrics are positive are those for which their intersection is, and averages are those of the two metrics.

    Args:
        first, second: any two metrics of equal size; sizes of 1 broadcast. They may be intersections themselves.
        p: exponent, from 1 to infinity (default 2).

    >>> from metricconv import AsymmetricQuadratic, Riemannian
    >>> up, right = torch.eye(2).view(2, 1, 1, 2, 1, 1) * torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1, 1, 1)
    >>> halves = [AsymmetricQuadratic.half_disc(direction, 4.0, 0.5) for direction in (up, right)]
    >>> quarter = SoftIntersection(*halves, p=float("inf"))
    >>> quarter.unit_vectors(torch.tensor([[-1.0, 0.0], [0.0, -1.0], [1.0, 0.0]])).view(3, 2)
    tensor([[-4.0000,  0.0000],
            [ 0.0000, -0.5000],
            [ 0.5000,  0.0000]])
    """

    first: Metric
    second: Metric
    p: float = 2.0

    def __post_init__(self) -> None:
        check_exponent(self.p)
        super().__post_init__()

    def norm(self, u: Tensor) -> Tensor:
        """Return F(u)."""
        terms = torch.stack([self.first.norm(u), self.second.norm(u)])
        return _p_norm.p_norm(terms, terms.new_tensor(1 / self.p))

    def dual(self) -> Metric:
        """Return the dual metric, computed numerically: see ``NumericalDual``."""
        from .numerical_dual import NumericalDual

        return NumericalDual(self)

    def is_positive(self) -> Tensor:
        """Return where both metrics are positive."""
        return self.first.is_positive() & self.second.is_positive()

    def scaled(self, radius: float | Sequence[float]) -> Self:
        """Return the metric whose unit balls are larger by a factor ``radius``, a number or one per axis."""
        return dataclasses.replace(self, first=self.first.scaled(radius), second=self.second.scaled(radius))

    @property
    def volume(self) -> Tensor:
        """The volume of the unit ball, integrated numerically: (B, G, *spatial)."""
        return ball_volume_by_directions(self)

    @property
    def bounding_radius(self) -> Tensor:
        """The smaller bound of the two metrics, as the unit ball is contained in both of theirs."""
        return torch.minimum(self.first.bounding_radius, self.second.bounding_radius)
