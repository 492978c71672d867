"""Integrals over directions, for metrics whose volume has no closed form."""

import functools
import math

import torch
from torch import Tensor

from .base import Metric, ball_volume

# Directions on the unit sphere. The error in 2-D is about 1e-6, even of polygons; about 0.3 % in higher dimensions.
_DIRECTIONS = {1: 2, 2: 4096}
_MANY_DIRECTIONS = 2**14
_CHUNK = 256


def ball_volume_by_directions(metric: Metric) -> Tensor:
    """Return the volume of the unit ball, the mean of ρ(u)^d over directions u times that of the Euclidean ball."""
    directions = sphere_directions(_DIRECTIONS.get(metric.dim, _MANY_DIRECTIONS), metric.dim).to(metric._any())
    total = sum(metric.unit_vectors(u).square().sum(3).pow(metric.dim / 2).sum(2) for u in directions.split(_CHUNK))
    assert isinstance(total, Tensor)
    return ball_volume(metric.dim) * total / len(directions)


@functools.lru_cache(16)
def sphere_directions(count: int, dim: int) -> Tensor:
    """Return evenly distributed unit vectors, (count, d) in float64: ±1 in 1-D, equal angles in 2-D.

    In higher dimensions they are normal quantiles of an additive sequence, mirrored at 0.
    """
    if dim == 1:
        return torch.tensor([[-1.0], [1.0]], dtype=torch.float64, device="cpu")
    if dim == 2:
        angle = torch.arange(count, dtype=torch.float64, device="cpu") * (2 * math.pi / count)
        return torch.stack([angle.sin(), angle.cos()], 1)
    root = 2.0  # of x^{d+1} = x + 1, whose inverse powers are poorly approximated by rationals
    for _ in range(64):
        root = (1 + root) ** (1 / (dim + 1))
    steps = torch.tensor([root ** -(k + 1) for k in range(dim)], dtype=torch.float64, device="cpu")
    uniform = (0.5 + torch.arange(1, -(-count // 2) + 1, dtype=torch.float64, device="cpu").unsqueeze(1) * steps) % 1
    half = torch.nn.functional.normalize(torch.special.ndtri(uniform), dim=1)
    return torch.cat([half, -half])[:count]
