"""Randers metrics: F(u) = √(uᵀMu) + ωᵀu, whose unit balls are ellipsoids, in general off-center."""

import dataclasses
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from .. import _checks
from . import _symmetric
from .base import Metric, scaled_covectors
from .riemannian import Riemannian, check_covectors

__all__ = ["Randers"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Randers(Metric):
    """The metric F(u) = √(uᵀ M u) + ωᵀ u, positive if and only if M > 0 and ‖ω‖_{M⁻¹} < 1.

    The unit ball is an ellipsoid shifted away from ω. F(u) ≥ (1 − ‖ω‖_{M⁻¹}) ‖u‖_M.

    Args:
        M: (B, G, d(d+1)/2, *spatial), as for ``Riemannian``.
        omega: (B, G, d, *spatial), in tensor-axis order: (ω_y, ω_x) in 2-D.

    >>> M = torch.tensor([1.0, 0.0, 1.0]).view(1, 1, 3, 1, 1)
    >>> omega = torch.tensor([0.0, 0.5]).view(1, 1, 2, 1, 1)
    >>> Randers(M, omega).unit_vectors(torch.tensor([[0.0, 1.0], [0.0, -1.0]]))[0, 0, :, 1].flatten()
    tensor([ 0.6667, -2.0000])
    """

    M: Tensor
    omega: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        check_covectors(self.M, self.omega, "omega")

    @classmethod
    def isotropic(cls, radius: float | Tensor, dim: int = 2) -> Self:
        """Return the metric whose unit balls are round and centered, of the given radius in pixels.

        Args:
            radius: a number, or a field (B, G, *spatial).
            dim: number d of spatial axes (default 2).
        """
        return cls.from_riemannian(Riemannian.isotropic(radius, dim))

    @classmethod
    def needle(cls, direction: Tensor, length: float | Tensor, width: float | Tensor) -> Self:
        """Return the metric whose unit balls reach ``length`` along a direction and ``width`` orthogonal to it.

        Args:
            direction: (B, G, d, *spatial), of any length.
            length, width: a number, or a field (B, G, *spatial), in pixels.
        """
        return cls.from_riemannian(Riemannian.needle(direction, length, width))

    @classmethod
    def from_riemannian(cls, metric: Riemannian) -> Self:
        """Return a Riemannian metric as a Randers metric with ω = 0."""
        _checks.instance_of(metric, Riemannian, "metric")
        return cls(metric.M, torch.zeros_like(metric.M[:, :, : metric.dim]))

    @classmethod
    def from_zermelo(cls, ellipsoid: Riemannian, wind: Tensor) -> Self:
        """Return the metric whose unit ball is an ellipsoid {u : uᵀhu ≤ 1} translated by W.

        With λ = 1 − WᵀhW > 0: M = (λ h + hW (hW)ᵀ) / λ², ω = −hW / λ.

        Args:
            ellipsoid: the metric of the ellipsoid, with matrix h.
            wind: W, the center of the unit ball in pixels, (B, G, d, *spatial).
        """
        _checks.instance_of(ellipsoid, Riemannian, "ellipsoid")
        _checks.same_values(ellipsoid.M, "ellipsoid", _checks.floating(wind, "wind"))
        if wind.dim() != ellipsoid.dim + 3 or wind.shape[2] != ellipsoid.dim or 0 in wind.shape[3:]:
            raise ValueError(f"`wind` must be (B, G, {ellipsoid.dim}, *spatial), got shape {tuple(wind.shape)}")
        _checks.same_values(wind, "wind", ellipsoid.M)
        lowered = _symmetric.matvec(ellipsoid.M, wind)
        slack = (1 - _symmetric.dot(wind, lowered)).unsqueeze(2)
        return cls((slack * ellipsoid.M + _symmetric.outer(lowered)) / slack.square(), -lowered / slack)

    def zermelo(self) -> tuple[Riemannian, Tensor]:
        """Return the ellipsoid h and the center W of the unit ball, the arguments of ``from_zermelo``."""
        raised, slack = self._raised()
        return Riemannian(slack * (self.M - _symmetric.outer(self.omega))), -raised / slack

    def norm(self, u: Tensor) -> Tensor:
        """Return √(uᵀMu) + ωᵀu."""
        return Riemannian(self.M).norm(u) + _symmetric.dot(self.omega, u)

    def dual(self) -> "Randers":
        """Return the dual metric, itself a Randers metric.

        With α = 1 − ‖ω‖²_{M⁻¹}: M* = (α M⁻¹ + M⁻¹ω (M⁻¹ω)ᵀ) / α², ω* = −M⁻¹ω / α.
        """
        raised, slack = self._raised()
        return Randers(
            (slack * _symmetric.inverse(self.M) + _symmetric.outer(raised)) / slack.square(), -raised / slack
        )

    def is_positive(self) -> Tensor:
        """Return where M is positive definite and ‖ω‖_{M⁻¹} < 1."""
        return Riemannian(self.M).is_positive() & (self.asymmetry < 1)

    def scaled(self, radius: float | Sequence[float]) -> Self:
        """Return the metric whose unit balls are larger by a factor ``radius``: M_ij / (r_i r_j), ω_i / r_i."""
        return type(self)(Riemannian(self.M).scaled(radius).M, scaled_covectors(self.omega, radius))

    @property
    def anisotropy(self) -> Tensor:
        """The anisotropy of the symmetric part ‖u‖_M = ½(F(u) + F(−u)), ≥ 1: (B, G, *spatial)."""
        return Riemannian(self.M).anisotropy

    @property
    def asymmetry(self) -> Tensor:
        """The largest (F(u) − F(−u)) / (F(u) + F(−u)), which is ‖ω‖_{M⁻¹}, in [0, 1): (B, G, *spatial)."""
        return _symmetric.root(_symmetric.inverse_quadratic(self.M, self.omega))

    @property
    def volume(self) -> Tensor:
        """The volume of the unit ball, that of M divided by (1 − ‖ω‖²_{M⁻¹})^{(d+1)/2}: (B, G, *spatial)."""
        return Riemannian(self.M).volume * (1 - self.asymmetry.square()).pow(-(self.dim + 1) / 2)

    @property
    def bounding_radius(self) -> Tensor:
        """The distance of the center of the unit ball plus its longest half-axis, in pixels: (B, G, *spatial)."""
        ellipsoid, center = self.zermelo()
        return torch.linalg.vector_norm(center, dim=2) + ellipsoid.bounding_radius

    def _raised(self) -> tuple[Tensor, Tensor]:
        """Return M⁻¹ω, (B, G, d, *spatial), and 1 − ‖ω‖²_{M⁻¹}, (B, G, 1, *spatial)."""
        # Not by M⁻¹, whose rounding errors may exceed ‖ω‖_{M⁻¹} where ω lies along a short axis of a thin ball.
        raised = _symmetric.solve(self.M, self.omega)
        slack = 1 - _symmetric.inverse_quadratic(self.M, self.omega).unsqueeze(2)
        return raised, slack.clamp_min(torch.finfo(slack.dtype).eps)
