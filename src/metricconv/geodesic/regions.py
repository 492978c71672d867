"""Superpixels: geodesic Voronoi cells whose seeds move to the centers of their cells."""

import itertools
import math

import torch
from torch import Tensor

from .. import _checks
from ._images import Image, like, positions, to_field
from .distance import nearest_sources
from .surfaces import surface_metric

__all__ = ["superpixels"]


def superpixels(
    image: Image,
    n_segments: int = 100,
    *,
    contrast: float = 100.0,
    scale: float | None = 1.0,
    max_num_iter: int = 5,
    channel_axis: int | None = None,
) -> Image:
    """Return a partition of the image into about ``n_segments`` regions that follow edges.

    Regions are the geodesic Voronoi cells of seeds in the metric of the image as a surface. Seeds start on a grid. In
    each iteration a seed moves to the pixel of its cell that is nearest to the cell's mean position and color.

    Args:
        image: array or tensor, (*spatial), 2-D or 3-D, with channels along ``channel_axis`` if given. Integers are
            divided by the maximum of their type.
        n_segments: approximate number of regions, at least 1 (default 100).
        contrast: length in pixels of an edge from 0 to 1, 0 to 10⁶ (default 100); smaller for more compact regions.
        scale: standard deviation of the image's derivative filters in pixels (default 1); None for Sobel filters.
        max_num_iter: number of times that seeds move, 0 to 1000 (default 5). Iterations end when no seed moves.
        channel_axis: axis of the channels, None (default) for a gray image.

    Returns:
        Labels from 1, int64, (*spatial).

    >>> image = torch.zeros(4, 8)
    >>> image[:, 5:] = 1.0
    >>> superpixels(image, 2, scale=None)[0]
    tensor([1, 1, 1, 1, 1, 2, 2, 2])
    """
    field = to_field(image, channel_axis)
    count = _checks.whole(n_segments, "n_segments", minimum=1)
    if count > field[0, 0].numel():
        raise ValueError(f"`n_segments` (={count}) must be at most the number of pixels, {field[0, 0].numel()}")
    rounds = _checks.whole(max_num_iter, "max_num_iter", minimum=0)
    if rounds > 1000:
        raise ValueError(f"`max_num_iter` (={rounds}) must be at most 1000")
    metric = surface_metric(field, contrast, scale=scale)
    size = tuple(field.shape[2:])
    surface = positions(field, contrast)  # [d + C, P]
    grid = surface[: len(size)].long()
    seeds = _grid(size, count)
    label = nearest_sources(metric, seeds, order=1).label.flatten()
    for _ in range(rounds):
        moved = grid[:, _centers(surface, label, len(seeds))].T
        if torch.equal(moved, seeds):
            break
        seeds = moved
        label = nearest_sources(metric, seeds, order=1).label.flatten()
    return like(label.view(size) + 1, image)


def _grid(size: tuple[int, ...], count: int) -> Tensor:
    """Return about ``count`` pixels on a regular grid, (N, d)."""
    axes, left = [], count
    for axis, length in enumerate(size):
        rest = len(size) - axis
        spacing = (math.prod(size[axis:]) / left) ** (1 / rest)
        number = min(max(round(length / spacing), 1), length, left)
        left = max(round(left / number), 1)
        axes.append([int((k + 0.5) * length / number) for k in range(number)])
    return torch.tensor(list(itertools.product(*axes)))


def _centers(surface: Tensor, label: Tensor, count: int) -> Tensor:
    """Return the pixel of each cell that is nearest to the cell's mean position, (N,)."""
    sizes = torch.bincount(label, minlength=count).clamp_min(1)
    mean = surface.new_zeros(len(surface), count).index_add_(1, label, surface) / sizes
    gap = (surface - mean[:, label]).square().sum(0)
    least = gap.new_full((count,), math.inf).scatter_reduce_(0, label, gap, "amin")
    candidates = (gap == least[label]).nonzero().squeeze(1)
    center = torch.full((count,), len(label)).scatter_reduce_(0, label[candidates], candidates, "amin")
    return center
