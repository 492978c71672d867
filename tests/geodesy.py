"""Helpers for tests of geodesics: metrics with known geodesics, a Runge-Kutta integrator, distances of samples."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

import metricconv as mc
from helpers import randers
from metricconv._interpolation import interpolate
from metricconv.metrics import smoothed
from metricconv.metrics.eikonal import hopf_lax_distance
from metricconv.metrics.flow import FlowField, Vector, rates


def circle(count: int) -> Tensor:
    """Return unit vectors (count, 2), none of them along an axis or a diagonal."""
    angle = (torch.arange(count, dtype=torch.float64) + 0.3) * (2 * math.pi / count)
    return torch.stack([angle.sin(), angle.cos()], 1)


def conformal(factor: Tensor) -> mc.Riemannian:
    """Return the metric M = factor² I of a field (H, W)."""
    square = factor.square()
    return mc.Riemannian(torch.stack([square, torch.zeros_like(square), square])[None, None])


def lattice(size: Sequence[int]) -> tuple[Tensor, ...]:
    """Return the coordinates of every pixel."""
    return torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in size), indexing="ij")


def rough(
    seed: int = 0, size: tuple[int, ...] = (12, 11), *, asymmetry: float = 0.6, passes: int = 2, groups: int = 1
) -> mc.Randers:
    """Return a random Randers metric with balls of a few pixels, smoothed by binomial passes."""
    torch.manual_seed(seed)
    metric = randers(len(size), 1, groups, size, radius=3.0, asymmetry=asymmetry)
    return smoothed(metric, passes)


def extruded(plane: mc.Metric, axis: int, depth: int = 3) -> mc.Metric:
    """Return a 2-D metric repeated along a third axis, in which it is constant: M = M₂ ⊕ ¼, ω = ω₂ ⊕ 0."""
    yy, yx, xx = plane.tensors()["M"].unbind(2)
    one, two = (k for k in range(3) if k != axis)
    entries = {(one, one): yy, (one, two): yx, (two, two): xx, (axis, axis): torch.full_like(yy, 0.25)}
    pairs = [(i, j) for i in range(3) for j in range(i, 3)]
    tensors = [torch.stack([entries.get(pair, torch.zeros_like(yy)) for pair in pairs], 2)]
    if isinstance(plane, mc.Randers):
        drift = list(plane.omega.unbind(2))
        tensors.append(torch.stack([*drift[:axis], torch.zeros_like(yy), *drift[axis:]], 2))
    return type(plane)(*(t.unsqueeze(3 + axis).repeat_interleave(depth, 3 + axis) for t in tensors))


def runge_kutta(metric: mc.Metric, points: Tensor, directions: Tensor, length: float = 1.0, steps: int = 200) -> Tensor:
    """Return the end points of geodesics by the Runge-Kutta method of order 4: (N, d) → (N, d)."""
    field = FlowField.of(metric)
    start = points.unsqueeze(0).unbind(-1)
    local = field.interpolate(start)
    u = directions.unsqueeze(0).unbind(-1)
    q = tuple(sum(local.M[i, j] * u[j] for j in range(len(u))) for i in range(len(u)))
    state, h = (*start, *q), length / steps
    dim = len(start)

    def derivative(state: Vector) -> Vector:
        velocity, force = rates(field.interpolate(state[:dim]), state[dim:])
        return (*velocity, *force)

    def advance(step: float, slope: Vector) -> Vector:
        return tuple(s + step * r for s, r in zip(state, slope, strict=True))

    for _ in range(steps):
        a = derivative(state)
        b = derivative(advance(h / 2, a))
        c = derivative(advance(h / 2, b))
        d = derivative(advance(h, c))
        state = tuple(s + h / 6 * (w + 2 * x + 2 * y + z) for s, w, x, y, z in zip(state, a, b, c, d, strict=True))
    return torch.stack(state[:dim], -1)[0]


def distances(
    metric: mc.Metric, offsets: Tensor, pixels: Sequence[tuple[int, int]], half: int, refine: int = 8
) -> Tensor:
    """Return the geodesic distances of samples from their pixels: offsets (P, 2, H, W) → (pixels, P).

    The eikonal equation is solved on a refined grid of 2·half + 1 pixels around each pixel.
    """
    windows = [metric[0, 0, y - half : y + half + 1, x - half : x + half + 1] for y, x in pixels]
    nodes = torch.stack(lattice((2 * half * refine + 1,) * 2)) / refine
    fine = type(metric).cat(windows).at(nodes.unsqueeze(0)).scaled(float(refine))
    center = torch.full((1, 2), float(half * refine), dtype=torch.float64)
    distance = hopf_lax_distance(fine, center, reach=refine // 2)
    position = torch.stack([offsets[:, :, y, x] for y, x in pixels]) + half
    return interpolate(distance, position * refine, "border")[:, 0]
