"""Denoising benchmark on BSD68 and Set12: ``filters.denoise`` and classical filters, given the noise level.

    python -m metricconv_experiments.denoising.benchmark tune     # parameters of the baselines, on training images
    python -m metricconv_experiments.denoising.benchmark run --sigma 25 --images 0:10
    python -m metricconv_experiments.denoising.benchmark report

Noise of σ = 15, 25 and 50 (of 255) is added without clipping or rounding. Each baseline has the same number of trials
per σ, on the same crops of BSDS300's training half, which BSD68 is not part of. Rows of local supports stand apart from
rows of patches or transforms. Images are read from the data root; a second ``run`` computes only missing rows.
"""

import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import skimage
import torch
import typer
from numpy.typing import NDArray

from metricconv import filters
from metricconv._files import read_table, write_table
from metricconv._images import psnr

from ..data import Dataset, find, open_gray
from ..results import Results
from . import heuristic

__all__ = ["BASELINES", "PUBLISHED", "app", "guided", "table"]

Image = NDArray[np.float64]
SIGMAS = (15, 25, 50)
TRIALS = 27
# Training crops: number, side and the noise seed.
CROPS, SIDE = 8, 128
FOLDER = Path("results/denoising")
DATASETS = {
    "BSD68": Dataset("BSD68", ("BSD68",), "expected a folder BSD68 with 68 .png files"),
    "Set12": Dataset("Set12", ("Set12",), "expected a folder Set12 with 12 .png files"),
}
TRAINING = Dataset("BSDS300", ("BSDS300/train",), "expected a folder BSDS300/train with .jpg files")
# Mean PSNR in dB for σ = 15, 25, 50, as published (Zhang et al., 2017, DnCNN, tables II and III).
PUBLISHED = {"BM3D": {"BSD68": (31.07, 28.57, 25.62), "Set12": (32.37, 29.97, 26.72)}}
LOCAL, BEYOND = "local supports", "patches or transforms"

app = typer.Typer(add_completion=False, help="Denoising benchmark on BSD68 and Set12.")


def guided(image: Image, radius: int, eps: float) -> Image:
    """Return the guided filter (He et al., 2013) of an image, guided by itself: linear fits over boxes, averaged."""
    box = partial(filters.box_filter, size=2 * radius + 1)
    mean = box(image)
    variance = box(image * image) - mean * mean
    gain = variance / (variance + eps)
    return box(gain) * image + box((1 - gain) * mean)


def _powers(low: float, high: float, count: int) -> list[float]:
    return [float(f"{value:.3g}") for value in np.geomspace(low, high, count)]


Apply = Callable[..., Image]
# Group, function of the image, σ and parameters, and the grid of parameters: 27 trials each.
BASELINES: dict[str, tuple[str, Apply, dict[str, list[Any]]]] = {
    "Gaussian": (
        LOCAL,
        lambda image, sigma, scale: skimage.filters.gaussian(image, scale, mode="mirror"),
        {"scale": _powers(0.4, 4, 27)},
    ),
    "bilateral": (
        LOCAL,
        lambda image, sigma, color, space: heuristic._bilateral(image, "reflect", sigma, color * sigma, space),
        {"color": _powers(1, 12, 9), "space": [0.8, 1.4, 2.4]},
    ),
    "guided filter": (
        LOCAL,
        lambda image, sigma, radius, eps: guided(image, radius, eps * sigma**2),
        {"radius": [1, 2, 4], "eps": _powers(0.5, 30, 9)},
    ),
    "total variation": (
        LOCAL,
        lambda image, sigma, weight: skimage.restoration.denoise_tv_chambolle(image, weight * sigma, eps=1e-5),
        {"weight": _powers(0.3, 2.5, 27)},
    ),
    "non-local means": (
        BEYOND,
        lambda image, sigma, patch, h: skimage.restoration.denoise_nl_means(
            image, patch, 8, h=h * sigma, sigma=sigma, fast_mode=True
        ),
        {"patch": [3, 5, 7], "h": _powers(0.35, 1.1, 9)},
    ),
}


def noisy(clean: Image, sigma: int, seed: int) -> Image:
    """Return an image with noise of σ/255."""
    return clean + np.random.default_rng(seed).normal(0, sigma / 255, clean.shape)


@app.command()
def tune(
    data_root: Annotated[Path | None, typer.Option(help="Folder that contains BSDS300.")] = None,
    only: Annotated[str | None, typer.Option(help="Name of one baseline.")] = None,
    folder: Annotated[Path, typer.Option(help="Output folder.")] = FOLDER,
) -> None:
    """Choose the parameters of each baseline with the same number of trials."""
    crops = list(_training_crops(data_root))
    path = folder / "benchmark_parameters.csv"
    rows = [dict(row) for row in read_table(path)] if path.exists() else []
    for (name, (_, apply, grid)), sigma in itertools.product(BASELINES.items(), SIGMAS):
        if only not in (None, name) or any(r["method"] == name and r["sigma"] == str(sigma) for r in rows):
            continue
        trials = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        assert len(trials) == TRIALS
        images = [noisy(crop, sigma, seed) for seed, crop in enumerate(crops)]
        scores = [
            np.mean([psnr(a, apply(b, sigma / 255, **trial)) for a, b in zip(crops, images, strict=True)])
            for trial in trials
        ]
        best = trials[int(np.argmax(scores))]
        edges = [key for key, values in grid.items() if len(values) > 3 and best[key] in (values[0], values[-1])]
        rows.append({"method": name, "sigma": str(sigma), "psnr": f"{max(scores):.4f}", "trials": str(TRIALS)})
        rows[-1] |= {"parameters": json.dumps(best), "at_edge": " ".join(edges)}
        write_table(path, rows)
        print(rows[-1])


def _training_crops(data_root: Path | None) -> Iterator[Image]:
    files = sorted(find(TRAINING, data_root).glob("*.jpg"))
    for file in files[:: len(files) // CROPS][:CROPS]:
        image = open_gray(file).astype(np.float64)
        y, x = ((n - SIDE) // 2 for n in image.shape)
        yield image[y : y + SIDE, x : x + SIDE]


@app.command()
def run(
    dataset: Annotated[str, typer.Option(help="BSD68 or Set12.")] = "BSD68",
    sigma: Annotated[int, typer.Option(help="Noise level, of 255.")] = 25,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    images: Annotated[str, typer.Option(help="Range of images, such as 0:10.")] = ":",
    data_root: Annotated[Path | None, typer.Option(help="Folder that contains the datasets.")] = None,
    folder: Annotated[Path, typer.Option(help="Output folder.")] = FOLDER,
) -> None:
    """Filter images with every method and add the rows that are missing."""
    methods: dict[str, tuple[str, Apply, dict[str, Any]]] = {"metricconv denoise": (LOCAL, filters.denoise, {})}
    methods |= dict(_tuned(folder, sigma))
    keys = ("dataset", "image", "sigma", "seed", "method")
    results = Results(folder / "benchmark.csv", keys, ("group", "psnr", "ssim", "parameters"))
    start, stop = (int(part) if part else None for part in images.split(":"))
    torch.set_num_threads(1)  # as the baselines
    filters.denoise(np.zeros((32, 32)), 0.1)  # compilation is not timed
    for file in sorted(find(DATASETS[dataset], data_root).glob("*.png"))[start:stop]:
        clean = open_gray(file).astype(np.float64)
        image = noisy(clean, sigma, seed)
        for name, (group, apply, parameters) in methods.items():
            setting = {"dataset": dataset, "image": file.stem, "sigma": sigma, "seed": seed, "method": name}
            if setting in results:
                continue
            before = time.process_time()
            result = apply(image, sigma / 255, **parameters)
            seconds = time.process_time() - before
            similarity = skimage.metrics.structural_similarity(clean, result, data_range=1.0)
            values = {"group": group, "psnr": f"{psnr(clean, result):.4f}", "ssim": f"{similarity:.4f}"}
            results.add(setting, values | {"parameters": json.dumps(parameters)}, seconds)


def _tuned(folder: Path, sigma: int) -> Iterator[tuple[str, tuple[str, Apply, dict[str, Any]]]]:
    path = folder / "benchmark_parameters.csv"
    chosen = {row["method"]: row for row in read_table(path) if row["sigma"] == str(sigma)}
    for name, (group, apply, _) in BASELINES.items():
        if name not in chosen:
            print(f"{name} is not tuned for σ = {sigma}: run `tune` first", file=sys.stderr)
            continue
        yield name, (group, apply, json.loads(chosen[name]["parameters"]))


@app.command()
def report(folder: Annotated[Path, typer.Option(help="Folder with benchmark.csv.")] = FOLDER) -> None:
    """Write the page of the table."""
    (folder / "benchmark.md").write_text(table(read_table(folder / "benchmark.csv")), encoding="utf-8")


_INTRODUCTION = f"""# Denoising benchmark

Gaussian noise of σ of 255, neither clipped nor rounded; all methods are given σ. The baselines were tuned for each σ on
{CROPS} crops of BSDS300's training half, with {TRIALS} trials each ([parameters](benchmark_parameters.csv)).
`metricconv denoise` has the same constants for all σ; these were found by a random search of about 900 trials on four
crops of the same half. SSIM as in scikit-image; CPU time of one thread. Only noisy images that all methods have
filtered are included. This page is generated by `python -m metricconv_experiments.denoising.benchmark report` from
[benchmark.csv](benchmark.csv).
"""


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the page: mean PSNR, SSIM and CPU seconds per megapixel of each method."""
    lines = [_INTRODUCTION]
    for dataset in DATASETS:
        chosen = [row for sigma in SIGMAS for row in _complete(rows, dataset, sigma)]
        if not chosen:
            continue
        counts = {s: len({(r["image"], r["seed"]) for r in chosen if r["sigma"] == str(s)}) for s in SIGMAS}
        number = ", ".join(f"{counts[s]} (σ = {s})" for s in SIGMAS)
        lines += [f"## {dataset}", "", f"Noisy images per σ: {number}.", ""]
        header = [f"PSNR, σ = {s}" for s in SIGMAS] + [f"SSIM, σ = {s}" for s in SIGMAS] + ["CPU seconds per image"]
        lines += ["|  | " + " | ".join(header) + " |", "|:--|" + "--:|" * len(header)]
        for group in (LOCAL, BEYOND):
            lines.append(f"| *{group}* |" + " |" * len(header))
            for name in dict.fromkeys(row["method"] for row in chosen if row["group"] == group):
                own = [row for row in chosen if row["method"] == name]
                cells = [_mean(own, "psnr", s, 2) for s in SIGMAS] + [_mean(own, "ssim", s, 3) for s in SIGMAS]
                lines.append(f"| {name} | " + " | ".join([*cells, _mean(own, "seconds", None, 2)]) + " |")
        for name, published in PUBLISHED.items():
            cells = [f"{value:.2f}" for value in published[dataset]]
            lines.append(f"| {name}, as published | " + " | ".join(cells) + " |" + " |" * 4)
        lines.append("")
    return "\n".join(lines)


def _complete(rows: Sequence[Mapping[str, str]], dataset: str, sigma: int) -> list[Mapping[str, str]]:
    """Return the rows of the noisy images that every method has filtered."""
    found = [row for row in rows if row["dataset"] == dataset and row["sigma"] == str(sigma)]
    methods = {row["method"] for row in found}
    seen = Counter((row["image"], row["seed"]) for row in found)
    return [row for row in found if seen[row["image"], row["seed"]] == len(methods)]


def _mean(rows: Sequence[Mapping[str, str]], column: str, sigma: int | None, digits: int) -> str:
    values = [float(row[column]) for row in rows if sigma is None or row["sigma"] == str(sigma)]
    return f"{np.mean(values):.{digits}f}" if values else ""


if __name__ == "__main__":
    app()
