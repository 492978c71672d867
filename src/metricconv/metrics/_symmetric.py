"""Fields of symmetric d×d matrices, packed: the upper triangle, row by row, along one tensor axis.

A field is (B, G, d(d+1)/2, *spatial) with d spatial axes; a field of vectors (B, G, d, *spatial), or
(B, G, P, d, *spatial) for P vectors per pixel. In 2-D the packed order is (M_yy, M_yx, M_xx).
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def pairs(dim: int) -> list[tuple[int, int]]:
    """Return the (row, column) of each packed entry."""
    return [(i, j) for i in range(dim) for j in range(i, dim)]


def planes(dim: int) -> list[tuple[int, int]]:
    """Return the pairs i < j of axes."""
    return [(i, j) for i, j in pairs(dim) if i < j]


def dim_of(packed: int) -> int:
    """Return d from d(d+1)/2, or 0 when no d fits."""
    dim = 0
    while dim * (dim + 1) // 2 < packed:  # unlike a square root, torch.compile can trace this
        dim += 1
    return dim if dim * (dim + 1) // 2 == packed else 0


def split(vector: Tensor, dim: int) -> tuple[Tensor, ...]:
    """Return the components of a vector field, along the axis before the spatial axes."""
    if vector.dim() < dim + 1 or vector.shape[-(dim + 1)] != dim:
        raise ValueError(f"vectors must have {dim} components, (B, G, {dim}, *spatial), got {tuple(vector.shape)}")
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
    return torch.stack([sum_of_products([m[i, j] for j in range(len(v))], v) for i in range(len(v))], 2)


def quadratic(packed: Tensor, vector: Tensor) -> Tensor:
    """Return vᵀ M v, for one or P vectors per pixel."""
    dim = dim_of(packed.shape[2])
    several = vector.dim() == packed.dim() + 1
    v = split(vector, dim)
    terms = []
    for (i, j), m in zip(pairs(dim), packed.unbind(2), strict=True):
        m = m.unsqueeze(2) if several else m
        terms.append((m if i == j else 2 * m) * v[i] * v[j])
    return sum(terms[1:], terms[0])


def dot(covector: Tensor, vector: Tensor) -> Tensor:
    """Return ωᵀ v, for one or P vectors per pixel."""
    dim = covector.shape[2]
    covector = covector.unsqueeze(2) if vector.dim() == covector.dim() + 1 else covector
    return sum_of_products(split(covector, dim), split(vector, dim))


def outer(vector: Tensor) -> Tensor:
    """Return v vᵀ, packed."""
    v = vector.split(1, 2)  # with unbind, torch 2.13 could not compile training on a strided grid of dynamic size
    return torch.cat([v[i] * v[j] for i, j in pairs(len(v))], 2)


def identity(like: Tensor) -> Tensor:
    """Return the identity, packed, shaped to broadcast over ``like``."""
    dim = dim_of(like.shape[2])
    one, zero = like.new_ones(()), like.new_zeros(())
    return torch.stack([one if i == j else zero for i, j in pairs(dim)]).view(1, 1, -1, *(1,) * dim)


def determinant(packed: Tensor) -> Tensor:
    """Return det M of a positive matrix: up to 3-D without torch.linalg, which some formats do not export.

    The relative error is at most a few units of rounding times λ_max / λ_min. In 3-D this requires elimination: that of
    the sum over a row of the adjugate grows with the square of the ratio.
    """
    dim = dim_of(packed.shape[2])
    if dim > 3:
        return torch.linalg.det(full(packed))
    if dim == 3:
        m, _ = _eliminate(packed, [])
        return m[0, 0] * m[1, 1] * m[2, 2]
    return sum_of_products(packed.unbind(2)[:dim], _adjugate(packed)[:dim])


def inverse(packed_: Tensor) -> Tensor:
    """Return M⁻¹, packed: in closed form up to 3-D, otherwise by torch.linalg; not finite where M is singular."""
    dim = dim_of(packed_.shape[2])
    if dim > 3:
        return packed(torch.linalg.inv_ex(full(packed_))[0])
    scale = packed_.detach().abs().amax(2, keepdim=True)  # prevents overflow of products of entries
    scaled = packed_ / scale
    return torch.stack(_adjugate(scaled), 2) / determinant(scaled).unsqueeze(2) / scale


def inverse_quadratic(packed: Tensor, vector: Tensor) -> Tensor:
    """Return vᵀ M⁻¹ v, for one vector per pixel, by elimination (M = LDLᵀ).

    The relative error is at most a few units of rounding times λ_max / λ_min, for every vector.
    """
    m, z = _eliminate(packed, vector.unbind(2))
    terms = [x * x / m[k, k] for k, x in enumerate(z)]
    return sum(terms[1:], terms[0])


def solve(packed: Tensor, vector: Tensor) -> Tensor:
    """Return M⁻¹v, for one vector per pixel, by elimination, as accurate as ``inverse_quadratic``."""
    m, z = _eliminate(packed, vector.unbind(2))
    solution = [x / m[k, k] for k, x in enumerate(z)]
    for k in reversed(range(len(z))):
        for i in range(k + 1, len(z)):
            solution[k] = solution[k] - m[k, i] / m[k, k] * solution[i]
    return torch.stack(solution, 2)


def eigenvalues(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest eigenvalue; NaN where an entry is not finite."""
    dim = dim_of(packed.shape[2])
    if dim == 1:
        value = torch.where(packed[:, :, 0].isfinite(), packed[:, :, 0], torch.nan)
        return value, value
    if dim == 2:
        yy, yx, xx = packed.unbind(2)
        mean, half = (yy + xx) / 2, root(((yy - xx) / 2).square() + yx.square())
        high = mean + half
        # det / high, since rounding errors of mean − half are large for small eigenvalues.
        return torch.where(mean > 0, determinant(packed) / torch.where(mean > 0, high, 1), mean - half), high
    matrix = full(packed)
    finite = matrix.isfinite().all(-1).all(-1)
    values = torch.linalg.eigvalsh(torch.where(finite[..., None, None], matrix, 0))
    values = torch.where(finite[..., None], values, torch.nan)
    return values[..., 0], values[..., -1]


def root(square: Tensor) -> Tensor:
    """Return √·, 0 for a negative number; with derivative 0 at 0. NaN stays NaN."""
    flat = square <= 0
    return torch.where(flat, 0, torch.where(flat, 1, square).sqrt())


def sum_of_products(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Return Σ a_i b_i."""
    terms = [x * y for x, y in zip(a, b, strict=True)]
    return sum(terms[1:], terms[0])


def _adjugate(packed: Tensor) -> list[Tensor]:
    """Return the packed entries of det(M) M⁻¹, up to 3-D."""
    m = packed.unbind(2)
    if len(m) == 1:
        return [torch.ones_like(m[0])]
    if len(m) == 3:
        return [m[2], -m[1], m[0]]
    a, b, c, d, e, f = m
    return [d * f - e * e, c * e - b * f, b * e - c * d, a * f - c * c, b * c - a * e, a * d - b * b]


def _eliminate(packed: Tensor, vector: Sequence[Tensor]) -> tuple[dict[tuple[int, int], Tensor], list[Tensor]]:
    """Return the entries of DLᵀ, the pivots on its diagonal, and the components of L⁻¹v, for M = LDLᵀ positive."""
    m, z = entries(packed), list(vector)
    dim = dim_of(packed.shape[2])
    for k in range(dim):
        for i in range(k + 1, dim):
            ratio = m[k, i] / m[k, k]
            if z:
                z[i] = z[i] - ratio * z[k]
            for j in range(i, dim):
                m[i, j] = m[i, j] - ratio * m[k, j]
    return m, z
