"""The parametrization of a metric by a Cholesky factor."""

import dataclasses

import torch
from torch import Tensor

from ... import _checks
from .. import _symmetric
from .base import absolute, check_identity_exists
from .ellipsoid import _TRACE_FLOOR, EllipsoidParametrization

__all__ = ["Cholesky"]


@dataclasses.dataclass(frozen=True)
class Cholesky(EllipsoidParametrization):
    """Cholesky factor: M = LLᵀ + δ tr(LLᵀ) I for L lower triangular with diagonal |L_ii| + ε_L; δ = 10⁻⁴.

    Channels: L row by row, then ω. In 2-D: (L_yy, L_xy, L_xx, ω_y, ω_x).

    Without the second term the size of balls is not bounded: that of L = (1 0 ; t 1) reaches about t pixels. With it,
    for the eigenvalues λ_1 ≤ … ≤ λ_d of LLᵀ, the inequality of arithmetic and geometric means and det LLᵀ ≥ ε_L^{2d}
    give

        λ_min(M) ≥ λ_1 + δ(λ_2 + … + λ_d) ≥ d (δ^{d−1} λ_1⋯λ_d)^{1/d} ≥ d δ^{1−1/d} ε_L².

    Args:
        dim, eps_omega, detach_factor: as in ``EllipsoidParametrization``, with defaults 2, 0.1 and False.
        eps_L: ε_L, in (0, 1), the lower bound of the diagonal of L (default 0.01). Smaller values allow larger balls.

    >>> cholesky = Cholesky()
    >>> metric = cholesky(torch.tensor([0.99, 0.0, 0.49, 0.0, 0.0]).view(1, 1, 5, 1, 1))
    >>> metric.unit_vectors(torch.eye(2)).flatten(2).view(2, 2).round(decimals=2)  # 1 px along y, 2 px along x
    tensor([[1., 0.],
            [0., 2.]])
    """

    eps_omega: float = 0.1
    detach_factor: bool = False
    eps_L: float = 0.01

    def __post_init__(self) -> None:
        _checks.positive(self.eps_L, "eps_L")
        super().__post_init__()

    @property
    def matrix_channels(self) -> int:
        """The number d(d+1)/2 of entries of L."""
        return len(_symmetric.pairs(self.dim))

    def matrix(self, raw: Tensor) -> Tensor:
        """Return LLᵀ + δ tr(LLᵀ) I, packed."""
        rows = [row.unbind(2) for row in raw.split([i + 1 for i in range(self.dim)], 2)]
        rows = [(*row[:-1], absolute(row[-1]) + self.eps_L) for row in rows]
        products = [_symmetric.sum_of_products(rows[i], rows[j][: i + 1]) for i, j in _symmetric.pairs(self.dim)]
        trace = sum(entry.square() for row in rows for entry in row)
        floors = [_TRACE_FLOOR * trace if i == j else 0 for i, j in _symmetric.pairs(self.dim)]
        return torch.stack([product + floor for product, floor in zip(products, floors, strict=True)], 2)

    def matrix_identity(self) -> list[float]:
        """Return the raw parameters of M = I: L_ii = (1 + dδ)^{−1/2} − ε_L, and 0 below the diagonal."""
        diagonal = (1 + self.dim * _TRACE_FLOOR) ** -0.5 - self.eps_L
        check_identity_exists(diagonal > 0, f"`eps_L` (={self.eps_L})", "below 1")
        return [diagonal if i == j else 0.0 for i in range(self.dim) for j in range(i + 1)]

    @property
    def smallest_eigenvalue(self) -> float:
        """The lower bound d δ^{1−1/d} ε_L² on the eigenvalues of M."""
        return self.dim * _TRACE_FLOOR ** (1 - 1 / self.dim) * self.eps_L**2
