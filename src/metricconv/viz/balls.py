"""Unit balls of selected pixels, as curves and as a plot."""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import matplotlib.axes
import torch
from matplotlib.colors import is_color_like, to_rgba
from matplotlib.patches import Polygon
from torch import Tensor

from .. import _checks
from .._deprecation import renamed_arguments
from ..metrics import Metric, Randers, Riemannian, check_positive, fit_randers, geodesics, smoothed
from ..nn import AdaptiveConv
from ..stencils import Stencil
from ..supports import GeodesicBall, Support, TangentBall
from ..supports.geodesic import halo_width
from . import canvas

__all__ = [
    "Ball",
    "COLORS",
    "KINDS",
    "ball_kind",
    "draw_ball",
    "ellipses",
    "field_size",
    "in_field",
    "one_field",
    "plot_unit_balls",
    "unit_balls",
]

KINDS = ("tangent", "geodesic")
COLORS = {"tangent": canvas.SKY, "geodesic": canvas.ORANGE, "fitted": canvas.GREEN}
# Points per outline and steps per geodesic: smooth at print size.
_OUTLINE, _STEPS = 128, 24
# Bounds the asymmetry of a fitted ball, which few samples determine poorly.
_EPS_OMEGA = 0.05


@dataclasses.dataclass(frozen=True, eq=False)
class Ball:
    """The unit ball of one pixel, for plotting. Coordinates are (y, x) in pixels of the field.

    Args:
        pixel: (y, x), position in the field.
        outline: (128, 2), points of the boundary.
        samples: (P, 2), sampling locations, None if unknown.
        center: (2,), center of the tangent ball: the pixel itself unless the metric has a drift ω, which shifts the
            ball away from ω.
    """

    pixel: tuple[float, float]
    outline: Tensor
    samples: Tensor | None
    center: Tensor


@torch.no_grad()
def unit_balls(
    source: Metric | Support,
    points: canvas.Points,
    ball: str | None = None,
    stencil: Stencil | None = None,
    *,
    smooth: int = 1,
    image_index: int = 0,
    group: int = 0,
    stride: int | Sequence[int] | None = None,
) -> list[Ball]:
    """Return the unit balls of selected pixels of a field.

    Args:
        source: a metric or a support. Tangent and geodesic balls have their own metric and samples; for other supports
            a Randers metric is fitted whose tangent ball passes through the outermost samples.
        points: (y, x) in pixels of the field; or n, for a grid of n × n pixels.
        ball: "tangent" or "geodesic". Default: that of the support, "tangent" for a metric.
        stencil: sampling pattern for the balls of a metric.
        smooth: smoothing passes of the metric before geodesics are traced, as in ``GeodesicBall``.
        image_index, group: index of the image in the batch, and of the metric group.
        stride: input pixels per pixel of the field. Default: that of the support, 1 for a metric; for the metric of a
            strided layer, pass the stride of the layer.

    >>> import metricconv as mc
    >>> (ball,) = unit_balls(mc.Riemannian.isotropic(2.0).expand_to((9, 9)), [(4, 4)])
    >>> torch.linalg.vector_norm(ball.outline - ball.center, dim=1).max().item()
    2.0...
    """
    size = field_size(source)
    stride = _strides(source, stride)
    kind = ball_kind(source) if ball is None else _checks.one_of(ball, KINDS, "ball")
    if stencil is not None:
        _checks.instance_of(stencil, Stencil, "stencil")
        if stencil.dim != 2:
            raise ValueError(f"`stencil` must have 2 axes to be plotted, got {stencil.dim}")
    positions = torch.tensor(canvas.pixel_positions(points, size), dtype=torch.float64)
    offsets = None
    if not isinstance(source, Metric):
        offsets = _offsets_at(source, positions, image_index, group) / torch.tensor(stride).to(positions)  # [N, P, 2]
    metric = source.metric if isinstance(source, TangentBall | GeodesicBall) else source
    if isinstance(metric, Metric):
        metric = one_field(metric, image_index, group).to(positions).scaled([1 / s for s in stride])
        local = metric.at(positions.t()[None, :, :, None])  # a field of N × 1 pixels
        check_positive(local)
    elif kind == "geodesic":
        raise ValueError(f"`ball` (='geodesic') requires a metric field, which {type(source).__name__} does not have")
    else:
        assert offsets is not None
        metric = local = _fit_metric(metric.kernel_size, offsets)
    if kind == "geodesic":
        mode = "border"
        if isinstance(source, GeodesicBall):
            smooth, mode = source.smooth, source.padding_mode
        exponential = partial(_along_geodesics, smoothed(metric, smooth, padding_mode=mode), positions, mode)
    else:
        exponential = partial(_along_lines, local, positions)
    directions, shift = ellipses(local, _OUTLINE)
    lengths = torch.ones_like(directions[..., 0])
    if stencil is not None and offsets is None:  # samples and outline in one call, as geodesics are slow
        parts = (t.to(positions).expand(len(positions), *t.shape) for t in (stencil.directions, stencil.radii))
        directions, lengths = (torch.cat(pair, 1) for pair in zip((directions, lengths), parts, strict=True))
    points_reached = exponential(directions, lengths)
    samples = points_reached[:, _OUTLINE:] if offsets is None else positions.unsqueeze(1) + offsets
    return [
        Ball(
            (y, x),
            points_reached[n, :_OUTLINE],
            samples[n] if samples.shape[1] else None,
            positions[n] + shift[n],
        )
        for n, (y, x) in enumerate(positions.tolist())
    ]


@renamed_arguments(colour="color")
def plot_unit_balls(
    source: Metric | Support | AdaptiveConv,
    image: canvas.ImageLike | None = None,
    points: canvas.Points = 8,
    ball: str | Sequence[str] | None = None,
    stencil: Stencil | None = None,
    *,
    axes: matplotlib.axes.Axes | None = None,
    color: str | None = None,
    smooth: int = 1,
    image_index: int = 0,
    group: int = 0,
    stride: int | Sequence[int] | None = None,
) -> matplotlib.axes.Axes:
    """Draw the unit balls of selected pixels over an image, with samples and arrows to off-center balls.

    Tangent balls are blue, geodesic balls orange, and balls fitted to another support green. Arrows show the offset of
    each tangent ball's center from its pixel, along −M⁻¹ω.

    Args:
        source: a metric; a support, such as those of ``nn.record_supports``; or a layer, which is applied to ``image``,
            a tensor (1, C, H, W).
        image: background image, optional. A field coarser than the image, as that of a strided layer, is stretched to
            its size.
        points: (y, x) in pixels of the image (of the field if there is no image); or n, for a grid of n × n pixels.
        ball: "tangent", "geodesic" or a list of both. Default: that of the support, "tangent" for a metric.
        stencil: sampling pattern for the balls of a metric.
        axes: axes to draw on. Default: new axes.
        color: color of all balls, instead of those above.
        smooth, image_index, group, stride: as in ``unit_balls``; layers and recorded supports have their own stride. If
            the field is a batch, ``image_index`` is the index of ``image`` in it.

    >>> import metricconv as mc
    >>> image = torch.rand(1, 1, 32, 32)
    >>> axes = plot_unit_balls(mc.metrics.gradient_metric(image), image, points=4)  # doctest: +SKIP
    """
    if isinstance(source, AdaptiveConv):
        if not isinstance(image, Tensor) or image.dim() != 4:
            raise ValueError("`image` must be a tensor (1, C, H, W) if `source` is a layer")
        stride = source.stride if stride is None else stride
        with torch.no_grad():
            source = source.predict_support(image)[0]
    kinds: list[Any] = list(dict.fromkeys(ball)) if isinstance(ball, list | tuple) else [ball]
    if not kinds:
        raise ValueError(f"`ball` (={ball!r}) must not be empty")
    if color is not None and not is_color_like(color):
        raise ValueError(f"`color` (={color!r}) must be a color of matplotlib")
    size = field_size(source) if image is None else canvas.to_array(image).shape[:2]
    positions, zoom = in_field(source, points, size, stride)
    options: dict[str, Any] = {"smooth": smooth, "image_index": image_index, "group": group, "stride": stride}
    balls = {kind: unit_balls(source, positions, kind, stencil, **options) for kind in kinds}
    axes = canvas.one_axes(axes, image)
    canvas.show(axes, image, size)
    for kind in kinds:
        for unit_ball in balls[kind]:
            own_color = COLORS[kind or ball_kind(source, fitted="fitted")]
            draw_ball(axes, unit_ball, own_color if color is None else color, zoom)
    if len(kinds) > 1:
        colors = {str(kind): COLORS[str(kind)] if color is None else color for kind in kinds}
        handles = [Polygon([(0, 0)], color=colors[kind], label=kind, alpha=0.8) for kind in colors]
        below: dict[str, Any] = {"loc": "upper right", "bbox_to_anchor": (1, 0), "borderaxespad": 0.2}
        axes.legend(handles=handles, ncols=len(kinds), fontsize=8, frameon=False, **below)
    return axes


def draw_ball(
    axes: matplotlib.axes.Axes, ball: Ball, color: str, zoom: Tensor | None = None, size: float = 1.0
) -> None:
    """Draw one ball: outline, samples, pixel, and an arrow to its center if that is elsewhere.

    Args:
        axes: axes to draw on.
        ball: ball to draw.
        color: color of outline and samples.
        zoom: (2,), image pixels per pixel of the field, along y and x. Default: 1.
        size: scale of lines and dots.
    """
    zoom = torch.ones(2, device="cpu") if zoom is None else zoom

    def xy(positions: Tensor) -> Tensor:
        return ((positions.to(zoom) + 0.5) * zoom - 0.5).flip(-1)

    fill = to_rgba(color, 0.28)
    axes.add_patch(Polygon(xy(ball.outline).tolist(), facecolor=fill, edgecolor=color, linewidth=1.2 * size))
    dot = partial(axes.plot, marker="o", linestyle="", markeredgecolor="black")
    if ball.samples is not None:
        dot(*xy(ball.samples).t().tolist(), color=color, markersize=2.2 * size, markeredgewidth=0.35 * size)
    pixel, center = xy(torch.tensor([ball.pixel, ball.center.tolist()])).tolist()
    dot(*pixel, color="white", markersize=2.8 * size, markeredgewidth=0.6 * size, zorder=4)
    if abs(pixel[0] - center[0]) + abs(pixel[1] - center[1]) > 0.5:
        arrow = {"arrowstyle": "-|>", "color": canvas.VERMILLION, "linewidth": 1.2 * size, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", center, pixel, arrowprops=arrow | {"mutation_scale": 6 * size})


def ball_kind(source: Metric | Support, fitted: str = "tangent") -> str:
    """Return the type of a metric's or support's ball; ``fitted`` if it must be fitted to the samples."""
    if isinstance(source, Metric | TangentBall):
        return "tangent"
    return "geodesic" if isinstance(source, GeodesicBall) else fitted


def field_size(source: Metric | Support) -> tuple[int, int]:
    """Return the spatial size of a metric or support; 1 broadcasts."""
    if not isinstance(source, Metric):
        _checks.instance_of(source, Support, "source")
    size = tuple(source.spatial)
    if len(size) != 2:
        raise ValueError(f"`source` must have 2 spatial axes to be plotted, got {len(size)}")
    return size


def in_field(
    source: Metric | Support, points: canvas.Points, size: Sequence[int], stride: int | Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Convert points of an image to pixels of a field, (N, 2); also return the image pixels per field pixel, (2,)."""
    sizes = zip(size, field_size(source), _strides(source, stride), strict=True)
    zoom = torch.tensor([n / m if m > 1 else s for n, m, s in sizes], dtype=torch.float64)
    pixels = torch.tensor(canvas.pixel_positions(points, size), dtype=torch.float64)
    return (pixels + 0.5) / zoom - 0.5, zoom


def _strides(source: Metric | Support, stride: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the given stride; by default that of the support, or 1."""
    if stride is None and not isinstance(source, Metric):
        stride = source.stride
    return _checks.tuple_of(1 if stride is None else stride, 2, "stride", minimum=1)


def one_field(metric: Metric, image_index: int, group: int) -> Metric:
    """Return the metric of one image and one group, on the CPU and without gradients."""
    image_index = canvas.index(image_index, metric.batch, "image_index")
    for name, tensor in metric.tensors().items():
        _checks.with_values(tensor, f"metric.{name}")
    return metric[image_index, canvas.index(group, metric.groups, "group")].detach().to("cpu")


def ellipses(local: Metric, count: int) -> tuple[Tensor, Tensor]:
    """Return boundary points (N, count, 2) and centers (N, 2) of the tangent balls of a field of N × 1 pixels.

    Both are relative to the pixel. The points are evenly distributed even for thin ellipses. The center of a ball that
    is not an ellipse is the pixel.
    """
    angle = torch.arange(count, dtype=local.dtype, device=local.device) * (2 * torch.pi / count)
    circle = torch.stack([angle.sin(), angle.cos()], 1)
    if not isinstance(local, Randers | Riemannian):
        return _convex_outlines(local, circle), circle.new_zeros(local.spatial[0], 2)
    shape, center = local.zermelo() if isinstance(local, Randers) else (local, torch.zeros_like(local.M[:, :, :2]))
    yy, yx, xx = shape.dual().M[0, 0, :, :, 0]  # h⁻¹, whose Cholesky factor maps the circle to the ellipse
    down = yy.sqrt()
    across = yx / down
    factor = torch.stack([down, torch.zeros_like(down), across, (xx - across.square()).clamp_min(0).sqrt()], 1)
    middle = center[0, 0, :, :, 0].t()
    return middle.unsqueeze(1) + circle @ factor.view(-1, 2, 2).mT, middle


def _convex_outlines(local: Metric, circle: Tensor) -> Tensor:
    """Return boundary points (N, count, 2), dense where the boundary is far from the pixel or turns, as at corners."""
    count = len(circle)
    fine = torch.arange(16 * count, dtype=local.dtype, device=local.device) * (2 * torch.pi / (16 * count))
    points = local.unit_vectors(torch.stack([fine.sin(), fine.cos()], 1))[0, 0, :, :, :, 0].permute(2, 0, 1)
    step = torch.roll(points, -1, 1) - points
    length = torch.linalg.vector_norm(step, dim=2)
    direction = step / length.unsqueeze(2).clamp_min(1e-12)
    turn = torch.linalg.vector_norm(direction - torch.roll(direction, 1, 1), dim=2)
    weight = length / length.sum(1, keepdim=True) + turn / turn.sum(1, keepdim=True)
    position = weight.cumsum(1).contiguous()
    targets = torch.linspace(0, 2, count + 1, dtype=position.dtype, device=position.device)[:-1]
    index = torch.searchsorted(position, targets.expand(len(position), -1).contiguous()).clamp_max(16 * count - 1)
    return points.gather(1, index.unsqueeze(2).expand(-1, -1, 2))


def _fit_metric(kernel_size: tuple[int, ...], offsets: Tensor) -> Metric:
    """Fit the metric of N × 1 pixels whose unit balls' boundaries are nearest to the outermost samples of a kernel."""
    cells = itertools.product(*(range(k) for k in kernel_size))
    outer = [j for j, cell in enumerate(cells) if any(c in (0, k - 1) for c, k in zip(cell, kernel_size, strict=True))]
    field = offsets[:, outer].permute(1, 2, 0)[None, None, :, :, :, None]
    return fit_randers(field, 1.0, eps_omega=_EPS_OMEGA).metric


def _along_lines(local: Metric, positions: Tensor, directions: Tensor, lengths: Tensor) -> Tensor:
    """Return x + s u/F(u) for directions u (N, K, 2) and lengths s (N, K), for a field of N × 1 pixels."""
    norm = local.norm(directions.permute(1, 2, 0)[None, None, :, :, :, None])[0, 0, :, :, 0].t()
    return positions.unsqueeze(1) + (lengths / norm).unsqueeze(-1) * directions


def _along_geodesics(metric: Metric, positions: Tensor, mode: str, directions: Tensor, lengths: Tensor) -> Tensor:
    """Return the end points of the geodesics of a field, for the same directions and lengths."""
    starts = positions.repeat_interleave(directions.shape[1], 0)
    curves = geodesics(metric, starts, directions.flatten(0, 1), lengths.flatten(), steps=_STEPS, padding_mode=mode)
    return curves[0, 0, :, -1].view(directions.shape)


def _offsets_at(support: Support, positions: Tensor, image_index: int, group: int) -> Tensor:
    """Return the offsets of a support's samples at the given positions: (N, P, 2)."""
    pixels = zip(positions.round().long().t(), support.spatial, strict=True)
    rows, columns = (index.clamp(0, extent - 1) for index, extent in pixels)
    if isinstance(support, GeodesicBall) and len(positions) == 1:
        support, (row, column) = _crop(support, int(rows), int(columns))
        rows, columns = rows.new_tensor([row]), columns.new_tensor([column])
    if isinstance(support, TangentBall):  # its pixels are independent
        metric = support.metric.map(lambda t: t.detach()[:, :, :, rows, columns].unsqueeze(-1))
        support = TangentBall(metric, support.stencil)
        rows, columns = torch.arange(len(positions), device=rows.device), torch.zeros_like(columns)
    offsets = support.offsets().detach()
    offsets = offsets.expand(*offsets.shape[:4], *support.spatial)
    image_index = canvas.index(image_index, len(offsets), "image_index")
    selected = offsets[image_index, canvas.index(group, offsets.shape[1], "group")]
    return selected[:, :, rows, columns].permute(2, 0, 1).to(positions)


def _crop(support: GeodesicBall, row: int, column: int) -> tuple[GeodesicBall, tuple[int, int]]:
    """Return the part of a support that the samples of one pixel depend on, and the position of the pixel in it."""
    if support.padding_mode == "circular":
        return support, (row, column)
    margin = halo_width(support.reach() / min(support.stride), support.steps) + support.smooth
    rows, columns = (slice(max(p - margin, 0), p + margin + 1) for p in (row, column))
    near = support.metric[:, :, rows, columns]
    part = GeodesicBall(near, support.rays, support.steps, support.smooth, stride=support.stride)
    return part, (row - rows.start, column - columns.start)
