"""The filters whose knobs were tuned, on many pictures: what one picture says may be chance."""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ... import _checks
from ..._interpolation import PADDING_MODES
from ..results import Results
from .heuristic import TUNABLE, Method, nearest, psnr_of, ssim_of, tuned_methods
from .pictures import add_noise, check_sigma

# The filter that others are compared with, picture by picture.
BASE = TUNABLE["utb_edge"].name


def settings(
    dataset: str, sigmas: Sequence[float], padding_modes: Sequence[str], pictures: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table."""
    names = ["noisy", *(tunable.name for tunable in TUNABLE.values())]
    for sigma in sigmas:
        check_sigma(sigma)
    for padding_mode in padding_modes:
        _checks.one_of(padding_mode, PADDING_MODES, "padding_mode")
    for sigma, padding_mode, name in itertools.product(sigmas, padding_modes, names):
        row = {"method": name, "sigma": sigma, "padding_mode": padding_mode}
        yield {"dataset": dataset, **row, "pictures": pictures, "seed": seed}


def run(results: Results, todo: Sequence[Mapping[str, Any]], clean: Tensor, tuned: Mapping[str, Any]) -> None:
    """Add the rows that ``results`` lacks; ``clean`` (N, 1, H, W) are the pictures, ``tuned`` the knobs by σ."""
    held: tuple[object, Tensor, dict[str, Method], np.ndarray] | None = None
    for setting in results.pending(todo):
        group: Any = tuple(setting[name] for name in ("sigma", "padding_mode", "seed"))
        if held is None or held[0] != group:
            sigma, padding_mode, seed = group
            (noisy,) = add_noise(clean, sigma, seed)
            methods = {m.name: m for m in tuned_methods(nearest(tuned, sigma), padding_mode)}
            methods["noisy"] = Method("noisy", "", lambda image: image)
            held = group, noisy, methods, _scores(methods[BASE], clean, noisy)[:, 0]
        _, noisy, methods, base = held
        method, start = methods[str(setting["method"])], time.perf_counter()
        scores = _scores(method, clean, noisy)
        values = {
            "knobs": " ".join(f"{key}={value:g}" for key, value in method.knobs.items()),
            "psnr": float(scores[:, 0].mean()),
            "psnr_sd": float(scores[:, 0].std()),
            "ssim": float(scores[:, 1].mean()),
            "gain": float((scores[:, 0] - base).mean()),
            "better": float((scores[:, 0] > base).mean()),
        }
        results.add(setting, values, time.perf_counter() - start)


def _scores(method: Method, clean: Tensor, noisy: Tensor) -> np.ndarray:
    """Return PSNR and SSIM of each picture: (N, 2)."""
    pairs = zip(clean[:, 0].numpy(), noisy[:, 0].numpy(), strict=True)
    return np.array([(psnr_of(c, y), ssim_of(c, y)) for c, y in ((c, method.apply(x)) for c, x in pairs)])
