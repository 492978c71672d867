"""Denoising benchmark: ``filters.denoise`` and classical filters, given the noise level, on gray and color images.

Noise of σ = 15, 25 and 50 (of 255) is added without clipping or rounding. Each baseline has the same number of trials
per σ, on the same crops of BSDS300's training half, which no test image is part of. Rows of local supports stand apart
from rows of patches or transforms.
"""

import dataclasses
import itertools
import json
import operator
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import skimage
import torch
from numpy.typing import NDArray

from metricconv import _checks, filters
from metricconv._files import read_table, write_table, writing
from metricconv._images import psnr

from ..data import Dataset, find, open_color, open_gray
from ..results import Results
from . import heuristic
from .inputs import splits

__all__ = ["BASELINES", "DATASETS", "PUBLISHED", "SIGMAS", "guided", "run", "table", "tune", "write_page"]

Image = NDArray[np.float64]
SIGMAS = (15, 25, 50)
SEEDS = (0, 1, 2)
TRIALS = 27
# Training crops: number, side; the noise seed is the index of the crop.
CROPS, SIDE = 8, 128
GRAY = {
    "BSD68": Dataset("BSD68", ("BSD68",), "expected a folder BSD68 with 68 .png files"),
    "Set12": Dataset("Set12", ("Set12",), "expected a folder Set12 with 12 .png files"),
}
COLOR = "BSDS300 color"
DATASETS = (*GRAY, COLOR)
# Mean PSNR in dB for σ = 15, 25, 50, as published (Zhang et al., 2017, DnCNN, tables II and III).
PUBLISHED = {"BM3D": {"BSD68": (31.07, 28.57, 25.62), "Set12": (32.37, 29.97, 26.72)}}
LOCAL, BEYOND = "local supports", "patches or transforms"
KEY = ("dataset", "image", "sigma", "seed", "method")
VALUES = ("group", "psnr", "ssim", "parameters")


def guided(image: Image, radius: int, eps: float) -> Image:
    """Return the guided filter (He et al., 2013) of an image, guided by itself: linear fits over boxes, averaged."""
    box = partial(filters.box_filter, size=2 * radius + 1)
    mean = box(image)
    variance = box(image * image) - mean * mean
    gain = variance / (variance + eps)
    return box(gain) * image + box((1 - gain) * mean)


def _powers(low: float, high: float, count: int) -> list[float]:
    return [float(f"{value:.3g}") for value in np.geomspace(low, high, count)]


@dataclasses.dataclass(frozen=True)
class Baseline:
    """A filter ``apply(image, sigma, channel_axis, **parameters)`` and the grid of its parameters.

    Args:
        color: whether it filters color images.
    """

    group: str
    apply: Callable[..., Image]
    grid: Mapping[str, Sequence[Any]]
    color: bool = True

    def trials(self) -> list[dict[str, Any]]:
        """Return all parameters of the grid."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]

    def edges(self, parameters: Mapping[str, Any]) -> list[str]:
        """Return the parameters at the edge of a fine grid: a better value may be beyond."""
        grids = self.grid.items()
        return [name for name, values in grids if len(values) > 3 and parameters[name] in (values[0], values[-1])]


BASELINES = {
    "Gaussian": Baseline(
        LOCAL,
        lambda image, sigma, channel_axis, scale: skimage.filters.gaussian(
            image, scale, mode="mirror", channel_axis=channel_axis
        ),
        {"scale": _powers(0.4, 4, 27)},
    ),
    "bilateral": Baseline(
        LOCAL,
        lambda image, sigma, channel_axis, color, space: heuristic._bilateral(
            image, "reflect", sigma, color * sigma, space
        ),
        {"color": _powers(1, 12, 9), "space": [0.8, 1.4, 2.4]},
        color=False,
    ),
    "guided filter": Baseline(
        LOCAL,
        lambda image, sigma, channel_axis, radius, eps: guided(image, radius, eps * sigma**2),
        {"radius": [1, 2, 4], "eps": _powers(0.5, 30, 9)},
        color=False,
    ),
    "total variation": Baseline(
        LOCAL,
        lambda image, sigma, channel_axis, weight: skimage.restoration.denoise_tv_chambolle(
            image, weight * sigma, eps=1e-5, channel_axis=channel_axis
        ),
        {"weight": _powers(0.3, 2.5, 27)},
    ),
    "non-local means": Baseline(
        BEYOND,
        lambda image, sigma, channel_axis, patch, h: skimage.restoration.denoise_nl_means(
            image, patch, 8, h=h * sigma, sigma=sigma, fast_mode=True, channel_axis=channel_axis
        ),
        {"patch": [3, 5, 7], "h": _powers(0.35, 1.1, 9)},
    ),
}


def noisy(clean: Image, sigma: int, seed: int) -> Image:
    """Return an image with noise of σ/255."""
    return clean + np.random.default_rng(seed).normal(0, sigma / 255, clean.shape)


def tune(folder: Path, names: Sequence[str], sigmas: Sequence[int], color: bool, data_root: Path | None) -> None:
    """Choose the parameters of baselines with the same number of trials; add them to ``benchmark_parameters.csv``."""
    crops = list(_training_crops(data_root, color))
    channels, path = "color" if color else "gray", folder / "benchmark_parameters.csv"
    for name, sigma in itertools.product(names, sigmas):
        baseline, rows = BASELINES[_checks.one_of(name, BASELINES, "method")], read_table(path)
        key = {"method": name, "channels": channels, "sigma": str(sigma)}
        if any(key.items() <= row.items() for row in rows) or (color and not baseline.color):
            continue
        score, best = max(
            ((_score(baseline, crops, sigma, trial), trial) for trial in baseline.trials()), key=operator.itemgetter(0)
        )
        found = {"psnr": f"{score:.4f}", "trials": str(TRIALS), "parameters": json.dumps(best)}
        rows.append(key | found | {"at_edge": " ".join(baseline.edges(best))})
        write_table(path, rows)
        print(rows[-1], file=sys.stderr)


def _score(baseline: Baseline, crops: Sequence[Image], sigma: int, parameters: Mapping[str, Any]) -> float:
    """Return the mean PSNR on noisy crops."""
    apply = partial(baseline.apply, sigma=sigma / 255, channel_axis=_channel_axis(crops[0]), **parameters)
    return float(np.mean([psnr(crop, apply(noisy(crop, sigma, seed))) for seed, crop in enumerate(crops)]))


def _training_crops(data_root: Path | None, color: bool) -> Iterator[Image]:
    files = splits("bsds300", data_root)[0]
    for file in files[:: len(files) // CROPS][:CROPS]:
        image = (open_color if color else open_gray)(file).astype(np.float64)
        y, x = ((n - SIDE) // 2 for n in image.shape[:2])
        yield image[y : y + SIDE, x : x + SIDE]


def _channel_axis(image: Image) -> int | None:
    return None if image.ndim == 2 else -1


def run(
    folder: Path,
    dataset: str,
    sigmas: Sequence[int],
    seeds: Sequence[int],
    images: slice,
    data_root: Path | None,
    *,
    download: bool = False,
) -> None:
    """Filter images with every method and add the rows that are missing to ``benchmark.csv``."""
    results = Results(folder / "benchmark.csv", KEY, VALUES)
    torch.set_num_threads(1)  # as the baselines
    if _checks.one_of(dataset, DATASETS, "dataset") == COLOR:
        files, read = splits("bsds300", data_root, download=download)[1], open_color
    else:
        files, read = sorted(find(GRAY[dataset], data_root).glob("*.png")), open_gray
    methods = {sigma: dict(_methods(folder, sigma, dataset == COLOR)) for sigma in sigmas}
    filters.denoise(np.zeros((32, 32)), 0.1)  # compilation is not timed
    for file, sigma, seed in itertools.product(files[images], sigmas, seeds):
        clean = read(file).astype(np.float64)
        axis, image = _channel_axis(clean), noisy(clean, sigma, seed)
        for name, (group, apply, parameters) in methods[sigma].items():
            setting = {"dataset": dataset, "image": file.stem, "sigma": sigma, "seed": seed, "method": name}
            if setting in results:
                continue
            before = time.process_time()
            result = apply(image, sigma=sigma / 255, channel_axis=axis, **parameters)
            seconds = time.process_time() - before
            ssim = skimage.metrics.structural_similarity(clean, result, data_range=1.0, channel_axis=axis)
            values = {"group": group, "psnr": f"{psnr(clean, result):.4f}", "ssim": f"{ssim:.4f}"}
            results.add(setting, values | {"parameters": json.dumps(parameters)}, seconds)


def _methods(folder: Path, sigma: int, color: bool) -> Iterator[tuple[str, tuple[str, Callable[..., Image], Any]]]:
    """Yield name, group, function and parameters of each method; raise ValueError for one that is not tuned."""
    yield "metricconv denoise", (LOCAL, filters.denoise, {})
    path, channels = folder / "benchmark_parameters.csv", "color" if color else "gray"
    chosen = {
        row["method"]: row for row in read_table(path) if (row["channels"], row["sigma"]) == (channels, str(sigma))
    }
    for name, baseline in BASELINES.items():
        if color and not baseline.color:
            continue
        if name not in chosen:
            raise ValueError(f"{path} has no parameters of {name} for σ = {sigma}, {channels}: use --tune first")
        yield name, (baseline.group, baseline.apply, json.loads(chosen[name]["parameters"]))


def write_page(folder: Path) -> list[str]:
    """Write ``benchmark.md``."""
    rows = Results(folder / "benchmark.csv", KEY, VALUES).rows
    if not rows:
        return []
    with writing(folder / "benchmark.md") as path:
        path.write_text(table(rows), encoding="utf-8")
    return ["benchmark.md"]


_INTRODUCTION = f"""# Denoising benchmark

Gaussian noise of σ of 255, neither clipped nor rounded; all methods are given σ. The baselines were tuned for each σ on
{CROPS} crops of BSDS300's training half, with {TRIALS} trials each, apart for gray and color images
([parameters](benchmark_parameters.csv)). `metricconv denoise` has the same constants for all σ, gray and color; these
were found by a random search of about 900 trials on four gray crops of the same half. The Gaussian and scikit-image's
total variation filter each channel by itself. SSIM as in scikit-image. Time is CPU time of one thread, relative to
non-local means with `fast_mode` in the same run. Only noisy images that all methods have filtered are included. This
page is generated by `denoise-benchmark` from [benchmark.csv](benchmark.csv).
"""


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the page: mean PSNR, SSIM and relative time of each method."""
    lines = [_INTRODUCTION]
    for dataset in DATASETS:
        chosen = [row for sigma in SIGMAS for row in _complete(rows, dataset, sigma)]
        if not chosen:
            continue
        images, seeds = ({row[name] for row in chosen} for name in ("image", "seed"))
        counts = {s: len({(r["image"], r["seed"]) for r in chosen if r["sigma"] == str(s)}) for s in SIGMAS}
        number = ", ".join(f"{counts[s]} (σ = {s})" for s in SIGMAS)
        lines += [f"## {dataset}", "", f"{len(images)} images, noise seeds {', '.join(sorted(seeds))}. "]
        lines[-1] += f"Noisy images per σ: {number}. Means over seeds differ by at most {_spread(chosen):.3f} dB."
        header = [f"PSNR, σ = {s}" for s in SIGMAS] + [f"SSIM, σ = {s}" for s in SIGMAS] + ["time / non-local means"]
        lines += ["", "|  | " + " | ".join(header) + " |", "|:--|" + "--:|" * len(header)]
        reference = _seconds([row for row in chosen if row["method"] == "non-local means"])
        for group in (LOCAL, BEYOND):
            lines.append(f"| *{group}* |" + " |" * len(header))
            for name in dict.fromkeys(row["method"] for row in chosen if row["group"] == group):
                own = [row for row in chosen if row["method"] == name]
                cells = [_mean(own, "psnr", s, 2) for s in SIGMAS] + [_mean(own, "ssim", s, 3) for s in SIGMAS]
                cells.append(f"{_seconds(own) / reference:.2f}" if reference else "")
                lines.append(f"| {name} | " + " | ".join(cells) + " |")
        for name, published in PUBLISHED.items():
            if dataset in published:
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


def _spread(rows: Sequence[Mapping[str, str]]) -> float:
    """Return the largest difference between the mean PSNR of two seeds, for the same method and σ."""
    means: dict[tuple[str, str], list[float]] = {}
    for method, sigma, seed in dict.fromkeys((row["method"], row["sigma"], row["seed"]) for row in rows):
        own = [float(r["psnr"]) for r in rows if (r["method"], r["sigma"], r["seed"]) == (method, sigma, seed)]
        means.setdefault((method, sigma), []).append(float(np.mean(own)))
    return max(max(values) - min(values) for values in means.values())


def _seconds(rows: Sequence[Mapping[str, str]]) -> float:
    return sum(float(row["seconds"]) for row in rows)


def _mean(rows: Sequence[Mapping[str, str]], column: str, sigma: int, digits: int) -> str:
    values = [float(row[column]) for row in rows if row["sigma"] == str(sigma)]
    return f"{np.mean(values):.{digits}f}" if values else ""
