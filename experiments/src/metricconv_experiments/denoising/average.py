"""The tuned filters, and ``denoise``, on many images."""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from metricconv import _checks, filters
from metricconv._images import psnr
from metricconv._interpolation import PADDING_MODES

from ..results import Results
from .heuristic import TUNABLE, Method, nearest, ssim_of, tuned_methods
from .inputs import add_noise, check_sigma

# The filter to which others are compared, image by image.
BASE = TUNABLE["utb_edge"].name


def settings(
    dataset: str,
    sigmas: Sequence[float],
    padding_modes: Sequence[str],
    images: int,
    seed: int,
    tuned: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """Yield the settings of the table; ``tuned`` contains filter parameters by σ."""
    for sigma in sigmas:
        check_sigma(sigma)
    for padding_mode in padding_modes:
        _checks.one_of(padding_mode, PADDING_MODES, "padding_mode")
    for sigma, padding_mode in itertools.product(sigmas, padding_modes):
        methods = _methods(tuned, sigma, padding_mode)
        for name, method in methods.items():
            row = {"method": name, "sigma": sigma, "padding_mode": padding_mode, "images": images, "seed": seed}
            yield {
                "dataset": dataset,
                **row,
                "filter_parameters": method.parameters_text,
                "base": methods[BASE].parameters_text,
            }


def run(results: Results, todo: Sequence[Mapping[str, Any]], clean: Tensor, tuned: Mapping[str, Any]) -> None:
    """Add the missing rows; ``clean`` (N, 1, H, W) are the images, ``tuned`` contains filter parameters by σ."""
    cached: tuple[object, Tensor, dict[str, Method], np.ndarray] | None = None
    for setting in results.pending(todo):
        group: Any = tuple(setting[name] for name in ("sigma", "padding_mode", "seed"))
        if cached is None or cached[0] != group:
            sigma, padding_mode, seed = group
            (noisy,) = add_noise(clean, sigma, seed)
            methods = _methods(tuned, sigma, padding_mode)
            cached = group, noisy, methods, _scores(methods[BASE], clean, noisy)[:, 0]
        _, noisy, methods, base = cached
        method, start = methods[str(setting["method"])], time.perf_counter()
        scores = _scores(method, clean, noisy)
        values = {
            "psnr": float(scores[:, 0].mean()),
            "psnr_sd": float(scores[:, 0].std()),
            "ssim": float(scores[:, 1].mean()),
            "gain": float((scores[:, 0] - base).mean()),
            "better": float((scores[:, 0] > base).mean()),
        }
        results.add(setting, values, time.perf_counter() - start)


def _methods(tuned: Mapping[str, Any], sigma: float, padding_mode: str) -> dict[str, Method]:
    """Return the filters by name, beginning with the identity."""
    chosen = [Method("noisy", "", lambda image: image), *tuned_methods(nearest(tuned, sigma), sigma, padding_mode)]
    chosen.append(Method("denoise", "context", partial(filters.denoise, sigma=sigma), parameters={"sigma": sigma}))
    methods = {method.name: method for method in chosen}
    if BASE not in methods:
        raise ValueError(f"`tuned` has no utb_edge, the filter to which others are compared, for `sigma` (={sigma})")
    return methods


def _scores(method: Method, clean: Tensor, noisy: Tensor) -> np.ndarray:
    """Return PSNR and SSIM of each image: (N, 2)."""
    pairs = zip(clean[:, 0].numpy(), noisy[:, 0].numpy(), strict=True)
    return np.array([(psnr(c, y), ssim_of(c, y)) for c, y in ((c, method.apply(x)) for c, x in pairs)])
