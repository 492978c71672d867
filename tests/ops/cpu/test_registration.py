"""Backend selection, torch.compile, torch.func, export, double backward, missing numba, the kernel cache."""

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import metricconv as mc
from isolated import run_python
from metricconv import _compat
from metricconv.ops import backends, cpu
from metricconv.ops.problem import Problem
from ops.cases import Case
from ops.cpu.recorded import recorded_call

pytest.importorskip("numba")
from metricconv.ops.cpu import jit


def problem(**changes) -> Problem:
    tensors, _ = Case().make()
    support = mc.TangentBall(mc.Randers(tensors["M"], tensors["omega"]), mc.stencils.onion(3))
    values = {"input": tensors["input"], "support": support, "weight": tensors["weight"], "bias": None}
    values |= {"stride": (1, 1), "padding": (1, 1), "groups": 1, "modulation": None, "padding_mode": "zeros"}
    return Problem(**values | changes)


def test_auto_selects_the_cpu_backend() -> None:
    assert backends.choose_backend(problem()) is backends.BACKENDS["cpu"]


def test_four_axes_fall_back_to_reference() -> None:
    ones = (1, 1, 1, 1)
    tensors = {"input": torch.randn(1, 2, 3, 3, 3, 3), "weight": torch.randn(2, 2, *ones)}
    other = problem(**tensors, support=mc.Grid(ones, dim=4), stride=ones, padding=(0, 0, 0, 0))
    assert backends.choose_backend(other) is backends.BACKENDS["reference"]
    with pytest.raises(ValueError, match="1 to 3 spatial axes"):
        backends.choose_backend(other, "cpu")


def test_geodesic_ball_with_one_sample_falls_back_to_reference() -> None:
    ball = mc.GeodesicBall(mc.Riemannian.isotropic(2.0), mc.stencils.onion(1))
    x, weight = torch.randn(1, 2, 4, 4), torch.randn(3, 2, 1, 1)
    torch.testing.assert_close(mc.support_conv(x, ball, weight), torch.nn.functional.conv2d(x, weight))


def test_double_backward_raises_with_the_reason() -> None:
    tensors, run = Case(kernel=(1, 1), padding=0).make()
    x = tensors["input"].requires_grad_()
    (grad,) = torch.autograd.grad(run(tensors, backend="cpu").square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match='backend="reference"'):
        grad.sum().backward()


@pytest.mark.parametrize("kind", ["randers", "geodesic", "deformable"])
def test_compiles_to_one_graph(kind: str) -> None:
    case = Case(kind, channels=(2, 2), kernel=(3, 3), modulated=kind == "deformable")
    tensors, run = case.make()
    rays = mc.supports.geodesic.Rays.of(mc.stencils.square_onion((3, 3)))

    def geodesic(t: dict[str, torch.Tensor]) -> torch.Tensor:
        ball = mc.GeodesicBall(mc.Randers(t["M"], t["omega"]), rays)
        return mc.support_conv(t["input"], ball, t["weight"], t["bias"], padding=1, backend="cpu")

    call = geodesic if kind == "geodesic" else lambda t: run(t, backend="cpu")
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    y, z = compiled(leaves), call(leaves)
    torch.testing.assert_close(y, z)
    for a, b in zip(*(torch.autograd.grad(t.sum(), list(leaves.values())) for t in (y, z)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.slow  # compiles C++ code
def test_layer_compiles_with_inductor() -> None:
    layer = mc.nn.MetricConv2d(4, 4, 3, padding=1, backend="cpu")
    x = torch.randn(1, 4, 6, 6)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x))


@pytest.mark.parametrize("channels", [(4, 4), (16, 16)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_outputs_can_be_modified_in_place(channels: tuple[int, int], memory_format) -> None:
    layer = mc.nn.MetricConv2d(*channels, 3, padding=1, backend="cpu")
    x = torch.randn(2, channels[0], 5, 6).to(memory_format=memory_format)
    y = layer(x)
    assert y._base is None and y.is_contiguous(memory_format=memory_format)
    y.relu_().sum().backward()
    assert layer.weight.grad.isfinite().all()


@pytest.mark.slow
def test_compiled_layers_train_on_images_of_varying_size() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(mc.nn.MetricConv2d(4, 4, 3, padding=1, backend="cpu") for _ in range(2)))
    compiled = torch.compile(net, fullgraph=True, dynamic=True)
    for size in (9, 6):  # with dynamic sizes a view saved for the backward pass has no known layout
        x = torch.randn(2, 4, size, size)
        y, z = compiled(x), net(x)
        torch.testing.assert_close(y, z)
        leaves = list(net.parameters())
        for a, b in zip(*(torch.autograd.grad(t.sum(), leaves) for t in (y, z)), strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


# opcheck of torch 2.15 reads the gradients of results.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_operators_pass_opcheck() -> None:
    tensors, run = Case(channels=(2, 2), size=(3, 4), kernel=(1, 3), padding=(0, 1), modulated=True).make()
    call = recorded_call(run, tensors)
    args = [a.detach().clone().requires_grad_() if isinstance(a, torch.Tensor) else a for a in call]
    args[4] = args[4].detach()  # the stencil has no gradient
    torch.library.opcheck(torch.ops.metricconv.support_conv_cpu.default, args)
    fixed = [a.detach() if isinstance(a, torch.Tensor) else a for a in args[:-2]]
    backward = torch.ops.metricconv.support_conv_cpu_backward.default
    torch.library.opcheck(backward, (*fixed, torch.randn(2, 2, 3, 4), [True] * 4))


def test_function_transforms_fall_back_to_reference() -> None:
    tensors, run = Case().make()
    jacobian = torch.func.jacrev(lambda weight: run(tensors | {"weight": weight}))(tensors["weight"])
    assert jacobian.shape == (2, 4, 5, 4, 4, 6, 3, 3)
    _, slope = torch.func.jvp(lambda x: run(tensors | {"input": x}), (tensors["input"],), (tensors["input"],))
    assert slope.shape == (2, 4, 5, 4)
    with pytest.raises(ValueError, match=r"not torch\.func or forward-mode"):
        torch.func.grad(lambda x: run(tensors | {"input": x}, backend="cpu").sum())(tensors["input"])


def test_exported_graph_contains_no_kernel() -> None:
    layer = mc.nn.MetricConv2d(2, 2, 3, padding=1).eval()
    program = torch.export.export(layer, (torch.randn(1, 2, 6, 6),))
    assert "metricconv" not in str(program.graph)


def test_missing_numba_falls_back_to_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_INSTALLED", False)
    tensors, run = Case().make()
    assert torch.equal(run(tensors), run(tensors, backend="reference"))
    assert backends.choose_backend(problem()) is backends.BACKENDS["reference"]
    with pytest.raises(ValueError, match=r"numba is not installed \(pip install 'metricconv\[cpu\]'\)"):
        run(tensors, backend="cpu")


def test_failing_numba_import_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    assert "numba cannot be imported (import of numba halted" in str(cpu.missing_dependency())
    tensors, run = Case().make()
    assert torch.equal(run(tensors), run(tensors, backend="reference"))


def test_importing_the_library_does_not_import_numba() -> None:
    script = "import sys, metricconv; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": "src"}).returncode == 0


def test_without_blas_many_channels_use_the_few_channels_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, run = Case(channels=(16, 4)).make()
    expected = run(tensors, backend="cpu")
    monkeypatch.setattr(_compat, "gemm_address", lambda dtype: 0)
    torch.testing.assert_close(run(tensors, backend="cpu"), expected, atol=1e-5, rtol=1e-5)


def test_cache_folder_is_the_first_writable_candidate(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    home, blocked = tmp_path / "home", tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setattr(jit, "__file__", str(blocked / "jit.py"))  # read-only installation
    monkeypatch.setattr("numba.config.CACHE_DIR", str(blocked))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    folder = jit.cache_folder.__wrapped__()
    assert folder is not None and folder.parent == home / "metricconv" and folder.is_dir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert jit.cache_folder.__wrapped__() is None


def test_kernels_compile_without_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "cache_folder", lambda package: None)
    assert jit.compiled(lambda n: n + 1)(1) == 2


def test_a_message_says_that_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch, caplog, tmp_path) -> None:
    monkeypatch.setattr(jit, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(jit.threading, "Timer", lambda seconds, function: mock.Mock(start=function))
    jit._announce.cache_clear()
    kernel = jit._announced(mock.Mock(compile=lambda signature: f"compiled for {signature}"))
    assert [kernel.compile("float32"), kernel.compile("float64")] == ["compiled for float32", "compiled for float64"]
    assert len(caplog.messages) == 1 and str(tmp_path) in caplog.text  # once per process


@pytest.mark.slow
def test_concurrent_processes_compile_into_one_cache(tmp_path) -> None:
    script = (
        "import torch, metricconv as mc; torch.manual_seed(0); x, w = torch.randn(1, 2, 8, 8), torch.randn(2, 2, 3, 3);"
        "y = mc.support_conv(x, mc.Grid(3, spacing=0.7), w, padding=1, backend='cpu');"
        "z = mc.support_conv(x, mc.Grid(3, spacing=0.7), w, padding=1, backend='reference');"
        "torch.testing.assert_close(y, z, atol=1e-5, rtol=1e-5)"
    )
    environment = {**os.environ, "PYTHONPATH": "src", "NUMBA_CACHE_DIR": str(tmp_path)}
    started = [subprocess.Popen([sys.executable, "-c", script], env=environment) for _ in range(3)]
    assert [process.wait(timeout=300) for process in started] == [0, 0, 0]


def test_batched_gradients_equal_single_ones():
    layer, x = mc.nn.MetricConv2d(4, 4, 3, padding=1), torch.randn(2, 4, 5, 5, requires_grad=True)
    y, upstream = layer(x), torch.randn(3, 2, 4, 5, 5)
    inputs = (x, layer.bias)
    batched = torch.autograd.grad(y, inputs, upstream, is_grads_batched=True, retain_graph=True)
    single = [torch.autograd.grad(y, inputs, one, retain_graph=True) for one in upstream]
    for found, *expected in zip(batched, *single, strict=True):
        torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.parametrize("channels", [(3, 4), (16, 16)])  # few and many channels
def test_weights_can_be_resized_after_a_call(channels) -> None:
    layer = mc.nn.MetricConv2d(*channels, 3, backend="cpu")
    layer(torch.randn(1, channels[0], 8, 8)).sum().backward()
    assert all(p.untyped_storage().resizable() for p in layer.parameters())


@pytest.mark.parametrize("groups", [1, 2])
def test_flop_count_equals_that_of_a_convolution(groups: int) -> None:
    x, weight = torch.randn(2, 4, 7, 6, requires_grad=True), torch.randn(6, 4 // groups, 3, 3, requires_grad=True)

    def counted(conv) -> tuple[int, int]:
        with FlopCounterMode(display=False) as counter:
            y = conv()
        forward = counter.get_total_flops()
        with FlopCounterMode(display=False) as counter:
            y.sum().backward()
        return forward, counter.get_total_flops()

    ours = counted(lambda: mc.support_conv(x, mc.Grid(3), weight, groups=groups, backend="cpu"))
    products = 2 * (2 * 6 * 5 * 4) * (4 // groups * 9)
    assert ours == (products, 2 * products)
    if groups == 1:  # torch overcounts the weight gradient of grouped convolutions
        assert ours == counted(lambda: torch.nn.functional.conv2d(x, weight))


@pytest.mark.slow  # compiles in a process of its own
def test_flops_of_the_first_call_in_a_process_are_counted(tmp_path: Path) -> None:
    code = """
import torch, metricconv as mc
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as counter:
    mc.support_conv(torch.ones(1, 1, 5, 5), mc.Grid(3), torch.ones(1, 1, 3, 3), backend="cpu")
assert counter.get_total_flops() == 2 * 9 * 9
"""
    done = run_python("-W", "ignore", "-c", code, folder=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_fvcore_counts_as_many_operations_as_for_a_convolution() -> None:
    fvcore = pytest.importorskip("fvcore.nn")
    conv, x = torch.nn.Conv2d(4, 6, 3, groups=2), torch.randn(2, 4, 7, 6)
    layer = torch.nn.Sequential(mc.nn.MetricConv2d.from_conv(conv, metric="gradient"))
    counts = fvcore.FlopCountAnalysis(layer, x).unsupported_ops_warnings(False)
    expected = fvcore.FlopCountAnalysis(conv, x).total()
    assert expected == 12 * 20 * 18 and counts.by_operator().get("support_conv_cpu", 0) == 0
    counts.set_op_handle(**mc.ops.fvcore_handles())
    assert counts.by_operator()["support_conv_cpu"] == expected
