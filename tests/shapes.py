"""Random metrics of all families."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

import metricconv as mc
from helpers import randers, riemannian

# Those beyond ellipsoids.
KINDS = ("asymmetric", "orthant", "box", "diamond", "half_space", "polytope", "intersection")
# Those whose dual has a closed form.
CLOSED = ("asymmetric", "orthant", "box", "diamond")


def make_shape(
    kind: str,
    dim: int = 2,
    batch: int = 1,
    groups: int = 1,
    spatial: Sequence[int] | None = None,
    *,
    dtype: torch.dtype = torch.float64,
) -> mc.Metric:
    """Return a random metric of the named kind, of extents between about 0.6 and 2.6."""
    size = (1,) * dim if spatial is None else tuple(spatial)

    def extents(count: int) -> Tensor:
        return 1.3 * torch.exp2(2 * torch.rand(batch, groups, count, *size, dtype=dtype) - 1)

    def exponent(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(batch, groups, 1, *size, dtype=dtype)

    match kind:
        case "riemannian":
            return riemannian(dim, batch, groups, size, dtype=dtype)
        case "randers":
            return randers(dim, batch, groups, size, dtype=dtype)
        case "asymmetric":
            M = riemannian(dim, batch, groups, size, dtype=dtype).M
            return mc.AsymmetricQuadratic(M, torch.randn(batch, groups, dim, *size, dtype=dtype))
        case "orthant" | "box" | "diamond":
            low, high = {"orthant": (0.1, 0.9), "box": (0.0, 0.0), "diamond": (1.0, 1.0)}[kind]
            return mc.OrthantNorm(rotations(dim, batch, groups, size, dtype), extents(2 * dim), exponent(low, high))
        case "half_space":
            return mc.HalfSpaceGauge(extents(3**dim - 1 if dim != 2 else 7), exponent(0.1, 0.9))
        case "polytope":
            return mc.HalfSpaceGauge(extents(2 * dim if dim != 2 else 5), exponent(0.0, 0.0))
        case "intersection":
            one = randers(dim, batch, groups, size, dtype=dtype)
            return mc.SoftIntersection(make_shape("asymmetric", dim, batch, groups, size, dtype=dtype), one, p=3.0)
    raise ValueError(kind)


def rotations(dim: int, batch: int, groups: int, size: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return random rotations by less than 90° as frames (B, G, d², *spatial)."""
    skew = 0.4 * torch.randn(batch, groups, *size, dim, dim, dtype=dtype)
    rotation = torch.matrix_exp((skew - skew.mT).clamp(-math.pi / 8, math.pi / 8))
    return rotation.flatten(-2).movedim(-1, 2)
