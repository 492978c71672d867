"""A metric over a whole image: one of its qualities as colour, or all as a field of ellipses."""

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

QUANTITIES = ("ellipses", "size", "anisotropy", "orientation", "asymmetry")
_LABELS = {
    "size": "radius of the disc of equal area (px)",
    "anisotropy": "longest / shortest axis",
    "orientation": "direction of the long axis (°)",
    "asymmetry": "asymmetry ‖ω‖",
}
# Hue alone would be lost on some; these also run from dark to light, and "twilight" is as light at both its ends.
MAPS = {"size": "cividis", "anisotropy": "magma", "orientation": "twilight", "asymmetry": "viridis"}


@torch.no_grad()
def plot_metric_field(
    metric: Metric,
    image: canvas.Picture | None = None,
    quantity: str = "ellipses",
    *,
    count: int = 16,
    axes: matplotlib.axes.Axes | None = None,
    bar: bool = True,
    image_index: int = 0,
    group: int = 0,
) -> matplotlib.axes.Axes:
    """Draw a metric over the whole of an image.

    Args:
        metric: ``Riemannian`` or ``Randers``, on the image's grid or a coarser one.
        image: what to draw over, if anything; colours are laid over it half transparent.
        quantity: "ellipses" puts the ball's shape on a lattice of places, each made to fit and coloured by its true
            size, with a dot where the pixel stands in it. As colours: "size", the radius of the disc of its area;
            "anisotropy", its longest by its shortest axis; "orientation", the direction of its long axis, in degrees
            from +x towards +y, fading where the ball is round; "asymmetry", ‖ω‖_{M⁻¹}.
        count: ellipses along the longer side, at most one a pixel; along the other, as many as are as far apart.
        axes: what to draw on; new ones if not given.
        bar: whether to add a bar that explains the colours.
        image_index, group: which image of the batch, and which metric group.

    >>> import metricconv as mc
    >>> image = torch.rand(1, 1, 32, 32)
    >>> axes = plot_metric_field(mc.metrics.edge_metric(image), image, "size")  # doctest: +SKIP
    """
    _checks.one_of(quantity, QUANTITIES, "quantity")
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
        colours = _ellipses(axes, metric, size, count)
    else:
        colours = _colour(axes, metric, size, quantity, over=image is not None)
    if bar:
        label = _LABELS["size" if quantity == "ellipses" else quantity]
        ticks = _ticks(colours.norm, quantity)
        drawn = axes.figure.colorbar(colours, ax=axes, label=label, fraction=0.046, pad=0.03, format="%g", ticks=ticks)
        drawn.minorticks_off()
    return axes


def ball_radius(metric: Riemannian | Randers) -> Tensor:
    """Return the radius of the disc of the unit ball's area, √(area/π), in pixels: (B, G, H, W)."""
    return (metric.volume / torch.pi).sqrt()


def ball_numbers(metric: Riemannian | Randers) -> dict[str, Tensor]:
    """Return what describes a unit ball in numbers, by name, each (B, G, H, W)."""
    return {
        "reach (px)": metric.bounding_radius,
        "radius (px)": ball_radius(metric),
        "anisotropy": metric.anisotropy,
        "direction (°)": orientation(metric),
        "asymmetry": metric.asymmetry,
    }


def orientation(metric: Riemannian | Randers) -> Tensor:
    """Return the direction of the symmetric part's long axis, in degrees in (−90, 90], from +x to +y: (B, G, H, W).

    >>> long_down_right = Riemannian.needle(torch.tensor([1.0, 1.0]).view(1, 1, 2, 1, 1), 3.0, 1.0)
    >>> orientation(long_down_right).item()
    45.0
    """
    yy, yx, xx = metric.M.unbind(2)
    # The long axis is the eigenvector of M's lesser eigenvalue.
    return torch.rad2deg(0.5 * torch.atan2(-2 * yx, yy - xx))


def _colour(
    axes: matplotlib.axes.Axes, metric: Riemannian | Randers, size: Any, quantity: str, over: bool
) -> ScalarMappable:
    """Lay one of the metric's qualities over the image, as colours."""
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


def _ellipses(axes: matplotlib.axes.Axes, metric: Riemannian | Randers, size: Any, count: int) -> ScalarMappable:
    """Draw shapes on a lattice, each as large as its place, coloured by the ball's true size."""
    counts = [min(max(round(count * n / max(size)), 1), n) for n in size]
    pixels = torch.tensor(canvas.lattice(counts, size), dtype=torch.float64)
    zoom = torch.tensor([n / m for n, m in zip(size, metric.spatial, strict=True)], dtype=torch.float64)
    local = metric.to(torch.float64).at(((pixels + 0.5) / zoom - 0.5).t()[None, :, :, None])
    outlines, middle = ellipses(local, 64)
    shapes = outlines - middle.unsqueeze(1)
    room = 0.46 * min(n / m for n, m in zip(size, counts, strict=True))
    shrink = room / shapes.abs().amax((1, 2))
    radii = ball_radius(local)[0, 0, :, 0]
    colours = ScalarMappable(_range(radii), MAPS["size"])
    for pixel, shape, factor, offset, radius in zip(pixels, shapes, shrink, middle, radii.tolist(), strict=True):
        outline = (pixel + factor * shape).flip(1)
        colour = colours.to_rgba(radius)
        axes.add_patch(Polygon(outline.tolist(), facecolor=colour, edgecolor="white", linewidth=0.4, alpha=0.9))
        axes.plot(*(pixel - factor * offset).flip(0).tolist(), ".", color="white", markersize=1.6, markeredgewidth=0)
    return colours


def _range(values: Tensor, low: float | None = None) -> Normalize:
    """Return a scale for positive values, logarithmic where they differ more than fivefold."""
    least, most = (float(values.min()) if low is None else low), float(values.max())
    if most < 1.05 * least:  # as good as constant
        least, most = (0.8 * least if low is None else low), 1.25 * least
    return LogNorm(least, most) if most > 5 * least else Normalize(least, most)


def _ticks(norm: Any, quantity: str) -> list[float] | None:
    """Return round numbers for a bar, where matplotlib would choose worse ones."""
    if quantity == "orientation":
        return [-90, -45, 0, 45, 90]
    if not isinstance(norm, LogNorm):
        return None
    return [m * 10.0**e for e in range(-6, 7) for m in (1, 2, 5) if norm.vmin <= m * 10.0**e <= norm.vmax]  # type: ignore[operator]
