"""Riemannian metrics: F(u) = √(uᵀMu), whose unit balls are centered ellipsoids."""

import dataclasses
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from .. import _checks
from . import _symmetric
from .base import Metric, axis_factors, ball_volume, positive_field, unit_field

__all__ = ["Riemannian"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Riemannian(Metric):
    """The metric F(u) = √(uᵀ M u), for M symmetric positive definite.

    Args:
        M: (B, G, d(d+1)/2, *spatial), the upper triangle row by row: (M_yy, M_yx, M_xx) in 2-D.

    >>> wide = Riemannian(torch.tensor([1.0, 0.0, 0.25]).view(1, 1, 3, 1, 1))  # reaches 1 px along y, 2 px along x
    >>> wide.unit_vectors(torch.tensor([[1.0, 0.0], [0.0, 1.0]])).flatten(2).view(2, 2)
    tensor([[1., 0.],
            [0., 2.]])
    """

    M: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        check_packed(self.M)

    @classmethod
    def isotropic(cls, radius: float | Tensor, dim: int = 2) -> Self:
        """Return the metric whose unit balls are round, of the given radius in pixels: M = I / radius².

        Args:
            radius: a number, or a field (B, G, *spatial).
            dim: number d of spatial axes (default 2).
        """
        dim = _checks.whole(dim, "dim", minimum=1)
        r = positive_field(radius, dim, "radius")
        inverse_square = r.pow(-2).unsqueeze(2)
        diagonal = [inverse_square if i == j else torch.zeros_like(inverse_square) for i, j in _symmetric.pairs(dim)]
        return cls(torch.cat(diagonal, 2))

    @classmethod
    def needle(cls, direction: Tensor, length: float | Tensor, width: float | Tensor) -> Self:
        """Return the metric whose unit balls reach ``length`` along a direction and ``width`` orthogonal to it.

        M = t tᵀ / length² + (I − t tᵀ) / width², with the unit vector t of the direction.

        Args:
            direction: (B, G, d, *spatial), of any length.
            length, width: a number, or a field (B, G, *spatial), in pixels.
        """
        tangent = unit_field(direction, "direction")
        dim = tangent.shape[2]
        along = positive_field(length, dim, "length").to(tangent).pow(-2).unsqueeze(2)
        across = positive_field(width, dim, "width").to(tangent).pow(-2).unsqueeze(2)
        projector = _symmetric.outer(tangent)
        return cls(across * _symmetric.identity(projector) + (along - across) * projector)

    def norm(self, u: Tensor) -> Tensor:
        """Return √(uᵀMu); its derivative at u = 0 is defined as 0."""
        self.check_vectors(u, "u")
        return _symmetric.root(_symmetric.quadratic(self.M, u))

    def dual(self) -> "Riemannian":
        """Return the metric of M⁻¹."""
        return Riemannian(_symmetric.inverse(self.M))

    def is_positive(self) -> Tensor:
        """Return where M is positive definite."""
        return _symmetric.eigenvalues(self.M)[0] > 0

    def scaled(self, radius: float | Sequence[float]) -> Self:
        """Return the metric whose unit balls are larger by a factor ``radius``: M_ij / (r_i r_j)."""
        factors = axis_factors(radius, self.dim)
        entries = zip(_symmetric.pairs(self.dim), self.M.unbind(2), strict=True)
        return type(self)(torch.stack([m * (factors[i] * factors[j]) for (i, j), m in entries], 2))

    @property
    def anisotropy(self) -> Tensor:
        """The ratio of the longest to the shortest axis of the unit ball, ≥ 1: (B, G, *spatial)."""
        low, high = _symmetric.eigenvalues(self.M)
        return (high / low.clamp_min(torch.finfo(low.dtype).tiny)).sqrt()

    @property
    def asymmetry(self) -> Tensor:
        """0, since F(−u) = F(u): (B, G, *spatial)."""
        return torch.zeros_like(self.M[:, :, 0])

    @property
    def volume(self) -> Tensor:
        """The volume of the unit ball, in 2-D its area in pixels: (B, G, *spatial)."""
        return ball_volume(self.dim) * _symmetric.determinant(self.M).rsqrt()

    @property
    def bounding_radius(self) -> Tensor:
        """The longest half-axis of the unit ball, in pixels: 1/√λ_min."""
        return _symmetric.eigenvalues(self.M)[0].clamp_min(torch.finfo(self.dtype).tiny).rsqrt()


def check_covectors(M: Tensor, covector: Tensor, name: str) -> None:
    """Check the components of a packed matrix field and of a covector field that go together."""
    check_packed(M)
    dim = M.dim() - 3
    if covector.shape[2] != dim:
        raise ValueError(f"`{name}` must be (B, G, {dim}, *spatial), got shape {tuple(covector.shape)}")


def check_packed(M: Tensor) -> None:
    """Check that the number of components of a packed matrix field matches its spatial axes."""
    dim = M.dim() - 3
    if _symmetric.dim_of(M.shape[2]) != dim:
        raise ValueError(
            f"`M` must be (B, G, {dim * (dim + 1) // 2}, *spatial) for {dim} spatial axes (the upper triangle, row by "
            f"row), got shape {tuple(M.shape)}"
        )
