"""Randers metrics: F(u) = √(uᵀMu) + ωᵀu, whose unit balls are ellipsoids that need not be centred."""

import dataclasses
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from . import _symmetric
from .base import Metric, axis_factors
from .riemannian import Riemannian, check_packed


@dataclasses.dataclass(frozen=True, eq=False)
class Randers(Metric):
    """The metric F(u) = √(uᵀ M u) + ωᵀ u, positive exactly where M > 0 and ‖ω‖_{M⁻¹} < 1.

    The unit ball leans away from ω. In the norm of M, F(u) ≥ (1 − ‖ω‖_{M⁻¹}) ‖u‖_M.

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
        check_packed(self.M)
        if self.omega.shape[2] != self.dim:
            raise ValueError(f"`omega` must be (B, G, {self.dim}, *spatial), got shape {tuple(self.omega.shape)}")

    @classmethod
    def isotropic(cls, radius: float | Tensor, dim: int = 2) -> Self:
        """Return the metric whose balls are round and centred, of the given radius in pixels."""
        return cls.from_riemannian(Riemannian.isotropic(radius, dim))

    @classmethod
    def needle(cls, direction: Tensor, length: float | Tensor, width: float | Tensor) -> Self:
        """Return the metric whose balls reach ``length`` along a direction and ``width`` across it."""
        return cls.from_riemannian(Riemannian.needle(direction, length, width))

    @classmethod
    def from_riemannian(cls, metric: Riemannian) -> Self:
        """Return the same metric, seen as a Randers metric with ω = 0."""
        return cls(metric.M, torch.zeros_like(metric.M[:, :, : metric.dim]))

    @classmethod
    def from_zermelo(cls, ellipsoid: Riemannian, wind: Tensor) -> Self:
        """Return the metric whose unit ball is the ellipsoid {uᵀhu ≤ 1} carried by the wind: its centre is ``wind``.

        With λ = 1 − WᵀhW > 0: M = (λ h + hW (hW)ᵀ) / λ², ω = −hW / λ.
        """
        pulled = _symmetric.matvec(ellipsoid.M, wind)
        slack = (1 - _symmetric.dot(wind, pulled)).unsqueeze(2)
        return cls((slack * ellipsoid.M + _symmetric.outer(pulled)) / slack.square(), -pulled / slack)

    def zermelo(self) -> tuple[Riemannian, Tensor]:
        """Return the ball's shape h, as a centred ellipsoid, and its centre W: the inverse of ``from_zermelo``."""
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
        """Return the metric whose balls are ``radius`` times as large: M_ij / (r_i r_j), ω_i / r_i."""
        factors = axis_factors(radius, self.dim)
        drift = torch.stack([w * f for w, f in zip(self.omega.unbind(2), factors, strict=True)], 2)
        return type(self)(Riemannian(self.M).scaled(radius).M, drift)

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
        """The volume of the unit ball, that of M's over (1 − ‖ω‖²_{M⁻¹})^{(d+1)/2}: (B, G, *spatial)."""
        return Riemannian(self.M).volume * (1 - self.asymmetry.square()).pow(-(self.dim + 1) / 2)

    @property
    def bounding_radius(self) -> Tensor:
        """The distance of the ball's centre plus its longest half-axis, in pixels: (B, G, *spatial)."""
        ellipsoid, centre = self.zermelo()
        return torch.linalg.vector_norm(centre, dim=2) + ellipsoid.bounding_radius

    def _raised(self) -> tuple[Tensor, Tensor]:
        """Return M⁻¹ω and 1 − ‖ω‖²_{M⁻¹}, the latter with an axis of size 1 for the components."""
        raised = _symmetric.matvec(_symmetric.inverse(self.M), self.omega)
        slack = 1 - _symmetric.dot(self.omega, raised)
        return raised, slack.clamp_min(torch.finfo(slack.dtype).eps).unsqueeze(2)
