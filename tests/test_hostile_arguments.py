"""Every public callable, called with one argument replaced by an unsuitable value.

The outcome is a result, or an error that names the argument. Other exceptions, warnings, NaN from finite values, long
computations and large allocations fail.
"""

import contextlib
import inspect
import math
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import GeneratorType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import metricconv as mc
from api_examples import METHODS, example, public_callables
from metricconv.ops import cpu

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory by RLIMIT_AS and /proc")
CALLABLES = public_callables()
SECONDS, BYTES = 5, 2**30
# Other names under which errors mention an argument.
ALIASES = {
    **{"x": "input", "images": "image", "backgrounds": "image", "targets": "target", "point": "points"},
    **{"source": "metric", "metric": "source"},
    **{"sources": "metric", "start": "metric", "center": "metric", "path": "metric"},
}
# Arguments that are not checked here.
EXCEPTIONS = {
    *((f"nn.{layer}Conv{d}d", "device") for layer in ("Metric", "Deformable", "Dilated", "Shifted") for d in (1, 2, 3)),
    ("Randers.from_zermelo", "wind"),  # must be inside the ellipsoid
    # The model of the user raises the errors of torch.
    *(("viz.plot_gradcam", "images"), ("viz.receptive_field", "image"), ("viz.plot_receptive_field", "image")),
}

VALUES: dict[str, Any] = {
    **{"None": None, "'a'": "a", "''": "", "True": True, "0": 0, "-1": -1, "2.5": 2.5, "nan": float("nan")},
    **{"inf": float("inf"), "1e300": 1e300, "1e-320": 1e-320, "2**70": 2**70, "[]": [], "[None]": [None], "{}": {}},
    **{"[1, 2, 3, 4]": [1, 2, 3, 4], "object": object(), "float32": np.float32(2), "int64": np.int64(3)},
    **{"array": np.ones(3), "objects": np.array([None]), "number tensor": torch.tensor(3), "empty": torch.zeros(0)},
}
# Unsuitable tensors, from a suitable one.
TENSORS: dict[str, Callable[[Tensor], Tensor]] = {
    "no batch": lambda t: t.flatten()[:0] if t.dim() < 2 else t[:0],
    "no pixels": lambda t: t[..., :0],
    "no channels": lambda t: t.narrow(min(2, t.dim() - 1), 0, 0) if t.dim() else t,
    "flat": lambda t: t.flatten(),
    "longer": lambda t: torch.cat([t, t], -1) if t.dim() else t.view(1).expand(2),
    "another axis": lambda t: t.unsqueeze(-1),
    "float64": lambda t: t.double(),
    "float16": lambda t: t.half(),
    "integer": lambda t: t.long(),
    "bool": lambda t: t.bool(),
    "complex": lambda t: t.to(torch.complex64),
    "float8": lambda t: t.to(torch.float8_e4m3fn),
    "meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "nested": lambda t: torch.nested.nested_tensor([t]),
    "quantized": lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
    "huge": lambda t: torch.full_like(t, 3e38),
    "negative": lambda t: torch.full_like(t, -1),
}
METRICS: dict[str, Callable[[mc.Metric], Any]] = {
    **{name: lambda m, change=TENSORS[name]: m.map(change) for name in ("no batch", "meta", "huge", "negative")},
    "another axis": lambda m: mc.Riemannian.isotropic(2.0, m.dim + 1),
    "float64": lambda m: m.to(torch.float64),
    "two images": lambda m: m.map(lambda t: t.expand(2, *t.shape[1:])),
}


def unsuitable(value: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield names of values that may replace an argument, and functions that make them."""
    yield from ((name, lambda other=other: other) for name, other in VALUES.items())
    if isinstance(value, mc.Metric):
        yield from ((name, lambda change=change: change(value)) for name, change in METRICS.items())
    if hasattr(value, "dask"):
        yield "unknown chunks", lambda: value[value.sum(1) > 0]
    changes = TENSORS if isinstance(value, Tensor) else {name: TENSORS[name] for name in ("meta", "sparse", "float8")}
    tensor = value if isinstance(value, Tensor) else torch.ones(2, 2)
    yield from ((f"tensor: {name}", lambda change=change: change(tensor)) for name, change in changes.items())


def arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> list[str]:
    """Return the names of all arguments; variable ones by those in the example."""
    parameters = inspect.signature(function).parameters.values()
    named = [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return list(dict.fromkeys([*named, *given]))


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Raise an error if a block takes too long or allocates too much."""
    import resource  # not on Windows

    def stop(*_: object) -> None:
        raise TimeoutError(f"longer than {SECONDS} s")

    with open("/proc/self/statm", encoding="ascii") as file:
        in_use = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + BYTES, before[1]))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGALRM, handler)


def call(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Call a function; run iterators and context managers that it returns, and compute what is lazy."""
    found = function(**given)
    if isinstance(found, GeneratorType):
        return list(found)
    if isinstance(found, contextlib.AbstractContextManager):
        with found:
            return None
    if isinstance(found, mc.Support):
        return found.offsets()
    return found.compute() if hasattr(found, "dask") else found


def tensors(result: Any) -> Iterator[Tensor]:
    """Yield the tensors of a result."""
    if isinstance(result, np.ndarray) and result.dtype.kind == "f":
        yield torch.from_numpy(result)
    elif isinstance(result, Tensor):
        yield result
    elif isinstance(result, mc.Metric):
        yield from result.tensors().values()
    elif isinstance(result, list | tuple):
        for part in result:
            yield from tensors(part)


def finite(value: Any) -> bool:
    """Return whether a value is finite; for a metric, whether it is positive, which not all functions check."""
    if isinstance(value, mc.Metric):
        return bool(value.is_positive().all())
    return not isinstance(value, float) or math.isfinite(value)


def problem(function: Callable[..., Any], given: Mapping[str, Any], name: str) -> str | None:
    """Return what is wrong with the outcome of a call, or None."""
    try:
        with limits():
            result = call(function, given)
    except (ValueError, TypeError, NotImplementedError) as error:
        names = set(re.findall(r"`(\w+)", str(error)))  # arguments that disagree may be named by either
        known = arguments(function, given)
        named = names & {*known, *(ALIASES.get(other) for other in known)}
        return None if named else f"{type(error).__name__} does not name it: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close("all")
    nan = any(t.device.type != "meta" and t.is_floating_point() and bool(t.isnan().any()) for t in tensors(result))
    return "NaN from finite values" if nan and finite(given[name]) else None


def problems(function: Callable[..., Any], make: Callable[[], dict[str, Any]], name: str = "") -> list[str]:
    call(function, make())  # the example is valid
    found = []
    for argument in arguments(function, make()):
        if (name, argument) in EXCEPTIONS:
            continue
        for label, value in unsuitable(make().get(argument)):
            given = make()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # nested and quantized tensors are prototypes
                given[argument] = value()
            why = problem(function, given, argument)
            found += [] if why is None else [f"{argument} = {label}: {why.strip().splitlines()[0]}"]
    return found


@pytest.fixture(autouse=True)
def _no_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the reference backend: arguments are checked before a backend is selected, and numba compiles for long."""
    monkeypatch.setattr(cpu, "unsupported_reason", lambda problem: "it is slow to compile")


@pytest.mark.parametrize("name", CALLABLES)
def test_unsuitable_arguments_raise_errors_that_name_them(name: str) -> None:
    found = problems(CALLABLES[name], lambda: example(name), name)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", METHODS)
def test_unsuitable_arguments_of_methods_raise_errors_that_name_them(name: str) -> None:
    found = problems(*METHODS[name], name)
    assert not found, "\n".join(found)
