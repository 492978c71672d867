"""Denoising with no learning: the mean of 11 × 11 samples a pixel, and only where these lie differs.

Supports are fixed, random, or the unit balls of a metric that is read off the noisy image: the paper's, with its drift
at three strengths and with the gradient of the noisy image or of a smoothed one, and metrics whose knobs were tuned on
other images. Four classical filters, tuned on the same images, say what non-local or iterative methods reach.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import skimage
import torch
from torch import Tensor

from ... import _checks
from ..._files import versions
from ..._interpolation import PADDING_MODES
from ...filters import (
    box_filter,
    dilated_filter,
    geodesic_filter,
    interpolated_filter,
    random_deformable_filter,
    tangent_filter,
)
from ...metrics import edge_metric, gradient_metric
from ..photographs import photograph, psnr
from ..results import Results
from .pictures import CAMERAMAN_PIXELS, add_noise, pixels_of, save_grey
from .published import HEURISTIC_PSNR
from .tables import HEURISTIC_PICTURE, HEURISTIC_RUN, name_of

SAMPLES = 11
DRIFTS = (1.0, 0.5, 0.1)
# The Gaussian whose derivative is the gradient "of a smoothed image", in pixels.
SMOOTHING = 1.5
# Photographs that come with scikit-image: the knobs are tuned on them, never on the image that is denoised.
TUNED_ON = ("camera", "astronaut", "chelsea")

Filter = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Method:
    """A filter by name, the group it is shown in, whose gradient it reads, and its knobs if it has any."""

    name: str
    group: str
    apply: Filter
    gradient: str = ""
    knobs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    samples: int = SAMPLES**2

    @property
    def setting(self) -> str:
        """The knobs and where they are set, in words."""
        return " ".join(f"{name}={value:g}" for name, value in self.knobs.items())


def fixed_methods(padding_mode: str) -> list[Method]:
    """Return supports that do not look at the image."""
    pad: dict[str, Any] = {"padding_mode": padding_mode}
    return [
        Method("box 11 × 11", "fixed", partial(box_filter, size=SAMPLES, **pad)),
        Method("box 5 × 5", "fixed", partial(box_filter, size=5, **pad), samples=25),
        Method("box 3 × 3", "fixed", partial(box_filter, size=3, **pad), samples=9),
        Method("interpolated 5 × 5", "fixed", partial(interpolated_filter, samples=SAMPLES, size=5, **pad)),
        Method("dilated by 3", "fixed", partial(dilated_filter, samples=SAMPLES, dilation=3, **pad)),
        Method("random deformable", "fixed", partial(random_deformable_filter, samples=SAMPLES, seed=0, **pad)),
    ]


def paper_methods(padding_mode: str) -> Iterator[Method]:
    """Yield the paper's balls: tangent with ι = 0.1, α = 100; geodesic with α = 10 and two pixels wide (s₀ = 2)."""
    kinds: tuple[tuple[str, Callable[..., np.ndarray], dict[str, Any]], ...] = (
        ("UTB", tangent_filter, {"iota": 0.1, "alpha": 100.0}),
        ("UGB", geodesic_filter, {"iota": 0.25, "alpha": 10.0}),
    )
    for (kind, apply, knobs), eps_omega, scale in itertools.product(kinds, DRIFTS, (None, SMOOTHING)):
        metric = partial(gradient_metric, **knobs, eps_omega=eps_omega, scale=scale, padding_mode=padding_mode)
        yield Method(
            f"{kind}, ε_ω = {eps_omega:g}",
            kind,
            partial(apply, samples=SAMPLES, metric=metric, padding_mode=padding_mode),
            "noisy" if scale is None else "smoothed",
            knobs | ({} if scale is None else {"scale": scale}),
        )


# What is tuned: a filter of the image and of its knobs, and the grid of these. Past the border the classical filters
# see the nearest pixel, or what scikit-image lets them see. ``noise`` is σ, for those that can use it.
def _gradient_balls(image: np.ndarray, padding_mode: str, noise: float, **knobs: Any) -> np.ndarray:
    metric = partial(gradient_metric, **knobs, padding_mode=padding_mode)
    return tangent_filter(image, SAMPLES, metric, padding_mode=padding_mode)


def _edge_balls(
    image: np.ndarray, padding_mode: str, noise: float, apply: Callable[..., np.ndarray], **knobs: Any
) -> np.ndarray:
    return apply(image, SAMPLES, partial(edge_metric, **knobs, padding_mode=padding_mode), padding_mode=padding_mode)


def _gaussian(image: np.ndarray, padding_mode: str, noise: float, **knobs: Any) -> np.ndarray:
    return skimage.filters.gaussian(image, **knobs)


def _bilateral(
    image: np.ndarray, padding_mode: str, noise: float, sigma_color: float, sigma_spatial: float
) -> np.ndarray:
    """Average by distance and by likeness. (scikit-image 0.26 reads its weights of distance one place off.)"""
    half = math.ceil(3 * sigma_spatial)
    padded = np.pad(image, half, mode="edge")
    sums, weights = np.zeros_like(image), np.zeros_like(image)
    for y, x in itertools.product(range(2 * half + 1), repeat=2):
        moved = padded[y : y + image.shape[0], x : x + image.shape[1]]
        distance = ((y - half) ** 2 + (x - half) ** 2) / sigma_spatial**2
        weight = np.exp(-(distance + ((moved - image) / sigma_color) ** 2) / 2)
        sums += weight * moved
        weights += weight
    return sums / weights


def _non_local_means(image: np.ndarray, padding_mode: str, noise: float, **knobs: Any) -> np.ndarray:
    """Average by the likeness of patches, of whose distances what the noise is expected to add is taken off."""
    rest: dict[str, Any] = {"patch_size": 5, "patch_distance": 6, "fast_mode": True}
    return skimage.restoration.denoise_nl_means(image, sigma=noise, **rest, **knobs)


def _total_variation(image: np.ndarray, padding_mode: str, noise: float, **knobs: Any) -> np.ndarray:
    return skimage.restoration.denoise_tv_chambolle(image, **knobs)


@dataclasses.dataclass(frozen=True)
class Tunable:
    """A filter with knobs, what they are tried at, and whether it is told σ too."""

    name: str
    group: str
    apply: Callable[..., np.ndarray]
    grid: Mapping[str, Sequence[float]]
    told_sigma: bool = False


TUNABLE = {
    "utb_gradient": Tunable(
        "UTB, tuned",
        "UTB",
        _gradient_balls,
        {"iota": (0.01, 0.02, 0.05, 0.1, 0.2, 0.4), "alpha": (5, 10, 20, 40, 80), "scale": (0.7, 1, 1.5, 2, 3, 4, 6)},
    ),
    "utb_edge": Tunable(
        "UTB of the edge metric, tuned",
        "UTB",
        partial(_edge_balls, apply=tangent_filter),
        {
            "iota": (0.003, 0.006, 0.015, 0.03, 0.06, 0.12, 0.25),
            "alpha": (1, 2, 5, 10, 20, 40),
            "scale": (0.7, 1, 1.5, 2.5, 4, 6),
        },
    ),
    "ugb_edge": Tunable(
        "UGB of the edge metric, tuned",
        "UGB",
        partial(_edge_balls, apply=geodesic_filter),
        {
            "iota": (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04),
            "alpha": (5, 10, 20, 40, 80, 160),
            "scale": (0.7, 1, 1.5, 2, 3, 4),
        },
    ),
    "gaussian": Tunable("Gaussian", "context", _gaussian, {"sigma": (0.6, 0.8, 1, 1.2, 1.5, 2, 2.5, 3, 4)}),
    "bilateral": Tunable(
        "bilateral",
        "context",
        _bilateral,
        {"sigma_color": (0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.6, 3.2, 6.4), "sigma_spatial": (0.8, 1, 1.5, 2, 2.5, 3, 4)},
    ),
    "non_local_means": Tunable(
        "non-local means",
        "context",
        _non_local_means,
        {"h": (0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.2)},
        told_sigma=True,
    ),
    "total_variation": Tunable(
        "total variation", "context", _total_variation, {"weight": (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.8, 1.6, 3.2)}
    ),
}


def tuned_methods(knobs: Mapping[str, Mapping[str, float]], sigma: float, padding_mode: str) -> list[Method]:
    """Return the filters whose knobs were tuned, at these knobs, for noise of σ."""
    return [
        Method(
            tunable.name,
            tunable.group,
            partial(tunable.apply, padding_mode=padding_mode, noise=sigma, **knobs[name]),
            "smoothed" if tunable.group != "context" else "",
            {"sigma": sigma, **knobs[name]} if tunable.told_sigma else knobs[name],
            SAMPLES**2 if tunable.group != "context" else 0,
        )
        for name, tunable in TUNABLE.items()
        if name in knobs
    ]


def run(results: Results, work: Path, name: str, clean: Tensor, config: Mapping[str, Any]) -> None:
    """Denoise an image (H, W) by every filter that ``results`` lacks; the images go below ``work``."""
    sigma, seed, padding_mode = config["sigma"], config["seed"], config["padding_mode"]
    _checks.one_of(padding_mode, PADDING_MODES, "padding_mode")
    (noisy,) = add_noise(clean, sigma, seed)
    filters = [
        Method("noisy", "", lambda image: image, samples=1),
        *fixed_methods(padding_mode),
        *paper_methods(padding_mode),
        *tuned_methods(nearest(config["tuned"], sigma), sigma, padding_mode),
    ]
    methods = {(method.name, method.gradient): method for method in filters}
    pixels = pixels_of(clean)
    same = {"image": name, "pixels": pixels, "sigma": sigma, "seed": seed, "padding_mode": padding_mode}
    todo = [{**same, "method": m.name, "gradient": m.gradient, "knobs": m.setting} for m in filters]
    released = CAMERAMAN_PIXELS.startswith(pixels) and (sigma, seed, padding_mode) == (0.1, 42, "zeros")
    compared = HEURISTIC_PSNR if released else {}
    box_filter(noisy.numpy())  # so that the first method is not charged for what torch does once
    for setting in results.pending(todo):
        method = methods[str(setting["method"]), str(setting["gradient"])]
        start = time.perf_counter()
        image = method.apply(noisy.numpy())
        seconds = time.perf_counter() - start
        path = work / name_of(setting, HEURISTIC_RUN) / f"{name_of(setting, HEURISTIC_PICTURE)}.png"
        save_grey(path, torch.from_numpy(np.asarray(image, np.float32)))
        values = {
            "group": method.group,
            "samples": method.samples or "",
            "psnr": psnr(clean.numpy(), image),
            "ssim": ssim_of(clean.numpy(), image),
            "released_psnr": "" if method.gradient == "smoothed" else compared.get(method.name, ""),
            "scikit-image": versions("scikit-image")["scikit-image"],
        }
        results.add(setting, values, seconds)


def tune(sigma: float, seed: int, padding_mode: str, size: int = 256) -> dict[str, dict[str, float]]:
    """Return the knobs of each filter with the best mean PSNR on the central quarter of each of ``TUNED_ON``."""
    pairs = []
    middle = slice(size // 4, size - size // 4)
    for name in TUNED_ON:
        clean = torch.from_numpy(photograph(name, size)[middle, middle].copy())
        pairs.append((clean.numpy(), add_noise(clean, sigma, seed)[0].numpy()))
    best = {}
    for name, tunable in TUNABLE.items():
        choices = [dict(zip(tunable.grid, values, strict=True)) for values in itertools.product(*tunable.grid.values())]

        def score(knobs: dict[str, float], apply: Callable[..., np.ndarray] = tunable.apply) -> float:
            return float(np.mean([psnr(clean, apply(noisy, padding_mode, sigma, **knobs)) for clean, noisy in pairs]))

        best[name] = max(choices, key=score)
    return best


def tuned_toml(sigma: float, seed: int, padding_mode: str) -> str:
    """Tune, and return what the configuration is to say."""
    lines = [f'[tuned."{sigma:g}"]']
    for name, knobs in tune(sigma, seed, padding_mode).items():
        lines.append(f"{name} = {{ {', '.join(f'{key} = {float(value)}' for key, value in knobs.items())} }}")
    return "\n".join(lines)


def nearest(tuned: Mapping[str, Any], sigma: float) -> Mapping[str, Mapping[str, float]]:
    """Return the knobs that were tuned at the nearest σ."""
    return tuned[min(tuned, key=lambda name: abs(np.log(float(name) / sigma)))] if tuned else {}


def ssim_of(clean: np.ndarray, image: np.ndarray) -> float:
    """Return the structural similarity, of a range of 1."""
    return float(skimage.metrics.structural_similarity(clean, image.astype(clean.dtype), data_range=1.0))
