"""Fields of symmetric d×d matrices, packed: the upper triangle, row by row, along one tensor axis.

A field is (B, G, d(d+1)/2, *spatial) with d spatial axes; a field of vectors (B, G, d, *spatial), or
(B, G, P, d, *spatial) for P vectors a pixel. In 2-D the packed order is (M_yy, M_yx, M_xx).
"""

import math

import torch
from torch import Tensor


def pairs(dim: int) -> list[tuple[int, int]]:
    """Return the (row, column) of each packed entry."""
    return [(i, j) for i in range(dim) for j in range(i, dim)]


def dim_of(packed: int) -> int:
    """Return d from d(d+1)/2, or 0 when no d fits."""
    dim = (math.isqrt(8 * packed + 1) - 1) // 2
    return dim if dim * (dim + 1) // 2 == packed else 0


def split(vector: Tensor, dim: int) -> tuple[Tensor, ...]:
    """Return the components of a vector field, whose axis stands just before the spatial ones."""
    return vector.unbind(-(dim + 1))


def entries(packed: Tensor) -> dict[tuple[int, int], Tensor]:
    """Return every M_ij of a packed field, both triangles."""
    parts = packed.unbind(2)
    upper = dict(zip(pairs(dim_of(len(parts))), parts, strict=True))
    return {**upper, **{(j, i): value for (i, j), value in upper.items()}}


def full(packed: Tensor) -> Tensor:
    """Unpack to (B, G, *spatial, d, d), for torch.linalg."""
    m = entries(packed)
    dim = dim_of(packed.shape[2])
    return torch.stack([torch.stack([m[i, j] for j in range(dim)], -1) for i in range(dim)], -2)


def packed(matrix: Tensor) -> Tensor:
    """Pack (B, G, *spatial, d, d) into (B, G, d(d+1)/2, *spatial)."""
    return torch.stack([matrix[..., i, j] for i, j in pairs(matrix.shape[-1])], 2)


def matvec(packed: Tensor, vector: Tensor) -> Tensor:
    """Return M v."""
    m, v = entries(packed), vector.unbind(2)
    rows = [sum((m[i, j] * v[j] for j in range(1, len(v))), m[i, 0] * v[0]) for i in range(len(v))]
    return torch.stack(rows, 2)


def quadratic(packed: Tensor, vector: Tensor) -> Tensor:
    """Return vᵀ M v, for one vector a pixel or P of them."""
    dim = dim_of(packed.shape[2])
    several = vector.dim() == packed.dim() + 1
    v = split(vector, dim)
    terms = []
    for (i, j), m in zip(pairs(dim), packed.unbind(2), strict=True):
        m = m.unsqueeze(2) if several else m
        terms.append((m if i == j else 2 * m) * v[i] * v[j])
    return sum(terms[1:], terms[0])


def dot(covector: Tensor, vector: Tensor) -> Tensor:
    """Return ωᵀ v, for one vector a pixel or P of them."""
    dim = covector.shape[2]
    covector = covector.unsqueeze(2) if vector.dim() == covector.dim() + 1 else covector
    terms = [w * v for w, v in zip(split(covector, dim), split(vector, dim), strict=True)]
    return sum(terms[1:], terms[0])


def outer(vector: Tensor) -> Tensor:
    """Return v vᵀ, packed."""
    v = vector.unbind(2)
    return torch.stack([v[i] * v[j] for i, j in pairs(len(v))], 2)


def identity(like: Tensor) -> Tensor:
    """Return the identity, packed, shaped to broadcast over ``like``."""
    dim = dim_of(like.shape[2])
    one, zero = like.new_ones(()), like.new_zeros(())
    return torch.stack([one if i == j else zero for i, j in pairs(dim)]).view(1, 1, -1, *(1,) * dim)


def determinant(packed: Tensor) -> Tensor:
    """Return det M: closed form up to 2-D, the squared product of the Cholesky diagonal beyond."""
    m = entries(packed)
    dim = dim_of(packed.shape[2])
    if dim == 1:
        return m[0, 0]
    if dim == 2:
        return m[0, 0] * m[1, 1] - m[0, 1] * m[0, 1]
    return torch.linalg.cholesky_ex(full(packed))[0].diagonal(dim1=-2, dim2=-1).prod(-1) ** 2


def inverse(packed_: Tensor) -> Tensor:
    """Return M⁻¹, packed: closed form up to 2-D, by Cholesky beyond."""
    dim = dim_of(packed_.shape[2])
    if dim == 1:
        return packed_.reciprocal()
    if dim == 2:
        yy, yx, xx = packed_.unbind(2)
        return torch.stack([xx, -yx, yy], 2) / determinant(packed_).unsqueeze(2)
    return packed(torch.cholesky_inverse(torch.linalg.cholesky_ex(full(packed_))[0]))


def eigenvalues(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest eigenvalue."""
    dim = dim_of(packed.shape[2])
    if dim == 1:
        return packed[:, :, 0], packed[:, :, 0]
    if dim == 2:
        yy, yx, xx = packed.unbind(2)
        mean, half = (yy + xx) / 2, torch.hypot((yy - xx) / 2, yx)
        return mean - half, mean + half
    values = torch.linalg.eigvalsh(full(packed))
    return values[..., 0], values[..., -1]
