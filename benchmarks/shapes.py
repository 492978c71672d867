"""``python -m benchmarks.shapes``: convolutions over balls of every family, compared with deformable convolutions.

All are checked, then timed in float32, forward and forward + backward. Writes ``shapes.csv`` with times and their
ratios to our deformable convolution and, on a GPU, to torchvision's, on a CPU to the reference backend. On a GPU calls
are replayed as CUDA graphs, and also timed eagerly for the ratio to torchvision's, which cannot be captured.
"""

import argparse
import dataclasses
import functools
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

import metricconv as mc
from metricconv.metrics.parametrizations import PARAMETRIZATIONS

from . import cpu
from .cases import Implementation, Inputs, Shape, calls, gpu_implementations, stencil
from .correctness import TOLERANCE, errors
from .rows import Rows
from .timing import measure

FAMILIES = {"randers": "spectral7", "asymmetric": "asymmetric", "orthant": "orthant", "half_space": "half_space"}
SHAPES = [
    Shape("one channel", 1, 1, 256, 256, 5),
    Shape("one channel", 1, 1, 256, 256, 11),
    Shape("64 channels", 8, 64, 32, 32, 3),
    Shape("256 channels", 8, 256, 32, 32, 3),
]
# Names of implementations in cases.py and in columns.
BASELINES = {
    "cuda": {"torchvision deform_conv2d": "torchvision", "deformable": "deformable"},
    "cpu": {"deformable": "deformable"},
}
COLUMNS = [
    "device", "family", "shape", "mode", "ms", "eager_ms", "torchvision_ms", "deformable_ms", "reference_ms",
    "ratio_to_torchvision", "ratio_to_deformable", "ratio_to_reference", "max_error", "torch", "threads",
]  # fmt: skip


def family(name: str, backend: str = "auto") -> Implementation:
    """Return the convolution over tangent balls of a family, on random metrics."""
    parametrization = PARAMETRIZATIONS[FAMILIES[name]]()
    kind = type(parametrization(torch.zeros(1, 1, parametrization.channels, 1, 1)))

    def inputs(shape: Shape, device: str) -> Inputs:
        raw = 0.5 * torch.randn(shape.batch, 1, parametrization.channels, shape.height, shape.width, device=device)
        return parametrization(raw).scaled(min(max(shape.kernel // 2, 1), 5)).tensors()

    def call(shape: Shape, t: Inputs) -> Tensor:
        metric = kind(**{name: value for name, value in t.items() if name not in ("x", "weight")})
        ball = mc.TangentBall(metric, stencil(shape.kernel, t["x"].device))
        return mc.support_conv(t["x"], ball, t["weight"], padding=shape.kernel // 2, backend=backend)

    return Implementation(name, torch.float32, False, inputs, call)


def largest_error(name: str, shape: Shape, device: str) -> float:
    """Return the largest error relative to the reference, of the output and of any gradient."""
    # Rounding decides whether a sample at the tolerance counts as a lattice point. A wrong kernel fails again.
    for seed in (0, 1):
        error = max(errors(family(name), shape, device, family(name, "reference"), seed).values())
        if error <= TOLERANCE[torch.float32]:
            break
    return error


def all_errors(jobs: list[tuple[str, Shape]], device: str) -> list[float]:
    """Return the errors of all families and shapes; on a GPU in parallel processes, which compile the kernels."""
    names, shapes = zip(*jobs, strict=True)
    if device == "cpu":
        return [largest_error(*job, device) for job in jobs]
    with ProcessPoolExecutor(12, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(largest_error, names, shapes, [device] * len(jobs)))


def milliseconds(call: Callable[[], object], device: str, graph: bool) -> float:
    """Return the median time of a call, on a GPU eager or as a CUDA graph."""
    return measure(call, graph=graph).p50 if device == "cuda" else statistics.median(cpu_times(call))


def cpu_times(call: Callable[[], object], seconds: float = 1.0) -> list[float]:
    """Return the milliseconds of at least three calls, after one that is not timed."""
    times: list[float] = []
    call()
    while len(times) < 3 or sum(times) < 1e3 * seconds:
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def measure_shape(shape: Shape, names: list[str], found: dict[str, float], device: str, rows: Rows) -> None:
    """Time some families and the baselines on one shape, and add a row for each family and mode."""
    columns = BASELINES[device]
    baselines = {
        columns[c.name]: dataclasses.replace(c, channels_last=False)
        for c in gpu_implementations(shape)
        if c.name in columns and c.dtype == torch.float32
    }
    implementations = {**baselines, **{name: family(name) for name in names}}
    if device == "cpu":
        implementations |= {f"{name}, reference": family(name, "reference") for name in names}
    prepared = {}
    for name, implementation in implementations.items():
        torch.manual_seed(0)
        prepared[name] = calls(shape, implementation, implementation.inputs(shape, device))
    for mode in ("fwd", "fwd+bwd"):
        times = {
            name: milliseconds(modes[mode], device, graph=name != "torchvision") for name, modes in prepared.items()
        }
        for name in names:
            eager = milliseconds(prepared[name][mode], device, graph=False) if device == "cuda" else None
            compared = {b: (eager if b == "torchvision" else times[name], times[b]) for b in baselines}
            if device == "cpu":
                compared["reference"] = times[name], times[f"{name}, reference"]
            row = {f"{other}_ms": f"{ms:.4f}" for other, (_, ms) in compared.items()}
            ratios = {other: ours / ms for other, (ours, ms) in compared.items() if ours is not None}
            row |= {f"ratio_to_{other}": f"{ratio:.3f}" for other, ratio in ratios.items()}
            row |= {"family": name, "shape": str(shape), "mode": mode, "ms": f"{times[name]:.4f}"}
            row |= {} if eager is None else {"eager_ms": f"{eager:.4f}"}
            rows.add(row | {"max_error": f"{found[name]:.1e}", **environment(device)})
            text = ", ".join(f"{ratio:.2f} × {other}" for other, ratio in ratios.items())
            print(f"{shape!s:22}{mode:9}{name:12}{times[name]:10.4f} ms = {text}", flush=True)


@functools.cache
def environment(device: str) -> dict[str, str]:
    """Return the columns that describe the machine."""
    name = torch.cuda.get_device_name() if device == "cuda" else cpu.processor()
    return {"device": name, "torch": torch.__version__, "threads": str(torch.get_num_threads())}


def main(arguments: list[str] | None = None) -> None:
    """Check and time the families that are selected."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shapes", description="Measure balls of every family.")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/shapes.csv"), help="CSV to write")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES), help="families to measure")
    parser.add_argument("--only", default="", help="measure only shapes whose name contains this")
    options = parser.parse_args(arguments)
    rows = Rows(options.output, COLUMNS, ("device", "family", "shape", "mode"), options.only or "other devices")
    shapes = [shape for shape in SHAPES if options.only in f"{shape.regime} {shape}"]
    jobs = [(name, shape) for shape in shapes for name in options.families]
    found = dict(zip(jobs, all_errors(jobs, options.device), strict=True))
    wrong = {job: error for job, error in found.items() if not error <= TOLERANCE[torch.float32]}
    for (name, shape), error in wrong.items():
        print(f"{shape!s:22}{name:12} error {error:.1e}: not timed", flush=True)
    for shape in shapes:
        names = [name for name in options.families if (name, shape) not in wrong]
        measure_shape(shape, names, {name: found[name, shape] for name in names}, options.device, rows)
    rows.written()


if __name__ == "__main__":
    main()
