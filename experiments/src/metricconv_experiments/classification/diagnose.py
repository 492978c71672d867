"""Statistics of the learned supports by layer: size, anisotropy, asymmetry and alignment with edges.

Metric layers have a metric. For deformable and shifted layers a Randers metric is fitted to the samples (Theorem 2 of
the paper); its residual measures the quality of the fit.
"""

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, interpolate, pad

from metricconv._files import versions, write_table, writing
from metricconv.metrics import Metric, Randers, Riemannian, fit_randers
from metricconv.nn import AdaptiveConv, adaptive_layers, record_supports
from metricconv.supports import Support

from ..results import read_rows
from .report import COLORS, NAMES

# Quantiles are computed from at most this many values per layer and quantity.
_MAX_VALUES = 200_000
QUANTITIES = {
    "radius": "radius of the ball, px",
    "growth": "radius of the ball / initial radius",
    "anisotropy": "anisotropy (longest / shortest axis)",
    "asymmetry": "asymmetry (0: centered)",
    "shift": "offset of the ball's center, px",
    "alignment": "alignment with edges (1: along, −1: across)",
    "residual": "residual of the fitted ball, px",
}
# Radii are shown relative to the initial one, because dilated layers start with larger balls.
_SHOWN = tuple(quantity for quantity in QUANTITIES if quantity != "radius")

# Panels with larger medians have a logarithmic axis.
_LOG_ABOVE = 10


@dataclasses.dataclass(frozen=True)
class Statistic:
    """Distribution of a quantity over the pixels and images of a layer."""

    method: str
    layer: str
    quantity: str
    mean: float
    std: float
    low: float
    median: float
    high: float
    pixels: int


def diagnose(method: str, network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> list[Statistic]:
    """Return the statistics of every adaptive layer over some batches of images.

    Args:
        method: the network's name in the result.
        network: in evaluation mode; it has adaptive convolutions.
        batches: normalized images (B, C, H, W), and labels, which are not used.
    """
    starts = {name: _start(layer) for name, layer in adaptive_layers(network)}
    found: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
    means: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for images, _ in batches:
        with torch.no_grad(), record_supports(network) as seen:
            network(images)
        if not seen:
            raise ValueError(f"the {method} network has no adaptive convolution")
        edges = edge_directions(images)
        for layer, support in seen.items():
            metric, residual = implicit_metric(support)
            for quantity, values in _measure(metric, residual, starts[layer]).items():
                found[layer, quantity].append(values.flatten().cpu())
            means[layer].append(_alignment(metric, edges))
    statistics = [_statistic(method, *key, torch.cat(values)) for key, values in found.items()]
    for layer, parts in means.items():
        along, weight = (sum(part) for part in zip(*parts, strict=True))
        mean = along / max(weight, 1e-12)
        statistics.append(Statistic(method, layer, "alignment", mean, 0.0, mean, mean, mean, 0))
    order = list(dict.fromkeys(layer for layer, _ in found))
    return sorted(statistics, key=lambda s: (order.index(s.layer), list(QUANTITIES).index(s.quantity)))


def implicit_metric(support: Support) -> tuple[Randers | Riemannian, Tensor | None]:
    """Return the metric of a support, or a metric fitted to its samples and the residual of the fit."""
    metric: Metric | None = getattr(support, "metric", None)
    if isinstance(metric, Randers | Riemannian):
        return metric, None
    fit = fit_randers(support)
    return fit.metric, fit.residual


def edge_directions(images: Tensor) -> Tensor:
    """Return the strength and the direction of the edge at each pixel: (B, 2, H, W).

    With θ the angle of the edge from +x towards +y, these are |∇|·(cos 2θ, sin 2θ), where ∇ is the gradient of the mean
    over channels. The angle is doubled because θ and θ + π are the same edge.
    """
    gray = pad(images.float().mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    sobel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]], device=images.device) / 8
    gy, gx = conv2d(gray, torch.stack([sobel.t(), sobel]).unsqueeze(1)).unbind(1)
    strength = torch.hypot(gx, gy).clamp_min(1e-12)
    # The edge is orthogonal to the gradient, which adds π to the doubled angle.
    return torch.stack([gy.square() - gx.square(), -2 * gx * gy], 1) / strength.unsqueeze(1)


def write(folder: Path, statistics: Sequence[Statistic], about: Mapping[str, Mapping[str, Any]]) -> None:
    """Write ``diagnosis.csv`` and ``diagnosis.png``; ``about`` contains additional columns by method."""
    rows = [dataclasses.asdict(s) | dict(about[s.method]) | versions() for s in statistics]
    write_table(folder / "diagnosis.csv", [{k: _short(v) for k, v in row.items()} for row in rows])
    draw(folder)


def draw(folder: Path) -> list[str]:
    """Draw ``diagnosis.png`` from the CSV, if it exists; return the names of the written files."""
    rows = read_rows(folder / "diagnosis.csv")
    if not rows:
        return []
    kinds = get_type_hints(Statistic)
    with writing(folder / "diagnosis.png") as path:
        figure([Statistic(**{name: kind(row[name]) for name, kind in kinds.items()}) for row in rows]).savefig(path)
    return ["diagnosis.png"]


def show(statistics: Sequence[Statistic]) -> None:
    """Print a table of medians by layer for each method."""
    import rich.console
    import rich.table

    for method in dict.fromkeys(s.method for s in statistics):
        some = [s for s in statistics if s.method == method and s.quantity in _SHOWN]
        table = rich.table.Table(title=f"{NAMES.get(method, method)}: medians over pixels")
        for name in ("layer", *dict.fromkeys(s.quantity for s in some)):
            table.add_column(name, justify="left" if name == "layer" else "right")
        for layer in dict.fromkeys(s.layer for s in some):
            table.add_row(layer.removeprefix("layer"), *(f"{s.median:.2f}" for s in some if s.layer == layer))
        rich.console.Console().print(table)


def figure(statistics: Sequence[Statistic]) -> Any:
    """Draw a panel for each quantity: its median by layer, with the range from the 10th to the 90th percentile."""
    from matplotlib.figure import Figure

    shown = [q for q in _SHOWN if any(s.quantity == q for s in statistics)]
    columns = 3
    rows = -(-len(shown) // columns)
    drawing = Figure(figsize=(4.4 * columns, 3.1 * rows), dpi=150, layout="constrained")
    panels = drawing.subplots(rows, columns, squeeze=False).ravel()
    layers = list(dict.fromkeys(s.layer for s in statistics))
    for axes, quantity in zip(panels, shown, strict=False):
        for n, method in enumerate(dict.fromkeys(s.method for s in statistics)):
            some = [s for s in statistics if (s.method, s.quantity) == (method, quantity)]
            positions = [layers.index(s.layer) for s in some]
            color = COLORS.get(method, f"C{n}")
            axes.plot(
                positions, [s.median for s in some], "o-", color=color, label=NAMES.get(method, method), markersize=3
            )
            axes.fill_between(
                positions, [s.low for s in some], [s.high for s in some], color=color, alpha=0.15, linewidth=0
            )
        medians, highs = zip(*((s.median, s.high) for s in statistics if s.quantity == quantity), strict=True)
        if max(medians) > _LOG_ABOVE:  # outliers of one method would hide the others
            axes.set_yscale("symlog", linthresh=1)
        elif max(highs) > 4 * max(medians) > 0:  # as would a few outlying pixels
            axes.set_ylim(top=4 * max(medians))
        axes.set_title(QUANTITIES[quantity], fontsize=9)
        axes.set_xticks(range(len(layers)), [_tick(layer) for layer in layers], rotation=60, fontsize=7)
        axes.grid(alpha=0.3)
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    drawing.supxlabel("layer: stage.block.convolution; lines: medians, shaded: 10th to 90th percentile", fontsize=9)
    return drawing


def _measure(metric: Randers | Riemannian, residual: Tensor | None, start: float) -> dict[str, Tensor]:
    """Return the quantities of every ball, (B, G, *out) each; ``start`` is the initial radius of the layer's balls."""
    measured = {
        "radius": _radius(metric),
        "growth": _radius(metric) / start,
        "anisotropy": metric.anisotropy,
        "asymmetry": metric.asymmetry,
        "shift": torch.zeros_like(metric.asymmetry),
    }
    if isinstance(metric, Randers):
        measured["shift"] = torch.linalg.vector_norm(metric.zermelo()[1], dim=2)
    return measured if residual is None else measured | {"residual": residual}


def _radius(metric: Randers | Riemannian) -> Tensor:
    """Return the radius of the disk of the same area, (B, G, *out)."""
    return (metric.volume / torch.pi).sqrt()


@torch.no_grad()
def _start(layer: AdaptiveConv) -> float:
    """Return the radius of a layer's balls before training."""
    fresh = copy.deepcopy(layer)
    fresh.reset_geometry()
    side = 2 * max(k * d for k, d in zip(layer.kernel_size, layer.dilation, strict=True))
    support, _ = fresh.predict_support(layer.weight.new_zeros(1, layer.in_channels, side, side))
    return float(_radius(implicit_metric(support)[0]).median())


def _alignment(metric: Randers | Riemannian, edges: Tensor) -> tuple[float, float]:
    """Return Σ w cos 2(φ − θ) and Σ w: φ is the angle of a ball's long axis, θ that of the edge.

    The weight w is the strength of the edge times the logarithm of the anisotropy: a round ball has no direction, nor
    has a constant region. The ratio is 1 if long axes are parallel to edges, −1 if orthogonal, 0 for no relation.
    """
    shape = metric.zermelo()[0] if isinstance(metric, Randers) else metric
    yy, yx, xx = shape.M.unbind(2)
    # The long axis belongs to the smallest eigenvalue: its doubled angle is that of (M_yy − M_xx, −2 M_yx).
    axis = torch.stack([yy - xx, -2 * yx], 2)
    axis = axis / torch.linalg.vector_norm(axis, dim=2, keepdim=True).clamp_min(1e-12)
    local = interpolate(edges, axis.shape[3:], mode="area").unsqueeze(1).to(axis)  # [B, 1, 2, *out]
    stretch = shape.anisotropy.log()
    along = ((axis * local).sum(2) * stretch).sum()
    weight = (torch.linalg.vector_norm(local, dim=2) * stretch).sum()
    return float(along), float(weight)


def _statistic(method: str, layer: str, quantity: str, values: Tensor) -> Statistic:
    sampled = values[:: max(len(values) // _MAX_VALUES, 1)].double().numpy()
    low, median, high = np.quantile(sampled, (0.1, 0.5, 0.9)).tolist()
    mean, std = float(values.double().mean()), float(values.double().std(correction=0))
    return Statistic(method, layer, quantity, mean, std, low, median, high, len(values))


def _tick(layer: str) -> str:
    return layer.replace("layer", "").replace("conv", "c")


def _short(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
