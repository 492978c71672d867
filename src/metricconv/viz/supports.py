"""The supports of different convolutions at one pixel, side by side."""

import math
from collections.abc import Mapping, Sequence
from functools import partial

import matplotlib.axes
import torch
from torch import Tensor

from .. import _checks, stencils
from .._images import to_field
from ..metrics import Metric, Randers, gradient_metric, smoothed
from ..supports import Deformable, GeodesicBall, Grid, Shifted, Support, TangentBall
from . import canvas
from .balls import COLORS, Ball, ball_kind, draw_ball, in_field, unit_balls

__all__ = ["example_supports", "plot_supports"]

# Maximum number of random samples of the deformable example, which bounds its memory to 1 GB.
_MAX_RANDOM = 2**25
# An example metric with visible asymmetric and curved balls of a few pixels.
_EXAMPLE_METRIC = partial(gradient_metric, iota=0.07, alpha=6.0, eps_omega=0.6, scale=1.5)


def plot_supports(
    image: canvas.ImageLike,
    point: Sequence[float],
    supports: Mapping[str, Support] | None = None,
    *,
    axes: Sequence[matplotlib.axes.Axes] | None = None,
    margin: float = 2.0,
) -> list[matplotlib.axes.Axes]:
    """Plot the sampling locations of a pixel, one panel per support.

    Each panel also shows the unit ball of the support's metric; in green, that of the Randers metric fitted to the
    outermost samples. All panels show the same part of the image.

    Args:
        image: background image.
        point: (y, x), pixel of the image.
        supports: supports by name. Default: ``example_supports(image)``. A support coarser than the image, as that of a
            strided layer, is stretched to its size.
        axes: one per support. Default: a new row.
        margin: pixels shown around the farthest sample.

    Returns:
        The axes, in the order of the supports.
    """
    supports = example_supports(image) if supports is None else supports
    if not isinstance(supports, Mapping) or not supports:
        raise ValueError(f"`supports` (={supports!r}) must be a mapping from names to supports, not empty")
    if not isinstance(margin, int | float) or not 0 <= margin < math.inf:
        raise ValueError(f"`margin` (={margin!r}) must be finite and at least 0")
    size = canvas.to_array(image).shape[:2]
    fields = {name: in_field(support, [point], size) for name, support in supports.items()}
    balls = {name: unit_balls(supports[name], position)[0] for name, (position, _) in fields.items()}
    if axes is not None:
        canvas.check_length(axes, len(supports), "axes", "one per support")
        for panel in axes:
            _checks.instance_of(panel, matplotlib.axes.Axes, "axes")
    titles = {name: canvas.wrapped(name, 1.6 if axes is None else canvas.inches(axes[0])[0], 9) for name in supports}
    lines = canvas.most_lines(titles.values())
    panels = list(canvas.new_axes(1, len(supports), height=1.7, title_lines=lines)[0] if axes is None else axes)
    kinds = {name: ball_kind(support, fitted="fitted") for name, support in supports.items()}
    reach = margin + max(_reach(ball, fields[name][1], kinds[name]) for name, ball in balls.items())
    y, x = map(float, point)
    for panel, (name, ball) in zip(panels, balls.items(), strict=True):
        canvas.show(panel, image, size)
        draw_ball(panel, ball, COLORS[kinds[name]], fields[name][1], size=1.4)
        panel.set_title(titles[name], fontsize=9)
        panel.set(xlim=(x - reach - 0.5, x + reach + 0.5), ylim=(y + reach + 0.5, y - reach - 0.5))
        panel.set_facecolor("0.85")
    return panels


@torch.no_grad()
def example_supports(
    image: canvas.ImageLike, kernel_size: int = 5, metric: Metric | None = None, seed: int = 0
) -> dict[str, Support]:
    """Return the six supports of the paper's overview for an image, each of kernel_size² samples.

    The balls are those of ``metric``, by default a gradient metric with drift; the shifted grid is centered at the
    center of the tangent ball; the deformable support has random offsets, as before training.

    >>> list(example_supports(torch.rand(16, 16)))
    ['standard', 'dilated', 'shifted', 'deformable', 'unit tangent ball', 'unit geodesic ball']
    """
    array = canvas.to_array(image)
    x = to_field(torch.from_numpy(array), None if array.ndim == 2 else -1)  # [1, C, H, W]
    metric = _EXAMPLE_METRIC(x) if metric is None else metric
    _checks.instance_of(metric, Metric, "metric")
    values = _checks.whole(kernel_size, "kernel_size", minimum=1) ** 2 * x[0, 0].numel()
    if values > _MAX_RANDOM:
        raise ValueError(
            f"`kernel_size` (={kernel_size}) gives {values} samples for this image, expected at most {_MAX_RANDOM}"
        )
    generator = torch.Generator().manual_seed(_checks.seed(seed, "seed"))
    uniform = torch.rand(1, 1, kernel_size**2, 2, *x.shape[2:], generator=generator, dtype=x.dtype, device="cpu")
    smooth = smoothed(metric)  # as in a geodesic ball
    stencil = stencils.onion(kernel_size)
    return {
        "standard": Grid(kernel_size),
        "dilated": Grid(kernel_size, dilation=2),
        "shifted": Shifted(
            smooth.zermelo()[1] if isinstance(smooth, Randers) else x.new_zeros(1, 1, 2, 1, 1), kernel_size
        ),
        "deformable": Deformable(3 * uniform - 1.5, kernel_size),
        "unit tangent ball": TangentBall(smooth, stencil),
        "unit geodesic ball": GeodesicBall(metric, stencil, steps=8),
    }


def _reach(ball: Ball, zoom: Tensor, kind: str) -> float:
    """Return the maximum distance of a ball and its samples from the pixel, in pixels of the image.

    For fitted balls only samples count: few or collinear samples do not determine the size of the ball.
    """
    parts = [ball.outline] if kind != "fitted" or ball.samples is None else []
    points = torch.cat([*parts, *([] if ball.samples is None else [ball.samples])])
    return float(((points - torch.tensor(ball.pixel)) * zoom).abs().max())
