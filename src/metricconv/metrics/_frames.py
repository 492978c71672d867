"""Frames: maps from raw parameters to the d axes of an ellipsoid.

A frame consists of d vectors r_k whose matrix U = (r_1 | … | r_d) satisfies UᵀU ≤ I. It is orthonormal unless the raw
parameters are degenerate (r = 0, a singular matrix). A spectral metric is M = UΛUᵀ + λ̄(I − UUᵀ), with λ̄ the mean
eigenvalue. This is exact for an orthonormal frame, and its spectrum is always in [min λ_k, max λ_k].
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _checks
from ._symmetric import planes

# Vectors shorter than this are degenerate. Derivatives of the frame are bounded by the inverse.
_SHORTEST_VECTOR = 1e-4
# The same for columns of a matrix with entries of at most 1; well above the rounding error 6e-8 of float32.
_SHORTEST_COLUMN = 1e-3
# Bound of the angles of ``bounded_rotation``; 63° suffice in 3-D, 45° in 2-D, as larger ones exchange axes.
LARGEST_ANGLE = 5 * math.pi / 12


class Frame(NamedTuple):
    """A parametrization of a frame.

    Attributes:
        start: function from d to the raw parameters for which r_k is the k-th axis of the image.
        axes: function from raw parameters (B, G, n, *spatial) and d to the vectors r_k, each broadcastable to
            (B, G, d, *spatial).
    """

    start: Callable[[int], list[float]]
    axes: Callable[[Tensor, int], list[Tensor]]


def _vector_axes(raw: Tensor, dim: int) -> list[Tensor]:
    """Return r / √(|r|² + ε²), and the same rotated by 90° (2-D only); both are 0 at r = 0."""
    unit = raw / (raw.square().sum(2, keepdim=True) + _SHORTEST_VECTOR**2).sqrt()
    first, second = unit.unbind(2)
    return [unit, torch.stack([-second, first], 2)]


def _skew_axes(raw: Tensor, dim: int) -> list[Tensor]:
    """Return the columns of exp(S), S skew-symmetric with entries π tanh(raw/π)."""
    angles = (math.pi * torch.tanh(raw / math.pi)).movedim(2, -1)
    rotation = _exponential((angles[..., None, None] * _generators(raw, dim)).sum(-3))  # (B, G, *spatial, d, d)
    return [column.movedim(-1, 2) for column in rotation.unbind(-1)]


def bounded_rotation(raw: Tensor, dim: int) -> Tensor:
    """Return rotations by less than 75° as frames (B, G, d², *spatial), from d(d−1)/2 raw parameters.

    Their symmetric part is positive, so that their averages are invertible.
    """
    if dim == 1:
        return raw.new_ones((*raw.shape[:2], 1, *raw.shape[3:]))
    # The angle of a rotation is at most the norm of the vector of all entries.
    angles = raw / (1 + raw.square().sum(2, keepdim=True) / LARGEST_ANGLE**2).sqrt()
    if dim == 2:
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([cos, -sin, sin, cos], 2)
    rotation = _exponential((angles.movedim(2, -1)[..., None, None] * _generators(raw, dim)).sum(-3))
    return rotation.flatten(-2).movedim(-1, 2)


def _generators(like: Tensor, dim: int) -> Tensor:
    """Return the skew-symmetric matrices of the planes, (d(d−1)/2, d, d)."""
    generators = like.new_zeros(like.shape[2], dim, dim)
    for generator, (i, j) in zip(generators, planes(dim), strict=True):
        generator[i, j], generator[j, i] = -1, 1
    return generators


def _exponential(skew: Tensor) -> Tensor:
    """Return exp of matrices whose entries are at most π, by a power series and repeated squaring.

    torch.matrix_exp selects its algorithm by the norms in a batch, so results of a pixel would depend on other pixels.
    """
    dim = skew.shape[-1]
    eye = torch.eye(dim, dtype=skew.dtype, device=skew.device)
    small = skew / 2 ** (dim + 1)  # of norm below 0.4, so that 12 terms are exact in float64
    rotation = eye + small / 12
    for n in range(11, 0, -1):
        rotation = eye + _product(small, rotation) / n
    for _ in range(dim + 1):
        rotation = _product(rotation, rotation)
    return rotation


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b, without the rounding to half precision of ``@`` under autocast."""
    return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2)


def _givens_axes(raw: Tensor, dim: int) -> list[Tensor]:
    """Return the columns of a product of planar rotations, with one angle per pair of axes."""
    axes = _image_axes(raw, dim)
    for angle, (i, j) in zip(raw.split(1, 2), planes(dim), strict=True):
        cos, sin = angle.cos(), angle.sin()
        axes[i], axes[j] = cos * axes[i] + sin * axes[j], cos * axes[j] - sin * axes[i]
    return axes


def _qr_axes(raw: Tensor, dim: int) -> list[Tensor]:
    """Return the columns of U = A R⁻¹, RᵀR = AᵀA + ε²I, for a matrix A in row-major order.

    U is the upper half of the orthonormal factor of (A ; εI), whose columns are linearly independent, so UᵀU ≤ I for
    every A. Of the columns up to k, only column k is nonzero in row k of the lower half, so it is not 0 after
    orthogonalization.
    """
    matrix = raw / raw.abs().amax(2, keepdim=True).clamp_min(1)
    columns: list[Tensor] = []
    for k, axis in enumerate(_image_axes(raw, dim)):
        upper = matrix[:, :, k::dim]
        rest = torch.cat([upper, (_SHORTEST_COLUMN * axis).expand_as(upper)], 2)
        for column in columns * 2:  # Gram–Schmidt, twice for accuracy if A is nearly singular
            rest = rest - (column * rest).sum(2, keepdim=True) * column
        columns.append(rest / rest.square().sum(2, keepdim=True).sqrt())
    return [column[:, :, :dim] for column in columns]


def _image_axes(like: Tensor, dim: int) -> list[Tensor]:
    eye = torch.eye(dim, dtype=like.dtype, device=like.device)
    return [axis.view(1, 1, dim, *(1,) * dim) for axis in eye.unbind()]


FRAMES = {
    "vector": Frame(lambda dim: [1.0, 0.0], _vector_axes),
    "skew": Frame(lambda dim: [0.0] * len(planes(dim)), _skew_axes),
    "givens": Frame(lambda dim: [0.0] * len(planes(dim)), _givens_axes),
    "qr": Frame(lambda dim: [float(i == j) for i in range(dim) for j in range(dim)], _qr_axes),
}
_IDENTITY = Frame(lambda dim: [], _image_axes)


def frame_of(name: str | None, dim: int) -> Frame:
    """Return the frame of a name. Default: "vector" in 2-D, "qr" in higher dimensions, the single axis in 1-D."""
    if name is None:
        return _IDENTITY if dim == 1 else FRAMES["vector" if dim == 2 else "qr"]
    _checks.one_of(name, FRAMES, "frame")
    if dim == 1:
        raise ValueError(f"`frame` (={name!r}) must be None for `dim` (=1), where there are no rotations")
    if name == "vector" and dim != 2:
        raise ValueError(f"`frame` (={name!r}) requires `dim` (={dim}) to be 2")
    return FRAMES[name]
