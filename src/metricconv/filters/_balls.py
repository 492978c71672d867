"""Filters that average over the unit balls of a metric."""

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from .. import _checks, stencils
from .._deprecation import renamed_arguments
from ..metrics import IMAGE_METRICS, Metric, check_positive, image_metric, smoothed
from ..metrics.flow import metric_padding
from ..metrics.from_image import Spacing
from ..stencils import Stencil
from ..supports import GeodesicBall, TangentBall
from ..supports.geodesic import halo_width
from ..supports.tangent_ball import farthest_sample
from ._average import Image, average, centering_dilation, convolve, filter_image, padded_strips
from ._limits import MAX_SIDE, check_at_most, check_sample_count, check_steps

# Approximate number of pixels between two progress reports.
_STRIP_PIXELS = 2**20

BallKind = TypeVar("BallKind", TangentBall, GeodesicBall)
MetricSource = str | Metric | Callable[[Tensor], Metric]
Progress = Callable[[int, int], object]


@renamed_arguments(centre="center")
def tangent_filter(
    image: Image,
    samples: int = 11,
    metric: MetricSource = "gradient",
    stencil: str | Stencil = "polar",
    *,
    center: bool = False,
    channel_axis: int | None = None,
    padding_mode: str = "reflect",
    spacing: Spacing = None,
    progress: Progress | None = None,
) -> Image:
    """Average over the unit tangent ball of a metric at each pixel: P samples s_j u_j / F(u_j).

    The metric is computed from all channels together; its balls are elongated along edges or shrink at them.

    Args:
        image, channel_axis, padding_mode: as in ``box_filter``. "gradient", ``gradient_metric`` and the like
            use the same padding mode.
        samples: k, for P = k^d samples; at most 1023, and 101 for a volume.
        metric: "gradient", "edge" or "structure", for the function of ``metricconv.metrics`` with its defaults; any
            function of the image (1, C, *spatial), such as ``partial(gradient_metric, eps_omega=0.5)``; or a metric.
        stencil: sampling pattern: "polar", "onion", "square_onion" or a ``Stencil``, which then determines P.
        center: add the pixel itself as one more sample, as in the code released with the paper.
        spacing: distance between pixels, a number or one per spatial axis; requires a metric by name, whose lengths are
            then in units of the smallest. Default: the same along all axes.
        progress: function called with the number of finished rows and of all rows, about every million pixels.

    >>> from metricconv.filters import box_filter
    >>> step = torch.zeros(9, 8)
    >>> step[:, 4:] = 1.0
    >>> box_filter(step, 5)[4, 3:5], tangent_filter(step)[4, 3:5]  # either side of the edge
    (tensor([0.4000, 0.6000]), tensor([0.0780, 0.9065]))
    """
    mode = _checks.padding_mode(padding_mode)
    make_balls = ball_factory(TangentBall, _checked_stencil(stencil, samples), metric, mode, spacing)
    return _filter_over_balls(image, channel_axis, make_balls, mode, center, progress)


@renamed_arguments(centre="center")
def geodesic_filter(
    image: Image,
    samples: int = 11,
    metric: MetricSource = "edge",
    stencil: str | Stencil = "polar",
    *,
    steps: int | None = None,
    smooth: int = 1,
    center: bool = False,
    channel_axis: int | None = None,
    padding_mode: str = "reflect",
    spacing: Spacing = None,
    progress: Progress | None = None,
) -> Image:
    """Average over the unit geodesic ball of a metric at each pixel: the points within distance 1.

    A tangent ball assumes that the metric is constant around its pixel; a geodesic ball follows its variation and stops
    at edges some pixels away. It is smaller, so the best scale of the metric differs.

    Args:
        image, samples, metric, stencil, center, channel_axis, padding_mode, spacing, progress: as in
            ``tangent_filter``.
        steps, smooth: integration steps and smoothing passes of the metric, as in ``GeodesicBall``; at most 1000.

    >>> step = torch.zeros(9, 12)
    >>> step[:, 6:] = 1.0
    >>> from functools import partial
    >>> from metricconv.metrics import edge_metric
    >>> wide = partial(edge_metric, iota=0.04, alpha=20.0, scale=None)  # 5 px wide away from edges
    >>> tangent_filter(step, metric=wide)[4, 3], geodesic_filter(step, metric=wide)[4, 3]  # 2½ px from the edge
    (tensor(0.1330), tensor(0.))
    """
    check_steps(steps, smooth)
    mode = _checks.padding_mode(padding_mode)
    metric_mode = metric_padding(mode)

    def make(field: Metric, stencil: Stencil, dilation: tuple[int, ...]) -> GeodesicBall:
        return GeodesicBall(field, stencil, steps, smooth, dilation=dilation, padding_mode=metric_mode)

    make_balls = ball_factory(make, _checked_stencil(stencil, samples), metric, mode, spacing)
    return _filter_over_balls(image, channel_axis, make_balls, mode, center, progress)


def ball_factory(
    make: Callable[[Metric, Stencil, tuple[int, ...]], BallKind],
    make_stencil: Callable[[int], Stencil],
    metric: MetricSource,
    padding_mode: str,
    spacing: Spacing,
) -> Callable[[Tensor], BallKind]:
    """Return the function from an image to its balls, given the function from a number of axes to a stencil."""
    source = metric_source(metric, padding_mode, spacing)
    always_positive = isinstance(metric, str) or metric in IMAGE_METRICS.values()

    def balls(x: Tensor) -> BallKind:
        reference = make_stencil(x.dim() - 2)
        field = source if isinstance(source, Metric) else source(x)
        _checks.instance_of(field, Metric, "metric")
        if not always_positive:
            check_positive(field)
        size = tuple(x.shape[2:])
        if field.dim == len(size) and any(n not in (1, m) for n, m in zip(field.spatial, size, strict=True)):
            raise ValueError(f"`metric` must have the spatial size {size} of `image`, got {tuple(field.spatial)}")
        return make(field, reference, centering_dilation(reference.kernel_size))

    return balls


def metric_source(metric: MetricSource, padding_mode: str, spacing: Spacing) -> Metric | Callable[[Tensor], Metric]:
    """Check a metric; return it, or the function from an image to it."""
    if not isinstance(metric, str | Metric) and not callable(metric):
        raise TypeError(f"`metric` must be a name, a Metric or a function of the image, got {type(metric).__name__}")
    if not isinstance(metric, Metric):
        return image_metric(metric, padding_mode=padding_mode, spacing=spacing)
    if spacing is not None:
        raise ValueError(f"`spacing` (={spacing!r}) requires a metric by name: a given `metric` is in pixels")
    return metric


def _checked_stencil(stencil: str | Stencil, samples: int) -> Callable[[int], Stencil]:
    """Return the function from a number of axes to a stencil, which checks the number of samples."""
    check_at_most(samples, MAX_SIDE, "samples")
    make_stencil = stencils.stencil_factory(stencil, samples)

    def make(dim: int) -> Stencil:
        if isinstance(stencil, str):
            check_sample_count(samples, dim, "samples")
        return make_stencil(dim)

    return make


def _filter_over_balls(
    image: Image,
    channel_axis: int | None,
    make_balls: Callable[[Tensor], TangentBall | GeodesicBall],
    padding_mode: str,
    center: bool,
    progress: Progress | None,
) -> Image:
    """Average over balls, and the pixel itself if ``center``; in strips if ``progress`` is given."""
    _checks.boolean(center, "center")
    if progress is not None and not callable(progress):
        raise TypeError(f"`progress` must be a function of two integers, got {type(progress).__name__}")

    def mean(x: Tensor) -> Tensor:
        balls = make_balls(x)
        if progress is None:
            y = average(x, balls, padding_mode)
        elif isinstance(balls, TangentBall):
            y = _tangent_mean_in_strips(x, balls, padding_mode, progress)
        else:
            y = _geodesic_mean_in_strips(x, balls, padding_mode, progress)
        return y + (x - y) / (balls.samples + 1) if center else y

    return filter_image(image, channel_axis, mean)


def _tangent_mean_in_strips(x: Tensor, ball: TangentBall, padding_mode: str, progress: Progress) -> Tensor:
    """Average over balls in strips along the first axis, with a margin of the largest ball.

    The strips are convolved without padding: the dilation, which has no other effect on balls, determines the margin.
    At the border of the image the margin is filled by the padding mode.
    """
    size, (k, *_) = x.shape[2], ball.kernel_size
    metric = ball.metric.expand_to(x.shape[2:])
    reach = ball.reach()
    if k == 1 or not reach < size:  # no margin, or one larger than the image
        y = average(x, ball, padding_mode)
        progress(size, size)
        return y
    dilation = (2 * math.ceil((reach + 1) / (k - 1)), *ball.dilation[1:])
    padding = (0, *(d * (k - 1) // 2 for k, d in zip(ball.kernel_size[1:], dilation[1:], strict=True)))
    step, y = max(_STRIP_PIXELS * size // math.prod(x.shape[2:]), 1), torch.empty_like(x)
    for start, stop, padded in padded_strips(x, step, dilation[0] * (k - 1) // 2, padding_mode):
        balls = TangentBall(metric[:, :, start:stop], ball.stencil, dilation)
        y[:, :, start:stop] = convolve(padded, balls, padding, padding_mode)
        progress(stop, size)
    return y


def _geodesic_mean_in_strips(x: Tensor, ball: GeodesicBall, padding_mode: str, progress: Progress) -> Tensor:
    """Average over geodesic balls in strips along the first axis, with a margin that geodesics do not leave.

    Geodesics of the margin are traced too and discarded, so strips are at least four times as wide.
    """
    size, mode = x.shape[2], ball.padding_mode
    metric = smoothed(ball.metric.expand_to(x.shape[2:]), ball.smooth, padding_mode=mode)
    reach = farthest_sample(metric, ball.stencil)
    margin = halo_width(reach, ball.steps) if reach < size else size
    step, y = max(_STRIP_PIXELS * size // math.prod(x.shape[2:]), 4 * margin), torch.empty_like(x)
    margin = margin if step < size else 0  # a single strip needs none
    for start in range(0, size, step):
        stop = min(start + step, size)
        rows = torch.arange(start - margin, stop + margin, device=x.device)
        # Strips end at the border of the image, unless it is circular.
        rows = rows % size if mode == "circular" else rows[(rows >= 0) & (rows < size)]
        balls = GeodesicBall(metric[:, :, rows], ball.rays, ball.steps, 0, dilation=ball.dilation, padding_mode=mode)
        mean = average(x[:, :, rows], balls, padding_mode)
        y[:, :, start:stop] = mean.narrow(2, margin if mode == "circular" else min(start, margin), stop - start)
        progress(stop, size)
    return y
