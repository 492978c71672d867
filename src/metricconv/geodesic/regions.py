"""Superpixels: geodesic Voronoi cells whose seeds move to the centers of their cells, with refined borders."""

import itertools
import math

import torch
from torch import Tensor

from .. import _checks
from ._images import Image, like, positions, to_field
from .distance import nearest_sources
from .surfaces import surface_metric

__all__ = ["superpixels"]

# Pixels by which borders move at most after the last iteration.
_REFINEMENTS = 10


def superpixels(
    image: Image,
    n_segments: int = 100,
    *,
    contrast: float = 300.0,
    scale: float | None = 1.0,
    max_num_iter: int = 5,
    channel_axis: int | None = None,
) -> Image:
    """Return a partition of the image into about ``n_segments`` regions that follow edges.

    Regions are the geodesic Voronoi cells of seeds in the metric of the image as a surface. Seeds start on a grid. In
    each iteration a seed moves to the pixel of its cell that is nearest to the cell's mean position and color. Then the
    borders are refined ten times: each pixel joins the cell of itself and its neighbors whose mean position and color
    is nearest, where a difference of 1 in color counts as ``contrast`` pixels. Regions are connected.

    Args:
        image: array or tensor, (*spatial), 2-D or 3-D, with channels along ``channel_axis`` if given. Integers are
            divided by the maximum of their type. For color photographs, CIE Lab divided by 100 is best.
        n_segments: approximate number of regions, at least 1 (default 100).
        contrast: length in pixels of an edge from 0 to 1, 0 to 10⁶ (default 300); smaller for more compact regions.
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
    label = _refine(label.view(size), surface, len(seeds))
    return like(label.unique(return_inverse=True)[1] + 1, image)


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


def _means(surface: Tensor, label: Tensor, count: int) -> Tensor:
    """Return the mean position and color of each cell, (d + C, N)."""
    sizes = torch.bincount(label, minlength=count).clamp_min(1)
    return surface.new_zeros(len(surface), count).index_add_(1, label, surface) / sizes


def _centers(surface: Tensor, label: Tensor, count: int) -> Tensor:
    """Return the pixel of each cell that is nearest to the cell's mean position and color, (N,)."""
    gap = (surface - _means(surface, label, count)[:, label]).square().sum(0)
    least = gap.new_full((count,), math.inf).scatter_reduce_(0, label, gap, "amin")
    candidates = (gap == least[label]).nonzero().squeeze(1)
    center = torch.full((count,), len(label)).scatter_reduce_(0, label[candidates], candidates, "amin")
    return center


def _refine(label: Tensor, surface: Tensor, count: int) -> Tensor:
    """Return labels (*spatial) whose pixels moved to neighboring cells with a nearer mean, in connected cells."""
    for _ in range(_REFINEMENTS):
        label = _moved(label, surface, _means(surface, label.flatten(), count))
    means = _means(surface, label.flatten(), count)
    component = _components(label).flatten()
    size = torch.bincount(component, minlength=label.numel())[component]
    # The largest component of each cell remains; its neighbors grow into the others.
    largest = size.new_zeros(count).scatter_reduce_(0, label.flatten(), size, "amax")[label.flatten()]
    candidates = torch.where(size == largest, component, label.numel())
    kept = candidates.new_full((count,), label.numel()).scatter_reduce_(0, label.flatten(), candidates, "amin")
    label = torch.where((component == kept[label.flatten()]).view(label.shape), label, -1)
    while bool((label < 0).any()):
        label = torch.where(label < 0, _moved(label, surface, means), label)
    return label


def _moved(label: Tensor, surface: Tensor, means: Tensor) -> Tensor:
    """Return for each pixel the label, of its own and its neighbors', whose mean is nearest; −1 has no mean."""
    candidates = [label]
    for axis, length in enumerate(label.shape):
        for side in (0, 1):
            shifted = label.clone()
            shifted.narrow(axis, side, length - 1).copy_(label.narrow(axis, 1 - side, length - 1))
            candidates.append(shifted)
    choices = torch.stack(candidates).flatten(1)  # [2d + 1, P], the pixel's own label first
    border = (choices != choices[0]).any(0).nonzero().squeeze(1)
    choices = choices[:, border]
    gap = (surface[:, None, border] - means[:, choices.clamp_min(0)]).square().sum(0).masked_fill(choices < 0, math.inf)
    result = label.flatten().clone()
    result[border] = choices.gather(0, gap.argmin(0, keepdim=True)).squeeze(0)
    return result.view(label.shape)


def _components(label: Tensor) -> Tensor:
    """Return the smallest index of a pixel of each pixel's component: of equal labels, connected along axes."""
    component = torch.arange(label.numel()).view(label.shape)
    while True:
        before = component
        for axis, length in enumerate(label.shape):
            first, second = component.narrow(axis, 0, length - 1), component.narrow(axis, 1, length - 1)
            joined = label.narrow(axis, 0, length - 1) == label.narrow(axis, 1, length - 1)
            least = torch.minimum(first, second)
            component = component.clone()
            for side in (0, 1):
                target = component.narrow(axis, side, length - 1)
                target.copy_(torch.where(joined, torch.minimum(target, least), target))
        component = component.flatten()[component]
        if torch.equal(component, before):
            return component
