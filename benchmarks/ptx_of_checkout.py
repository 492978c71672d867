"""Write the PTX of a checkout's kernels as JSON: ``python -P ptx_of_checkout.py OUTPUT``, run in that checkout.

Called by ``benchmarks.ptx`` for each of two git refs, with PYTHONPATH set to the checkout's ``src`` and ``tests``. The
keys of the JSON are "case, capability, launch", the values PTX. The cases are those of the checkout's compile tests.
"""

import dataclasses
import functools
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from triton.compiler.compiler import ir, make_backend

Launches = list[tuple[Any, dict[str, Any]]]
Cases = Iterator[tuple[str, tuple[int, ...], Callable[[], Launches]]]


def main(output: Path) -> None:
    """Compile every launch of every case to PTX."""
    triton.compile = _compile_to_ptx  # called by the tests' ``build``; the full pipeline would spend its time in ptxas
    if importlib.util.find_spec("ops.triton.compiled"):
        compiled = import_module("ops.triton.compiled")
        build, cases = compiled.build, compiled.cases()
    else:
        build, cases = import_module("ops.triton.ahead").build, _cases_of_version_0_1()
    found = {}
    for name, capabilities, launches in cases:
        for number, (kernel, arguments) in enumerate(launches()):
            for capability in capabilities:
                ptx = build(kernel, arguments, capability)
                found[f"{name}, sm_{capability}, launch {number}"] = ptx
    output.write_text(json.dumps(found))


def _compile_to_ptx(source: Any, target: Any, options: dict[str, Any]) -> str:
    """Run Triton's compiler up to PTX, without its cache: the stages of ``triton.compile``."""
    backend = make_backend(target)
    settings = backend.parse_options(dict(options, **source.parse_options()))
    stages: dict[str, Callable[..., Any]] = {}
    backend.add_stages(stages, settings, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions, modules = backend.get_codegen_implementation(settings), backend.get_module_map()
    module = source.make_ir(target, settings, functions, modules, context)
    metadata = {"target": target, **settings.__dict__}
    for stage in ("ttir", "ttgir", "llir", "ptx"):
        module = stages[stage](module, metadata)
    return str(module)


def _cases_of_version_0_1() -> Cases:
    """Yield the cases of the compile tests of version 0.1, which have no list of them, under today's names."""
    backward, call, tiles = (import_module(f"metricconv.ops.triton.{name}") for name in ("backward", "call", "tiles"))
    ahead, test_ahead = import_module("ops.triton.ahead"), import_module("ops.triton.test_ahead")

    def on_small_gpu(case: Any, precision: str, deterministic: bool) -> Launches:
        patches = [mock.patch.object(module, "precision", lambda: precision) for module in (backward, call)]
        torch.use_deterministic_algorithms(deterministic)
        try:
            with patches[0], patches[1], mock.patch.object(tiles, "roomy", lambda device: False):
                return ahead.launches_of(case)
        finally:
            torch.use_deterministic_algorithms(False)

    both = (80, 90)
    names = {
        "dense, samples kept": "dense, im2col",
        "whole images, samples kept": "whole images, im2col",
        "small images of any kind, samples kept": "small deformable images, im2col",
        "far apart, samples kept": "stride, im2col",
        "samples kept": "im2col",
    }
    for name, case in test_ahead.CASES.items():
        yield names.get(name, name), both, functools.partial(ahead.launches_of, case)
    rounded = dataclasses.replace(test_ahead.CASES["geodesic"], dtype=torch.bfloat16)
    yield "rounded field", both, functools.partial(ahead.inference_launches_of, rounded)
    for name, (case, deterministic) in test_ahead.SMALL.items():
        for precision in ("ieee", "tf32") if name == "float32" else ("ieee",):
            launches = functools.partial(on_small_gpu, case, precision, deterministic)
            yield f"small GPU, {names.get(name, name)}, {precision}", (89,), launches
    yield "few outputs", both, functools.partial(ahead.narrow_launches_of, *test_ahead.make(torch.float16)[:3])
    for kind in ("riemannian", "shifted", "dilated", "grid"):
        case = test_ahead.Case(kind=kind, channels=(16, 16), size=(12, 60), dtype=torch.float16)
        yield f"kind {kind}", (90,), functools.partial(ahead.launches_of, case)
    for parametrization in test_ahead.PARAMETRIZATIONS[::3]:
        launches = functools.partial(ahead.parametrize_launches_of, parametrization)
        yield f"parametrization {type(parametrization).__name__}", both, launches


if __name__ == "__main__":
    main(Path(sys.argv[1]))
