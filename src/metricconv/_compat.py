"""Everything we use of other packages that is not part of their documented interface.

Each function wraps one private name of torch, Triton, numba or of the C libraries that torch loads. When a new version
of one of them breaks the library, start here: ``tests/test_compat.py`` checks each name and states what depends on it.
numba and Triton are imported inside the functions, since both are optional.
"""

import contextlib
import ctypes
import functools
import inspect
import logging
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils import _python_dispatch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

# Base class of torch's batch normalizations, in any dimension.
BATCH_NORM = nn.modules.batchnorm._NormBase

# Option of ``numba.njit`` for functions that allocate no arrays: no reference counts for the arguments.
NUMBA_NO_REFERENCE_COUNTS = {"_nrt": False}

_LOGGER = logging.getLogger(__name__)

_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
_BATCHED_GRADIENTS: Any = torch._C._parse_dispatch_key("VmapMode")
_OPENMP_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def functorch_active() -> bool:
    """Return whether a transform of ``torch.func`` (vmap, grad, jvp …) is active."""
    return torch._C._are_functorch_transforms_active()


def forward_mode_active() -> bool:
    """Return whether forward-mode differentiation is active."""
    return forward_ad._current_level >= 0


def dispatch_mode_active() -> bool:
    """Return whether a ``TorchDispatchMode``, such as a FLOP counter or fake tensors, intercepts operators."""
    return torch._C._len_torch_dispatch_stack() > 0


def update_flop_counters() -> None:
    """Give ``FlopCounterMode``s that are active the formulas registered since: each copies them when it is created."""
    for mode in _python_dispatch._get_current_dispatch_mode_stack():
        counter = getattr(mode, "counter", None)
        if isinstance(counter, FlopCounterMode):
            counter.flop_registry = {**flop_registry, **counter.flop_registry}


def batched_gradients_active() -> bool:
    """Return whether ``torch.autograd.grad(…, is_grads_batched=True)`` runs: gradients have an axis that is hidden."""
    return torch._C._dispatch_tls_is_dispatch_key_included(_BATCHED_GRADIENTS)


def exporting() -> bool:
    """Return whether ``torch.export`` traces.

    Before torch 2.12, Dynamo takes ``torch.compiler.is_exporting()`` for True, also where it only compiles.
    """
    if torch.compiler.is_dynamo_compiling() and _TORCH < (2, 12):
        return False
    return torch.compiler.is_exporting()


def direct_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return ``function.apply`` without its check for transforms of ``torch.func``, which takes longer than a kernel.

    The caller must have checked that none is active.
    """
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


def submodules(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return the direct submodules by name; unlike ``named_children``, one that is registered twice appears twice."""
    return module._modules


def triton_mock_tensor(dtype: torch.dtype) -> Any:
    """Return an aligned tensor without data, for which ``kernel.warmup`` compiles."""
    from triton.runtime import MockTensor

    return MockTensor(dtype)


def triton_argument_names(kernel: Any) -> list[str]:
    """Return the names of a Triton kernel's arguments, in order."""
    return list(inspect.signature(kernel.fn).parameters)


def triton_runner(compiled: Any, grid: tuple[int, ...]) -> Callable[..., Any]:
    """Return the function that launches a compiled kernel; it takes all arguments by position."""
    runner: Callable[..., Any] = compiled[grid]
    return runner


def triton_interpreted() -> bool:
    """Return whether Triton runs kernels in its interpreter (TRITON_INTERPRET=1)."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def numba_cgutils() -> Any:
    """Return numba's helpers that generate LLVM code: ``unpack_tuple`` and ``get_or_insert_function`` are used."""
    from numba.core import cgutils

    return cgutils


def _numba_config() -> Any:
    import numba

    return numba.config


def numba_cache_dir() -> str:
    """Return numba's cache folder, NUMBA_CACHE_DIR, or an empty string."""
    return str(_numba_config().CACHE_DIR)


@contextlib.contextmanager
def use_numba_cache_dir(folder: Path) -> Iterator[None]:
    """Set the cache folder of functions that are decorated inside: numba reads it only then."""
    config = _numba_config()
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before


def separate_numba_cache_files(function: Any) -> Any:
    """Give each entry of a compiled function's cache on disk a file of its own.

    numba numbers the files. Two processes that compile the function for different types at the same time may choose the
    same number, and one of them then leads to the machine code of the other.
    """
    file = function._cache._cache_file
    name = file._data_name
    file._data_name = lambda number: name(secrets.randbits(64))
    return function


def numba_inner_compiler(*args: Any) -> Any:
    """Return a compiler of functions that only kernels call, for the option ``pipeline_class`` of numba.

    numba optimizes each function on its own and generates machine code for it, and does both again with the functions
    that call it. This compiler only keeps the code to be linked into those, which nearly halves the time of
    compilation. Where a version of numba differs from those known, it is numba's own.
    """
    return _link_only_compiler()(*args)


@functools.cache
def _link_only_compiler() -> Any:
    """Return the class of such compilers, if a function that it compiles works, otherwise that of numba."""
    import numba

    try:
        found = _make_link_only_compiler()
        inner = numba.extending.register_jitable(pipeline_class=found)(lambda n: n + 1)
        if numba.njit(lambda n: inner(n) + inner(n))(1) == 4:
            return found
    except Exception:  # anything may fail in a version that differs
        _LOGGER.info("numba's inner functions are compiled on their own, which takes longer", exc_info=True)
    return numba.core.compiler.Compiler


def _make_link_only_compiler() -> Any:
    from numba import _dynfunc  # type: ignore[attr-defined]
    from numba.core import codegen, compiler, compiler_machinery, typed_passes

    class LinkedLibrary(codegen.JITCodeLibrary):
        """The code of a function, and of those it calls, without optimization and machine code."""

        def add_llvm_module(self, module: Any) -> None:
            self._final_module.link_in(module)

        def finalize(self) -> None:
            self._raise_if_finalized()
            for library in dict.fromkeys(self._linking_libraries):
                self._reload_init.update(library._reload_init)
                self._final_module.link_in(library._get_module_for_linking(), preserve=True)
            self._finalized = True

    class Lowering(typed_passes.NativeLowering):
        """Translation to LLVM's language into such a library, without functions for callers outside of it."""

        _name = "metricconv_link_only_lowering"

        def run_pass(self, state: Any) -> bool:
            state.library = LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
            state.flags.no_compile = state.flags.no_cpython_wrapper = state.flags.no_cfunc_wrapper = True
            super().run_pass(state)
            found = state["cr"]
            name, module = found.fndesc.qualname, found.fndesc.lookup_module()
            key = _dynfunc.make_function(module, name, "", 0, found.env, (state.library,))  # never called
            state.targetctx.insert_user_function(key, found.fndesc, [state.library])
            state["cr"] = found._replace(cfunc=key)
            return True

    compiler_machinery.register_pass(mutates_CFG=True, analysis_only=False)(Lowering)

    class LinkOnly(compiler.CompilerBase):
        """The passes of numba with that translation."""

        def define_pipelines(self) -> list[Any]:
            manager = compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)
            replaced = {typed_passes.NativeLowering: Lowering}
            manager.passes[:] = [(replaced.get(step, step), text) for step, text in manager.passes]
            manager.finalize()
            return [manager]

    return LinkOnly


@functools.cache
def torch_cpu_function(name: str) -> Any:
    """Return a C function of torch's CPU library or of a library it depends on, or None if there is none."""
    folder = Path(torch.__file__).parent / "lib"
    for file in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        try:
            return getattr(ctypes.CDLL(str(folder / file)), name)
        except (OSError, AttributeError):
            continue
    return None


@functools.cache
def gemm_address(dtype: torch.dtype) -> int:
    """Return the address of the BLAS matrix product that torch uses for a dtype, 0 if it is not found."""
    function = torch_cpu_function({torch.float32: "sgemm_", torch.float64: "dgemm_"}[dtype])
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


@functools.cache
def onednn_linear() -> Callable[[Any, Any, Any], Any] | None:
    """Return the function A·Bᵀ + bias of oneDNN, for float32 matrices with any strides, or None if torch lacks it."""
    try:
        operator = torch.ops.mkldnn._linear_pointwise.default
        a = torch.ones(3, 2, device="cpu").t()
        operator(a, torch.ones(4, 3, device="cpu"), torch.ones(4, device="cpu"), "none", [], "")
    except (AttributeError, RuntimeError):
        return None
    return lambda a, b, bias: operator(a, b, bias, "none", [], "")


def set_blas_threads(count: int) -> int:
    """Set the number of MKL threads of the calling thread, 0 for torch's setting; return the previous value."""
    setter = torch_cpu_function("MKL_Set_Num_Threads_Local")
    return 0 if setter is None else setter(count)


def run_on_openmp_team(body: Callable[..., None], count: int) -> bool:
    """Call ``body`` on ``count`` threads of torch's OpenMP team and wait; False if that library is not found."""
    library = openmp_library()
    if library is None:
        return False
    library.GOMP_parallel(_OPENMP_BODY(body), None, count, 0)
    return True


@functools.cache
def openmp_library() -> Any:
    """Return the OpenMP library that torch has loaded, or None if it is not found or lacks GOMP_parallel."""
    try:
        loaded = re.findall(r"\S+/lib(?:gomp|iomp5|omp)\b\S*\.so\S*", Path("/proc/self/maps").read_text())
        candidates = sorted(set(loaded), key=lambda path: "torch" not in path)  # torch's own first
        library = ctypes.CDLL(candidates[0])
        library.GOMP_parallel.argtypes = [_OPENMP_BODY, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        library.GOMP_parallel.restype = None
    except (OSError, IndexError, AttributeError):
        return None
    return library
