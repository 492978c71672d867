"""torch.compile, torch.export and ONNX."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

import metricconv as mc
from helpers import PADDING_MODES, make_support, randers, rebuilt
from ops.cases import Case


class SmallNetwork(nn.Module):
    """A convolution that predicts a metric, followed by a convolution over its unit balls."""

    def __init__(self, k: int = 3, stride: int = 1, padding_modes: Sequence[str] = ("zeros",)) -> None:
        super().__init__()
        self.predictor = nn.Conv2d(3, 5, 3, stride, 1)
        self.weight = nn.Parameter(torch.randn(4, 3, k, k) / k)
        self.bias = nn.Parameter(torch.randn(4))
        self.options, self.padding_modes = {"stride": stride, "padding": k // 2}, padding_modes

    def forward(self, image: Tensor) -> Tensor:
        yy, yx, xx, wy, wx = self.predictor(image).unsqueeze(1).unbind(2)
        M = torch.stack([0.5 + yy.square(), 0.3 * torch.tanh(yx), 0.5 + xx.square()], 2)
        metric = mc.Randers(M, 0.2 * torch.tanh(torch.stack([wy, wx], 2)))
        y = [
            mc.metric_conv(image, metric, self.weight, self.bias, **self.options, padding_mode=mode)
            for mode in self.padding_modes
        ]
        return torch.cat(y, 1)


def assert_compiles(function, tensors, backend):
    tensors = [t.detach().requires_grad_() for t in tensors]
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    results = []
    for run in (function, compiled):
        y = run(*tensors)
        results.append([y, *torch.autograd.grad(y.square().sum(), tensors)])
    for eager, traced in zip(*results, strict=True):
        torch.testing.assert_close(traced, eager, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "k"), [("grid", 3), ("dilated", 3), ("shifted", 3), ("deformable", 3), ("randers", 7)]
)
def test_compile_traces_forward_and_backward_in_one_graph(kind, k):
    support = make_support(kind, (k, k), 2, 2, (6, 5), dtype=torch.float32)

    def function(x, weight, bias, *parameters):
        return mc.support_conv(x, rebuilt(support, parameters), weight, bias, padding=k // 2, groups=2)

    tensors = [torch.randn(2, 4, 6, 5), torch.randn(2, 2, k, k), torch.randn(2), *support.tensors().values()]
    assert_compiles(function, tensors, "aot_eager")


@pytest.mark.slow
def test_compile_with_inductor_agrees_with_eager():
    metric, weight = randers(1, 2, 1, (6,), dtype=torch.float32), torch.randn(2, 2, 3)

    def function(x, M, omega):
        return mc.metric_conv(x, mc.Randers(M, omega), weight, padding=1)

    assert_compiles(function, [torch.randn(2, 2, 6), metric.M, metric.omega], "inductor")


def test_compile_with_dynamic_shapes_does_not_recompile():
    network = SmallNetwork()
    torch._dynamo.reset()
    compiled = torch.compile(network, fullgraph=True, backend="eager", dynamic=True)
    compiled(torch.randn(2, 3, 6, 5))
    with torch.compiler.set_stance("fail_on_recompile"):
        for shape in ((3, 3, 7, 9), (5, 3, 12, 4)):
            image = torch.randn(shape)
            torch.testing.assert_close(compiled(image), network(image))


@pytest.mark.parametrize(
    "kind", ["randers", *(pytest.param(k, marks=pytest.mark.slow) for k in ("deformable", "grid"))]
)
def test_compile_traces_argument_checks_with_dynamic_shapes(kind):
    case = Case(kind=kind, channels=(8, 8), groups=4, metric_groups=1 if kind == "grid" else 2, modulated=True)
    tensors, run = case.make()
    torch._dynamo.reset()
    compiled = torch.compile(lambda t: run(t, backend="reference"), fullgraph=True, backend="eager", dynamic=True)
    torch.testing.assert_close(compiled(tensors), run(tensors, backend="reference"))


def test_compile_under_autocast_returns_its_dtype():
    metric, weight = mc.Randers.isotropic(1.3), torch.randn(4, 3, 3, 3)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: mc.metric_conv(x, metric, weight), fullgraph=True, backend="eager")
    image = torch.randn(1, 3, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        y = compiled(image)
        assert y.dtype == torch.bfloat16
        assert torch.equal(y, mc.metric_conv(image, metric, weight))


def dynamic_shapes():
    return ({0: torch.export.Dim("batch"), 2: torch.export.Dim("height", min=4), 3: torch.export.Dim("width", min=4)},)


@pytest.mark.parametrize(("k", "stride"), [(3, 2), (7, 1)])
def test_export_runs_at_any_batch_and_size(k, stride):
    network = SmallNetwork(k, stride).eval()
    program = torch.export.export(network, (torch.randn(2, 3, 8, 6),), dynamic_shapes=dynamic_shapes())
    for shape in ((1, 3, 8, 6), (3, 3, 9, 5), (5, 3, 4, 13)):
        image = torch.randn(shape)
        torch.testing.assert_close(program.module()(image), network(image), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("k", "padding_modes"), [(3, PADDING_MODES), (7, ("zeros",))])
def test_onnx_runs_at_any_batch_and_size(k, padding_modes, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    network = SmallNetwork(k, padding_modes=padding_modes).eval()
    path = tmp_path / "network.onnx"
    torch.onnx.export(
        network,
        (torch.randn(2, 3, 8, 6),),
        path,
        dynamo=True,
        opset_version=20,
        dynamic_shapes=dynamic_shapes(),
        verbose=False,
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (name,) = (i.name for i in session.get_inputs())
    for shape in ((1, 3, 8, 6), (3, 3, 9, 5)):
        image = torch.randn(shape)
        (y,) = session.run(None, {name: image.numpy()})
        torch.testing.assert_close(torch.from_numpy(y), network(image).detach(), atol=1e-4, rtol=1e-4)
