"""The rays of a stencil as the kernels of trace.py take them, in parts whose displacements fit in a bounded buffer."""

import functools
import math
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...stencils import Stencil
from ...supports import GeodesicBall, Rays
from . import plan
from .device_constants import device_constant


class RayTable(NamedTuple):
    """Some rays of a stencil, as the kernels take them: see trace.py."""

    samples: Tensor  # indices in the stencil of the samples on these rays, and of the center
    vectors: Tensor
    first: Tensor
    sample: Tensor
    fraction: Tensor
    ends_only: bool  # each ray has one sample, at its end, besides the center

    def kernel_tensors(self) -> tuple[Tensor, ...]:
        """Return vectors, first, sample and fraction."""
        return self.vectors, self.first, self.sample, self.fraction


_tables: weakref.WeakKeyDictionary[Stencil, dict[Any, list[RayTable]]] = weakref.WeakKeyDictionary()


def ray_tables(ball: GeodesicBall, image: Tensor) -> list[RayTable]:
    """Return the rays of a ball in parts whose displacements fit in ``plan.chunk_bytes()``, or in the image's size."""
    device, pixels = image.device, ball.metric.batch * ball.metric.groups * math.prod(ball.metric.spatial)
    chunk = max(plan.chunk_bytes(), image.numel() * image.element_size())
    max_samples = max(chunk // max(8 * pixels, 1), 1)  # a displacement has 8 bytes
    if torch.compiler.is_compiling():
        return _make_tables(ball.rays, ball.steps, max_samples, device)
    key = (ball.steps, min(max_samples, ball.samples), device)
    make = functools.partial(_make_tables, ball.rays, ball.steps, max_samples, device)
    return device_constant(_tables.setdefault(ball.stencil, {}), key, make, device)


def _make_tables(rays: Rays, steps: int, max_samples: int, device: torch.device) -> list[RayTable]:
    on_ray: dict[int, list[int]] = {ray: [] for ray in range(len(rays.vectors))}
    for j, (ray, _) in rays.positions.items():
        on_ray[ray].append(j)
    count = rays.stencil.radii.numel()
    parts: list[tuple[list[int], list[int]]] = [([], [j for j in range(count) if j not in rays.positions])]
    for ray, samples in on_ray.items():
        if parts[-1][0] and len(parts[-1][1]) + len(samples) > max_samples:
            parts.append(([], []))
        parts[-1][0].append(ray)
        parts[-1][1].extend(samples)
    if len(parts) == 1:
        parts = [(parts[0][0], list(range(count)))]
    return [_make_table(rays, chosen, samples, steps, device) for chosen, samples in parts]


def _make_table(rays: Rays, chosen: list[int], samples: list[int], steps: int, device: torch.device) -> RayTable:
    in_step: list[list[tuple[int, float]]] = [[] for _ in range(len(chosen) * steps)]
    for index, j in enumerate(samples if chosen else []):
        ray, distance = rays.positions.get(j, (chosen[0], 0.0))  # the center is the start of every ray
        t = max(min(math.ceil(distance * steps), steps), 1) - 1
        in_step[chosen.index(ray) * steps + t].append((index, distance * steps - t))
    flat = [entry for entries in in_step for entry in sorted(entries, key=lambda entry: entry[1])]
    ends = [0]
    for entries in in_step:
        ends.append(ends[-1] + len(entries))
    return RayTable(
        torch.tensor(samples, device=device),
        rays.vectors[chosen].float().to(device),
        torch.tensor(ends, dtype=torch.int32, device=device),
        torch.tensor([index for index, _ in flat], dtype=torch.int64, device=device),  # multiplied by the image's size
        torch.tensor([fraction for _, fraction in flat], dtype=torch.float32, device=device),
        sum(j in rays.positions for j in samples) == len(chosen),
    )
