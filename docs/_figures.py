"""Draw the figures of these pages from scikit-image's images: ``python docs/_figures.py``.

The figures of the gallery are written by the scripts in examples/ and compressed; its geodesics by
``metricconv_experiments``, which must be installed.
"""

import importlib.util
import io
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import skimage
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image, ImageOps

import metricconv as mc
from metricconv import viz
from metricconv.viz import canvas
from metricconv.viz.balls import draw_ball
from metricconv_experiments import geodesics
from metricconv_experiments.photographs import photograph

DOCS = Path(__file__).parent
EXAMPLES = DOCS.parent / "examples"
# Maximum size of a true-color figure in bytes.
LARGEST = 350_000

CAMERA = skimage.transform.resize(skimage.data.camera()[40:296, 130:386], (128, 128), anti_aliasing=True)
CLEAN = torch.from_numpy(CAMERA)[None, None]
NOISY = CLEAN + 0.1 * torch.randn(CLEAN.shape, generator=torch.Generator().manual_seed(0))
# Pixels whose balls are drawn: 6 × 6 around the cameraman's face.
PART = [(y, x) for y in np.linspace(9, 63, 6) for x in np.linspace(35, 89, 6)]
VIEW = {"xlim": (29.5, 94.5), "ylim": (68.5, 3.5)}

gradient, edge = mc.metrics.gradient_metric, mc.metrics.edge_metric
IMAGE_METRICS = {
    "gradient": partial(gradient, scale=1.5),
    "edge": edge,
    "structure": mc.metrics.structure_metric,
}


def main() -> None:
    """Draw all figures."""
    rows: dict[str, Callable[[], Figure]] = {
        "metrics": metrics,
        "stencils": stencils,
        "parametrizations": parametrizations,
        "padding": padding,
        "ball": ball,
        "samples": samples,
        "geodesic": geodesic_maps,
        "regions": regions,
        "diffusion": diffusion,
        "iota": lambda: over_image("ι", (0.03, 0.1, 0.5), lambda iota: gradient(CLEAN, iota, 10, scale=1.5)),
        "alpha": lambda: over_image("α", (0, 5, 50), lambda alpha: gradient(CLEAN, 0.1, alpha, scale=1.5)),
        "eps_omega": lambda: over_image(
            r"$\varepsilon_\omega$", (1, 0.5, 0.3), lambda eps: gradient(CLEAN, 0.2, 6, eps_omega=eps, scale=1.5)
        ),
        "scale": lambda: over_image("scale", (None, 1, 2), lambda scale: gradient(NOISY, 0.1, 10, scale=scale), NOISY),
        "metric": lambda: over_image(
            "metric", IMAGE_METRICS, lambda name: IMAGE_METRICS[name](CLEAN, iota=0.07, alpha=10)
        ),
    }
    for name, draw in rows.items():
        save(draw(), DOCS / "figures" / f"{name}.png")
    save(supports(), DOCS / "supports.png")
    save(geodesics.draw_balls(photograph("camera", 256)), DOCS / "balls.png")
    save(geodesics.draw_heat(photograph("camera", 256)), DOCS / "figures" / "heat.png")
    save(geodesics.draw_vessels(), DOCS / "gallery" / "geodesics.png")
    for script in sorted(EXAMPLES.glob("*.py")):
        gallery(script)


def metrics() -> Figure:
    """Draw one ball of each kind of metric."""
    identity = torch.tensor([1.0, 0.0, 1.0]).view(1, 1, 3, 1, 1)
    drift = torch.tensor([0.0, -0.6]).view(1, 1, 2, 1, 1)
    along = torch.tensor([0.5, 1.0]).view(1, 1, 2, 1, 1)
    needle = mc.Riemannian.needle(along, 1.6, 0.5)
    wind = torch.tensor([0.25, 0.75]).view(1, 1, 2, 1, 1)
    balls = {
        "round: M = I": mc.Riemannian(identity),
        "Riemannian: any M > 0": needle,
        "Randers: M = I, ω to the left": mc.Randers(identity, drift),
        "Randers: any M, ω": mc.Randers.from_zermelo(needle, wind),
    }
    figure, axes = plt.subplots(1, 4, figsize=(11, 2.9), layout="constrained")
    for ax, (name, metric) in zip(axes, balls.items(), strict=True):
        one_ball(ax, metric, mc.stencils.onion(5), reach=2.6)
        ax.set_title(name, fontsize=10)
    return figure


def stencils() -> Figure:
    """Draw the three samplings of one ball."""
    along = torch.tensor([-0.4, 1.0]).view(1, 1, 2, 1, 1)
    metric = mc.Riemannian.needle(along, 1.7, 1.0)
    named = {
        "polar(5): 5 radii × 5 angles": mc.stencils.polar(5),
        "onion(5): rings of 8, 16 samples": mc.stencils.onion(5),
        "square_onion(5): the deformed 5 × 5 grid": mc.stencils.square_onion(5),
    }
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.3), layout="constrained")
    for ax, (name, stencil) in zip(axes, named.items(), strict=True):
        one_ball(ax, metric, stencil, reach=2.4)
        ax.set_title(name, fontsize=10)
    return figure


def supports() -> Figure:
    """Draw the supports of one pixel side by side."""
    camera = skimage.transform.resize(skimage.data.camera(), (256, 256), anti_aliasing=True)
    figure, axes = plt.subplots(1, 6, figsize=(11, 2.1), layout="constrained")
    viz.plot_supports(camera, (64, 132), axes=list(axes))
    return figure


def parametrizations() -> Figure:
    """Draw balls of the same random parameters with each parametrization."""
    kinds: dict[str, mc.metrics.Parametrization] = {
        "cholesky, 5 parameters": mc.metrics.Cholesky(),
        "spectral6, 6 parameters": mc.metrics.Spectral6(),
        "spectral7, 7 parameters": mc.metrics.Spectral7(),
        r"spectral7, $\varepsilon_\omega = 1$": mc.metrics.Spectral7(eps_omega=1),
    }
    figure, axes = plt.subplots(1, 4, figsize=(12, 3.2), layout="constrained")
    for ax, (name, kind) in zip(axes, kinds.items(), strict=True):
        noise = torch.randn(1, 1, kind.channels, 40, 40, generator=torch.Generator().manual_seed(0))
        metric = kind(kind.identity().view(1, 1, -1, 1, 1) + noise)
        viz.plot_unit_balls(metric, None, points=5, axes=ax)
        ax.set_title(name, fontsize=10)
    return figure


def padding() -> Figure:
    """Filter the same corner with each padding mode."""
    figure, axes = plt.subplots(1, 4, figsize=(11, 2.9), layout="constrained")
    for ax, mode in zip(axes, ("zeros", "border", "reflect", "circular"), strict=True):
        filtered = mc.filters.box_filter(CAMERA, 11, padding_mode=mode)
        ax.imshow(filtered[:64, 64:], cmap="gray", vmin=0, vmax=1)
        ax.set(xticks=[], yticks=[])
        ax.set_title(mode, fontsize=10)
    return figure


def ball() -> Figure:
    """Draw tangent and geodesic balls of a metric over the clean image."""
    metric = edge(CLEAN, 0.02, 10)
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
    for ax, kind in zip(axes, ("tangent", "geodesic"), strict=False):
        viz.plot_unit_balls(metric, CAMERA, PART, kind, axes=ax).set(title=f"{kind} balls", **VIEW)
    viz.plot_metric_field(metric, CAMERA, "size", axes=axes[2]).set(title="size of the unit ball", **VIEW)
    return figure


def samples() -> Figure:
    """Filter with an increasing number of samples of the same balls."""
    metric = partial(edge, iota=0.02, alpha=20, scale=1.5)
    figure, axes = plt.subplots(1, 4, figsize=(11, 3.0), layout="constrained")
    for ax, k in zip(axes, (3, 5, 11, 21), strict=True):
        filtered = mc.filters.geodesic_filter(NOISY[0, 0].numpy(), k, metric)
        psnr = skimage.metrics.peak_signal_noise_ratio(CAMERA, filtered, data_range=1)
        ax.imshow(filtered, cmap="gray", vmin=0, vmax=1)
        ax.set(xticks=[], yticks=[])
        ax.set_title(f"k = {k}: {psnr:.1f} dB", fontsize=10)
    return figure


def geodesic_maps() -> Figure:
    """Draw a distance map with shortest paths, geodesic Voronoi cells, and a distance map with drift."""
    slow = 1 + 40 * torch.from_numpy(skimage.filters.sobel(CAMERA)).float()  # paths avoid edges
    metric = mc.Riemannian(torch.tensor([1.0, 0.0, 1.0]).view(1, 1, 3, 1, 1) * slow.square())
    start, ends = [110.0, 15.0], [[20.0, 20.0], [15.0, 110.0], [60.0, 100.0], [118.0, 90.0]]
    seeds = [[y, x] for y in (16.0, 48.0, 80.0, 112.0) for x in (16.0, 48.0, 80.0, 112.0)]
    ahead = torch.tensor([-0.3, 0.6]).view(1, 1, 2, 1, 1)
    randers = mc.Randers(metric.M, ahead * slow)
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.8), layout="constrained")
    for ax, field, title in (
        (axes[0], metric, "Riemannian"),
        (axes[2], randers, r"Randers, $\omega$ to the upper right"),
    ):
        distance = mc.geodesic.distance_map(field, [start])[0, 0]
        ax.imshow(CAMERA, cmap="gray")
        ax.contour(distance, levels=24, cmap="viridis", linewidths=0.7)
        for path in mc.geodesic.shortest_paths(field, start, ends):
            ax.plot(path[:, 1], path[:, 0], color="tab:orange", linewidth=1.5)
        ax.plot(start[1], start[0], "o", color="tab:red", markersize=5)
        ax.set_title(f"distance and shortest paths: {title}", fontsize=9)
    cells = mc.geodesic.nearest_sources(metric, seeds).label[0, 0, 0].numpy()
    axes[1].imshow(skimage.segmentation.mark_boundaries(CAMERA, cells, color=(1, 0.6, 0)))
    axes[1].plot([x for _, x in seeds], [y for y, _ in seeds], "o", color="tab:red", markersize=3)
    axes[1].set_title("nearest of 16 sources", fontsize=9)
    for ax in axes:
        ax.set_axis_off()
    return figure


def regions() -> Figure:
    """Draw a path along vessels, a segmentation from scribbles, superpixels, and interpolated colors."""
    retina = skimage.data.retina()[350:590, 680:920]
    vessels = mc.geodesic.tube_metric(torch.from_numpy(retina / 255).movedim(-1, 0)[None], scale=3.0, dark=True)
    path = mc.geodesic.shortest_path(vessels, [10.0, 25.0], [160.0, 235.0])
    photo = skimage.data.astronaut()[20:276, 100:356]
    strokes = np.zeros(photo.shape[:2], np.int64)
    strokes[30:130, 118:122] = strokes[200:230, 90:170] = 1
    strokes[30:34, 80:180] = strokes[40:110, 66:70] = strokes[40:110, 190:194] = strokes[240:244, 20:240] = 1
    strokes[6:10, 4:66] = strokes[6:10, 196:250] = strokes[10:160, 12:16] = strokes[10:150, 236:240] = 2
    labels = mc.geodesic.segment(photo, strokes, scale=2.0, channel_axis=-1)
    cells = mc.geodesic.superpixels(photo, 150, channel_axis=-1)
    lab = skimage.color.rgb2lab(photo)
    known = np.random.default_rng(0).random(lab.shape[:2]) < 0.01
    colors = np.where(known[..., None], lab[..., 1:], np.nan)
    chroma = mc.geodesic.interpolate(colors, lab[..., 0] / 100, channel_axis=-1)
    filled = skimage.color.lab2rgb(np.concatenate([lab[..., :1], chroma], -1))
    marked = photo.copy()
    marked[strokes == 1], marked[strokes == 2] = (255, 150, 0), (0, 80, 255)
    outlines = skimage.segmentation.mark_boundaries(marked, labels, color=(1, 1, 1), mode="thick")
    grid = skimage.segmentation.mark_boundaries(photo, cells, color=(1, 0.6, 0))
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.5), layout="constrained")
    titles = ("path along vessels", "segmentation from scribbles", "superpixels", "colors from 1 % of the pixels")
    for ax, picture, title in zip(axes, (retina, outlines, grid, filled), titles, strict=True):
        ax.imshow(picture)
        ax.set_title(title, fontsize=9)
        ax.set_axis_off()
    axes[0].plot(path[:, 1], path[:, 0], color="tab:blue", linewidth=2)
    return figure


def diffusion() -> Figure:
    """Draw noisy images before and after diffusion: along lines, and with little flow across edges."""
    noise = 0.1 * np.random.default_rng(0).standard_normal((128, 128))
    bricks = skimage.data.brick()[:256:2, :256:2] / 255 + noise
    coins = skimage.data.coins()[:128, :128] / 255 + noise
    images = {
        "noisy bricks": bricks,
        'metric "structure": lines close': mc.filters.anisotropic_diffusion(bricks),
        "noisy coins": coins,
        'metric "edge": edges stay': mc.filters.anisotropic_diffusion(coins, metric="edge"),
    }
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.5), layout="constrained")
    for ax, (title, image) in zip(axes, images.items(), strict=True):
        ax.imshow(image, cmap="gray", vmin=0, vmax=1)
        ax.set_title(title, fontsize=11)
        ax.set_axis_off()
    return figure


def over_image(
    name: str, values: Iterable[Any], metric: Callable[[Any], mc.Metric], image: torch.Tensor = CLEAN
) -> Figure:
    """Draw the tangent balls of a metric for several values of one option."""
    values = list(values)
    figure, axes = plt.subplots(1, len(values), figsize=(10, 3.6), layout="constrained")
    for ax, value in zip(axes, values, strict=True):
        viz.plot_unit_balls(metric(value), image.clamp(0, 1), PART, axes=ax).set(title=f"{name} = {value}", **VIEW)
    return figure


def one_ball(ax: Axes, metric: mc.Metric, stencil: mc.stencils.Stencil, reach: float) -> None:
    """Draw the ball of a constant metric around the origin, with its samples."""
    constant = metric.expand_to((9, 9))
    (found,) = viz.unit_balls(constant, [(4, 4)], stencil=stencil)
    draw_ball(ax, found, canvas.SKY, size=1.6)
    ax.set(xlim=(4 - reach, 4 + reach), ylim=(4 + 0.75 * reach, 4 - 0.75 * reach), aspect="equal")
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_color("0.8")


def gallery(script: Path) -> None:
    """Run an example and keep its figure."""
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(folder=DOCS / "gallery")
    path = DOCS / "gallery" / f"{script.stem}.png"
    drawn = Image.open(path).convert("RGB")
    shrink(ImageOps.expand(drawn.crop(ImageOps.invert(drawn).getbbox()), 5, "white"), path)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as a small PNG."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=100, bbox_inches="tight", pad_inches=0.05)
    plt.close(figure)
    shrink(Image.open(drawn).convert("RGB"), path)


def shrink(image: Image.Image, path: Path) -> None:
    """Write an image; with 256 colors if it is large and this loses little, or if it exceeds ``LARGEST``.

    Color bars and smooth fields lose more: quantization would show bands in them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, optimize=True)
    few = image.quantize(256, kmeans=4, dither=Image.Dither.NONE)
    lost = np.abs(np.asarray(image, dtype=float) - np.asarray(few.convert("RGB"))).max(-1).mean()  # of 255
    if path.stat().st_size > (2**16 if lost < 1 else LARGEST):
        few.save(path, optimize=True)


if __name__ == "__main__":
    main()
