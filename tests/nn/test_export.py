"""Export of networks of metric convolutions to torch.export and ONNX, with dynamic shapes."""

import pytest
import torch
from torch import nn

from layers import randomize_predictors
from metricconv.filters import BoxFilter
from metricconv.nn import MetricConv2d

SIZES = {0: torch.export.Dim("batch", min=1), 2: torch.export.Dim("height", min=4), 3: torch.export.Dim("width", min=4)}


@pytest.fixture
def network() -> nn.Module:
    return randomize_predictors(
        nn.Sequential(
            MetricConv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            MetricConv2d(8, 4, 3, stride=2, padding=1, metric_groups=2, modulation=True, parametrization="cholesky"),
        )
    ).eval()


def test_traced_graph_has_one_node_per_layer(network):
    graph = torch.fx.symbolic_trace(nn.Sequential(network, nn.ReLU()))
    assert [node.target for node in graph.graph.nodes if node.op == "call_module"] == ["0.0", "0.1", "0.2", "0.3", "1"]
    x = torch.randn(2, 3, 9, 8)
    torch.testing.assert_close(graph(x), network(x).relu())


def test_tracing_a_single_layer_raises_with_the_workaround():
    layer = MetricConv2d(4, 6, 3)
    with pytest.raises(ValueError, match=r"a MetricConv2d is one node of a traced graph.* wrap it in nn\.Sequential"):
        torch.fx.symbolic_trace(layer)
    x = torch.randn(1, 4, 5, 5)
    torch.testing.assert_close(torch.fx.symbolic_trace(nn.Sequential(layer))(x), layer(x))


def test_exported_network_accepts_other_batch_and_image_sizes(network):
    program = torch.export.export(network, (torch.randn(2, 3, 10, 12),), dynamic_shapes=(SIZES,))
    x = torch.randn(3, 3, 17, 9)
    torch.testing.assert_close(program.module()(x), network(x))


def test_strided_layers_do_not_restrict_the_sizes_of_images():
    network = nn.Sequential(*(MetricConv2d(2, 2, 3, stride=2, padding=1) for _ in range(2))).eval()
    sizes = SIZES | {axis: torch.export.Dim(name, min=5) for axis, name in ((2, "height"), (3, "width"))}
    program = torch.export.export(network, (torch.randn(2, 2, 16, 16),), dynamic_shapes=(sizes,))
    for size in ((1, 2, 5, 7), (3, 2, 18, 9)):
        x = torch.randn(size)
        torch.testing.assert_close(program.module()(x), network(x))


@pytest.mark.slow
def test_onnx_network_agrees_at_other_batch_and_image_sizes(network, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    path = str(tmp_path / "network.onnx")
    program = torch.onnx.export(
        network, (torch.randn(2, 3, 10, 12),), dynamo=True, opset_version=20, dynamic_shapes=(SIZES,), verbose=False
    )
    program.save(path)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for size in ((1, 3, 16, 16), (3, 3, 17, 9)):
        x = torch.randn(size)
        (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), network(x).detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:`torch.jit.trace")
def test_jit_trace_gives_the_layer_or_an_error_that_recommends_export():
    x = torch.rand(1, 2, 9, 9)
    layer = randomize_predictors(MetricConv2d(2, 2, 3, padding=1, backend="reference")).eval()
    other = torch.rand(1, 2, 8, 11)
    with torch.no_grad():
        torch.testing.assert_close(torch.jit.trace(layer, x)(other), layer(other))
    geodesic = MetricConv2d(2, 2, 3, padding=1, ball="geodesic")
    same = MetricConv2d(2, 2, 3, stride=2, padding="same")
    for unsupported in (geodesic, same, BoxFilter(3)):
        with pytest.raises(NotImplementedError, match=r"torch\.jit\.trace does not .*: use torch\.export\.export"):
            torch.jit.trace(unsupported, x)
