"""The layers: a Conv superset that starts as an ordinary convolution."""

import copy
import inspect
import math

import numpy as np
import pytest
import torch
from torch import nn

import metricconv as mc
from layers import stir
from metricconv.nn import DeformableConv2d, DilatedConv2d, MetricConv1d, MetricConv2d, MetricConv3d, ShiftedConv2d

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
def test_layer_starts_equal_to_the_convolution_it_comes_from(layer, options):
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
def test_from_conv_of_a_dimension_starts_equal_and_keeps_weights_and_bias(dim):
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
def test_a_layer_of_float64_starts_equal_to_float64_s_rounding(layer, options):
    conv, x = nn.Conv2d(4, 6, 5, padding=2).double(), torch.randn(1, 4, 9, 9).double()
    torch.testing.assert_close(layer.from_conv(conv, **options)(x), conv(x), atol=1e-14, rtol=0)
    widened = layer(4, 6, 5, padding=2, **options).double()
    expected = nn.functional.conv2d(x, widened.weight, widened.bias, padding=2)
    torch.testing.assert_close(widened(x), expected, atol=1e-14, rtol=0)


@pytest.mark.parametrize("layer", LAYERS)
def test_identity_survives_loops_that_initialise_every_convolution(layer):
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


def test_identity_survives_reset_parameters_and_deepcopy_and_state_dict():
    layer = stir(MetricConv2d(3, 4, 3))
    x = torch.randn(1, 3, 8, 8)
    twin = copy.deepcopy(layer)
    torch.testing.assert_close(twin(x), layer(x))
    other = MetricConv2d(3, 4, 3)
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(x), layer(x))
    layer.reset_parameters()
    torch.testing.assert_close(layer(x), nn.functional.conv2d(x, layer.weight, layer.bias), atol=1e-5, rtol=1e-4)


def test_a_plain_convolution_s_checkpoint_loads_but_for_the_predictor():
    conv, layer = nn.Conv2d(3, 4, 3), MetricConv2d(3, 4, 3)
    result = layer.load_state_dict(conv.state_dict(), strict=False)
    assert result.missing_keys == ["predictor.weight", "predictor.bias"] and not result.unexpected_keys


@pytest.mark.parametrize("layer", LAYERS)
def test_every_parameter_gets_a_finite_gradient_once_the_head_moves(layer):
    net = stir(layer(4, 6, 3, padding=1, groups=2, metric_groups=2, modulation=True))
    net(torch.randn(2, 4, 7, 6)).square().sum().backward()
    for name, parameter in net.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_the_head_learns_from_the_identity():
    """A layer that starts as a convolution must be able to leave: no dead gradient at the start."""
    net = MetricConv2d(4, 6, 3, padding=1)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
    x, target = torch.randn(2, 4, 9, 9), torch.randn(2, 6, 9, 9)
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.mse_loss(net(x), target).backward()
        optimiser.step()
    assert (net.predictor.bias.abs() > 0).all()


def test_fixed_kernel_is_a_buffer_and_the_mean():
    layer = MetricConv2d(4, 6, 3, groups=2, learn_weight=False, bias=False, padding_mode="border")
    assert "weight" in dict(layer.named_buffers()) and "weight" not in dict(layer.named_parameters())
    torch.testing.assert_close(layer.weight, torch.full((6, 2, 3, 3), 1 / 18))
    x = torch.full((1, 4, 8, 8), 3.0)
    torch.testing.assert_close(stir(layer, 0.01)(x), torch.full((1, 6, 6, 6), 3.0))


def test_paper_init_has_one_constant_kernel_and_balls_in_pixels():
    layer = MetricConv2d(4, 6, 3, stencil="onion", init="paper")
    torch.testing.assert_close(layer.weight, torch.full((6, 4, 3, 3), 1 / 36))
    support, _ = layer.predict_support(torch.randn(1, 4, 8, 8))
    radius = support.offsets().norm(dim=3)[0, 0, 0]
    torch.testing.assert_close(radius, torch.full((6, 6), 0.8**-0.5))


def test_riemannian_layers_predict_no_drift():
    randers, riemannian = MetricConv2d(4, 6, 3, eps_omega=0.3), MetricConv2d(4, 6, 3, eps_omega=1.0)
    assert randers.predictor.weight.shape[0] == 7 and riemannian.predictor.weight.shape[0] == 5
    assert isinstance(riemannian.predict_support(torch.randn(1, 4, 8, 8))[0].metric, mc.Riemannian)


def test_parameter_counts_are_a_few_numbers_a_pixel_whatever_the_kernel():
    numbers = {layer.__name__: layer(4, 6, 5, metric_groups=2).predictor.weight.shape[0] for layer in LAYERS}
    assert numbers == {"MetricConv2d": 14, "DeformableConv2d": 100, "ShiftedConv2d": 4, "DilatedConv2d": 2}


def test_metric_can_be_given_or_computed_instead_of_predicted():
    x = torch.randn(2, 3, 9, 8)
    given = MetricConv2d(3, 4, 3, padding=1, metric=mc.Riemannian.isotropic(1.0))
    computed = MetricConv2d(3, 4, 3, padding=1, metric=lambda x: mc.Riemannian.isotropic(torch.ones(2, 1, 9, 8)))
    computed.load_state_dict(given.state_dict())
    assert given.predictor is None
    expected = nn.functional.conv2d(x, given.weight, given.bias, padding=1)
    torch.testing.assert_close(given(x), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(computed(x), expected, atol=1e-5, rtol=1e-4)


def test_metric_on_the_input_s_grid_is_read_at_the_centres_of_the_output():
    radius = 1 + torch.arange(9.0).view(1, 1, 9, 1).expand(1, 1, 9, 8) / 10
    layer = MetricConv2d(3, 4, 3, stride=2, padding=1, metric=mc.Riemannian.isotropic(radius))
    support, _ = layer.predict_support(torch.randn(1, 3, 9, 8))
    assert support.spatial == (5, 4)
    torch.testing.assert_close(support.metric.M[0, 0, 0, :, 0], (1 + torch.arange(0, 9, 2) / 10).pow(-2))


def test_metric_on_the_input_s_grid_is_read_there_even_where_the_output_has_its_size():
    radius = 1 + torch.arange(5.0).view(1, 1, 5, 1).expand(1, 1, 5, 5) / 10
    layer = MetricConv2d(3, 4, 3, stride=2, padding=3, metric=mc.Riemannian.isotropic(radius))
    support, _ = layer.predict_support(torch.randn(1, 3, 5, 5))
    expected = torch.tensor([1.0, 1.0, 1.2, 1.4, 1.4])  # at -2, 0, 2, 4 and 6
    torch.testing.assert_close(support.metric.M[0, 0, 0, :, 0], expected.pow(-2))
    same = MetricConv2d(3, 4, 3, padding=1, metric=layer.metric)
    assert same.predict_support(torch.randn(1, 3, 5, 5))[0].metric is same.metric


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_layers_work_in_every_dtype_with_the_geometry_kept_exact(dtype):
    conv = nn.Conv2d(4, 6, 3, padding=2, dilation=2)
    layer = MetricConv2d.from_conv2d(conv).to(dtype)
    x = torch.randn(1, 4, 8, 8).to(dtype)
    assert layer(x).dtype == dtype
    torch.testing.assert_close(layer(x).double(), conv.double()(x.double()), atol=5e-2, rtol=5e-2)
    corner = layer.predict_support(x)[0].offsets()[0, 0, 0, :, 4, 4]
    torch.testing.assert_close(corner.double(), torch.full((2,), -2.0, dtype=torch.float64), atol=1e-6, rtol=0)


def test_autocast_gives_half_outputs_and_keeps_the_metric_wide():
    layer = stir(MetricConv2d(4, 6, 3, padding=1, modulation=True))
    x = torch.randn(1, 4, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
        assert layer.predict_support(x)[0].metric.dtype == torch.float32
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), layer(x), atol=0.1, rtol=0.1)


def test_layer_compiles_without_graph_breaks_and_differentiates():
    layer = stir(MetricConv2d(4, 6, 3, padding=1, modulation=True))
    x = torch.randn(2, 4, 7, 6)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))
    compiled(x).sum().backward()
    assert layer.predictor.weight.grad.abs().sum() > 0


def test_a_strided_layer_compiles_for_sizes_that_vary():
    layer = stir(MetricConv2d(4, 6, 3, stride=2, padding=1))
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for size in [(2, 4, 12, 13), (1, 4, 17, 9)]:
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), layer(x), atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_unpadded_layers_train_compiled_for_sizes_that_vary(after):
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
def test_the_identity_is_exact_whatever_the_default_dtype(layer):
    conv, x = nn.Conv2d(3, 4, 5, padding=2), torch.randn(1, 3, 9, 9)
    torch.set_default_dtype(torch.bfloat16)
    try:
        adaptive = layer.from_conv(conv)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(adaptive(x), conv(x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("ball", ["tangent", "geodesic"])
@pytest.mark.parametrize("channels", [4, 16])
def test_layers_compute_where_their_input_is_whatever_the_default_device(ball, channels):
    layer, x = stir(MetricConv2d(channels, 4, 3, padding=1, ball=ball)), torch.randn(1, channels, 6, 6)
    expected = layer(x)
    with torch.device("meta"):
        y = layer(x)
        y.sum().backward()
    torch.testing.assert_close(y, expected)


def test_an_image_without_batch_axis_is_a_batch_of_one():
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
        ({"metric": "edge"}, "`metric` must be a Metric or a function of the input, got str"),
        ({"in_channels": 0}, "`in_channels` (=0) must be at least 1"),
        ({"out_channels": -1}, "`out_channels` (=-1) must be at least 1"),
        ({"metric_groups": 1.0}, "`metric_groups` (=1.0) must be an int"),
        ({"backend": "gpu"}, "`backend` (='gpu') must be one of 'auto'"),
        ({"dtype": torch.int32}, "`dtype` (=torch.int32)"),
    ],
)
def test_bad_arguments_are_refused_by_name_and_value(options, message):
    with pytest.raises((ValueError, TypeError)) as caught:
        MetricConv2d(**{"in_channels": 4, "out_channels": 6, "kernel_size": 3, **options})
    assert message in str(caught.value)


def test_bad_inputs_are_refused():
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
def test_a_layer_made_without_memory_can_be_given_some(layer, options):
    with torch.device("meta"):
        adaptive = layer(4, 6, 3, padding=1, **options)
    assert adaptive(torch.empty(2, 4, 8, 7, device="meta")).shape == (2, 6, 8, 7)
    adaptive = adaptive.to_empty(device="cpu")
    adaptive.reset_parameters()
    x = torch.randn(1, 4, 8, 7)
    expected = nn.functional.conv2d(x, adaptive.weight, adaptive.bias, padding=1)
    torch.testing.assert_close(adaptive(x), expected, atol=1e-5, rtol=1e-4)


def test_signatures_spell_out_what_is_handed_on():
    class Small(MetricConv2d):
        def __init__(self, channels):
            super().__init__(channels, channels, 3)

    class Named(MetricConv2d):
        def __init__(self, *args, label="", **options):
            super().__init__(*args, **options)

    usual = list(inspect.signature(nn.Conv2d).parameters)[:9]
    for layer in (MetricConv2d, DeformableConv2d, ShiftedConv2d, DilatedConv2d, Named):
        names = list(inspect.signature(layer).parameters)
        assert names[:9] == usual and {"metric_groups", "backend", "dtype"} < set(names)
    assert {"label", "parametrization"} < set(inspect.signature(Named).parameters)
    assert list(inspect.signature(Small).parameters) == ["channels"]


def test_printing_a_layer_says_what_is_unusual():
    text = repr(MetricConv2d(4, 6, 3, dilation=2, metric_groups=2, eps_omega=0.3))
    assert "dilation=(2, 2)" in text and "metric_groups=2" in text and "0.3" in text and "groups=1" not in text


def test_a_layer_whose_weight_is_computed_from_parameters_learns_it():
    layer = nn.utils.parametrizations.weight_norm(MetricConv2d(4, 6, 3))
    assert "learn_weight" not in repr(layer)
    assert "learn_weight=False" in repr(MetricConv2d(4, 6, 3, learn_weight=False))


def test_repr_tells_the_stencil_and_a_given_metric():
    assert "stencil" not in repr(MetricConv2d(4, 6, 3))
    assert "stencil='polar'" in repr(MetricConv2d(4, 6, 3, stencil="polar"))
    assert "stencil='given'" in repr(MetricConv2d(4, 6, 3, stencil=mc.stencils.onion(3)))
    given = repr(MetricConv2d(4, 6, 3, metric=mc.metrics.gradient_metric))
    assert "metric=gradient_metric" in given and "radius" not in given
    assert "metric=Riemannian" in repr(MetricConv2d(4, 6, 3, metric=mc.Riemannian.isotropic(1.0)))


def test_the_gain_of_the_geometry_is_kept_in_checkpoints_and_as_it_is_where_one_lacks_it():
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
def test_weights_are_loaded_into_a_layer_made_without_memory(assign):
    trained = stir(MetricConv2d(4, 6, 3))
    with torch.device("meta"):
        layer = MetricConv2d(4, 6, 3)
    layer = layer if assign else layer.to_empty(device="cpu")
    layer.load_state_dict(trained.state_dict(), assign=assign)
    x = torch.randn(1, 4, 8, 7)
    torch.testing.assert_close(layer(x), trained(x))
    assert nn.utils.skip_init(MetricConv2d, 4, 6, 3).weight.shape == (6, 4, 3, 3)


def test_numpy_numbers_are_numbers():
    three = np.int64(3)
    assert MetricConv2d(np.int64(4), 6, three, padding=np.int64(1), radius=np.float32(2)).kernel_size == (3, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radius": 5.0}, r"`radius` \(=5.0\) is of predicted metrics"),
        ({"metric_groups": 2}, r"`metric_groups` \(=2\) is of predicted"),
        ({"parametrization": "nonsense"}, r"`parametrization` \(=nonsense\) is of predicted"),
    ],
)
def test_options_of_a_predicted_metric_do_not_go_with_a_given_one(options, message):
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
def test_what_does_not_fit_is_refused_when_a_layer_is_made(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        MetricConv2d(4, 6, 3, **options)


def test_a_computed_weight_cannot_be_shared():
    with pytest.raises(TypeError, match="`conv` computes its weight"):
        MetricConv2d.from_conv2d(nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3)))


@pytest.mark.parametrize("ball", ["tangent", "geodesic"])
def test_a_head_has_a_gradient_even_where_there_is_but_one_sample(ball):
    layer = MetricConv2d(2, 3, 1, ball=ball)
    layer(torch.randn(1, 2, 4, 4)).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_a_plain_checkpoint_takes_a_layer_off_the_meta_device_with_a_predictor_at_zero():
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
def test_unclear_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        MetricConv2d(3, 4, 3, **options)


def test_a_layer_without_a_number_of_axes_says_which_has_one():
    with pytest.raises(TypeError, match="MetricConv has no number of spatial axes: use one that has, as MetricConv2d"):
        mc.nn.MetricConv(3, 4, 3)


def test_what_comes_from_the_convolution_cannot_be_given_but_for_the_padding_mode():
    conv = nn.Conv2d(3, 4, 3, padding=1)
    with pytest.raises(TypeError, match=r"`kernel_size` \(=5\) is taken from `conv`"):
        MetricConv2d.from_conv2d(conv, kernel_size=5)
    with pytest.raises(ValueError, match="`conv` cannot be replaced: it is lazy"):
        MetricConv2d.from_conv2d(nn.LazyConv2d(4, 3))
    layer, x = MetricConv2d.from_conv2d(conv, padding_mode="border"), torch.randn(1, 3, 6, 6)
    assert layer.padding_mode == "border"
    torch.testing.assert_close(layer(x)[..., 1:-1, 1:-1], conv(x)[..., 1:-1, 1:-1])
