"""Draw the figures of the page on shapes, and measure how well families explain supports: ``python docs/_shapes.py``.

It writes docs/figures/shapes.png, shapes_image.png and residuals.png, and results/shapes/residuals.csv.
"""

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import skimage
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import metricconv as mc
from metricconv import viz
from metricconv._files import write_table
from metricconv.metrics import fit_metric, one_sided_metric
from metricconv.metrics.fit_shapes import FIT_FAMILIES
from metricconv.viz import canvas
from metricconv.viz.balls import draw_ball

DOCS = Path(__file__).parent
PIXELS = 400


def field(*values: float) -> Tensor:
    return torch.tensor(values).view(1, 1, -1, 1, 1)


def families() -> dict[str, mc.Metric]:
    """Return one ball of each family, with its title."""
    right = field(0.0, 1.0)
    half = mc.AsymmetricQuadratic.half_disc(right, 3.5, 0.7)
    up_half = mc.AsymmetricQuadratic.half_disc(field(-1.0, 0.0), 3.5, 0.7)
    return {
        "Riemannian: ellipse": mc.Riemannian.needle(field(1.0, 2.0), 3.5, 1.6),
        "Randers: shifted ellipse": mc.Randers.from_zermelo(mc.Riemannian.isotropic(2.2), field(0.5, 1.3)),
        "AsymmetricQuadratic:\nhalf disc": half,
        "OrthantNorm, p = ∞: box": mc.OrthantNorm.box([1.5, 3.0], [2.5, 1.0], 0.3),
        "OrthantNorm, p = 1: diamond": mc.OrthantNorm.box([3.0, 3.0], [3.0, 1.5], p=1.0),
        "OrthantNorm, p = 3": mc.OrthantNorm.box([2.0, 3.2], [3.0, 1.5], p=3.0),
        "HalfSpaceGauge: wedge": mc.HalfSpaceGauge.wedge((0.0, 1.0), 3.2, 5.0, 1.0),
        "SoftIntersection\nof two half discs": mc.SoftIntersection(half, up_half, p=math.inf),
    }


def shapes() -> Figure:
    """Draw one unit ball of each family, with the samples of a 5×5 kernel."""
    figure = Figure(figsize=(10, 5.6), dpi=110, layout="constrained")
    for axes, (title, metric) in zip(figure.subplots(2, 4).flat, families().items(), strict=True):
        wide = metric.expand_to((9, 9))
        (ball,) = viz.unit_balls(wide, [(4, 4)], stencil=mc.stencils.onion(5))
        canvas.show(axes, np.full((9, 9), 0.93), (9, 9))
        draw_ball(axes, ball, canvas.SKY)
        axes.set_title(title, fontsize=9)
    return figure


def on_an_image() -> Figure:
    """Draw the balls of an ellipse metric and of the one-sided metric on the same pixels."""
    camera = skimage.transform.resize(skimage.data.camera()[40:296, 130:386], (128, 128), anti_aliasing=True)
    image = torch.from_numpy(camera).float()[None, None]
    metrics = {
        "gradient_metric: ellipses along edges": mc.metrics.gradient_metric(image, alpha=20.0, scale=1.5),
        "one_sided_metric: half discs beside edges": one_sided_metric(image, 0.1, 25.0),
    }
    figure = Figure(figsize=(10, 5.6), dpi=110, layout="constrained")
    points = [(y, x) for y in np.linspace(9, 63, 7) for x in np.linspace(35, 89, 7)]
    for axes, (title, metric) in zip(figure.subplots(1, 2), metrics.items(), strict=True):
        viz.plot_unit_balls(metric, camera, points, axes=axes)
        axes.set(xlim=(29.5, 94.5), ylim=(68.5, 3.5), title=title)
    return figure


def supports() -> dict[str, Tensor]:
    """Return the offsets (1, 1, 25, 2, 1, N) of 5×5 supports, by kind."""
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    one = (1, 1, 1, 1, PIXELS)
    grid = mc.Grid(5).offsets()
    return {
        "standard": grid,
        "dilated": mc.Dilated(1 + 2 * uniform(*one), 5).offsets(),
        "shifted": mc.Shifted(3 * uniform(1, 1, 2, 1, PIXELS) - 1.5, 5).offsets(),
        "random deformable": mc.Deformable(2 * uniform(1, 1, 25, 2, 1, PIXELS) - 1, 5).offsets(),
        "trained deformable": trained_offsets(),
    }


def trained_offsets() -> Tensor:
    """Return offsets of a deformable layer trained to denoise one image."""
    torch.manual_seed(0)
    camera = torch.from_numpy(skimage.transform.resize(skimage.data.camera(), (96, 96), anti_aliasing=True)).float()
    clean = camera[None, None]
    noisy = clean + 0.1 * torch.randn(clean.shape)
    layer = mc.nn.DeformableConv2d(1, 1, 5, padding=2, learn_weight=False)
    optimizer = torch.optim.Adam(layer.parameters(), 0.003)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.mse_loss(layer(noisy + 0.02 * torch.randn_like(noisy)), clean).backward()
        optimizer.step()
    with torch.no_grad():
        offsets = layer.predict_support(noisy)[0].offsets()
    chosen = torch.randperm(offsets[0, 0, 0, 0].numel())[:PIXELS]
    return offsets.flatten(4)[..., chosen].unsqueeze(4)


def residuals() -> list[dict[str, str]]:
    """Return the mean residual of each family for the outermost samples of each kind of support, in pixels."""
    outermost = [j for j in range(25) if not (0 < j // 5 < 4 and 0 < j % 5 < 4)]
    rows = []
    for kind, offsets in supports().items():
        ring = offsets[:, :, outermost]
        size = ring.square().sum(3).mean(2).sqrt().mean()
        for family in FIT_FAMILIES:
            residual = fit_metric(ring, 1.0, family=family).residual.mean()
            row = {"support": kind, "family": family, "residual_px": f"{residual:.4f}"}
            rows.append(row | {"relative": f"{residual / size:.4f}"})
    return rows


def chart(rows: list[dict[str, str]]) -> Figure:
    """Draw the residuals as bars."""
    figure = Figure(figsize=(8, 3.4), dpi=110, layout="constrained")
    axes = figure.subplots()
    kinds = list(dict.fromkeys(row["support"] for row in rows))
    for n, family in enumerate(FIT_FAMILIES):
        values = [float(row["residual_px"]) for row in rows if row["family"] == family]
        axes.bar(np.arange(len(kinds)) + 0.2 * (n - 1.5), values, 0.19, label=family)
    axes.set_xticks(range(len(kinds)), kinds)
    axes.set_ylabel("residual (px)")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    """Draw all figures and write the table."""
    shapes().savefig(DOCS / "figures" / "shapes.png")
    on_an_image().savefig(DOCS / "figures" / "shapes_image.png")
    rows = residuals()
    path = DOCS.parent / "results" / "shapes" / "residuals.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(path, rows, list(rows[0]))
    chart(rows).savefig(DOCS / "figures" / "residuals.png")
    plt.close("all")


if __name__ == "__main__":
    main()
