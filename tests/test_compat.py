"""Private names of other packages that the library uses: each exists and behaves as ``metricconv._compat`` assumes.

A failure names what depends on the name, which is then to be changed in ``_compat`` alone.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from metricconv import _compat

SOURCE = Path(_compat.__file__).parent
PRIVATE = re.compile(
    r"\btorch\._[a-zA-Z]\w*|forward_ad\._\w+|autograd\.Function, \w+\)|numba\.core|numba\.config"
    r"|triton\.(?:runtime|knobs|compiler)\b|import ctypes|modules\.\w+\._\w+|\w\._modules\b"
)


def test_private_names_are_used_in_compat_only():
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py") if path.name != "_compat.py"}
    found = {str(path.relative_to(SOURCE)): names for path, text in texts.items() if (names := PRIVATE.findall(text))}
    assert not found, "move these to metricconv/_compat.py"


def test_transforms_of_torch_func_are_detected():
    """Otherwise compiled backends return wrong derivatives under torch.func, or fail in it."""
    seen = []
    torch.func.vmap(lambda x: seen.append(_compat.functorch_active()) or x)(torch.zeros(2))
    torch.func.grad(lambda x: seen.append(_compat.functorch_active()) or x)(torch.zeros(()))
    assert seen == [True, True]
    assert not _compat.functorch_active()


def test_forward_mode_is_detected():
    """Otherwise compiled backends drop forward-mode tangents silently."""
    assert not _compat.forward_mode_active()
    with forward_ad.dual_level():
        assert _compat.forward_mode_active()


def test_dispatch_modes_are_detected():
    """Otherwise direct calls of the Triton operators bypass FLOP counters, fake tensors and tracing."""
    assert not _compat.dispatch_mode_active()
    with FlopCounterMode(display=False):
        assert _compat.dispatch_mode_active()


def test_active_flop_counters_get_new_formulas(monkeypatch):
    """Otherwise the first call of a backend within a FLOP counter is not counted."""
    with FlopCounterMode(display=False) as counter:
        monkeypatch.setitem(flop_registry, torch.ops.aten.sin, lambda *args, **kwargs: 7)
        torch.ones(2).sin()
        assert counter.get_total_flops() == 0
        _compat.update_flop_counters()
        torch.ones(2).sin()
        assert counter.get_total_flops() == 7


def test_batched_gradients_are_detected():
    """Otherwise direct calls of backward operators fail on gradients with a hidden axis."""
    x, seen = torch.ones(2, requires_grad=True), []
    y = 2 * x
    y.register_hook(lambda grad: seen.append(_compat.batched_gradients_active()))
    torch.autograd.grad(y, x, torch.ones(3, 2), is_grads_batched=True, retain_graph=True)
    torch.autograd.grad(y, x, torch.ones(2))
    assert seen == [True, False]


def test_direct_apply_records_the_backward_pass():
    """Otherwise direct calls of the Triton operators have no gradients."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx, grad: Tensor) -> Tensor:
            return 2 * grad

    x = torch.ones(3, requires_grad=True)
    _compat.direct_apply(Double)(x).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_a_module_registered_twice_is_listed_twice():
    """Otherwise convert() leaves the second use of a shared convolution unchanged."""
    model = nn.Module()
    model.a = model.b = nn.Conv2d(1, 1, 1)
    assert list(_compat.submodules(model)) == ["a", "b"]
    assert len(list(model.named_children())) == 1


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_batch_normalizations_share_a_base_class(norm):
    """Otherwise receptive fields take batch normalizations for unknown layers."""
    assert issubclass(norm, _compat.BATCH_NORM)


@pytest.mark.parametrize("hook", ["_apply", "_load_from_state_dict"])
def test_hooks_that_layers_override_exist(hook):
    """Otherwise the constants of a layer do not follow its device, and checkpoints of version 0.1 do not load."""
    assert callable(getattr(nn.Module, hook))


def test_numba_does_not_compile_inner_functions_on_their_own():
    """Otherwise, kernels take twice as long to compile."""
    numba = pytest.importorskip("numba")
    assert _compat._link_only_compiler() is not numba.core.compiler.Compiler


def test_inner_functions_compile_where_numba_differs(monkeypatch):
    numba = pytest.importorskip("numba")
    monkeypatch.setattr(_compat, "_make_link_only_compiler", lambda: numba.core.codegen.missing)
    monkeypatch.setattr(_compat, "_link_only_compiler", _compat._link_only_compiler.__wrapped__)
    inner = numba.extending.register_jitable(pipeline_class=_compat.numba_inner_compiler)(lambda n: 3 * n)
    assert numba.njit(lambda n: inner(n) + 1)(2) == 7 and inner(2) == 6


def test_blas_of_torch_is_found():
    """Otherwise wide layers use the slower kernel for few channels on the CPU (Linux)."""
    if sys.platform != "linux" or "BLAS_INFO=mkl" not in torch.__config__.show():
        pytest.skip("this torch has another BLAS")
    assert _compat.gemm_address(torch.float32) and _compat.gemm_address(torch.float64)
    before = _compat.set_blas_threads(1)
    assert _compat.set_blas_threads(before) == 1


def test_openmp_team_runs_the_body_on_each_thread():
    """Otherwise CPU kernels run on Python threads, which compete with torch's."""
    if sys.platform != "linux":
        pytest.skip("the library is found on Linux only")
    script = (
        "import torch, threading\n"
        "from metricconv import _compat\n"
        "torch.set_num_threads(2)\n"
        "threads = set()\n"
        "assert _compat.run_on_openmp_team(lambda _: threads.add(threading.get_ident()), 2)\n"
        "assert len(threads) == 2\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_numba_compiles_with_private_options(tmp_path):
    """Otherwise CPU kernels do not compile, count references, or are cached in the wrong folder."""
    numba = pytest.importorskip("numba")
    before = _compat.numba_cache_dir()
    with _compat.use_numba_cache_dir(tmp_path):
        function = numba.njit(cache=True, forceinline=True, **_compat.NUMBA_NO_REFERENCE_COUNTS)(_twice)
    assert function(3) == 6
    assert list(tmp_path.rglob("*.nbc"))
    assert _compat.numba_cache_dir() == before


def _twice(x):
    return 2 * x


def test_processes_do_not_share_numba_cache_files(tmp_path, monkeypatch):
    """Otherwise a process may load the machine code of a function for other types than asked for."""
    numba = pytest.importorskip("numba")
    with _compat.use_numba_cache_dir(tmp_path):
        functions = [_compat.separate_numba_cache_files(numba.njit(cache=True)(_twice)) for _ in range(2)]
    for function, value in zip(functions, (1, 1.5), strict=True):
        # Both read the index before the other has written it.
        monkeypatch.setattr(function._cache._cache_file, "_load_index", dict)
        assert function(value) == 2 * value
    assert len(list(tmp_path.rglob("*.nbc"))) == 2


def test_numba_has_the_code_generation_helpers():
    """Otherwise the vector instructions and matrix products of CPU kernels cannot be generated."""
    pytest.importorskip("numba")
    for name in ("unpack_tuple", "get_or_insert_function"):
        assert callable(getattr(_compat.numba_cgutils(), name))


def test_triton_has_the_launch_interface():
    """Otherwise Triton kernels are not compiled ahead of their first call, or every launch fails."""
    triton = pytest.importorskip("triton")
    from triton.compiler import CompiledKernel
    from triton.runtime import JITFunction

    assert isinstance(_compat.triton_interpreted(), bool)
    mock = _compat.triton_mock_tensor(torch.float16)
    assert mock.dtype == torch.float16 and mock.data_ptr() % 16 == 0
    if _compat.triton_interpreted():
        pytest.skip("the interpreter compiles nothing")
    kernel = triton.jit(_kernel)
    assert isinstance(kernel, JITFunction) and callable(kernel.warmup)
    assert _compat.triton_argument_names(kernel) == ["x", "n"]
    assert callable(CompiledKernel.__getitem__)


def _kernel(x, n):
    pass
