"""Segmentation from scribbles: each pixel gets the label of the nearest stroke."""

import torch
from torch import Tensor

from ._images import Image, like, to_field, to_labels
from .distance import nearest_sources
from .surfaces import surface_metric

__all__ = ["segment"]


def segment(
    image: Image,
    scribbles: Image,
    *,
    contrast: float = 300.0,
    scale: float | None = 1.0,
    channel_axis: int | None = None,
) -> Image:
    """Return the label of the nearest scribble of each pixel, in the metric of the image as a surface.

    Paths that cross edges are long, so regions end at edges, or half-way between scribbles where there are none.

    Args:
        image: array or tensor, (*spatial), 2-D or 3-D, with channels along ``channel_axis`` if given. Integers are
            divided by the maximum of their type.
        scribbles: integers (*spatial): a label where positive, 0 where unknown, negative for pixels that belong to no
            region and that paths do not enter.
        contrast: length in pixels of an edge from 0 to 1, 0 to 10⁶ (default 300).
        scale: standard deviation of the image's derivative filters in pixels (default 1); None for Sobel filters.
        channel_axis: axis of the channels, None (default) for a gray image.

    Returns:
        Labels, int64, (*spatial); negative ones as in ``scribbles``, 0 where no path leads.

    >>> image, scribbles = torch.zeros(3, 6), torch.zeros(3, 6, dtype=torch.int64)
    >>> image[:, 4:] = 1.0
    >>> scribbles[1, 0], scribbles[1, 5] = 1, 2
    >>> segment(image, scribbles, scale=None)[0]
    tensor([1, 1, 1, 1, 2, 2])
    """
    field = to_field(image, channel_axis)
    given = to_labels(scribbles, tuple(field.shape[2:]), "scribbles")
    strokes = given > 0
    if not bool(strokes.any()):
        raise ValueError("`scribbles` must have at least one positive label")
    points = _outline(given).nonzero()
    metric = surface_metric(field, contrast, scale=scale)
    nearest = nearest_sources(metric, points, mask=None if bool((given >= 0).all()) else given >= 0, order=1)
    source = nearest.label[0, 0, 0]
    labels = given[tuple(points.T)][source.clamp_min(0)]
    labels = torch.where(source < 0, 0, labels)
    return like(torch.where(given == 0, labels, given), image)


def _outline(labels: Tensor) -> Tensor:
    """Return the labeled pixels with a neighbor along an axis of another label, and those at the image's border."""
    inner = labels > 0
    for axis in range(labels.dim()):
        size = labels.shape[axis]
        same = torch.zeros_like(inner)
        if size > 2:
            middle = labels.narrow(axis, 1, size - 2)
            same.narrow(axis, 1, size - 2).copy_(
                (middle == labels.narrow(axis, 0, size - 2)) & (middle == labels.narrow(axis, 2, size - 2))
            )
        inner &= same
    return (labels > 0) & ~inner
