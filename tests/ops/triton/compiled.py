"""Compile kernels for a GPU that need not be present: launches are recorded, then compiled for a compute capability.

``cases`` lists what the compile tests and ``benchmarks.ptx`` compile.
"""

import dataclasses
import functools
import importlib
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from metricconv.metrics import Parametrization
from metricconv.ops import backends
from metricconv.ops.problem import OutputGrid, Problem
from metricconv.ops.triton import backward_launches, conv_call, few_outputs_conv, forward_pass, geodesic, plan
from metricconv.ops.triton import run as run_triton
from ops.cases import Case
from ops.triton.few_outputs import make_tensors
from ops.triton.fused_parametrization import PARAMETRIZATIONS

parametrizations = importlib.import_module("metricconv.ops.triton.parametrizations")  # not the function of that name
Launches = list[tuple[Any, dict[str, Any]]]
_TYPES = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_OPTIONS = ("num_warps", "num_stages", "maxnreg")

CASES = {
    "dense": Case(channels=(64, 128), size=(28, 28), dtype=torch.bfloat16, layout="channels_last"),
    "dense, many channels": Case(channels=(512, 512), size=(9, 20), dtype=torch.bfloat16),
    "dense, whole images": Case(channels=(64, 64), size=(8, 8), dtype=torch.float16, modulated=True),
    "dense, im2col": Case(channels=(256, 256), size=(32, 32), dtype=torch.float16),
    "whole images, im2col": Case(channels=(256, 256), size=(8, 8), dtype=torch.float16, batch=32),
    "small deformable images, im2col": Case(
        kind="deformable", channels=(256, 256), size=(8, 8), dtype=torch.float16, batch=32, modulated=True
    ),
    "stride, im2col": Case(channels=(64, 64), size=(32, 32), stride=2, dtype=torch.bfloat16, batch=32),
    "dense in float32": Case(kind="deformable", channels=(32, 48), size=(20, 60), groups=2, metric_groups=2),
    "depthwise": Case(channels=(64, 64), groups=64, metric_groups=2, size=(56, 56), dtype=torch.float16),
    "geodesic": Case(kind="geodesic", channels=(16, 16), size=(20, 30)),
    "few channels": Case(channels=(1, 1), size=(64, 64), mode="reflect"),
}
SMALL_GPU_CASES = {
    "many channels": Case(channels=(64, 512), size=(8, 8), dtype=torch.bfloat16),
    "float32": Case(channels=(128, 128), size=(16, 16)),
    "im2col": Case(channels=(256, 256), size=(16, 16), batch=16, dtype=torch.bfloat16),
    "deterministic": Case(channels=(64, 128), size=(16, 16), dtype=torch.bfloat16),
}
SMALL_GPU_PRECISIONS = [(name, "ieee") for name in SMALL_GPU_CASES] + [("float32", "tf32")]
KINDS = ("riemannian", "asymmetric", "shifted", "dilated", "grid")


def cases() -> Iterator[tuple[str, tuple[int, ...], Callable[[], Launches]]]:
    """Yield all cases as (name, compute capabilities, function that returns the launches)."""
    both = (80, 90)
    for name, case in CASES.items():
        yield name, both, functools.partial(launches_of, case)
    yield "rounded field", both, rounded_field_launches
    for name, precision in SMALL_GPU_PRECISIONS:
        yield f"small GPU, {name}, {precision}", (89,), functools.partial(small_gpu_launches, name, precision)
    yield "few outputs", both, few_outputs_launches
    for kind in KINDS:
        yield f"kind {kind}", (90,), functools.partial(launches_of, kind_case(kind))
    for parametrization in PARAMETRIZATIONS[::3]:
        launches = functools.partial(parametrization_launches, parametrization)
        yield f"parametrization {type(parametrization).__name__}", both, launches


def launches_of(case: Case) -> Launches:
    """Return the kernels of a case, forward and backward, with their arguments."""
    tensors, run = case.make()
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    problem = _problem(run, leaves)
    with recorded() as launches:
        y = run_triton(problem)
        torch.autograd.grad(y, list(leaves.values()), torch.empty_like(y))
    return launches


def kind_case(kind: str) -> Case:
    """Return a case of a kind of support."""
    return Case(kind=kind, channels=(16, 16), size=(12, 60), dtype=torch.float16)


def rounded_field_launches() -> Launches:
    """Return the kernels of a geodesic ball without gradients in bfloat16, with their arguments."""
    tensors, run = dataclasses.replace(CASES["geodesic"], dtype=torch.bfloat16).make()
    with recorded() as launches:
        run_triton(_problem(run, tensors))
    return launches


def small_gpu_launches(name: str, precision: str) -> Launches:
    """Return the kernels of a case on a GPU with little shared memory, with their arguments."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = precision
    torch.use_deterministic_algorithms(name == "deterministic")
    try:
        with plan.fixed_choices(large_shared_memory=False):
            return launches_of(SMALL_GPU_CASES[name])
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cuda.matmul.fp32_precision = before


def few_outputs_launches() -> Launches:
    """Return the kernels of a convolution with few outputs, forward and backward, with their arguments."""
    *tensors, _ = make_tensors(torch.float16)
    image, weight, _ = tensors
    grid = OutputGrid(tuple(image.shape[2:]), tuple(weight.shape[2:]), (1, 1), (1, 1), (1, 1))
    with recorded() as launches:
        y = few_outputs_conv._FewOutputsConv.apply(*tensors, grid)
        torch.autograd.grad(y, tensors, torch.empty_like(y))
    return launches


def parametrization_launches(parametrization: Parametrization) -> Launches:
    """Return the kernels of a parametrization, forward and backward, with their arguments."""
    raw = torch.zeros(2, 1, parametrization.channels, 4, 5, requires_grad=True)
    with recorded() as launches:
        metric = parametrizations.parametrize(parametrization, raw, parametrization.identity(), torch.ones(()), 1.0)
        assert metric is not None
        torch.autograd.grad(sum(t.sum() for t in metric.tensors().values()), raw)
    return launches


class _Recorder:
    def __init__(self, kernel: Any, launches: Launches) -> None:
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid: Any) -> Any:
        return lambda **arguments: self.launches.append((self.kernel, arguments))

    def warmup(self, **arguments: Any) -> None:
        """Compile nothing: the launch itself is recorded."""


@contextmanager
def recorded() -> Iterator[Launches]:
    """Record launches instead of running them."""
    modules = (forward_pass, backward_launches, geodesic, few_outputs_conv, parametrizations)
    kernels = [(m, name, kernel) for m in modules for name, kernel in vars(m).items() if name.endswith("_kernel")]
    launches: Launches = []
    try:
        for module, name, kernel in kernels:
            setattr(module, name, _Recorder(kernel, launches))
        _clear_caches()
        yield launches
    finally:
        for module, name, kernel in kernels:
            setattr(module, name, kernel)
        _clear_caches()


def _clear_caches() -> None:
    """Clear the caches of bound kernels, which may hold recorders."""
    conv_call._caches.clear()
    few_outputs_conv._bind.cache_clear()
    parametrizations._bind.cache_clear()


def build(kernel: Any, arguments: dict[str, Any], capability: int) -> Any:
    """Compile a recorded launch, specialized as a real one would be (multiples of 16, ones)."""
    signature, constants, attributes = {}, {}, {}
    for index, (name, parameter) in enumerate(inspect.signature(kernel.fn).parameters.items()):
        value = arguments[name]
        if "constexpr" in str(parameter.annotation) or value is None:
            signature[name], constants[(index,)] = "constexpr", value
        elif isinstance(value, tuple):
            types = []
            for position, item in enumerate(value):
                types.append(_type(item))
                _specialize((index, position), item, types, constants, attributes)
            signature[name] = type(value)(*types) if hasattr(value, "_fields") else tuple(types)
        else:
            types = [_type(value)]
            _specialize((index,), value, types, constants, attributes)
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


def _specialize(path: tuple[int, ...], value: Any, types: list, constants: dict, attributes: dict) -> None:
    if isinstance(value, int) and value == 1:
        types[-1], constants[path] = "constexpr", 1
    elif isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0):
        attributes[path] = [["tt.divisibility", 16]]


def _problem(run: Callable[..., torch.Tensor], tensors: dict[str, torch.Tensor]) -> Problem:
    problems: list[Problem] = []
    recorder = types.SimpleNamespace(
        unsupported_reason=lambda problem: None, run=lambda problem: problems.append(problem) or torch.empty(0)
    )
    backends.BACKENDS["recorder"] = recorder
    try:
        run(tensors, backend="recorder")
    finally:
        del backends.BACKENDS["recorder"]
    return problems[0]
