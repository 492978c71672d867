"""The fused GPU engine beside its rivals: every contender is checked, then timed, forward and with backward."""

import datetime
import importlib.util
import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from .._files import versions
from . import first, training
from .cases import SHAPES, Contender, Shape, calls, contenders
from .correctness import TF32_TOLERANCE, TOLERANCE, errors
from .rows import Row, Rows
from .timing import Timing, measure

_RIVALS = ("cudnn", "torchvision")
COLUMNS = [
    "op", "shape", "regime", "dtype", "mode", "timing", "p20_ms", "p50_ms", "p80_ms", "peak_mb", "max_error",
    "gpu", "torch", "triton", "cudnn", "torchvision", "metricconv", "python", "date",
]  # fmt: skip


def run(output: Path, only: str = "", eager: bool = False) -> Path:
    """Time what ``only`` selects, eager calls too if asked for; return the CSV."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    chosen = list(_selected(only))
    trained = training.cases() if only in training.SHAPE else []
    cold = [layer for layer in first.LAYERS if only in f"{layer} {layer.name}"]
    name = torch.cuda.get_device_name().replace(" ", "-").lower()
    rows = Rows(output / f"{name}.csv", COLUMNS, ("op", "shape", "dtype", "mode", "timing"), only)
    _fill(rows, *map(_first_rows, cold))
    _compile_ahead(chosen, trained)
    _fill(rows, *(_rows(*one, eager) for one in chosen), *(_training_rows(*one) for one in trained))
    return rows.written()


def _fill(rows: Rows, *measured: Iterator[Row]) -> None:
    for row in itertools.chain(*measured):
        rows.add(row)
        _say(row)


def _selected(only: str) -> Iterator[tuple[Shape, Contender]]:
    for shape in SHAPES:
        for contender in contenders(shape):
            if only in f"{shape.regime} {shape} {contender.name}":
                yield shape, contender


def _compile_ahead(chosen: list[tuple[Shape, Contender]], trained: list[tuple[str, str]]) -> None:
    """Compile all kernels by first calls in as many processes as there are cores; Triton keeps them on disk."""
    ours = [(SHAPES.index(shape), c.name, c.dtype) for shape, c in chosen if not c.name.startswith(_RIVALS)]
    print(f"compiling the kernels of {len(ours)} contenders and {len(trained)} networks", flush=True)
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(_train_first, *case) for case in trained] + [pool.submit(_call_first, *c) for c in ours]
        failed = [error for error in (job.exception() for job in jobs) if error is not None]
    if failed:  # the check, or the timing, will meet them again
        print(f"{len(failed)} failed at their first call, one with {type(failed[0]).__name__}: {failed[0]}", flush=True)


def _call_first(number: int, name: str, dtype: torch.dtype) -> None:
    shape = SHAPES[number]
    contender = next(c for c in contenders(shape) if (c.name, c.dtype) == (name, dtype))
    for tf32 in (False, True) if dtype == torch.float32 else (True,):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        for call in _calls(shape, contender).values():
            call()


def _train_first(name: str, dtype: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    training.iteration(name, dtype)()


def _rows(shape: Shape, contender: Contender, eager: bool) -> Iterator[Row]:
    """Check one contender, then time it forward, and forward + backward."""
    dtype = str(contender.dtype).removeprefix("torch.")
    what = (contender.name, str(shape), shape.regime, dtype)
    try:
        worst = _gate(shape, contender)
    except Exception as error:  # a rival may lack the dtype or the layout: the row says so
        yield _row(*what, "check", "", None, f"{type(error).__name__}: {error}".split("\n")[0][:200])
        return
    if not worst <= TOLERANCE[contender.dtype]:
        yield _row(*what, "check", "", None, f"{worst:.2e} is too large: not timed")
        return
    for (mode, call), timing in itertools.product(_calls(shape, contender).items(), _timings(contender.name, eager)):
        yield _row(*what, mode, timing, measure(call, graph=timing == "graph"), f"{worst:.1e}")


def _first_rows(layer: first.Layer) -> Iterator[Row]:
    what = (layer.name, str(layer), first.REGIME, layer.dtype)
    try:
        found = first.measure(layer)
    except RuntimeError as error:
        yield _row(*what, "check", "", None, str(error)[:200])
        return
    for mode, ms in found.items():
        yield _row(*what, mode, "once", Timing(ms, ms, ms, 0.0)) | {"peak_mb": ""}


def _training_rows(name: str, dtype: str) -> Iterator[Row]:
    iterate = training.iteration(name, dtype)
    for timing in _timings(name, eager=True):
        yield _row(
            name, training.SHAPE, "training", dtype, "iteration", timing, measure(iterate, graph=timing == "graph")
        )


def _timings(name: str, eager: bool) -> list[str]:
    """Return how to time a contender: torchvision launches on the default stream, where no capture sees its kernels."""
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


def _say(row: Row) -> None:
    number = row.get("p50_ms", row["max_error"])
    print(f"{row['op']:28}{row['shape']:28}{row['dtype']:10}{row['mode']:10}{row['timing']:7}{number:>10}", flush=True)


def _gate(shape: Shape, contender: Contender) -> float:
    """Return the worst error of one of ours, in float32 without TF32, or with it where that one is too large."""
    if contender.name.startswith(_RIVALS):  # rivals are taken at their word
        return 0.0
    if contender.dtype == torch.float32:
        rough = _worst(shape, contender, tf32=True)
        if not rough <= TF32_TOLERANCE:
            return rough
    return _worst(shape, contender, tf32=False)


def _worst(shape: Shape, contender: Contender, tf32: bool) -> float:
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        return max(errors(contender, shape, "cuda").values())
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _calls(shape: Shape, contender: Contender) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    tensors = contender.inputs(shape, "cuda")
    return calls(shape, contender, tensors)


def _versions() -> dict[str, str]:
    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        **versions("triton", *["torchvision"] * (importlib.util.find_spec("torchvision") is not None)),
        "cudnn": str(torch.backends.cudnn.version()),
        "date": datetime.date.today().isoformat(),
    }
