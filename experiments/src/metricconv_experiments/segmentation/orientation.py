"""Learned balls along thin structures: their direction, elongation and size by layer, and pictures of them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from metricconv._files import write_table, writing
from metricconv.metrics import Randers
from metricconv.nn import record_supports
from metricconv.supports import Support

from ..classification.diagnose import implicit_metric
from ..errors import errors_in_one_line
from .patches import DeviceDataset
from .runs import load
from .scores import THRESHOLD, thinned

# Side of the window, in pixels, in which the direction of a centerline is that of its pixels.
_WINDOW = 9
# Side of the central part of each image that is analyzed, and the point and side of the part that is drawn.
_PART = 320
_CORNER, _SIDE = (190, 215), 64

app = typer.Typer()


@app.command("segment-orientation")
@errors_in_one_line()
def command(
    networks: Annotated[Path, typer.Argument(help="Folder of networks of DRIVE, written by `segment`.")],
    output: Annotated[Path, typer.Option(help="Folder for the CSV and the figure.")] = Path("outputs/segmentation"),
    images: Annotated[int, typer.Option(min=1, help="Number of test images.")] = 2,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of datasets, searched before METRICCONV_DATA and ~/.cache/metricconv.")
    ] = None,
) -> None:
    """Measure learned balls along vessels: orientation.csv, and orientation.png with predictions and balls."""
    paths = sorted(networks.glob("drive-*.pt"))
    if not paths:
        raise ValueError(f"`networks` (={networks}) contains no drive-*.pt")
    test = DeviceDataset("drive", data_root, torch.device("cpu")).test
    x, mask = (central(t[:images]) for t in (test.x, test.mask))
    rows: list[dict[str, Any]] = []
    drawn: dict[str, tuple[Tensor, Mapping[str, Support]]] = {}
    for path in paths:
        setting, network = load(path)
        probability, supports = predicted(network, x)
        if setting.method not in drawn:
            drawn[setting.method] = probability[0], supports
        if setting.method != "snake":  # a chain of samples is not a ball
            about = {"method": setting.method, "seed": setting.seed}
            rows += [about | row for row in statistics(supports, mask)]
    write_table(output / "orientation.csv", rows)
    with writing(output / "orientation.png") as path:
        figure(x[0], mask[0], drawn).savefig(path)
    typer.echo(f"wrote orientation.csv and orientation.png to {output}")


def central(images: Tensor, side: int = _PART) -> Tensor:
    """Return the central part of images (N, H, W), whose sides are multiples of 4."""
    top, left = (max(size - side, 0) // 2 for size in images.shape[1:])
    part = images[:, top : top + side, left : left + side]
    return part[:, : part.shape[1] // 4 * 4, : part.shape[2] // 4 * 4]


@torch.no_grad()
def predicted(network: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Support]]:
    """Return the probabilities of images (N, H, W), and the support of each adaptive layer."""
    with record_supports(network) as seen:
        probability = network(x.unsqueeze(1)).sigmoid()
    return probability, dict(seen)


def statistics(supports: Mapping[str, Support], mask: Tensor) -> Iterator[dict[str, Any]]:
    """Yield the size, the elongation and the direction of each layer's balls, compared with a mask (N, H, W).

    A pixel of a centerline belongs to the ball of the layer's pixel that contains it. ``angle`` is the mean angle, in
    degrees, between the long axis of the ball and the centerline; ``angle_weighted`` weighs it by the logarithm of the
    elongation, since a round ball has no direction. Both are 45 for random directions.
    """
    centerline = thinned(mask)
    image, y, x = centerline.nonzero(as_tuple=True)
    along = directions(centerline)[image, :, y, x]  # [pixels, 2]
    known = torch.linalg.vector_norm(along, dim=1) > 0
    for layer, support in supports.items():
        metric, _ = implicit_metric(support)
        shape = metric.zermelo()[0] if isinstance(metric, Randers) else metric
        stride = mask.shape[1] // shape.M.shape[3]
        at = (image, slice(None), y // stride, x // stride)
        yy, yx, xx = shape.M[:, 0].unbind(1)
        # The long axis belongs to the smallest eigenvalue of M.
        axis = torch.stack([yy - xx, -2 * yx], 1)[at]  # [pixels, 2]
        stretch, radius = shape.anisotropy[:, 0], (metric.volume[:, 0] / torch.pi).sqrt()
        on = avg_pool2d(mask[:, None].float(), stride)[:, 0] > 0
        cosine = torch.nn.functional.cosine_similarity(axis, along, dim=1).clamp(-1, 1)
        angle = cosine.acos().rad2deg()[known] / 2
        weight = stretch[image, y // stride, x // stride][known].log()
        values = {
            "angle": angle.mean(),
            "angle_weighted": (weight * angle).sum() / weight.sum().clamp_min(1e-12),
            "elongation_on": stretch[on].mean(),
            "elongation_off": stretch[~on].mean(),
            "radius_on": stride * radius[on].mean(),
            "radius_off": stride * radius[~on].mean(),
        }
        yield {"layer": layer, "stride": stride, "pixels": len(angle)} | {k: f"{v:.4f}" for k, v in values.items()}


def directions(centerline: Tensor) -> Tensor:
    """Return (cos 2θ, sin 2θ) of the principal axis of centerlines (N, H, W), times its strength: (N, 2, H, W).

    θ is the angle from +x towards +y of the longest axis of the covariance of the pixels in a window. The result is 0
    where a window contains no direction.
    """
    height, width = centerline.shape[1:]
    y, x = torch.meshgrid(torch.arange(height) * 1.0, torch.arange(width) * 1.0, indexing="ij")
    weight = centerline.double()
    planes = torch.stack([weight, weight * y, weight * x, weight * y * y, weight * y * x, weight * x * x], 1)
    count, sy, sx, yy, yx, xx = avg_pool2d(planes, _WINDOW, 1, _WINDOW // 2).unbind(1)
    count = count.clamp_min(1e-12)
    cyy, cyx, cxx = (p / count - a * b / count**2 for p, a, b in ((yy, sy, sy), (yx, sy, sx), (xx, sx, sx)))
    doubled = torch.stack([cxx - cyy, 2 * cyx], 1)
    return torch.where(doubled.norm(dim=1, keepdim=True) > 1e-6, doubled, 0).float()


def figure(x: Tensor, mask: Tensor, drawn: Mapping[str, tuple[Tensor, Mapping[str, Support]]]) -> Any:
    """Draw an image (H, W), its mask, predictions, and the balls of the last layer along centerlines."""
    from matplotlib.figure import Figure

    from metricconv import viz

    (top, left), side = _corner(x), min(_SIDE, *x.shape)
    window = (slice(top, top + side), slice(left, left + side))
    panels: list[tuple[str, Tensor]] = [("image", x), ("first observer", mask.float())]
    panels += [(method, (probability >= THRESHOLD).float()) for method, (probability, _) in drawn.items()]
    with_balls = [method for method, (_, supports) in drawn.items() if supports and method != "snake"]
    columns = max(len(panels), 1)
    drawing = Figure(figsize=(2.4 * columns, 2.6 + 2.4 * columns / max(len(with_balls), 1)), dpi=150)
    drawing.set_layout_engine("constrained")
    halves: Any = drawing.subfigures(2, 1, height_ratios=(1, columns / max(len(with_balls), 1)))
    upper, lower = halves
    for axes, (title, values) in zip(upper.subplots(1, columns, squeeze=False)[0], panels, strict=True):
        axes.imshow(values[window].numpy(), cmap="gray", interpolation="nearest")
        axes.set_title(title, fontsize=8)
        axes.set_axis_off()
    if with_balls:
        for axes, method in zip(lower.subplots(1, len(with_balls), squeeze=False)[0], with_balls, strict=True):
            support = list(drawn[method][1].values())[-1]
            viz.plot_unit_balls(
                implicit_metric(support)[0], _scaled(x), _points(mask, window), axes=axes, ball="tangent"
            )
            axes.set(xlim=(left - 0.5, left + side - 0.5), ylim=(top + side - 0.5, top - 0.5))
            axes.set_title(f"{method}: balls of the last layer", fontsize=8)
    return drawing


def _corner(x: Tensor) -> Sequence[int]:
    return [max(min(start, size - _SIDE), 0) for start, size in zip(_CORNER, x.shape, strict=True)]


def _points(mask: Tensor, window: tuple[slice, slice]) -> list[tuple[float, float]]:
    """Return every fifth pixel of the centerlines in a window."""
    inside = torch.zeros_like(mask)
    inside[window] = True
    return [(float(y), float(x)) for y, x in (thinned(mask[None])[0] & inside).nonzero()[::5].tolist()]


def _scaled(x: Tensor) -> Tensor:
    low, high = x.quantile(0.01), x.quantile(0.99)
    return ((x - low) / (high - low)).clamp(0, 1)
