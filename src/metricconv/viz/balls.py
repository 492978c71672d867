"""The unit balls of some pixels, as curves and as a picture."""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import matplotlib.axes
import torch
from matplotlib.colors import to_rgba
from matplotlib.patches import Polygon
from torch import Tensor

from .. import _checks
from ..metrics import Metric, Randers, Riemannian, check_positive, fit_randers, geodesics, smoothed
from ..nn import AdaptiveConv
from ..stencils import Stencil
from ..supports import GeodesicBall, Support, TangentBall
from ..supports.geodesic import sight
from . import canvas

KINDS = ("tangent", "geodesic")
COLOURS = {"tangent": canvas.SKY, "geodesic": canvas.ORANGE, "fitted": canvas.GREEN}
# Points of an outline, and steps of a geodesic: smooth at print size.
_OUTLINE, _STEPS = 128, 24
# The most that a fitted ball may lean: few samples say little of how far a ball reaches past them.
_EPS_OMEGA = 0.05


@dataclasses.dataclass(frozen=True, eq=False)
class Ball:
    """The unit ball of one pixel: what a picture of it needs, in pixels of the field and (y, x) order.

    Args:
        pixel: (y, x), its place in the field.
        outline: (128, 2), points of its boundary.
        samples: (P, 2), where a convolution looks, if that is known.
        centre: (2,), of the ellipse that the tangent ball is. It is the pixel itself unless the metric has a drift ω,
            against which the ball leans.
    """

    pixel: tuple[float, float]
    outline: Tensor
    samples: Tensor | None
    centre: Tensor


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
    """Return the unit balls of some pixels of a field.

    Args:
        source: a metric, or a support: a tangent or geodesic ball has its metric, samples and kind; of any other, the
            outermost samples are taken for the boundary of the tangent ball of a Randers metric, which is fitted.
        points: (y, x), in pixels of the field; or n, for n × n of them.
        ball: "tangent" or "geodesic"; that of the support, or "tangent", if not given.
        stencil: samples the balls of a metric.
        smooth: how often a metric is smoothed before geodesics are traced, as in ``GeodesicBall``.
        image_index, group: which image of the batch, and which metric group.
        stride: input pixels between pixels of the field. By default that of the support, if it has one, else 1; a bare
            metric has none, so say the stride of the layer that it is from.

    >>> import metricconv as mc
    >>> (ball,) = unit_balls(mc.Riemannian.isotropic(2.0).expand_to((9, 9)), [(4, 4)])
    >>> torch.linalg.vector_norm(ball.outline - ball.centre, dim=1).max().item()
    2.0...
    """
    size = field_size(source)
    stride = _strides(source, stride)
    kind = ball_kind(source) if ball is None else _checks.one_of(ball, KINDS, "ball")
    if stencil is not None:
        _checks.instance_of(stencil, Stencil, "stencil")
        if stencil.dim != 2:
            raise ValueError(f"`stencil` must have 2 axes to be drawn, got {stencil.dim}")
    where = torch.tensor(canvas.places(points, size), dtype=torch.float64)
    looked_at = None
    if not isinstance(source, Metric):
        looked_at = _offsets_at(source, where, image_index, group) / torch.tensor(stride).to(where)  # [N, P, 2]
    metric = source.metric if isinstance(source, TangentBall | GeodesicBall) else source
    if isinstance(metric, Metric):
        metric = one_field(metric, image_index, group).to(where).scaled([1 / s for s in stride])
        local = metric.at(where.t()[None, :, :, None])  # a field of N × 1 pixels
        check_positive(local)
    elif kind == "geodesic":
        raise ValueError(f"`ball` (='geodesic') needs a field of metrics, which a {type(source).__name__} has not")
    else:
        assert looked_at is not None
        metric = local = _fitted(metric.kernel_size, looked_at)
    if kind == "geodesic":
        mode = "border"
        if isinstance(source, GeodesicBall):
            smooth, mode = source.smooth, source.padding_mode
        arrive = partial(_along_geodesics, smoothed(metric, smooth, padding_mode=mode), where, mode)
    else:
        arrive = partial(_straight, local, where)
    directions, shift = ellipses(local, _OUTLINE)
    lengths = torch.ones_like(directions[..., 0])
    if stencil is not None and looked_at is None:  # samples and outline in one go, as geodesics take a while
        parts = (t.to(where).expand(len(where), *t.shape) for t in (stencil.directions, stencil.radii))
        directions, lengths = (torch.cat(pair, 1) for pair in zip((directions, lengths), parts, strict=True))
    reached = arrive(directions, lengths)
    samples = reached[:, _OUTLINE:] if looked_at is None else where.unsqueeze(1) + looked_at
    return [
        Ball((pixel[0], pixel[1]), reached[n, :_OUTLINE], samples[n] if samples.shape[1] else None, where[n] + shift[n])
        for n, pixel in enumerate(where.tolist())
    ]


def plot_unit_balls(
    source: Metric | Support | AdaptiveConv,
    image: canvas.Picture | None = None,
    points: canvas.Points = 8,
    ball: str | Sequence[str] | None = None,
    stencil: Stencil | None = None,
    *,
    axes: matplotlib.axes.Axes | None = None,
    colour: str | None = None,
    smooth: int = 1,
    image_index: int = 0,
    group: int = 0,
    stride: int | Sequence[int] | None = None,
) -> matplotlib.axes.Axes:
    """Draw the unit balls of some pixels over an image, with their samples, and an arrow where a drift moves them.

    Tangent balls are blue, geodesic ones orange, and those fitted to another support green. The arrow goes from the
    pixel to the centre of the tangent ball: along −M⁻¹ω, since a ball leans away from ω.

    Args:
        source: a metric; a support, such as ``nn.record_supports`` keeps; or a layer, which is shown the image, a
            tensor (1, C, H, W) then.
        image: what to draw over, if anything. A field coarser than the image, as that of a strided layer, is stretched
            to its size.
        points: (y, x) in pixels of the image (of the field without one); or n, for n × n of them.
        ball: "tangent", "geodesic" or both; the support's own, or "tangent", if not given.
        stencil: samples the balls of a metric, which has none of its own.
        axes: what to draw on; new ones if not given.
        colour: of all balls, instead of those above.
        smooth, image_index, group, stride: as in ``unit_balls``; a layer, and a support recorded of it, know their own
            stride. Of a batch, ``image_index`` must say which one ``image`` is.

    >>> import metricconv as mc
    >>> image = torch.rand(1, 1, 32, 32)
    >>> axes = plot_unit_balls(mc.metrics.gradient_metric(image), image, points=4)  # doctest: +SKIP
    """
    if isinstance(source, AdaptiveConv):
        if not isinstance(image, Tensor) or image.dim() != 4:
            raise ValueError("`image` must be a tensor (1, C, H, W) to be shown to a layer")
        stride = source.stride if stride is None else stride
        with torch.no_grad():
            source = source.predict_support(image)[0]
    kinds = [ball] if isinstance(ball, str) or ball is None else list(dict.fromkeys(ball))
    if not kinds:
        raise ValueError(f"`ball` (={ball!r}) must not be empty")
    size = field_size(source) if image is None else canvas.to_array(image).shape[:2]
    where, zoom = in_field(source, points, size, stride)
    options: dict[str, Any] = {"smooth": smooth, "image_index": image_index, "group": group, "stride": stride}
    balls = {kind: unit_balls(source, where, kind, stencil, **options) for kind in kinds}
    axes = canvas.one_axes(axes, image)
    canvas.show(axes, image, size)
    for kind in kinds:
        for drawn in balls[kind]:
            draw_ball(axes, drawn, colour or COLOURS[kind or ball_kind(source, fitted="fitted")], zoom)
    if len(kinds) > 1:
        shown = {str(kind): colour or COLOURS[str(kind)] for kind in kinds}
        handles = [Polygon([(0, 0)], color=shown[kind], label=kind, alpha=0.8) for kind in shown]
        below: dict[str, Any] = {"loc": "upper right", "bbox_to_anchor": (1, 0), "borderaxespad": 0.2}
        axes.legend(handles=handles, ncols=len(kinds), fontsize=8, frameon=False, **below)
    return axes


def draw_ball(
    axes: matplotlib.axes.Axes, ball: Ball, colour: str, zoom: Tensor | None = None, size: float = 1.0
) -> None:
    """Draw one ball: outline, samples, pixel, and an arrow to its centre if it lies elsewhere.

    Args:
        axes, ball, colour: what to draw, and how.
        zoom: (2,), pixels of the image for one of the field, along y and x.
        size: of lines and dots, relative to those of a picture with many balls.
    """
    zoom = torch.ones(2, device="cpu") if zoom is None else zoom

    def xy(where: Tensor) -> Tensor:
        return ((where.to(zoom) + 0.5) * zoom - 0.5).flip(-1)

    fill = to_rgba(colour, 0.28)
    axes.add_patch(Polygon(xy(ball.outline).tolist(), facecolor=fill, edgecolor=colour, linewidth=1.2 * size))
    dot = partial(axes.plot, marker="o", linestyle="", markeredgecolor="black")
    if ball.samples is not None:
        dot(*xy(ball.samples).t().tolist(), color=colour, markersize=2.2 * size, markeredgewidth=0.35 * size)
    pixel, centre = xy(torch.tensor([ball.pixel, ball.centre.tolist()])).tolist()
    dot(*pixel, color="white", markersize=2.8 * size, markeredgewidth=0.6 * size, zorder=4)
    if abs(pixel[0] - centre[0]) + abs(pixel[1] - centre[1]) > 0.5:
        arrow = {"arrowstyle": "-|>", "color": canvas.VERMILLION, "linewidth": 1.2 * size, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", centre, pixel, arrowprops=arrow | {"mutation_scale": 6 * size})


def ball_kind(source: Metric | Support, fitted: str = "tangent") -> str:
    """Return which ball a metric or support has; ``fitted`` if it must be fitted first."""
    if isinstance(source, Metric | TangentBall):
        return "tangent"
    return "geodesic" if isinstance(source, GeodesicBall) else fitted


def field_size(source: Metric | Support) -> tuple[int, int]:
    """Return the size of the field that a metric or support is; 1 stands for any size."""
    if not isinstance(source, Metric):
        _checks.instance_of(source, Support, "source")
    size = tuple(source.spatial)
    if len(size) != 2:
        raise ValueError(f"`source` must be a field of 2 spatial axes to be drawn, got {len(size)}")
    return size


def in_field(
    source: Metric | Support, points: canvas.Points, size: Sequence[int], stride: int | Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Return points (N, 2) of an image in pixels of a field that covers it, and how many of the former one is, (2,)."""
    sizes = zip(size, field_size(source), _strides(source, stride), strict=True)
    zoom = torch.tensor([n / m if m > 1 else s for n, m, s in sizes], dtype=torch.float64)
    pixels = torch.tensor(canvas.places(points, size), dtype=torch.float64)
    return (pixels + 0.5) / zoom - 0.5, zoom


def _strides(source: Metric | Support, stride: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the stride that is given, or the support's own, or 1."""
    if stride is None and not isinstance(source, Metric):
        stride = source.stride
    return _checks.tuple_of(1 if stride is None else stride, 2, "stride", minimum=1)


def one_field(metric: Metric, image_index: int, group: int) -> Metric:
    """Return the metric of one image and one group, on the CPU and without gradients."""
    image_index = canvas.index(image_index, metric.batch, "image_index")
    return metric[image_index, canvas.index(group, metric.groups, "group")].detach().to("cpu")


def ellipses(local: Metric, count: int) -> tuple[Tensor, Tensor]:
    """Return the tangent balls of a field of N × 1 pixels: points of their boundaries (N, count, 2), centres (N, 2).

    Both relative to the pixel. The points are spread evenly over the ellipse, however thin it is.
    """
    angle = torch.arange(count, dtype=local.dtype, device=local.device) * (2 * torch.pi / count)
    circle = torch.stack([angle.sin(), angle.cos()], 1)
    if not isinstance(local, Randers | Riemannian):
        return local.unit_vectors(circle)[0, 0, :, :, :, 0].permute(2, 0, 1), circle.new_zeros(local.spatial[0], 2)
    shape, centre = local.zermelo() if isinstance(local, Randers) else (local, torch.zeros_like(local.M[:, :, :2]))
    yy, yx, xx = shape.dual().M[0, 0, :, :, 0]  # h⁻¹, whose Cholesky factor takes the circle to the ellipse
    down = yy.sqrt()
    across = yx / down
    factor = torch.stack([down, torch.zeros_like(down), across, (xx - across.square()).clamp_min(0).sqrt()], 1)
    middle = centre[0, 0, :, :, 0].t()
    return middle.unsqueeze(1) + circle @ factor.view(-1, 2, 2).mT, middle


def _fitted(kernel_size: tuple[int, ...], looked_at: Tensor) -> Metric:
    """Return the metric, a field of N × 1 pixels, whose balls' rims pass nearest to a kernel's outermost cells."""
    cells = itertools.product(*(range(k) for k in kernel_size))
    outer = [j for j, cell in enumerate(cells) if any(c in (0, k - 1) for c, k in zip(cell, kernel_size, strict=True))]
    field = looked_at[:, outer].permute(1, 2, 0)[None, None, :, :, :, None]
    return fit_randers(field, 1.0, eps_omega=_EPS_OMEGA).metric


def _straight(local: Metric, where: Tensor, directions: Tensor, lengths: Tensor) -> Tensor:
    """Return x + s u/F(u) for directions u (N, K, 2) and lengths s (N, K), for a field of N × 1 pixels."""
    norm = local.norm(directions.permute(1, 2, 0)[None, None, :, :, :, None])[0, 0, :, :, 0].t()
    return where.unsqueeze(1) + (lengths / norm).unsqueeze(-1) * directions


def _along_geodesics(metric: Metric, where: Tensor, mode: str, directions: Tensor, lengths: Tensor) -> Tensor:
    """Return the same along the geodesics of a whole field."""
    starts = where.repeat_interleave(directions.shape[1], 0)
    curves = geodesics(metric, starts, directions.flatten(0, 1), lengths.flatten(), steps=_STEPS, padding_mode=mode)
    return curves[0, 0, :, -1].view(directions.shape)


def _offsets_at(support: Support, where: Tensor, image_index: int, group: int) -> Tensor:
    """Return the offsets of a support's samples at some pixels: (N, P, 2)."""
    pixels = zip(where.round().long().t(), support.spatial, strict=True)
    rows, columns = (index.clamp(0, extent - 1) for index, extent in pixels)
    if isinstance(support, GeodesicBall) and len(where) == 1:
        support, (row, column) = _around(support, int(rows), int(columns))
        rows, columns = rows.new_tensor([row]), columns.new_tensor([column])
    if isinstance(support, TangentBall):  # its pixels do not know of each other, so that few suffice
        metric = support.metric.map(lambda t: t.detach()[:, :, :, rows, columns].unsqueeze(-1))
        support = TangentBall(metric, support.stencil)
        rows, columns = torch.arange(len(where), device=rows.device), torch.zeros_like(columns)
    offsets = support.offsets().detach()
    offsets = offsets.expand(*offsets.shape[:4], *support.spatial)
    image_index = canvas.index(image_index, len(offsets), "image_index")
    chosen = offsets[image_index, canvas.index(group, offsets.shape[1], "group")]
    return chosen[:, :, rows, columns].permute(2, 0, 1).to(where)


def _around(support: GeodesicBall, row: int, column: int) -> tuple[GeodesicBall, tuple[int, int]]:
    """Return the part of a support that the samples of one pixel depend on, and where the pixel is in it."""
    if support.padding_mode == "circular":
        return support, (row, column)
    margin = sight(support.reach() / min(support.stride), support.steps) + support.smooth
    rows, columns = (slice(max(place - margin, 0), place + margin + 1) for place in (row, column))
    near = support.metric[:, :, rows, columns]
    part = GeodesicBall(near, support.rays, support.steps, support.smooth, stride=support.stride)
    return part, (row - rows.start, column - columns.start)
