"""Selling's decomposition of a field of symmetric positive definite matrices into integer directions."""

import itertools

import torch
from torch import Tensor

from . import _symmetric

# Each sweep is one step for every pair of vectors. About as many are needed as the anisotropy in the worst case.
_MAX_SWEEPS = 100_000
# Scalar products are nonpositive up to this multiple of the squared lengths.
_TOLERANCE = 1e-12


def decompose(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights ρ ≥ 0 and integer directions e with D = Σ_i ρ_i e_i e_iᵀ for each matrix D of a field.

    A superbase of ℤᵈ is d + 1 integer vectors with sum 0, of which any d have determinant ±1. While two of them have
    b_iᵀ D b_j > 0, Selling's step replaces the superbase by one with smaller Σ_i b_iᵀ D b_i. In the end ρ = −b_iᵀ D b_j
    for each pair, and e is orthogonal to the other vectors of the superbase.

    Args:
        matrix: (d(d+1)/2, P), the upper triangles of P positive definite matrices, row by row; d = 2 or 3.

    Returns:
        ρ (K, P) and e (K, d, P), int64, with K = d(d+1)/2.

    >>> weights, directions = decompose(torch.tensor([[2.0], [1.0], [1.0]]))
    >>> torch.einsum("kp,kip,kjp->ijp", weights, directions.double(), directions.double())[..., 0]
    tensor([[2., 1.],
            [1., 1.]], dtype=torch.float64)
    """
    dim = _symmetric.dim_of(len(matrix))
    upper = dict(zip(_symmetric.pairs(dim), matrix.double(), strict=True))
    full = torch.stack([torch.stack([upper[min(i, j), max(i, j)] for j in range(dim)]) for i in range(dim)])
    superbase = torch.cat([torch.eye(dim), -torch.ones(1, dim)]).to(full).unsqueeze(-1).repeat(1, 1, full.shape[-1])
    active = torch.arange(full.shape[-1], device=full.device)
    for _ in range(_MAX_SWEEPS):
        vectors, changed = _sweep(full[..., active], superbase[..., active])
        superbase[..., active] = vectors
        active = active[changed]
        if not len(active):
            break
    products = torch.einsum("iap,abp,jbp->ijp", superbase, full, superbase)
    pairs = list(itertools.combinations(range(dim + 1), 2))
    weights = torch.stack([-products[i, j] for i, j in pairs]).clamp_min(0)
    directions = torch.stack([_orthogonal(superbase[[k for k in range(dim + 1) if k not in pair]]) for pair in pairs])
    return weights, directions.round().long()


def _sweep(matrix: Tensor, superbase: Tensor) -> tuple[Tensor, Tensor]:
    """Do one step for each pair of vectors (d + 1, d, P) where it is needed; also return where there was any."""
    count = len(superbase)
    changed = torch.zeros(matrix.shape[-1], dtype=torch.bool, device=matrix.device)
    for i, j in itertools.combinations(range(count), 2):
        image = torch.einsum("abp,bp->ap", matrix, superbase[j])
        product = (superbase[i] * image).sum(0)
        length = (superbase[j] * image).sum(0)
        positive = product > _TOLERANCE * length
        step = torch.where(positive, superbase[i], 0)
        shares = [0.0 if k == j else -2.0 if k == i else 2 / (count - 2) for k in range(count)]
        superbase = torch.stack([vector + share * step for vector, share in zip(superbase, shares, strict=True)])
        changed |= positive
    return superbase, changed


def _orthogonal(vectors: Tensor) -> Tensor:
    """Return the integer vector orthogonal to d − 1 vectors (d − 1, d, P)."""
    if vectors.shape[1] == 2:
        y, x = vectors[0]
        return torch.stack([-x, y])
    return torch.linalg.cross(vectors[0], vectors[1], dim=0)
