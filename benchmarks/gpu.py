"""Benchmarks on a GPU: every implementation is checked, then timed, forward and with backward."""

import datetime
import importlib.util
import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from metricconv._files import versions

from . import first_call, training
from .cases import SHAPES, Implementation, Shape, calls, gpu_implementations
from .correctness import TF32_TOLERANCE, TOLERANCE, errors
from .rows import Row, Rows
from .timing import Timing, measure

_BASELINES = ("cudnn", "torchvision")
COLUMNS = [
    "op", "shape", "regime", "dtype", "mode", "timing", "p20_ms", "p50_ms", "p80_ms", "peak_mb", "max_error",
    "gpu", "torch", "triton", "cudnn", "torchvision", "metricconv", "python", "date",
]  # fmt: skip


def run(output: Path, only: str = "", eager: bool = False) -> Path:
    """Measure what ``only`` selects and return the path of the CSV; with ``eager``, also time eager calls."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    selected = list(_selected(only))
    trained = training.cases() if only in training.SHAPE else []
    first_calls = [layer for layer in first_call.LAYERS if only in f"{layer} {layer.name}"]
    name = torch.cuda.get_device_name().replace(" ", "-").lower()
    rows = Rows(output / f"{name}.csv", COLUMNS, ("op", "shape", "dtype", "mode", "timing"), only)
    _measure_all(rows, *map(_first_rows, first_calls))
    _compile_ahead(selected, trained)
    _measure_all(rows, *(_rows(*one, eager) for one in selected), *(_training_rows(*one) for one in trained))
    return rows.written()


def _measure_all(rows: Rows, *measured: Iterator[Row]) -> None:
    for row in itertools.chain(*measured):
        rows.add(row)
        _print(row)


def _selected(only: str) -> Iterator[tuple[Shape, Implementation]]:
    for shape in SHAPES:
        for implementation in gpu_implementations(shape):
            if only in f"{shape.regime} {shape} {implementation.name}":
                yield shape, implementation


def _compile_ahead(selected: list[tuple[Shape, Implementation]], trained: list[tuple[str, str]]) -> None:
    """Compile all kernels in parallel processes, by calling everything once; Triton caches them on disk."""
    ours = [(SHAPES.index(shape), c.name, c.dtype) for shape, c in selected if not c.name.startswith(_BASELINES)]
    print(f"compiling the kernels of {len(ours)} implementations and {len(trained)} networks", flush=True)
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(_train_first, *case) for case in trained] + [pool.submit(_call_first, *c) for c in ours]
        failed = [error for error in (job.exception() for job in jobs) if error is not None]
    if failed:  # the check or the timing reports them again
        print(f"{len(failed)} failed at their first call, one with {type(failed[0]).__name__}: {failed[0]}", flush=True)


def _call_first(index: int, name: str, dtype: torch.dtype) -> None:
    shape = SHAPES[index]
    implementation = next(c for c in gpu_implementations(shape) if (c.name, c.dtype) == (name, dtype))
    for tf32 in (False, True) if dtype == torch.float32 else (True,):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        for call in _calls(shape, implementation).values():
            call()


def _train_first(name: str, dtype: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    training.iteration(name, dtype)()


def _rows(shape: Shape, implementation: Implementation, eager: bool) -> Iterator[Row]:
    """Check one implementation, then time it forward, and forward and backward."""
    dtype = str(implementation.dtype).removeprefix("torch.")
    key = (implementation.name, str(shape), shape.regime, dtype)
    try:
        worst = _largest_error(shape, implementation)
    except Exception as error:  # a baseline may not support the dtype or layout
        yield _row(*key, "check", "", None, f"{type(error).__name__}: {error}".split("\n")[0][:200])
        return
    if not worst <= TOLERANCE[implementation.dtype]:
        yield _row(*key, "check", "", None, f"{worst:.2e} is too large: not timed")
        return
    for (mode, call), timing in itertools.product(
        _calls(shape, implementation).items(), _timings(implementation.name, eager)
    ):
        yield _row(*key, mode, timing, measure(call, graph=timing == "graph"), f"{worst:.1e}")


def _first_rows(layer: first_call.Layer) -> Iterator[Row]:
    key = (layer.name, str(layer), first_call.REGIME, layer.dtype)
    try:
        found = first_call.measure(layer)
    except RuntimeError as error:
        yield _row(*key, "check", "", None, str(error)[:200])
        return
    for mode, ms in found.items():
        yield _row(*key, mode, "once", Timing(ms, ms, ms, 0.0)) | {"peak_mb": ""}


def _training_rows(name: str, dtype: str) -> Iterator[Row]:
    iterate = training.iteration(name, dtype)
    for timing in _timings(name, eager=True):
        yield _row(
            name, training.SHAPE, "training", dtype, "iteration", timing, measure(iterate, graph=timing == "graph")
        )


def _timings(name: str, eager: bool) -> list[str]:
    """Return how to time an implementation. torchvision launches on the default stream and cannot be captured."""
    return ["eager"] if name.startswith("torchvision") else ["graph", *["eager"] * eager]


def _row(
    op: str, shape: str, regime: str, dtype: str, mode: str, timing: str, measured: Timing | None, error: str = ""
) -> Row:
    row = {"op": op, "shape": shape, "regime": regime, "dtype": dtype, "mode": mode, "timing": timing}
    row |= {"max_error": error, **_versions()}
    if measured is not None:
        row |= {f"p{q}_ms": f"{getattr(measured, f'p{q}'):.4f}" for q in (20, 50, 80)}
        row["peak_mb"] = f"{measured.megabytes:.1f}"
    return row


def _print(row: Row) -> None:
    result = row.get("p50_ms", row["max_error"])
    print(f"{row['op']:28}{row['shape']:28}{row['dtype']:10}{row['mode']:10}{row['timing']:7}{result:>10}", flush=True)


def _largest_error(shape: Shape, implementation: Implementation) -> float:
    """Return the largest error: in float32 without TF32, or with TF32 if that error is too large; 0 for baselines."""
    if implementation.name.startswith(_BASELINES):
        return 0.0
    if implementation.dtype == torch.float32:
        tf32 = _error(shape, implementation, tf32=True)
        if not tf32 <= TF32_TOLERANCE:
            return tf32
    error = _error(shape, implementation, tf32=False)
    if error <= TOLERANCE[implementation.dtype]:
        return error
    # Rounding decides whether a sample at the tolerance counts as a lattice point. A wrong kernel fails again.
    return _error(shape, implementation, tf32=False, seed=1)


def _error(shape: Shape, implementation: Implementation, tf32: bool, seed: int = 0) -> float:
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        return max(errors(implementation, shape, "cuda", seed=seed).values())
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _calls(shape: Shape, implementation: Implementation) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    tensors = implementation.inputs(shape, "cuda")
    return calls(shape, implementation, tensors)


def _versions() -> dict[str, str]:
    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        **versions("triton", *["torchvision"] * (importlib.util.find_spec("torchvision") is not None)),
        "cudnn": str(torch.backends.cudnn.version()),
        "date": datetime.date.today().isoformat(),
    }
