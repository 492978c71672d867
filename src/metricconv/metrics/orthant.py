"""Orthant norms: p-norms in a frame with an extent of its own in each of the 2d directions of the axes."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from .. import _checks
from . import _p_norm, _symmetric
from .base import Metric, axis_factors, exponent_field

__all__ = ["OrthantNorm"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class OrthantNorm(Metric):
    """The metric F(u) = (Σ_k ((x_k)₊ / a_k)^p + ((−x_k)₊ / b_k)^p)^{1/p}, x = Ru, for a frame R and extents a, b > 0.

    The unit ball reaches a_k along axis k of the frame and b_k in the opposite direction. At p = ∞ it is a box with 2d
    independent sides, at p = 2 it consists of 2^d pieces of ellipsoids, and at p = 1 of 2^d simplices. So the k×k
    kernel, also dilated or shifted by less than its size, is the unit ball of a metric.

    The metric is positive for a, b > 0, 0 ≤ 1/p ≤ 1 and any invertible R. Averages and interpolated metrics are
    positive if the symmetric part of each R is: the set of these parameters is convex. It contains all rotations by
    less than 90°, which suffice, as larger ones exchange extents. Extents of an average are between those of its terms.

    Args:
        frame: R row by row, (B, G, d², *spatial): row k is the axis k of the frame. Usually a rotation.
        extents: a_1, …, a_d, b_1, …, b_d in pixels, (B, G, 2d, *spatial).
        inverse_p: 1/p, (B, G, 1, *spatial); 0 stands for p = ∞.

    >>> box = OrthantNorm.box([1.0, 3.0], [1.0, 0.5])  # 1 px up and down, 3 px to the right, 0.5 px to the left
    >>> box.unit_vectors(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [1.0, 3.0]])).view(4, 2)
    tensor([[ 1.0000,  0.0000],
            [ 0.0000,  3.0000],
            [ 0.0000, -0.5000],
            [ 1.0000,  3.0000]])
    """

    frame: Tensor
    extents: Tensor
    inverse_p: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, count in (("frame", self.dim**2), ("extents", 2 * self.dim), ("inverse_p", 1)):
            shape = tuple(getattr(self, name).shape)
            if shape[2] != count:
                raise ValueError(
                    f"`{name}` must be (B, G, {count}, *spatial) for {self.dim} spatial axes, got shape {shape}"
                )

    @classmethod
    def box(
        cls, forward: Sequence[float], backward: Sequence[float] | None = None, angle: float = 0.0, p: float = math.inf
    ) -> Self:
        """Return the constant metric whose unit ball is a box, or with a finite p a box with rounded sides.

        Args:
            forward: extents in pixels along the axes of the box, one per spatial axis.
            backward: extents in the opposite directions. Default: ``forward``, a centered box.
            angle: rotation of the box from +x towards +y in radians (default 0); 2-D only.
            p: exponent, from 1 to infinity (default).

        >>> square = OrthantNorm.box([1.0, 1.0])  # the 3×3 kernel
        >>> square.norm(torch.tensor([1.0, -1.0]).view(1, 1, 2, 1, 1)).item()
        1.0
        """
        ahead = _extents(forward, "forward")
        behind = ahead if backward is None else _extents(backward, "backward")
        if len(behind) != len(ahead):
            raise ValueError(f"`backward` (={backward!r}) must have one extent per axis, like `forward` (={forward!r})")
        dim = len(ahead)
        values = torch.tensor([*ahead, *behind], dtype=torch.float32).view(1, 1, -1, *(1,) * dim)
        return cls(_rotation(angle, dim), values, exponent_field(p, dim))

    def norm(self, u: Tensor) -> Tensor:
        """Return F(u); derivatives where a component x_k is 0 are the means of the one-sided ones."""
        self.check_vectors(u, "u")
        several = u.dim() == self.dim + 4
        inverse = self.extents.reciprocal().unbind(2)
        terms = []
        for k, row in enumerate(self.frame.split(self.dim, 2)):
            x = _symmetric.dot(row, u)
            ahead, behind = (t.unsqueeze(2) if several else t for t in (inverse[k], inverse[self.dim + k]))
            terms.append(torch.maximum(x * ahead, -x * behind))
        return _p_norm.p_norm(torch.stack(terms), self.inverse_p if several else self.inverse_p.squeeze(2))

    def dual(self) -> "OrthantNorm":
        """Return the dual metric, of the same family: frame R⁻ᵀ, extents 1/a and 1/b, exponent 1/q = 1 − 1/p."""
        frame = torch.linalg.inv_ex(self._matrix())[0].mT
        return OrthantNorm(frame.flatten(-2).movedim(-1, 2), self.extents.reciprocal(), 1 - self.inverse_p)

    def is_positive(self) -> Tensor:
        """Return where all extents are positive and finite, 1/p is in [0, 1] and the frame is invertible."""
        determinant = torch.linalg.det(self._matrix())
        invertible = determinant.isfinite() & (determinant != 0)
        extents = ((self.extents > 0) & self.extents.isfinite()).all(2)
        return extents & invertible & _p_norm.is_convex(self.inverse_p.squeeze(2))

    def scaled(self, radius: float | Sequence[float]) -> Self:
        """Return the metric whose unit balls are larger by a factor ``radius``, a number or one per axis.

        A number scales the extents, one per axis the columns of the frame.
        """
        if not isinstance(radius, Sequence):
            return dataclasses.replace(self, extents=self.extents / axis_factors(radius, self.dim)[0])
        factors = self.frame.new_tensor(axis_factors(radius, self.dim) * self.dim)
        return dataclasses.replace(self, frame=self.frame * factors.view(-1, *(1,) * self.dim))

    @property
    def volume(self) -> Tensor:
        """The volume of the unit ball, Γ(1 + 1/p)^d / Γ(1 + d/p) · Π_k (a_k + b_k) / |det R|: (B, G, *spatial)."""
        sides = self.extents[:, :, : self.dim] + self.extents[:, :, self.dim :]
        pieces = _p_norm.ball_volume(self.inverse_p.squeeze(2), self.dim)
        return pieces * sides.prod(2) / torch.linalg.det(self._matrix()).abs()

    @property
    def bounding_radius(self) -> Tensor:
        """The largest |u| of the unit ball for a rotation R; an upper bound on it for other R: (B, G, *spatial).

        For p ≥ 2 it is the r-norm, 1/r = ½ − 1/p, of max(a_k, b_k), for a box that of its farthest corner.
        """
        largest = torch.maximum(self.extents[:, :, : self.dim], self.extents[:, :, self.dim :])
        # p = 2 up to rounding belongs to r = ∞.
        inside = _p_norm.p_norm(largest.movedim(2, 0), (0.5 - self.inverse_p.squeeze(2)).clamp_min(0))
        squares = sum(_symmetric.outer(row) for row in self.frame.split(self.dim, 2))
        assert isinstance(squares, Tensor)
        smallest = _symmetric.eigenvalues(squares)[0].clamp_min(torch.finfo(self.dtype).tiny)
        return inside * smallest.rsqrt()

    def _matrix(self) -> Tensor:
        """Return the frame as matrices (B, G, *spatial, d, d)."""
        return self.frame.movedim(2, -1).unflatten(-1, (self.dim, self.dim))


def _extents(values: Sequence[float], name: str) -> list[float]:
    if not isinstance(values, list | tuple) or not values:
        raise ValueError(f"`{name}` (={values!r}) must be a sequence of extents, one per spatial axis")
    return [_checks.positive(value, name) for value in values]


def _rotation(angle: float, dim: int) -> Tensor:
    """Return the frame of the image axes, in 2-D rotated from +x towards +y: (1, 1, d², 1, …)."""
    radians = _checks.number(angle)
    if not math.isfinite(radians) or (dim != 2 and radians != 0):
        raise ValueError(f"`angle` (={angle!r}) must be finite, and 0 unless there are 2 spatial axes")
    cos, sin = math.cos(radians), math.sin(radians)
    rows = [[cos, -sin], [sin, cos]] if dim == 2 else torch.eye(dim).tolist()
    return torch.tensor(rows).view(1, 1, -1, *(1,) * dim)
