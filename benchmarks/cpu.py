"""Benchmarks of the CPU backend: torch's convolution, ``grid_sample``, the reference, and a filtered photograph."""

import ctypes
import dataclasses
import datetime
import math
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

import metricconv as mc
from metricconv._files import versions

from .cases import (
    Implementation,
    Inputs,
    Shape,
    calls,
    conv2d,
    geodesic_conv,
    metric_conv,
    metric_inputs,
    no_inputs,
    reference_conv,
    stencil,
)
from .correctness import TOLERANCE, errors
from .rows import Row, Rows

COLUMNS = [
    "op", "shape", "mode", "p20_ms", "p50_ms", "p80_ms", "peak_mb", "max_error", "repetitions", "cpu", "threads",
    "load", "torch", "numba", "metricconv", "python", "date",
]  # fmt: skip

DENSE = Shape("dense", 8, 64, 32, 32, 3)
FEW = Shape("few channels", 1, 1, 256, 256, 11)
LARGE = [dataclasses.replace(FEW, kernel=k) for k in (31, 121)]
PHOTOGRAPH = (3000, 4000, 3)
STEPS = 4

Call = Callable[[], object]


def run(folder: Path, only: str = "", threads: int = 2) -> Path:
    """Check and measure what ``only`` selects; return the path of the CSV."""
    torch.set_num_threads(threads)
    path = folder / f"{re.sub(r'[^a-z0-9]+', '-', processor().lower()).strip('-')}.csv"
    rows = Rows(path, COLUMNS, ("op", "shape", "mode"), only)
    for row in _rows(only):
        rows.add(row | _environment())
        median = row.get("p50_ms", "")
        print(f"{row['op']:28}{row['shape']:24}{row['mode']:9}{median:>12}{row.get('peak_mb', ''):>10}", flush=True)
    return rows.written()


def cpu_implementations(shape: Shape) -> Iterator[Implementation]:
    """Yield the implementations to compare on a CPU, baselines first."""
    single = torch.float32
    if shape in LARGE:
        yield Implementation("metric", single, False, metric_inputs, _metric_conv)
        return
    if shape.channels > 1:
        yield Implementation("torch conv2d", single, False, no_inputs, conv2d)
    else:
        yield Implementation("grid_sample", single, False, metric_inputs, _grid_sample)
    yield Implementation("metric", single, False, metric_inputs, _metric_conv)
    yield Implementation("metric (reference)", single, False, metric_inputs, reference_conv)
    yield Implementation("geodesic", single, False, metric_inputs, geodesic_conv(STEPS, "cpu"))
    yield Implementation("geodesic (reference)", single, False, metric_inputs, geodesic_conv(STEPS, "reference"))


def _rows(only: str) -> Iterator[Row]:
    # First, because memory freed by other calls and allocated again would count as the filter's.
    if only in "photograph tangent_filter":
        yield _photograph()
    for shape in (DENSE, FEW, *LARGE):
        selected = [c for c in cpu_implementations(shape) if only in f"{shape} {c.name}"]
        error = {c.name: _largest_error(shape, c) for c in selected}
        correct = {c.name: _calls(shape, c) for c in selected if error[c.name] <= TOLERANCE[c.dtype]}
        for mode in ("fwd", "fwd+bwd"):
            for name, (times, megabytes) in _measure({name: modes[mode] for name, modes in correct.items()}).items():
                yield {"op": name, "shape": str(shape), "mode": mode, "max_error": f"{error[name]:.1e}"} | _times(
                    times, megabytes
                )
        for name, value in error.items():
            if not value <= TOLERANCE[torch.float32]:
                yield {"op": name, "shape": str(shape), "mode": "check", "max_error": f"{value:.2e}"}


def _largest_error(shape: Shape, implementation: Implementation) -> float:
    """Return the largest error of the output and of any gradient; torch's own convolution is not checked."""
    if implementation.call is conv2d:
        return 0.0
    truth = geodesic_conv(STEPS, "reference") if "geodesic" in implementation.name else reference_conv
    return max(errors(implementation, shape, "cpu", dataclasses.replace(implementation, call=truth)).values())


def _calls(shape: Shape, implementation: Implementation) -> dict[str, Call]:
    torch.manual_seed(0)
    tensors = implementation.inputs(shape, "cpu")
    if shape.channels == 1:  # a filter: uniform weights without gradient
        tensors["weight"] = torch.full_like(tensors["weight"], 1 / shape.kernel**2)
    return calls(shape, implementation, tensors)


def _measure(calls: dict[str, Call], seconds: float = 20.0, most: int = 60) -> dict[str, tuple[list[float], float]]:
    """Return the milliseconds and the peak memory in MB of each call; calls alternate, to share external load."""
    peaks = {name: _peak(call) for name, call in calls.items()}  # also a warm-up
    times: dict[str, list[float]] = {name: [] for name in calls}
    start = time.perf_counter()
    for repetition in range(most):
        for name, call in calls.items():
            # Slow calls are timed less often.
            if repetition >= 3 and statistics.median(times[name]) > 1000 and repetition % 5:
                continue
            begin = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - begin))
        if repetition >= 9 and time.perf_counter() - start > seconds:
            break
    return {name: (times[name], peaks[name]) for name in calls}


def _times(times: list[float], megabytes: float) -> Row:
    ordered = sorted(times)
    quantiles = {f"p{q}_ms": f"{ordered[math.ceil(q / 100 * len(ordered)) - 1]:.3f}" for q in (20, 50, 80)}
    return {**quantiles, "peak_mb": f"{megabytes:.1f}", "repetitions": str(len(times))}


def _photograph() -> Row:
    """Filter a photograph of 12 megapixels and show progress."""
    import numpy
    import rich.progress

    y, x = (torch.arange(float(n)) for n in PHOTOGRAPH[:2])
    waves = [torch.outer((y / (23 + 3 * c)).cos(), (x / (17 + 5 * c)).sin()) for c in range(3)]
    noise = torch.randn(PHOTOGRAPH, generator=torch.Generator().manual_seed(0))
    image: numpy.ndarray = (127 + 100 * torch.stack(waves, -1) + 8 * noise).clamp(0, 255).to(torch.uint8).numpy()
    mc.filters.tangent_filter(image[:64, :64], channel_axis=-1)
    del noise, waves

    def call() -> object:
        with rich.progress.Progress() as bars:
            task = bars.add_task("photograph")
            return mc.filters.tangent_filter(
                image, 11, channel_axis=-1, progress=lambda done, rows: bars.update(task, completed=done, total=rows)
            )

    begin = time.perf_counter()
    megabytes = _peak(call, repeat=False)
    name = f"{PHOTOGRAPH[1]}×{PHOTOGRAPH[0]}×{PHOTOGRAPH[2]} k11"
    row = {"op": "tangent_filter", "shape": name, "mode": "fwd"}
    return row | _times([1e3 * (time.perf_counter() - begin)], megabytes)


def _peak(call: Call, repeat: bool = True) -> float:
    """Return the peak memory of the process during a call minus that before, in MB; NaN where it cannot be read."""
    if repeat:
        call()
    try:
        ctypes.CDLL(None).malloc_trim(0)  # memory freed by earlier calls
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        before = _status("VmRSS")
        call()
        return (_status("VmHWM") - before) / 1024
    except (OSError, AttributeError):
        return float("nan")


def _status(name: str) -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1])


def _metric_conv(shape: Shape, t: Inputs) -> Tensor:
    return metric_conv(shape, t, backend="cpu")


def _grid_sample(shape: Shape, t: Inputs) -> Tensor:
    """Compute the same with plain torch: a grid of all sampling locations, ``grid_sample``, a weighted sum."""
    ball = mc.TangentBall(mc.Randers(t["M"], t["omega"]), stencil(shape.kernel, t["M"].device))
    y, x = ball.offsets()[:, 0].unbind(2)  # [B, P, H, W]
    y = (y + torch.arange(shape.height).view(-1, 1).to(y)) * (2 / (shape.height - 1)) - 1
    x = (x + torch.arange(shape.width).to(x)) * (2 / (shape.width - 1)) - 1
    grid = torch.stack([x, y], -1).flatten(1, 2)  # [B, P·H, W, 2]
    samples = functional.grid_sample(t["x"], grid, align_corners=True).unflatten(2, (-1, shape.height))
    return torch.einsum("bcphw,ocp->bohw", samples, t["weight"].flatten(2))


def processor() -> str:
    """Return the name of the processor."""
    try:
        (name, *_) = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except (OSError, ValueError):
        name = platform.processor() or platform.machine()
    return re.sub(r"\((R|TM)\)", "", name)


def _environment() -> Row:
    return {
        "cpu": processor(),
        "threads": str(torch.get_num_threads()),
        "load": f"{os.getloadavg()[0]:.1f}",
        **versions("numba"),
        "date": datetime.date.today().isoformat(),
    }
