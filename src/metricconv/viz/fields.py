"""Plots of a metric field: one of its properties as colors, or ellipses on a grid."""

from typing import Any

import matplotlib.axes
import numpy as np
import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.patches import Polygon
from numpy.typing import NDArray
from torch import Tensor

from .. import _checks
from ..metrics import Metric, Randers, Riemannian
from . import canvas
from .balls import ellipses, field_size, one_field

__all__ = ["MAPS", "QUANTITIES", "ball_properties", "ball_radius", "orientation", "plot_metric_field"]

QUANTITIES = ("ellipses", "size", "anisotropy", "orientation", "asymmetry")
_LABELS = {
    "size": "radius of the disc of equal area (px)",
    "anisotropy": "longest / shortest axis",
    "orientation": "direction of the long axis (°)",
    "asymmetry": "asymmetry ‖ω‖",
}
# Color maps of varying lightness, readable with color vision deficiency; "twilight" is cyclic.
MAPS = {"size": "cividis", "anisotropy": "magma", "orientation": "twilight", "asymmetry": "viridis"}


@torch.no_grad()
def plot_metric_field(
    metric: Metric,
    image: canvas.ImageLike | None = None,
    quantity: str = "ellipses",
    *,
    count: int = 16,
    axes: matplotlib.axes.Axes | None = None,
    bar: bool = True,
    image_index: int = 0,
    group: int = 0,
) -> matplotlib.axes.Axes:
    """Plot a metric field over an image.

    Args:
        metric: ``Riemannian`` or ``Randers``, on the grid of the image or a coarser one.
        image: background image, optional; colors are drawn over it half transparent.
        quantity: "ellipses" draws unit balls on a grid, scaled to the same size and colored by their true size, with a
            dot at the pixel. As colors: "size", the radius of the disc of equal area; "anisotropy", the ratio of the
            longest to the shortest axis; "orientation", the direction of the long axis in degrees from +x towards +y,
            transparent where balls are round; "asymmetry", ‖ω‖_{M⁻¹}.
        count: number of ellipses along the longer side, at most one per pixel.
        axes: axes to draw on. Default: new axes.
        bar: whether to add a color bar.
        image_index, group: index of the image in the batch, and of the metric group.

    >>> import metricconv as mc
    >>> image = torch.rand(1, 1, 32, 32)
    >>> axes = plot_metric_field(mc.metrics.edge_metric(image), image, "size")  # doctest: +SKIP
    """
    _checks.one_of(quantity, QUANTITIES, "quantity")
    bar = _checks.boolean(bar, "bar")
    if not isinstance(metric, Riemannian | Randers):
        raise TypeError(f"`metric` must be Riemannian or Randers, got {type(metric).__name__}")
    field_size(metric)
    metric = one_field(metric, image_index, group)
    assert isinstance(metric, Riemannian | Randers)
    for name, tensor in metric.tensors().items():
        _checks.finite(tensor, f"metric.{name}")
    count = _checks.whole(count, "count", minimum=1)
    size = tuple(metric.spatial) if image is None else canvas.to_array(image).shape[:2]
    axes = canvas.one_axes(axes, image if image is not None else np.zeros(size))
    canvas.show(axes, image, size)
    if quantity == "ellipses":
        mappable = _plot_ellipses(axes, metric, size, count)
    else:
        mappable = _plot_colors(axes, metric, size, quantity, over=image is not None)
    if bar:
        label = _LABELS["size" if quantity == "ellipses" else quantity]
        ticks = _ticks(mappable.norm, quantity)
        color_bar = axes.figure.colorbar(
            mappable, ax=axes, label=label, fraction=0.046, pad=0.03, format="%g", ticks=ticks
        )
        color_bar.minorticks_off()
    return axes


def ball_radius(metric: Riemannian | Randers) -> Tensor:
    """Return the radius √(area/π) of the disc with the area of the unit ball, in pixels: (B, G, H, W)."""
    return (metric.volume / torch.pi).sqrt()


def ball_properties(metric: Riemannian | Randers) -> dict[str, Tensor]:
    """Return the properties of unit balls by name, each (B, G, H, W)."""
    return {
        "reach (px)": metric.bounding_radius,
        "radius (px)": ball_radius(metric),
        "anisotropy": metric.anisotropy,
        "direction (°)": orientation(metric),
        "asymmetry": metric.asymmetry,
    }


def orientation(metric: Riemannian | Randers) -> Tensor:
    """Return the direction of the long axis of M's ellipse, in degrees in (−90, 90], from +x to +y: (B, G, H, W).

    >>> long_down_right = Riemannian.needle(torch.tensor([1.0, 1.0]).view(1, 1, 2, 1, 1), 3.0, 1.0)
    >>> orientation(long_down_right).item()
    45.0
    """
    yy, yx, xx = metric.M.unbind(2)
    # The long axis is the eigenvector of M's smaller eigenvalue.
    return torch.rad2deg(0.5 * torch.atan2(-2 * yx, yy - xx))


def _plot_colors(
    axes: matplotlib.axes.Axes, metric: Riemannian | Randers, size: Any, quantity: str, over: bool
) -> ScalarMappable:
    """Draw one of the metric's properties over the image, as colors."""
    opacity: float | NDArray[Any] = 0.75 if over else 1.0
    if quantity == "orientation":
        values, norm = orientation(metric), Normalize(-90, 90)
        opacity = 1 - 1 / metric.anisotropy[0, 0].numpy()
    elif quantity == "asymmetry":
        values, norm = metric.asymmetry, Normalize(0, 1)
    else:
        values = ball_radius(metric) if quantity == "size" else metric.anisotropy
        norm = _range(values, 1.0 if quantity == "anisotropy" else None)
    extent = (-0.5, size[1] - 0.5, size[0] - 0.5, -0.5)
    field = values[0, 0].numpy()
    axes.imshow(field, MAPS[quantity], norm=norm, alpha=opacity, extent=extent, interpolation="nearest")
    return ScalarMappable(norm, MAPS[quantity])


def _plot_ellipses(axes: matplotlib.axes.Axes, metric: Riemannian | Randers, size: Any, count: int) -> ScalarMappable:
    """Draw ellipses on a grid, scaled to fill their cells and colored by the true size of the ball."""
    counts = [min(max(round(count * n / max(size)), 1), n) for n in size]
    pixels = torch.tensor(canvas.pixel_grid(counts, size), dtype=torch.float64)
    zoom = torch.tensor([n / m for n, m in zip(size, metric.spatial, strict=True)], dtype=torch.float64)
    local = metric.to(torch.float64).at(((pixels + 0.5) / zoom - 0.5).t()[None, :, :, None])
    outlines, middle = ellipses(local, 64)
    shapes = outlines - middle.unsqueeze(1)
    radius_shown = 0.46 * min(n / m for n, m in zip(size, counts, strict=True))
    shrink = radius_shown / shapes.abs().amax((1, 2))
    radii = ball_radius(local)[0, 0, :, 0]
    mappable = ScalarMappable(_range(radii), MAPS["size"])
    for pixel, shape, factor, offset, radius in zip(pixels, shapes, shrink, middle, radii.tolist(), strict=True):
        outline = (pixel + factor * shape).flip(1)
        color = mappable.to_rgba(radius)
        axes.add_patch(Polygon(outline.tolist(), facecolor=color, edgecolor="white", linewidth=0.4, alpha=0.9))
        axes.plot(*(pixel - factor * offset).flip(0).tolist(), ".", color="white", markersize=1.6, markeredgewidth=0)
    return mappable


def _range(values: Tensor, low: float | None = None) -> Normalize:
    """Return a normalization of positive values, logarithmic if they differ more than fivefold."""
    least, most = (float(values.min()) if low is None else low), float(values.max())
    if most < 1.05 * least:  # nearly constant
        least, most = (0.8 * least if low is None else low), 1.25 * least
    return LogNorm(least, most) if most > 5 * least else Normalize(least, most)


def _ticks(norm: Any, quantity: str) -> list[float] | None:
    """Return round tick values for the color bar; None for matplotlib's own."""
    if quantity == "orientation":
        return [-90, -45, 0, 45, 90]
    if not isinstance(norm, LogNorm):
        return None
    return [m * 10.0**e for e in range(-6, 7) for m in (1, 2, 5) if norm.vmin <= m * 10.0**e <= norm.vmax]  # type: ignore[operator]
