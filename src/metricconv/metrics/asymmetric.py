"""Asymmetric quadratic metrics: F(u)² = uᵀMu + (wᵀu)₊², whose unit balls are two half-ellipsoids of different depth."""

import dataclasses
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from .. import _checks
from . import _symmetric
from .base import Metric, positive_field, scaled_covectors, unit_field
from .riemannian import Riemannian, check_covectors

__all__ = ["AsymmetricQuadratic"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class AsymmetricQuadratic(Metric):
    """The metric F(u) = √(uᵀ M u + (wᵀu)₊²), where (s)₊ = max(s, 0); positive for M > 0 and any w.

    The unit ball is that of M, compressed on the side towards which w points: half an ellipsoid of M and half an
    ellipsoid of M + wwᵀ, which meet where wᵀu = 0. For w → ∞ it is a half-ellipsoid, a one-sided support. F is
    continuously differentiable except at 0. The set of M > 0 and all w is convex, so averages and interpolated metrics
    are positive, and lower bounds on the eigenvalues of M also hold for them.

    Args:
        M: (B, G, d(d+1)/2, *spatial), as for ``Riemannian``.
        w: (B, G, d, *spatial), in tensor-axis order: (w_y, w_x) in 2-D.

    >>> M = torch.tensor([1.0, 0.0, 1.0]).view(1, 1, 3, 1, 1)
    >>> w = torch.tensor([0.0, 15.0]).sqrt().view(1, 1, 2, 1, 1)
    >>> AsymmetricQuadratic(M, w).unit_vectors(torch.tensor([[0.0, 1.0], [0.0, -1.0]]))[0, 0, :, 1].flatten()
    tensor([ 0.2500, -1.0000])
    """

    M: Tensor
    w: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        check_covectors(self.M, self.w, "w")

    @classmethod
    def isotropic(cls, radius: float | Tensor, dim: int = 2) -> Self:
        """Return the metric whose unit balls are round and centered, of the given radius in pixels.

        Args:
            radius: a number, or a field (B, G, *spatial).
            dim: number d of spatial axes (default 2).
        """
        return cls.from_riemannian(Riemannian.isotropic(radius, dim))

    @classmethod
    def from_riemannian(cls, metric: Riemannian) -> Self:
        """Return a Riemannian metric as an asymmetric quadratic metric with w = 0."""
        _checks.instance_of(metric, Riemannian, "metric")
        return cls(metric.M, torch.zeros_like(metric.M[:, :, : metric.dim]))

    @classmethod
    def half_disc(cls, direction: Tensor, radius: float | Tensor, back: float | Tensor) -> Self:
        """Return the metric whose unit balls are half discs towards a direction, half balls in 3-D.

        Args:
            direction: (B, G, d, *spatial), of any length, not 0.
            radius: extent in pixels along the direction and orthogonal to it, a number or a field (B, G, *spatial).
            back: extent against the direction, at most ``radius``; likewise.

        >>> right = torch.tensor([0.0, 1.0]).view(1, 1, 2, 1, 1)
        >>> ball = AsymmetricQuadratic.half_disc(right, radius=5.0, back=0.5)
        >>> ball.unit_vectors(torch.tensor([[0.0, 1.0], [0.0, -1.0]]))[0, 0, :, 1].flatten()
        tensor([ 5.0000, -0.5000])
        """
        unit = unit_field(direction, "direction")
        dim = unit.shape[2]
        r, b = positive_field(radius, dim, "radius").to(unit), positive_field(back, dim, "back").to(unit)
        compression = (b.pow(-2) - r.pow(-2)).clamp_min(0).unsqueeze(2)
        return cls(Riemannian.isotropic(r, dim).M, -_symmetric.root(compression) * unit)

    def norm(self, u: Tensor) -> Tensor:
        """Return √(uᵀMu + (wᵀu)₊²); its derivative at u = 0 is defined as 0."""
        self.check_vectors(u, "u")
        return _symmetric.root(_symmetric.quadratic(self.M, u) + _symmetric.dot(self.w, u).relu().square())

    def dual(self) -> "AsymmetricQuadratic":
        """Return the dual metric, of the same family: M* = (M + wwᵀ)⁻¹, w* = −M⁻¹w / √(1 + wᵀM⁻¹w)."""
        compressed = self.M + _symmetric.outer(self.w)
        raised = _symmetric.solve(self.M, self.w)
        return AsymmetricQuadratic(_symmetric.inverse(compressed), -raised / self._ratio().unsqueeze(2))

    def is_positive(self) -> Tensor:
        """Return where M is positive definite and w finite."""
        return Riemannian(self.M).is_positive() & self.w.isfinite().all(2)

    def scaled(self, radius: float | Sequence[float]) -> Self:
        """Return the metric whose unit balls are larger by a factor ``radius``: M_ij / (r_i r_j), w_i / r_i."""
        return type(self)(Riemannian(self.M).scaled(radius).M, scaled_covectors(self.w, radius))

    @property
    def asymmetry(self) -> Tensor:
        """The largest (F(u) − F(−u)) / (F(u) + F(−u)), in [0, 1): (B, G, *spatial)."""
        ratio = self._ratio()
        return (ratio - 1) / (ratio + 1)

    @property
    def volume(self) -> Tensor:
        """The volume of the unit ball, ½ vol(M) (1 + 1/√(1 + wᵀM⁻¹w)): (B, G, *spatial)."""
        return Riemannian(self.M).volume * (1 + 1 / self._ratio()) / 2

    @property
    def bounding_radius(self) -> Tensor:
        """The longest half-axis of the ball of M, in pixels, of which one of the two ends is always kept."""
        return Riemannian(self.M).bounding_radius

    def _ratio(self) -> Tensor:
        """Return √(1 + wᵀM⁻¹w), the largest F(u)/F(−u): (B, G, *spatial)."""
        return (1 + _symmetric.inverse_quadratic(self.M, self.w)).sqrt()
