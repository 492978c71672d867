"""Compile for a GPU that is not there: launches are caught, and their kernels built for a named architecture."""

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from metricconv.metrics import Parametrization
from metricconv.ops import functional
from metricconv.ops.problem import OutputGrid, Problem
from metricconv.ops.triton import call, geodesic, launch, narrow
from metricconv.ops.triton import run as engine_run
from ops.cases import Case

parametrizations = importlib.import_module(
    "metricconv.ops.triton.parametrizations"
)  # the package has a function of this name
_TYPES = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_OPTIONS = ("num_warps", "num_stages", "maxnreg")


class _Caught:
    def __init__(self, kernel: Any, launches: list[tuple[Any, dict[str, Any]]]) -> None:
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid: Any) -> Any:
        return lambda **arguments: self.launches.append((self.kernel, arguments))

    def warmup(self, **arguments: Any) -> None:
        """Compile nothing: the launch itself will be caught."""


@contextmanager
def caught() -> Iterator[list[tuple[Any, dict[str, Any]]]]:
    """Catch launches instead of making them."""
    kernels = [
        (room, name, value)
        for room in (launch, geodesic, narrow, parametrizations)
        for name, value in vars(room).items()
    ]
    kernels = [place for place in kernels if place[1].endswith("_kernel")]
    launches: list[tuple[Any, dict[str, Any]]] = []
    try:
        for room, name, kernel in kernels:
            setattr(room, name, _Caught(kernel, launches))
        _forget()
        yield launches
    finally:
        for room, name, kernel in kernels:
            setattr(room, name, kernel)
        _forget()


def _forget() -> None:
    call._memory.clear()
    narrow._launches.cache_clear()
    parametrizations._launch.cache_clear()


def build(kernel: Any, arguments: dict[str, Any], capability: int) -> Any:
    """Compile a caught launch, specialised as a real one would be (multiples of 16, ones)."""
    signature, constants, attributes = {}, {}, {}
    for index, (name, parameter) in enumerate(inspect.signature(kernel.fn).parameters.items()):
        value = arguments[name]
        if "constexpr" in str(parameter.annotation) or value is None:
            signature[name], constants[(index,)] = "constexpr", value
        elif isinstance(value, tuple):
            types = []
            for place, item in enumerate(value):
                types.append(_type(item))
                _specialise((index, place), item, types, constants, attributes)
            signature[name] = type(value)(*types) if hasattr(value, "_fields") else tuple(types)
        else:
            types = [_type(value)]
            _specialise((index,), value, types, constants, attributes)
            signature[name] = types[0]
    source = ASTSource(kernel, signature, constants, attributes)
    options = {name: arguments[name] for name in _OPTIONS if name in arguments}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if abs(value) < 2**31 else "i64"


def _specialise(path: tuple[int, ...], value: Any, types: list, constants: dict, attributes: dict) -> None:
    if isinstance(value, int) and value == 1:
        types[-1], constants[path] = "constexpr", 1
    elif isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0):
        attributes[path] = [["tt.divisibility", 16]]


def launches_of(case: Case) -> list[tuple[Any, dict[str, Any]]]:
    """Return the kernels of a case, forward and backward, with their arguments."""
    tensors, run = case.make()
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    problem = _problem(run, leaves)
    with caught() as launches:
        y = engine_run(problem)
        torch.autograd.grad(y, list(leaves.values()), torch.empty_like(y))
    return launches


def inference_launches_of(case: Case) -> list[tuple[Any, dict[str, Any]]]:
    """Return the kernels of a case where nothing learns, with their arguments."""
    tensors, run = case.make()
    with caught() as launches:
        engine_run(_problem(run, tensors))
    return launches


def narrow_launches_of(*tensors: torch.Tensor) -> list[tuple[Any, dict[str, Any]]]:
    """Return the kernels of a convolution with few outputs, forward and backward, with their arguments."""
    image, weight, _ = tensors
    grid = OutputGrid(tuple(image.shape[2:]), tuple(weight.shape[2:]), (1, 1), (1, 1), (1, 1))
    with caught() as launches:
        y = narrow._Narrow.apply(*tensors, grid)
        torch.autograd.grad(y, tensors, torch.empty_like(y))
    return launches


def parametrize_launches_of(parametrization: Parametrization) -> list[tuple[Any, dict[str, Any]]]:
    """Return the kernels that make a metric of raw numbers, and of its gradient theirs, with their arguments."""
    raw = torch.zeros(2, 1, parametrization.channels, 4, 5, requires_grad=True)
    with caught() as launches:
        metric = parametrizations.parametrize(parametrization, raw, parametrization.identity(), torch.ones(()), 1.0)
        assert metric is not None
        torch.autograd.grad(sum(t.sum() for t in metric.tensors().values()), raw)
    return launches


def _problem(run: Callable[..., torch.Tensor], tensors: dict[str, torch.Tensor]) -> Problem:
    problems: list[Problem] = []
    engine = functional.Backend(lambda problem: problems.append(problem) or torch.empty(0), lambda problem: None)
    functional.BACKENDS["caught"] = engine
    try:
        run(tensors, backend="caught")
    finally:
        del functional.BACKENDS["caught"]
    return problems[0]
