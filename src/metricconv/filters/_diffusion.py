"""Anisotropic diffusion: heat flow of the metric of an image."""

import math
from collections.abc import Callable

from torch import Tensor

from .. import _checks
from ..geodesic._links import Links, make_links
from ..metrics import IMAGE_METRICS, Metric, Riemannian, check_positive
from ..metrics.from_image import Spacing
from ._average import Image, filter_image
from ._balls import MetricSource, Progress, metric_source
from ._limits import check_at_most

# Bounds the work: time 1/2 spreads a point over its ball, and larger times over more.
_MAX_TIME, _MAX_ROUNDS = 1000, 1000


def anisotropic_diffusion(
    image: Image,
    time: float = 0.5,
    metric: MetricSource = "structure",
    *,
    rounds: int = 4,
    channel_axis: int | None = None,
    spacing: Spacing = None,
    progress: Progress | None = None,
) -> Image:
    """Diffuse an image along the balls of its metric: ∂u/∂t = div(M⁻¹ ∇u), without flow across the border.

    Where M is constant, diffusion for a time t is a convolution with a Gaussian of covariance 2t M⁻¹; at t = ½ its
    standard deviation is the radius of the unit ball in each direction. With the metric "structure" flow is along edges
    and stripes, which closes gaps of lines (coherence-enhancing diffusion). With "gradient" and "edge" there is little
    flow across edges (edge-enhancing diffusion).

    The operator is discretized with nonnegative weights between pixels, by Selling's decomposition of M⁻¹, and time
    steps are as long as stability permits. So every value stays between the minimum and the maximum of the image, and
    the mean does not change.

    Args:
        image, channel_axis: as in ``box_filter``. All channels are diffused with the same metric.
        time: diffusion time, from 0 (the image itself) to 1000; default ½.
        metric: "structure" (default), "gradient", "edge", a function of the image (1, C, *spatial), or a metric; it
            must be Riemannian.
        rounds: how often the metric is computed, 1 to 1000: at the start of each of this number of equal parts of
            ``time`` (default 4). A given metric is used in all rounds.
        spacing: as in ``tangent_filter``; ∇ and div are then per unit of the smallest spacing.
        progress: function called with the number of finished rounds and of all rounds.

    >>> import torch
    >>> stripes = torch.cos(torch.arange(32.0) / 2).expand(32, 32)
    >>> noisy = stripes + 0.3 * torch.randn(32, 32)
    >>> smooth = anisotropic_diffusion(noisy)
    >>> bool((smooth - stripes).std() < 0.4 * (noisy - stripes).std())
    True
    """
    check_at_most(time, _MAX_TIME, "time")
    time = _checks.not_negative(time, "time")
    check_at_most(rounds, _MAX_ROUNDS, "rounds")
    rounds = _checks.whole(rounds, "rounds", minimum=1)
    source = metric_source(metric, "reflect", spacing)
    if progress is not None and not callable(progress):
        raise TypeError(f"`progress` must be a function of two integers, got {type(progress).__name__}")

    def flow(x: Tensor) -> Tensor:
        links = None
        for done in range(rounds):
            if links is None or not isinstance(metric, Metric):
                links = make_links(
                    _dual_matrices(x, source, checked=isinstance(metric, str) or metric in IMAGE_METRICS.values()),
                    tuple(x.shape[2:]),
                )
            x = _diffuse(x, links, time / rounds)
            if progress is not None:
                progress(done + 1, rounds)
        return x

    return filter_image(image, channel_axis, flow)


def _dual_matrices(x: Tensor, source: Metric | Callable[[Tensor], Metric], checked: bool) -> Tensor:
    """Return M⁻¹ of each pixel, (d(d+1)/2, P), of a metric that is positive if ``checked``."""
    field = source if isinstance(source, Metric) else source(x)
    if not isinstance(field, Riemannian):
        raise TypeError(f"`metric` must be Riemannian, got {type(field).__name__}")
    if not checked:
        check_positive(field)
    size = tuple(x.shape[2:])
    if len(field.spatial) != len(size) or any(n not in (1, m) for n, m in zip(field.spatial, size, strict=True)):
        raise ValueError(f"`metric` must have the spatial size {size} of `image`, got {tuple(field.spatial)}")
    if (field.batch, field.groups) != (1, 1):
        raise ValueError(f"`metric` must have one field, got {field.batch} × {field.groups}")
    return field.expand_to(size).dual().M[0, 0].flatten(1)


def _diffuse(x: Tensor, links: Links, time: float) -> Tensor:
    """Do explicit steps of equal length, at most the largest for which all weights are nonnegative."""
    steps = math.ceil(time * links.largest_outflow())
    values = x[0].flatten(1).t().contiguous()
    for _ in range(steps):
        values = links.step(values, time / steps)
    return values.t().reshape(x.shape)
