"""Time of ``filters.denoise`` compared with non-local means: ``python -m benchmarks.denoising``.

Photographs of scikit-image with noise of σ = 25 of 255, which all methods are given, on one thread; non-local means of
scikit-image with ``fast_mode`` and the parameters of the denoising benchmark. Methods run alternately, the least time
counts. A photograph of 12 megapixels, repeated reflections of one, is denoised on all threads, with the noise
estimated; its peak memory is that of the process. Rows are written to ``denoising.csv``.
"""

import argparse
import datetime
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import skimage
import torch
from numpy.typing import NDArray

from metricconv import filters
from metricconv._images import psnr

from .rows import Rows

COLUMNS = ["image", "size", "threads", "method", "seconds", "ratio", "psnr", "peak_mb", "hardware", "date"]
SIGMA = 25 / 255
REPEATS = 3
LARGE = (3000, 4000)
Array = NDArray[np.float64]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", choices=("gray", "color", "large"), required=True, help="Image to denoise.")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="Folder of the table.")
    options = parser.parse_args()
    if options.image != "large":
        torch.set_num_threads(1)
    rows = Rows(options.output / "denoising.csv", COLUMNS, ("image", "method"), options.image)
    clean = photograph(options.image)
    noisy = clean + np.random.default_rng(0).normal(0, SIGMA, clean.shape)
    shared = {
        "image": options.image,
        "size": " × ".join(map(str, clean.shape)),
        "threads": str(torch.get_num_threads()),
    }
    shared |= {"hardware": _processor(), "date": datetime.date.today().isoformat()}
    methods = _methods(options.image)
    seconds = dict.fromkeys(methods, float("inf"))
    results = {name: apply(noisy[:64, :64]) for name, apply in methods.items()}  # compiles
    for _ in range(1 if options.image == "large" else REPEATS):
        for name, apply in methods.items():
            start = time.perf_counter()
            results[name] = apply(noisy)
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    for name, result in results.items():
        row = {"method": name, "seconds": f"{seconds[name]:.2f}", "psnr": f"{psnr(clean, result):.2f}"}
        row |= {"ratio": f"{seconds[name] / seconds['non-local means']:.2f}" if "non-local means" in methods else ""}
        row |= {"peak_mb": f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}"}
        rows.add(shared | row)
    print(rows.written())


def photograph(name: str) -> Array:
    """Return a photograph as floats in [0, 1]; the large one in float32."""
    if name == "color":
        return skimage.data.astronaut() / 255
    gray = skimage.data.camera() / 255
    if name == "gray":
        return gray
    height, width = LARGE
    repeated = np.pad(gray, ((0, height - len(gray)), (0, width - len(gray))), mode="reflect").astype(np.float32)
    return np.asarray(repeated)


def _methods(image: str) -> dict[str, Callable[[Array], Array]]:
    if image == "large":
        return {"denoise": filters.denoise}
    axis, patch, strength = (-1, 3, 0.466) if image == "color" else (None, 5, 0.538)
    return {
        "denoise": lambda x: filters.denoise(x, SIGMA, channel_axis=axis),
        "non-local means": lambda x: skimage.restoration.denoise_nl_means(
            x, patch, 8, h=strength * SIGMA, sigma=SIGMA, fast_mode=True, channel_axis=axis
        ),
    }


def _processor() -> str:
    names = [
        line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "name" in line
    ]
    return names[0] if names else ""


if __name__ == "__main__":
    main()
