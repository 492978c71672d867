"""Adaptive layers: initialization as an ordinary convolution, dtypes, devices, compilation, checkpoints."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import metricconv as mc
from layers import randomize_predictors
from metricconv.nn import (
    DeformableConv2d,
    DilatedConv2d,
    MetricConv1d,
    MetricConv2d,
    MetricConv3d,
    ShiftedConv2d,
)

LAYERS = [MetricConv2d, DeformableConv2d, ShiftedConv2d, DilatedConv2d]
CONVS = {1: (nn.Conv1d, MetricConv1d), 2: (nn.Conv2d, MetricConv2d), 3: (nn.Conv3d, MetricConv3d)}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 3, "stride": (2, 1), "padding": (1, 0), "bias": False},
        {"kernel_size": 5, "padding": 4, "dilation": 2},
        {"kernel_size": (3, 1), "padding": "same", "groups": 2},
        {"kernel_size": (3, 5), "dilation": (2, 1), "groups": 6},
        {"kernel_size": 7, "padding": 3, "padding_mode": "replicate"},
        {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
        {"kernel_size": 3, "padding": 2, "padding_mode": "reflect"},
        {"kernel_size": 1},
    ],
)
def test_layer_starts_equal_to_its_convolution(layer, options):
    conv = nn.Conv2d(6, 12, **options)
    x = torch.randn(2, 6, 11, 9)
    adaptive = layer.from_conv(conv)
    torch.testing.assert_close(adaptive(x), conv(x), atol=1e-5, rtol=1e-4)
    assert adaptive.weight is conv.weight and adaptive.bias is conv.bias


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("parametrization", ["cholesky", "spectral6", "spectral7"])
def test_every_parametrization_starts_at_the_identity_in_every_dimension(dim, parametrization):
    if dim == 3 and parametrization != "cholesky":
        parametrization = mc.metrics.PARAMETRIZATIONS[parametrization](dim=3)
    conv_type, metric_type = CONVS[dim]
    conv = conv_type(2, 4, 3, stride=2, padding=1)
    x = torch.randn(2, 2, *(5, 6, 7)[:dim])
    torch.testing.assert_close(metric_type.from_conv(conv, parametrization=parametrization)(x), conv(x))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_from_conv_1d_2d_3d_start_equal_and_keep_weights_and_bias(dim):
    conv_type, metric_type = CONVS[dim]
    conv = conv_type(4, 6, 3, stride=2, padding=1, groups=2)
    layer = getattr(metric_type, f"from_conv{dim}d")(conv, metric_groups=2)
    assert layer.weight is conv.weight and layer.bias is conv.bias and layer.metric_groups == 2
    x = torch.randn(2, 4, *(7, 6, 5)[:dim])
    torch.testing.assert_close(layer(x), conv(x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("layer", "options"),
    [
        *((layer, {}) for layer in LAYERS),
        *((MetricConv2d, {"parametrization": name}) for name in ("cholesky", "spectral6")),
        (MetricConv2d, {"ball": "geodesic", "backend": "reference"}),
    ],
)
def test_float64_layer_starts_equal_up_to_float64_rounding(layer, options):
    conv, x = nn.Conv2d(4, 6, 5, padding=2).double(), torch.randn(1, 4, 9, 9).double()
    torch.testing.assert_close(layer.from_conv(conv, **options)(x), conv(x), atol=1e-14, rtol=0)
    widened = layer(4, 6, 5, padding=2, **options).double()
    expected = nn.functional.conv2d(x, widened.weight, widened.bias, padding=2)
    torch.testing.assert_close(widened(x), expected, atol=1e-14, rtol=0)


@pytest.mark.parametrize("layer", LAYERS)
def test_initialization_of_every_convolution_keeps_the_identity(layer):
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), layer(4, 4, 3, padding=1))

    def initialize(module):
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            nn.init.constant_(module.bias, 0.5)

    net.apply(initialize)
    x = torch.randn(1, 3, 8, 8)
    inner = net[0](x)
    expected = nn.functional.conv2d(inner, net[1].weight, net[1].bias, padding=1)
    torch.testing.assert_close(net(x), expected, atol=1e-5, rtol=1e-4)


def test_deepcopy_and_state_dict_keep_the_geometry_and_reset_parameters_restores_the_identity():
    layer = randomize_predictors(MetricConv2d(3, 4, 3))
    x = torch.randn(1, 3, 8, 8)
    twin = copy.deepcopy(layer)
    torch.testing.assert_close(twin(x), layer(x))
    other = MetricConv2d(3, 4, 3)
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(x), layer(x))
    layer.reset_parameters()
    torch.testing.assert_close(layer(x), nn.functional.conv2d(x, layer.weight, layer.bias), atol=1e-5, rtol=1e-4)


def test_checkpoint_of_a_convolution_loads_except_for_the_predictor():
    conv, layer = nn.Conv2d(3, 4, 3), MetricConv2d(3, 4, 3)
    result = layer.load_state_dict(conv.state_dict(), strict=False)
    assert result.missing_keys == ["predictor.weight", "predictor.bias"] and not result.unexpected_keys


@pytest.mark.parametrize("layer", LAYERS)
def test_every_parameter_has_a_finite_gradient_away_from_the_identity(layer):
    net = randomize_predictors(layer(4, 6, 3, padding=1, groups=2, metric_groups=2, modulation=True))
    net(torch.randn(2, 4, 7, 6)).square().sum().backward()
    for name, parameter in net.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_predictor_has_gradients_at_the_identity():
    """No gradient vanishes at the initialization."""
    net = MetricConv2d(4, 6, 3, padding=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    x, target = torch.randn(2, 4, 9, 9), torch.randn(2, 6, 9, 9)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), target).backward()
        optimizer.step()
    assert (net.predictor.bias.abs() > 0).all()


def test_fixed_kernel_is_a_buffer_and_averages():
    layer = MetricConv2d(4, 6, 3, groups=2, learn_weight=False, bias=False, padding_mode="border")
    assert "weight" in dict(layer.named_buffers()) and "weight" not in dict(layer.named_parameters())
    torch.testing.assert_close(layer.weight, torch.full((6, 2, 3, 3), 1 / 18))
    x = torch.full((1, 4, 8, 8), 3.0)
    torch.testing.assert_close(randomize_predictors(layer, 0.01)(x), torch.full((1, 6, 6, 6), 3.0))


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflect", "circular"])
@pytest.mark.parametrize("size", [(9, 8), (8, 11), (2, 3)])
@pytest.mark.parametrize(("kernel", "stride"), [((3, 5), (2, 3)), (3, 2)])
def test_same_padding_with_stride_pads_to_the_rounded_up_size(padding_mode, size, kernel, stride):
    layer = MetricConv2d(3, 4, kernel, stride=stride, padding="same", padding_mode=padding_mode)
    x = torch.randn(2, 3, *size)
    wide, steps = (torch.ones(2, dtype=int) * torch.tensor(value) for value in (kernel, stride))
    out = [math.ceil(n / s) for n, s in zip(size, steps.tolist(), strict=True)]
    padded = x.numpy()
    for axis, (n, o, k, s) in enumerate(zip(size, out, wide.tolist(), steps.tolist(), strict=True), 2):
        total = max((o - 1) * s + k - n, 0)
        widths = [(total // 2, total - total // 2) if a == axis else (0, 0) for a in range(4)]
        mode = {"zeros": "constant", "border": "edge", "reflect": "reflect", "circular": "wrap"}[padding_mode]
        padded = np.pad(padded, widths, mode)
    expected = nn.functional.conv2d(torch.from_numpy(padded), layer.weight, layer.bias, stride)
    assert layer(x).shape[2:] == layer.predict_support(x)[0].spatial == torch.Size(out)
    torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-4)
    assert "padding=same" in repr(layer)


@pytest.mark.slow
def test_same_padding_with_stride_compiles_with_dynamic_shapes():
    layer = randomize_predictors(MetricConv2d(4, 6, 3, stride=2, padding="same"))
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for size in [(2, 4, 12, 13), (1, 4, 17, 9)]:
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), layer(x), atol=1e-5, rtol=1e-4)


def test_riemannian_layers_predict_no_drift():
    randers, riemannian = MetricConv2d(4, 6, 3, eps_omega=0.3), MetricConv2d(4, 6, 3, eps_omega=1.0)
    assert randers.predictor.weight.shape[0] == 7 and riemannian.predictor.weight.shape[0] == 5
    assert isinstance(riemannian.predict_support(torch.randn(1, 4, 8, 8))[0].metric, mc.Riemannian)


def test_number_of_predicted_parameters_per_pixel():
    channels = {layer.__name__: layer(4, 6, 5, metric_groups=2).predictor.weight.shape[0] for layer in LAYERS}
    assert channels == {"MetricConv2d": 14, "DeformableConv2d": 100, "ShiftedConv2d": 4, "DilatedConv2d": 2}


def test_metric_can_be_given_or_computed_from_the_input():
    x = torch.randn(2, 3, 9, 8)
    given = MetricConv2d(3, 4, 3, padding=1, metric=mc.Riemannian.isotropic(1.0))
    computed = MetricConv2d(3, 4, 3, padding=1, metric=lambda x: mc.Riemannian.isotropic(torch.ones(2, 1, 9, 8)))
    computed.load_state_dict(given.state_dict())
    assert given.predictor is None
    expected = nn.functional.conv2d(x, given.weight, given.bias, padding=1)
    torch.testing.assert_close(given(x), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(computed(x), expected, atol=1e-5, rtol=1e-4)


def test_metric_of_the_input_size_is_interpolated_at_output_centers():
    radius = 1 + torch.arange(9.0).view(1, 1, 9, 1).expand(1, 1, 9, 8) / 10
    layer = MetricConv2d(3, 4, 3, stride=2, padding=1, metric=mc.Riemannian.isotropic(radius))
    support, _ = layer.predict_support(torch.randn(1, 3, 9, 8))
    assert support.spatial == (5, 4)
    torch.testing.assert_close(support.metric.M[0, 0, 0, :, 0], (1 + torch.arange(0, 9, 2) / 10).pow(-2))


def test_metric_of_the_input_size_is_interpolated_even_if_a_strided_output_has_that_size():
    radius = 1 + torch.arange(5.0).view(1, 1, 5, 1).expand(1, 1, 5, 5) / 10
    layer = MetricConv2d(3, 4, 3, stride=2, padding=3, metric=mc.Riemannian.isotropic(radius))
    support, _ = layer.predict_support(torch.randn(1, 3, 5, 5))
    expected = torch.tensor([1.0, 1.0, 1.2, 1.4, 1.4])  # at -2, 0, 2, 4 and 6
    torch.testing.assert_close(support.metric.M[0, 0, 0, :, 0], expected.pow(-2))
    same = MetricConv2d(3, 4, 3, padding=1, metric=layer.metric)
    assert same.predict_support(torch.randn(1, 3, 5, 5))[0].metric is same.metric


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_layers_work_in_every_dtype_with_precise_geometry(dtype):
    conv = nn.Conv2d(4, 6, 3, padding=2, dilation=2)
    layer = MetricConv2d.from_conv2d(conv).to(dtype)
    x = torch.randn(1, 4, 8, 8).to(dtype)
    assert layer(x).dtype == dtype
    torch.testing.assert_close(layer(x).double(), conv.double()(x.double()), atol=5e-2, rtol=5e-2)
    corner = layer.predict_support(x)[0].offsets()[0, 0, 0, :, 4, 4]
    torch.testing.assert_close(corner.double(), torch.full((2,), -2.0, dtype=torch.float64), atol=1e-6, rtol=0)


def test_autocast_gives_half_outputs_and_a_float32_metric():
    layer = randomize_predictors(MetricConv2d(4, 6, 3, padding=1, modulation=True))
    x = torch.randn(1, 4, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
        assert layer.predict_support(x)[0].metric.dtype == torch.float32
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), layer(x), atol=0.1, rtol=0.1)


def test_layer_compiles_and_differentiates_without_graph_breaks():
    layer = randomize_predictors(MetricConv2d(4, 6, 3, padding=1, modulation=True))
    x = torch.randn(2, 4, 7, 6)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))
    compiled(x).sum().backward()
    assert layer.predictor.weight.grad.abs().sum() > 0


@pytest.mark.slow
def test_strided_layer_compiles_with_dynamic_shapes():
    layer = randomize_predictors(MetricConv2d(4, 6, 3, stride=2, padding=1))
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for size in [(2, 4, 12, 13), (1, 4, 17, 9)]:
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), layer(x), atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_unpadded_layers_train_compiled_with_dynamic_shapes(after):
    layers = [MetricConv2d(4, 8, 3, stride=2, padding=1), nn.ReLU(), MetricConv2d(8, 4, 3)]
    net = randomize_predictors(nn.Sequential(*layers) if after else MetricConv2d(4, 6, 3, stride=2))
    compiled = torch.compile(net, fullgraph=True, dynamic=True)
    for size in [(2, 4, 12, 13), (1, 4, 17, 9)]:
        x, found = torch.randn(size), []
        for forward in (compiled, net):
            y = forward(x)
            found.append((y, *torch.autograd.grad(y.square().mean(), list(net.parameters()))))
        torch.testing.assert_close(*found, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("layer", [MetricConv2d, DilatedConv2d])
def test_identity_is_exact_for_any_default_dtype(layer):
    conv, x = nn.Conv2d(3, 4, 5, padding=2), torch.randn(1, 3, 9, 9)
    torch.set_default_dtype(torch.bfloat16)
    try:
        adaptive = layer.from_conv(conv)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(adaptive(x), conv(x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("ball", ["tangent", "geodesic"])
@pytest.mark.parametrize("channels", [4, 16])
def test_layers_compute_on_the_device_of_their_input(ball, channels):
    layer, x = randomize_predictors(MetricConv2d(channels, 4, 3, padding=1, ball=ball)), torch.randn(1, channels, 6, 6)
    expected = layer(x)
    with torch.device("meta"):
        y = layer(x)
        y.sum().backward()
    torch.testing.assert_close(y, expected)


def test_batch_axis_may_be_missing():
    layer = randomize_predictors(MetricConv2d(4, 6, 3))
    x = torch.randn(4, 8, 8)
    torch.testing.assert_close(layer(x), layer(x[None])[0])


@pytest.mark.parametrize(
    ("layer", "options"), [*((layer, {}) for layer in LAYERS), (MetricConv2d, {"ball": "geodesic"})]
)
def test_layer_on_the_meta_device_can_be_materialized(layer, options):
    with torch.device("meta"):
        adaptive = layer(4, 6, 3, padding=1, **options)
    assert adaptive(torch.empty(2, 4, 8, 7, device="meta")).shape == (2, 6, 8, 7)
    adaptive = adaptive.to_empty(device="cpu")
    adaptive.reset_parameters()
    x = torch.randn(1, 4, 8, 7)
    expected = nn.functional.conv2d(x, adaptive.weight, adaptive.bias, padding=1)
    torch.testing.assert_close(adaptive(x), expected, atol=1e-5, rtol=1e-4)


def test_checkpoints_hold_the_geometry_gain_and_may_lack_it():
    trained, other = (randomize_predictors(MetricConv2d(4, 6, 3)) for _ in range(2))
    mc.nn.set_geometry_gain(trained, 0.25)
    other.load_state_dict(trained.state_dict())
    x = torch.randn(1, 4, 8, 7)
    torch.testing.assert_close(other(x), trained(x))
    older = {name: value for name, value in trained.state_dict().items() if name != "geometry_gain"}
    other.load_state_dict(older)
    assert other.geometry_gain == 0.25
    other.load_state_dict(nn.Conv2d(4, 6, 3).state_dict(), strict=False, assign=True)
    assert other.geometry_gain == 0.25
    with torch.device("meta"):
        empty = MetricConv2d(4, 6, 3)
    empty.load_state_dict(older, assign=True)
    assert empty.geometry_gain == 1 and not empty.geometry_gain.is_meta


@pytest.mark.parametrize("assign", [False, True])
def test_weights_load_into_a_layer_on_the_meta_device(assign):
    trained = randomize_predictors(MetricConv2d(4, 6, 3))
    with torch.device("meta"):
        layer = MetricConv2d(4, 6, 3)
    layer = layer if assign else layer.to_empty(device="cpu")
    layer.load_state_dict(trained.state_dict(), assign=assign)
    x = torch.randn(1, 4, 8, 7)
    torch.testing.assert_close(layer(x), trained(x))
    assert nn.utils.skip_init(MetricConv2d, 4, 6, 3).weight.shape == (6, 4, 3, 3)


@pytest.mark.parametrize("ball", ["tangent", "geodesic"])
def test_predictor_of_a_1x1_kernel_has_a_gradient(ball):
    layer = MetricConv2d(2, 3, 1, ball=ball)
    layer(torch.randn(1, 2, 4, 4)).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_checkpoint_of_a_convolution_on_the_meta_device_gives_a_zero_predictor():
    conv, x = nn.Conv2d(3, 4, 3, padding=1), torch.randn(1, 3, 6, 6)
    with torch.device("meta"):
        layer = MetricConv2d(3, 4, 3, padding=1)
    missing, _ = layer.load_state_dict(conv.state_dict(), strict=False, assign=True)
    assert missing == ["predictor.weight", "predictor.bias"]
    torch.testing.assert_close(layer(x), conv(x))
    with torch.device("meta"), pytest.raises(RuntimeError, match="Missing key"):
        MetricConv2d(3, 4, 3, padding=1).load_state_dict(conv.state_dict(), assign=True)
