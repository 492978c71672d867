"""The supports of a pixel side by side: where each kind of convolution looks."""

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
from .balls import COLOURS, Ball, ball_kind, draw_ball, in_field, unit_balls

# A metric whose balls are a few pixels large, lean, and bend: made to be seen.
_EXAMPLE_METRIC = partial(gradient_metric, iota=0.07, alpha=6.0, eps_omega=0.6, scale=1.5)


def plot_supports(
    image: canvas.Picture,
    point: Sequence[float],
    supports: Mapping[str, Support] | None = None,
    *,
    axes: Sequence[matplotlib.axes.Axes] | None = None,
    margin: float = 2.0,
) -> list[matplotlib.axes.Axes]:
    """Draw where a pixel looks, one panel for each support: standard, dilated, shifted, deformable and unit balls.

    Beside the samples, each panel shows the unit ball: that of the support's own metric, or, in green, of the Randers
    metric whose ball passes nearest to its outermost samples. All panels show the same part of the image.

    Args:
        image: what to draw over.
        point: (y, x), the pixel of the image.
        supports: by name; those of ``example_supports(image)`` if not given. One coarser than the image, as that of a
            strided layer, is stretched to its size.
        axes: one for each support; a new row if not given.
        margin: pixels to show around the farthest sample.

    Returns:
        The axes, in the order of the supports.
    """
    chosen = example_supports(image) if supports is None else dict(supports)
    if not chosen:
        raise ValueError("`supports` must not be empty")
    if not isinstance(margin, int | float) or not 0 <= margin < math.inf:
        raise ValueError(f"`margin` (={margin!r}) must be finite and at least 0")
    size = canvas.to_array(image).shape[:2]
    fields = {name: in_field(support, [point], size) for name, support in chosen.items()}
    balls = {name: unit_balls(chosen[name], where)[0] for name, (where, _) in fields.items()}
    if axes is not None and len(axes) != len(chosen):
        raise ValueError(f"`axes` must be one for each of the {len(chosen)} supports, got {len(axes)}")
    titles = {name: canvas.wrapped(name, 1.6 if axes is None else canvas.inches(axes[0])[0], 9) for name in chosen}
    lines = canvas.most_lines(titles.values())
    panels = list(canvas.new_axes(1, len(chosen), height=1.7, title_lines=lines)[0] if axes is None else axes)
    kinds = {name: ball_kind(support, fitted="fitted") for name, support in chosen.items()}
    reach = margin + max(_reach(ball, fields[name][1], kinds[name]) for name, ball in balls.items())
    y, x = map(float, point)
    for panel, (name, ball) in zip(panels, balls.items(), strict=True):
        canvas.show(panel, image, size)
        draw_ball(panel, ball, COLOURS[kinds[name]], fields[name][1], size=1.4)
        panel.set_title(titles[name], fontsize=9)
        panel.set(xlim=(x - reach - 0.5, x + reach + 0.5), ylim=(y + reach + 0.5, y - reach - 0.5))
        panel.set_facecolor("0.85")
    return panels


@torch.no_grad()
def example_supports(
    image: canvas.Picture, kernel_size: int = 5, metric: Metric | None = None, seed: int = 0
) -> dict[str, Support]:
    """Return the six supports of the paper's overview for an image, each of kernel_size² samples.

    The balls are those of ``metric``, or of a gradient metric with drift; the shifted grid stands where their centres
    are; the deformable one is displaced at random, as before any learning.

    >>> list(example_supports(torch.rand(16, 16)))
    ['standard', 'dilated', 'shifted', 'deformable', 'unit tangent ball', 'unit geodesic ball']
    """
    array = canvas.to_array(image)
    x = to_field(torch.from_numpy(array), None if array.ndim == 2 else -1)  # [1, C, H, W]
    metric = _EXAMPLE_METRIC(x) if metric is None else metric
    _checks.instance_of(metric, Metric, "metric")
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(1, 1, kernel_size**2, 2, *x.shape[2:], generator=generator, dtype=x.dtype, device="cpu")
    even = smoothed(metric)  # as a geodesic ball sees it
    stencil = stencils.onion(kernel_size)
    return {
        "standard": Grid(kernel_size),
        "dilated": Grid(kernel_size, dilation=2),
        "shifted": Shifted(even.zermelo()[1] if isinstance(even, Randers) else x.new_zeros(1, 1, 2, 1, 1), kernel_size),
        "deformable": Deformable(3 * uniform - 1.5, kernel_size),
        "unit tangent ball": TangentBall(even, stencil),
        "unit geodesic ball": GeodesicBall(metric, stencil, steps=8),
    }


def _reach(ball: Ball, zoom: Tensor, kind: str) -> float:
    """Return how far a ball and its samples go from their pixel, in pixels of the image.

    Of a fitted ball it is the samples alone: few samples, or such along a line, leave open how large it is.
    """
    parts = [ball.outline] if kind != "fitted" or ball.samples is None else []
    points = torch.cat([*parts, *([] if ball.samples is None else [ball.samples])])
    return float(((points - torch.tensor(ball.pixel)) * zoom).abs().max())
