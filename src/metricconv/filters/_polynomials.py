"""Polynomials of order 0, 1 and 2 in d variables, their moments, and weighted least-squares fits."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

Exponents = tuple[int, ...]

# Relative to the diagonal of the scaled normal equations: keeps degenerate balls solvable.
_RIDGE = 1e-13


def monomials(order: int, dim: int) -> list[Exponents]:
    """Return the exponents of the terms of a polynomial: the constant, then the linear terms along each axis.

    >>> monomials(2, 2)
    [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2)]
    """
    found = (e for e in itertools.product(range(order + 1), repeat=dim) if sum(e) <= order)
    return sorted(found, key=lambda e: (sum(e), [-n for n in e]))


def moments(terms: Sequence[Exponents]) -> tuple[list[Exponents], list[list[int]]]:
    """Return the exponents of all products of two terms, and for each pair the index of its product."""
    products = [[tuple(map(sum, zip(p, q, strict=True))) for q in terms] for p in terms]
    found = sorted({e for row in products for e in row}, key=lambda e: (sum(e), [-n for n in e]))
    return found, [[found.index(e) for e in row] for row in products]


def power(vectors: Sequence[Tensor], exponents: Exponents) -> Tensor:
    """Return the product of v_i ** e_i over the axes i."""
    factors = [v.pow(e) for v, e in zip(vectors, exponents, strict=True) if e]
    return math.prod(factors[1:], start=factors[0]) if factors else torch.ones_like(vectors[0])


def fixed_weights(directions: Tensor, radii: Tensor, weights: Tensor, order: int) -> Tensor:
    """Return the weights (P,) that give the value at the center of the fit to samples at ``radii * directions``."""
    points = (directions * radii.unsqueeze(1)).unbind(1)
    basis = torch.stack([power(points, e) for e in monomials(order, len(points))], 1)  # [P, n]
    root = weights.sqrt().unsqueeze(1)
    return torch.linalg.pinv(basis * root)[0] * root.squeeze(1)


def solve(sums: Sequence[Tensor], right: Sequence[Tensor], index: Sequence[Sequence[int]]) -> Tensor:
    """Return the coefficients (C, n, *spatial) of the fit from its sums.

    Args:
        sums: Σ_j w_j v_j^m, (*spatial) for each moment m, with |v_j| ≤ 1 approximately.
        right: Σ_j w_j f_j v_j^b, (C, *spatial) for each term b.
        index: the moment of the product of two terms.
    """
    matrix = torch.stack([torch.stack([sums[m] for m in row], -1) for row in index], -2)  # [*spatial, n, n]
    ridge = torch.diagonal(matrix, dim1=-2, dim2=-1).mean(-1) * _RIDGE
    matrix = matrix + torch.diag_embed(ridge.unsqueeze(-1).expand(matrix.shape[:-1]))
    columns = torch.stack(list(right), -1).movedim(0, -1)  # [*spatial, n, C]
    return torch.linalg.solve(matrix, columns).movedim((-1, -2), (0, 1))
