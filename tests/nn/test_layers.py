"""Adaptive layers: arguments, initialisation as an ordinary convolution, dtypes, checkpoints, errors."""

import copy
import inspect
import math
import re
import typing
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import metricconv as mc
from layers import stir
from metricconv.nn import (
    DeformableConv2d,
    DilatedConv2d,
    MetricConv,
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
def test_initialisation_of_every_convolution_keeps_the_identity(layer):
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), layer(4, 4, 3, padding=1))

    def initialise(module):
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            nn.init.constant_(module.bias, 0.5)

    net.apply(initialise)
    x = torch.randn(1, 3, 8, 8)
    inner = net[0](x)
    expected = nn.functional.conv2d(inner, net[1].weight, net[1].bias, padding=1)
    torch.testing.assert_close(net(x), expected, atol=1e-5, rtol=1e-4)


def test_deepcopy_and_state_dict_keep_the_geometry_and_reset_parameters_restores_the_identity():
    layer = stir(MetricConv2d(3, 4, 3))
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
    net = stir(layer(4, 6, 3, padding=1, groups=2, metric_groups=2, modulation=True))
    net(torch.randn(2, 4, 7, 6)).square().sum().backward()
    for name, parameter in net.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_predictor_has_gradients_at_the_identity():
    """No gradient vanishes at the initialisation."""
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
    torch.testing.assert_close(stir(layer, 0.01)(x), torch.full((1, 6, 6, 6), 3.0))


def test_paper_init_has_a_constant_kernel_and_unscaled_balls():
    layer = MetricConv2d(4, 6, 3, stencil="onion", init="paper")
    torch.testing.assert_close(layer.weight, torch.full((6, 4, 3, 3), 1 / 36))
    support, _ = layer.predict_support(torch.randn(1, 4, 8, 8))
    radius = support.offsets().norm(dim=3)[0, 0, 0]
    torch.testing.assert_close(radius, torch.full((6, 6), 0.8**-0.5))


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


def test_metric_of_the_input_size_is_interpolated_at_output_centres():
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
    layer = stir(MetricConv2d(4, 6, 3, padding=1, modulation=True))
    x = torch.randn(1, 4, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
        assert layer.predict_support(x)[0].metric.dtype == torch.float32
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), layer(x), atol=0.1, rtol=0.1)


def test_layer_compiles_and_differentiates_without_graph_breaks():
    layer = stir(MetricConv2d(4, 6, 3, padding=1, modulation=True))
    x = torch.randn(2, 4, 7, 6)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))
    compiled(x).sum().backward()
    assert layer.predictor.weight.grad.abs().sum() > 0


def test_strided_layer_compiles_with_dynamic_shapes():
    layer = stir(MetricConv2d(4, 6, 3, stride=2, padding=1))
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for size in [(2, 4, 12, 13), (1, 4, 17, 9)]:
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), layer(x), atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_unpadded_layers_train_compiled_with_dynamic_shapes(after):
    layers = [MetricConv2d(4, 8, 3, stride=2, padding=1), nn.ReLU(), MetricConv2d(8, 4, 3)]
    net = stir(nn.Sequential(*layers) if after else MetricConv2d(4, 6, 3, stride=2))
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
    layer, x = stir(MetricConv2d(channels, 4, 3, padding=1, ball=ball)), torch.randn(1, channels, 6, 6)
    expected = layer(x)
    with torch.device("meta"):
        y = layer(x)
        y.sum().backward()
    torch.testing.assert_close(y, expected)


def test_batch_axis_may_be_missing():
    layer = stir(MetricConv2d(4, 6, 3))
    x = torch.randn(4, 8, 8)
    torch.testing.assert_close(layer(x), layer(x[None])[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_channels": 5, "groups": 2}, "`in_channels` (=5) must be divisible by `groups` (=2)"),
        ({"metric_groups": 3}, "`in_channels` (=4) must be divisible by `metric_groups` (=3)"),
        ({"kernel_size": 4}, "must be odd"),
        ({"kernel_size": 4, "stencil": "onion"}, "`kernel_size` (=4) must be odd for an onion stencil"),
        ({"kernel_size": 1, "stencil": "polar"}, "`kernel_size` (=1) must be at least 2"),
        ({"init": "zeros"}, "`init` (='zeros') must be one of"),
        ({"padding_mode": "mirror"}, "`padding_mode` (='mirror')"),
        ({"parametrization": "qr"}, "`parametrization` (='qr')"),
        ({"stencil": "hexagon"}, "`stencil` (='hexagon')"),
        ({"stencil": mc.stencils.onion(5)}, "must agree"),
        ({"stride": 2, "padding": "same"}, "`padding` (='same')"),
        ({"radius": -1.0}, "`radius` (=-1.0) must be positive"),
        ({"eps_omega": 0.0}, "`eps_omega` (=0.0)"),
        ({"metric": mc.Riemannian.isotropic(1.0), "modulation": True}, "`modulation`"),
        ({"radius": math.nan}, "`radius` (=nan) must be positive and finite"),
        ({"metric": mc.Riemannian.isotropic(1.0), "eps_omega": 0.5}, "`eps_omega` (=0.5)"),
        ({"metric": "edges"}, "`metric` (='edges') must be one of 'gradient', 'edge', 'structure'"),
        ({"metric": 3}, "`metric` must be a Metric, a function of the input or a name, got int"),
        ({"in_channels": 0}, "`in_channels` (=0) must be at least 1"),
        ({"out_channels": -1}, "`out_channels` (=-1) must be at least 1"),
        ({"metric_groups": 1.0}, "`metric_groups` (=1.0) must be an int"),
        ({"backend": "gpu"}, "`backend` (='gpu') must be one of 'auto'"),
        ({"dtype": torch.int32}, "`dtype` (=torch.int32)"),
    ],
)
def test_bad_arguments_raise_with_name_and_value(options, message):
    with pytest.raises((ValueError, TypeError)) as caught:
        MetricConv2d(**{"in_channels": 4, "out_channels": 6, "kernel_size": 3, **options})
    assert message in str(caught.value)


def test_bad_inputs_raise():
    layer = MetricConv2d(4, 6, 3)
    with pytest.raises(ValueError, match=r"`input` must be \(B, 4, \*spatial\)"):
        layer(torch.randn(1, 5, 8, 8))
    with pytest.raises(TypeError, match=r"`input` must hold floating-point numbers, got dtype torch.int64"):
        layer(torch.zeros(1, 4, 8, 8, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"`input` must be a torch.Tensor, got list"):
        layer([1.0])
    with pytest.raises(TypeError, match="unexpected keyword"):
        MetricConv2d(4, 6, 3, paddingmode="zeros")
    with pytest.raises(TypeError, match=r"`conv` must be an nn.Conv2d"):
        MetricConv2d.from_conv2d(nn.Conv1d(4, 4, 3))
    with pytest.raises(ValueError, match="`learn_weight`"):
        MetricConv2d.from_conv2d(nn.Conv2d(4, 4, 3), learn_weight=False)


@pytest.mark.parametrize(
    ("layer", "options"), [*((layer, {}) for layer in LAYERS), (MetricConv2d, {"ball": "geodesic"})]
)
def test_layer_on_the_meta_device_can_be_materialised(layer, options):
    with torch.device("meta"):
        adaptive = layer(4, 6, 3, padding=1, **options)
    assert adaptive(torch.empty(2, 4, 8, 7, device="meta")).shape == (2, 6, 8, 7)
    adaptive = adaptive.to_empty(device="cpu")
    adaptive.reset_parameters()
    x = torch.randn(1, 4, 8, 7)
    expected = nn.functional.conv2d(x, adaptive.weight, adaptive.bias, padding=1)
    torch.testing.assert_close(adaptive(x), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layer", [*LAYERS, MetricConv1d, MetricConv3d])
def test_signature_starts_as_that_of_conv2d_and_is_typed(layer):
    parameters = inspect.signature(layer).parameters
    assert list(parameters)[:9] == list(inspect.signature(nn.Conv2d).parameters)[:9]
    assert {"metric_groups", "learn_weight", "modulation", "init", "backend", "device", "dtype"} < set(parameters)
    assert ("parametrization" in parameters) == issubclass(layer, MetricConv)
    for name, parameter in list(parameters.items())[9:]:
        assert parameter.kind == parameter.KEYWORD_ONLY, name
    for name, parameter in parameters.items():
        assert parameter.annotation not in (parameter.empty, Any), name
        assert (parameter.default is parameter.empty) == (name in ("in_channels", "out_channels", "kernel_size")), name


@pytest.mark.parametrize("layer", [MetricConv2d, DeformableConv2d])
def test_from_conv_accepts_the_options_of_the_constructor(layer):
    parameters = list(inspect.signature(layer).parameters.values())[8:]  # from padding_mode
    options = inspect.signature(layer.from_conv).parameters["geometry"].annotation.__args__[0]
    expected = {p.name: p.annotation for p in parameters if p.name not in ("device", "dtype")}
    assert typing.get_type_hints(options) == expected


def test_every_argument_is_documented():
    for name in inspect.signature(MetricConv2d).parameters:
        assert re.search(rf"^        (\w+, )*{name}(, \w+)*: ", MetricConv.__doc__, re.MULTILINE), name


@pytest.mark.parametrize("name", ["gradient", "edge", "structure"])
def test_metric_by_name_is_that_of_the_function(name):
    x = torch.rand(1, 3, 9, 8)
    named = MetricConv2d(3, 4, 3, padding=1, metric=name)
    given = MetricConv2d(3, 4, 3, padding=1, metric=getattr(mc.metrics, f"{name}_metric"))
    given.load_state_dict(named.state_dict())
    assert repr(named) == repr(given) and torch.equal(named(x), given(x))


def test_repr_shows_only_options_that_differ_from_the_defaults():
    text = repr(MetricConv2d(4, 6, 3, dilation=2, metric_groups=2, eps_omega=0.3))
    assert "dilation=(2, 2)" in text and "metric_groups=2" in text and "0.3" in text and "groups=1" not in text


def test_repr_with_weight_norm_does_not_show_learn_weight():
    layer = nn.utils.parametrizations.weight_norm(MetricConv2d(4, 6, 3))
    assert "learn_weight" not in repr(layer)
    assert "learn_weight=False" in repr(MetricConv2d(4, 6, 3, learn_weight=False))


def test_repr_shows_the_stencil_and_a_given_metric():
    assert "stencil" not in repr(MetricConv2d(4, 6, 3))
    assert "stencil='polar'" in repr(MetricConv2d(4, 6, 3, stencil="polar"))
    assert "stencil='given'" in repr(MetricConv2d(4, 6, 3, stencil=mc.stencils.onion(3)))
    given = repr(MetricConv2d(4, 6, 3, metric=mc.metrics.gradient_metric))
    assert "metric=gradient_metric" in given and "radius" not in given
    assert "metric=Riemannian" in repr(MetricConv2d(4, 6, 3, metric=mc.Riemannian.isotropic(1.0)))


def test_checkpoints_hold_the_geometry_gain_and_may_lack_it():
    trained, other = (stir(MetricConv2d(4, 6, 3)) for _ in range(2))
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
    trained = stir(MetricConv2d(4, 6, 3))
    with torch.device("meta"):
        layer = MetricConv2d(4, 6, 3)
    layer = layer if assign else layer.to_empty(device="cpu")
    layer.load_state_dict(trained.state_dict(), assign=assign)
    x = torch.randn(1, 4, 8, 7)
    torch.testing.assert_close(layer(x), trained(x))
    assert nn.utils.skip_init(MetricConv2d, 4, 6, 3).weight.shape == (6, 4, 3, 3)


def test_numpy_scalars_are_accepted():
    three = np.int64(3)
    assert MetricConv2d(np.int64(4), 6, three, padding=np.int64(1), radius=np.float32(2)).kernel_size == (3, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radius": 5.0}, r"`radius` \(=5.0\) has no effect when `metric` is given"),
        ({"metric_groups": 2}, r"`metric_groups` \(=2\) has no effect when"),
        ({"parametrization": "nonsense"}, r"`parametrization` \(=nonsense\) has no effect when"),
    ],
)
def test_options_of_the_predictor_raise_when_a_metric_is_given(options, message):
    with pytest.raises(ValueError, match=message):
        MetricConv2d(4, 6, 3, metric=mc.Riemannian.isotropic(1.0), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 2.0}, r"`groups` \(=2.0\) must be an int$"),
        ({"dtype": "float32"}, "`dtype` \\(='float32'\\) must be a torch.dtype"),
        ({"parametrization": mc.metrics.Cholesky(dim=3)}, "must have 2 spatial axes"),
    ],
)
def test_arguments_of_the_wrong_type_or_dimension_raise(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        MetricConv2d(4, 6, 3, **options)


def test_from_conv_of_a_parametrized_weight_raises():
    with pytest.raises(TypeError, match="`conv` computes its weight"):
        MetricConv2d.from_conv2d(nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3)))


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


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"modulation": "yes"}, TypeError, r"`modulation` \(='yes'\) must be True or False"),
        ({"learn_weight": 0}, TypeError, r"`learn_weight` \(=0\) must be True or False"),
        ({"padding_mode": "mirror"}, ValueError, r"`padding_mode` \(='mirror'\) must be one of .*'replicate'"),
    ],
)
def test_ambiguous_options_raise(options, error, message):
    with pytest.raises(error, match=message):
        MetricConv2d(3, 4, 3, **options)


def test_base_class_cannot_be_instantiated():
    with pytest.raises(
        TypeError, match="MetricConv does not define `dim`, the number of spatial axes: use MetricConv2d"
    ):
        mc.nn.MetricConv(3, 4, 3)


def test_from_conv_rejects_arguments_of_the_convolution_except_padding_mode():
    conv = nn.Conv2d(3, 4, 3, padding=1)
    with pytest.raises(TypeError, match=r"`kernel_size` \(=5\) is taken from `conv`"):
        MetricConv2d.from_conv2d(conv, kernel_size=5)
    with pytest.raises(ValueError, match="`conv` cannot be replaced: it is lazy"):
        MetricConv2d.from_conv2d(nn.LazyConv2d(4, 3))
    layer, x = MetricConv2d.from_conv2d(conv, padding_mode="border"), torch.randn(1, 3, 6, 6)
    assert layer.padding_mode == "border"
    torch.testing.assert_close(layer(x)[..., 1:-1, 1:-1], conv(x)[..., 1:-1, 1:-1])
