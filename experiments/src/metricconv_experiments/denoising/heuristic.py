"""Denoising without learning: means of 11 × 11 samples per pixel that differ only in the sampling locations.

Supports are fixed, random, or unit balls of a metric computed from the noisy image. The paper's metric is run with
three strengths of asymmetry, and with the gradient of the noisy or of a smoothed image; other metrics are tuned on
other images. Four classical filters, tuned on the same images, are run for comparison.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import skimage
import torch
from torch import Tensor

from metricconv import _checks
from metricconv._files import versions
from metricconv._images import psnr
from metricconv._interpolation import PADDING_MODES
from metricconv.filters import (
    box_filter,
    dilated_filter,
    geodesic_filter,
    interpolated_filter,
    random_deformable_filter,
    tangent_filter,
)
from metricconv.metrics import edge_metric, gradient_metric

from ..photographs import photograph
from ..results import Results
from .inputs import CAMERAMAN_PIXELS, add_noise, pixels_of, save_gray
from .published import HEURISTIC_PSNR
from .tables import HEURISTIC_FILTER, HEURISTIC_RUN, name_of

SAMPLES = 11
EPS_OMEGAS = (1.0, 0.5, 0.1)
# Scale of the Gaussian derivatives that are the gradient "of a smoothed image", in pixels.
SMOOTHING = 1.5
# Trials to tune a filter: rounds of the same number of trials for all filters, with 1, 2 or 3 parameters: 64 = 8² = 4³.
ROUNDS, TRIALS_PER_ROUND = 3, 64
# Photographs included in scikit-image on which parameters are tuned. They are not used for evaluation.
TUNED_ON = ("camera", "astronaut", "chelsea")

Filter = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Method:
    """A filter, its name, its group in the table, the image whose gradient it uses, and its parameters."""

    name: str
    group: str
    apply: Filter
    gradient: str = ""
    parameters: Mapping[str, float] = dataclasses.field(default_factory=dict)
    samples: int = SAMPLES**2

    @property
    def parameters_text(self) -> str:
        """The parameters and their values, as text."""
        return " ".join(f"{name}={value:g}" for name, value in self.parameters.items())


def fixed_methods(padding_mode: str) -> list[Method]:
    """Return filters with supports that do not depend on the image."""
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
    """Yield the paper's balls: tangent with ι = 0.1, α = 100; geodesic with α = 10 and s₀ = 2 pixels."""
    kinds: tuple[tuple[str, Callable[..., np.ndarray], dict[str, Any]], ...] = (
        ("UTB", tangent_filter, {"iota": 0.1, "alpha": 100.0}),
        ("UGB", geodesic_filter, {"iota": 0.25, "alpha": 10.0}),
    )
    for (kind, apply, parameters), eps_omega, scale in itertools.product(kinds, EPS_OMEGAS, (None, SMOOTHING)):
        metric = partial(gradient_metric, **parameters, eps_omega=eps_omega, scale=scale, padding_mode=padding_mode)
        yield Method(
            f"{kind}, ε_ω = {eps_omega:g}",
            kind,
            partial(apply, samples=SAMPLES, metric=metric, padding_mode=padding_mode),
            "noisy" if scale is None else "smoothed",
            parameters | ({} if scale is None else {"scale": scale}),
        )


# Tuned filters. The classical ones use the padding of scikit-image, or repeat the nearest pixel. ``noise`` is σ, for
# filters that use it.
def _gradient_balls(image: np.ndarray, padding_mode: str, noise: float, **parameters: Any) -> np.ndarray:
    metric = partial(gradient_metric, **parameters, padding_mode=padding_mode)
    return tangent_filter(image, SAMPLES, metric, padding_mode=padding_mode)


def _edge_balls(
    image: np.ndarray, padding_mode: str, noise: float, apply: Callable[..., np.ndarray], **parameters: Any
) -> np.ndarray:
    return apply(
        image, SAMPLES, partial(edge_metric, **parameters, padding_mode=padding_mode), padding_mode=padding_mode
    )


def _gaussian(image: np.ndarray, padding_mode: str, noise: float, **parameters: Any) -> np.ndarray:
    return skimage.filters.gaussian(image, **parameters)


def _bilateral(
    image: np.ndarray, padding_mode: str, noise: float, sigma_color: float, sigma_spatial: float
) -> np.ndarray:
    """Bilateral filter. (The spatial weights of scikit-image 0.26 are shifted by one index.)"""
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


def _non_local_means(image: np.ndarray, padding_mode: str, noise: float, **parameters: Any) -> np.ndarray:
    """Non-local means, with the expected contribution of the noise subtracted from patch distances."""
    rest: dict[str, Any] = {"patch_size": 5, "patch_distance": 6, "fast_mode": True}
    return skimage.restoration.denoise_nl_means(image, sigma=noise, **rest, **parameters)


def _total_variation(image: np.ndarray, padding_mode: str, noise: float, **parameters: Any) -> np.ndarray:
    return skimage.restoration.denoise_tv_chambolle(image, **parameters)


@dataclasses.dataclass(frozen=True)
class Tunable:
    """A filter, the range of each of its parameters, and whether it uses the true σ."""

    name: str
    group: str
    apply: Callable[..., np.ndarray]
    ranges: Mapping[str, tuple[float, float]]
    uses_sigma: bool = False

    def at_edge(self, parameters: Mapping[str, float]) -> list[str]:
        """Return the parameters whose value is at the edge of its range or beyond: a better one may be there."""
        return [name for name, (low, high) in self.ranges.items() if not low < parameters[name] < high]

    def tune(self, score: Callable[[dict[str, float]], float]) -> dict[str, float]:
        """Return the best parameters of ``ROUNDS`` grids; each one spans the cells around the best so far."""
        count = round(TRIALS_PER_ROUND ** (1 / len(self.ranges)))
        ranges, best, best_score = dict(self.ranges), dict[str, float](), -math.inf
        for _ in range(ROUNDS):
            grid = {name: np.geomspace(*ends, count) for name, ends in ranges.items()}
            for values in itertools.product(*grid.values()):
                trial = {name: float(f"{value:.4g}") for name, value in zip(grid, values, strict=True)}
                if (found := score(trial)) > best_score:
                    best, best_score = trial, found
            for name, (low, high) in ranges.items():
                spacing = (high / low) ** (1 / (count - 1))
                least, most = self.ranges[name]
                ranges[name] = max(best[name] / spacing, least), min(best[name] * spacing, most)
        return best


# The ranges include a margin on both sides of the best values at σ = 0.1, 0.3 and 0.5.
TUNABLE = {
    "utb_gradient": Tunable(
        "UTB, tuned",
        "UTB",
        _gradient_balls,
        {"iota": (0.005, 0.8), "alpha": (2.5, 160), "scale": (0.5, 8)},
    ),
    "utb_edge": Tunable(
        "UTB of the edge metric, tuned",
        "UTB",
        partial(_edge_balls, apply=tangent_filter),
        {"iota": (0.002, 0.5), "alpha": (0.5, 50), "scale": (0.5, 10)},
    ),
    "ugb_edge": Tunable(
        "UGB of the edge metric, tuned",
        "UGB",
        partial(_edge_balls, apply=geodesic_filter),
        {"iota": (0.0001, 0.05), "alpha": (2, 400), "scale": (0.4, 6)},
    ),
    "gaussian": Tunable("Gaussian", "context", _gaussian, {"sigma": (0.3, 8)}),
    "bilateral": Tunable("bilateral", "context", _bilateral, {"sigma_color": (0.05, 20), "sigma_spatial": (0.4, 6)}),
    "non_local_means": Tunable("non-local means", "context", _non_local_means, {"h": (0.01, 2)}, uses_sigma=True),
    "total_variation": Tunable("total variation", "context", _total_variation, {"weight": (0.01, 10)}),
}


def tuned_methods(parameters: Mapping[str, Mapping[str, float]], sigma: float, padding_mode: str) -> list[Method]:
    """Return the tuned filters with given parameters, for noise of σ."""
    return [
        Method(
            tunable.name,
            tunable.group,
            partial(tunable.apply, padding_mode=padding_mode, noise=sigma, **parameters[name]),
            "smoothed" if tunable.group != "context" else "",
            {"sigma": sigma, **parameters[name]} if tunable.uses_sigma else parameters[name],
            SAMPLES**2 if tunable.group != "context" else 0,
        )
        for name, tunable in TUNABLE.items()
        if name in parameters
    ]


def run(results: Results, work: Path, name: str, clean: Tensor, config: Mapping[str, Any]) -> None:
    """Denoise an image (H, W) by every filter that is missing in ``results``; write the images below ``work``."""
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
    common = {"image": name, "pixels": pixels, "sigma": sigma, "seed": seed, "padding_mode": padding_mode}
    todo = [
        {**common, "method": m.name, "gradient": m.gradient, "filter_parameters": m.parameters_text} for m in filters
    ]
    released = CAMERAMAN_PIXELS.startswith(pixels) and (sigma, seed, padding_mode) == (0.1, 42, "zeros")
    released_psnr = HEURISTIC_PSNR if released else {}
    box_filter(noisy.numpy())  # warm-up, so that the first method is timed correctly
    for setting in results.pending(todo):
        method = methods[str(setting["method"]), str(setting["gradient"])]
        start = time.perf_counter()
        image = method.apply(noisy.numpy())
        seconds = time.perf_counter() - start
        path = work / name_of(setting, HEURISTIC_RUN) / f"{name_of(setting, HEURISTIC_FILTER)}.png"
        save_gray(path, torch.from_numpy(np.asarray(image, np.float32)))
        values = {
            "group": method.group,
            "samples": method.samples or "",
            "psnr": psnr(clean.numpy(), image),
            "ssim": ssim_of(clean.numpy(), image),
            "released_psnr": "" if method.gradient == "smoothed" else released_psnr.get(method.name, ""),
            "scikit-image": versions("scikit-image")["scikit-image"],
        }
        results.add(setting, values, seconds)


def tune(sigma: float, seed: int, padding_mode: str, size: int = 256) -> dict[str, dict[str, float]]:
    """Return the parameters of each filter with the best mean PSNR on the central quarters of ``TUNED_ON``."""
    pairs = []
    middle = slice(size // 4, size - size // 4)
    for name in TUNED_ON:
        clean = torch.from_numpy(photograph(name, size)[middle, middle].copy())
        pairs.append((clean.numpy(), add_noise(clean, sigma, seed)[0].numpy()))
    best = {}
    for name, tunable in TUNABLE.items():

        def score(parameters: dict[str, float], apply: Callable[..., np.ndarray] = tunable.apply) -> float:
            return float(
                np.mean([psnr(clean, apply(noisy, padding_mode, sigma, **parameters)) for clean, noisy in pairs])
            )

        best[name] = tunable.tune(score)
    return best


def tuned_toml(sigma: float, seed: int, padding_mode: str) -> str:
    """Tune all filters and return the entries of the configuration file, with a comment on values at an edge."""
    lines = [f'[tuned."{sigma:g}"]']
    for name, parameters in tune(sigma, seed, padding_mode).items():
        edges = TUNABLE[name].at_edge(parameters)
        values = ", ".join(f"{key} = {float(value)}" for key, value in parameters.items())
        lines.append(f"{name} = {{ {values} }}" + f" # at the edge of the range: {', '.join(edges)}" * bool(edges))
    return "\n".join(lines)


def nearest(tuned: Mapping[str, Any], sigma: float) -> Mapping[str, Mapping[str, float]]:
    """Return the parameters for the nearest σ, on a logarithmic scale."""
    return tuned[min(tuned, key=lambda name: abs(np.log(float(name) / sigma)))] if tuned else {}


def ssim_of(clean: np.ndarray, image: np.ndarray) -> float:
    """Return the structural similarity for a data range of 1."""
    return float(skimage.metrics.structural_similarity(clean, image.astype(clean.dtype), data_range=1.0))
