"""Layers over geodesic balls: initialization, training, compilation, autocast."""

import pickle

import pytest
import torch
from torch import nn

import metricconv as mc
from layers import randomize_predictors
from metricconv.nn import MetricConv1d, MetricConv2d, MetricConv3d

CONVS = {1: (nn.Conv1d, MetricConv1d), 2: (nn.Conv2d, MetricConv2d), 3: (nn.Conv3d, MetricConv3d)}


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 3, "stride": (2, 1), "padding": (1, 0), "bias": False},
        {"kernel_size": 5, "padding": 4, "dilation": 2},
        {"kernel_size": (3, 5), "dilation": (2, 1), "groups": 6},
        {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
    ],
)
def test_geodesic_layer_starts_equal_to_its_convolution(options):
    conv = nn.Conv2d(6, 12, **options)
    x = torch.randn(2, 6, 11, 9)
    layer = MetricConv2d.from_conv(conv, ball="geodesic")
    torch.testing.assert_close(layer(x), conv(x), atol=1e-5, rtol=1e-4)
    assert layer.weight is conv.weight
    assert isinstance(layer.predict_support(x)[0], mc.GeodesicBall)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_geodesic_layers_start_equal_in_every_dimension(dim):
    conv_type, metric_type = CONVS[dim]
    conv = conv_type(2, 4, 3, stride=2, padding=1)
    x = torch.randn(2, 2, *(5, 6, 7)[:dim])
    torch.testing.assert_close(metric_type.from_conv(conv, ball="geodesic", steps=2)(x), conv(x), atol=1e-5, rtol=1e-4)


def test_converted_network_starts_equal_and_then_differs_from_tangent_balls():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, stride=2, padding=1))
    x = torch.randn(2, 3, 12, 12)
    geodesic = mc.convert(net, ball="geodesic", metric_groups=1)
    torch.testing.assert_close(geodesic(x), net(x), atol=1e-5, rtol=1e-4)
    randomize_predictors(geodesic, 0.3)
    tangent = mc.convert(net)
    tangent.load_state_dict(geodesic.state_dict())
    assert not torch.allclose(geodesic(x), tangent(x), atol=1e-2)


@pytest.mark.parametrize(
    ("options", "largest"),
    [
        ({"kernel_size": 3}, 4.5),
        ({"kernel_size": 3, "steps": 8}, 12.0),
        ({"kernel_size": 7, "dilation": 2}, 12.0),
        ({"kernel_size": 3, "parametrization": "cholesky"}, 4.5),
    ],
)
def test_predicted_geodesic_balls_have_a_largest_radius(options, largest):
    layer = MetricConv2d(4, 2, **options, ball="geodesic")
    assert layer.parametrization is not None
    raw = 8 * torch.randn(2, 1, layer.parametrization.channels, 16, 16)
    metric = layer.make_support(raw).metric
    assert metric.is_positive().all()
    radius = mc.Riemannian(metric.M).bounding_radius
    assert 0.9 * largest < radius.max() <= largest * (1 + 1e-5)
    raw = torch.zeros(1, 1, layer.parametrization.channels, 4, 4)  # the initial metric is not changed
    M = layer.make_support(raw).metric.M
    identity = torch.tensor([1.0, 0.0, 1.0]).view(3, 1, 1).expand_as(M)
    torch.testing.assert_close(M * layer.radius**2, identity, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("shift", [0.0, 6.0])
def test_gradients_of_geodesic_layers_stay_moderate_where_large_balls_meet_small_ones(scale, shift):
    """Without a largest radius, this ratio is up to 90; with tangent balls, up to 6."""
    layer = MetricConv2d(4, 2, 3, padding=1, ball="geodesic")
    torch.manual_seed(0)
    raw = scale * torch.randn(2, 1, 7, 4, 4).repeat_interleave(4, -1).repeat_interleave(4, -2)
    raw[:, :, 4] -= shift  # the scale of the eigenvalues: larger balls
    raw.requires_grad_()
    offsets = layer.make_support(raw).offsets()
    direction = torch.randn_like(offsets)
    (gradient,) = torch.autograd.grad(offsets, raw, direction)
    assert gradient.norm() < direction.norm()


@pytest.mark.parametrize("stride", [1, 2])
def test_predictor_weights_and_input_have_gradients(stride):
    layer = randomize_predictors(MetricConv2d(4, 6, 3, stride, 1, ball="geodesic", metric_groups=2, modulation=True))
    x = torch.randn(2, 4, 8, 7, requires_grad=True)
    layer(x).square().mean().backward()
    for tensor in (x, *layer.parameters()):
        assert tensor.grad.isfinite().all() and tensor.grad.any()


def test_training_lowers_the_loss():
    x = torch.randn(2, 4, 8, 8)
    target = torch.nn.functional.avg_pool2d(x, 3, 1, 1)[:, :2]
    layer = MetricConv2d(4, 2, 3, padding=1, ball="geodesic", steps=2)
    optimizer = torch.optim.Adam(layer.parameters(), 1e-2)
    losses = []
    for _ in range(30):
        loss = (layer(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_support_of_a_strided_layer_has_its_stride():
    layer = MetricConv2d(4, 6, 3, (2, 3), 1, ball="geodesic")
    support, _ = layer.predict_support(torch.randn(1, 4, 9, 9))
    assert support.stride == (2, 3) and support.spatial == (5, 3)


def test_given_metric_works_with_geodesic_balls():
    image = torch.rand(1, 1, 10, 11)
    metric = mc.metrics.edge_metric(image)
    layer = MetricConv2d(1, 1, 5, padding=2, metric=metric, ball="geodesic", stencil="onion")
    ball = mc.GeodesicBall(metric, mc.stencils.onion(5))
    expected = mc.support_conv(image, ball, layer.weight, layer.bias, padding=2)
    torch.testing.assert_close(layer(image), expected)


def test_geometry_is_float32_under_autocast():
    layer = randomize_predictors(MetricConv2d(4, 6, 3, padding=1, ball="geodesic"))
    x = torch.randn(1, 4, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
        assert layer.predict_support(x)[0].offsets().dtype == torch.float32
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), layer(x), atol=0.15, rtol=0.1)


def test_layer_compiles_and_differentiates_without_graph_breaks():
    layer = randomize_predictors(MetricConv2d(4, 6, 3, padding=1, ball="geodesic", steps=2))
    x = torch.randn(2, 4, 7, 6)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x), atol=1e-4, rtol=1e-4)
    compiled(x).sum().backward()
    assert layer.predictor.weight.grad.abs().sum() > 0


def test_rays_keep_their_precision_and_values_across_dtypes_and_devices():
    layer = randomize_predictors(MetricConv2d(2, 2, 3, padding=1, ball="geodesic")).half().double()
    assert layer(torch.randn(1, 2, 5, 5).double()).dtype == torch.float64
    assert layer.rays.vectors.dtype == torch.float64
    layer.to("meta").to_empty(device="cpu")
    expected = torch.tensor([2**0.5, 1, 2**0.5, 1, 1, 2**0.5, 1, 2**0.5], dtype=torch.float64)
    assert torch.equal(layer.rays.vectors[:, 2], expected)


def test_metric_is_smoothed_the_given_number_of_times():
    metric = mc.metrics.edge_metric(torch.rand(1, 1, 10, 11))
    options = {"padding": 1, "metric": metric, "ball": "geodesic"}
    image = torch.rand(1, 1, 10, 11)
    found = []
    for smooth in (0, 1, 3):
        layer = MetricConv2d(1, 1, 3, smooth=smooth, **options)
        ball = mc.GeodesicBall(metric, mc.stencils.square_onion(3), smooth=smooth)
        found.append(layer.predict_support(image)[0].offsets())
        torch.testing.assert_close(found[-1], ball.offsets())
    assert not torch.allclose(found[0], found[1]) and not torch.allclose(found[1], found[2])
    torch.testing.assert_close(MetricConv2d(1, 1, 3, **options).predict_support(image)[0].offsets(), found[1])


def test_pickling_and_conversion_keep_smooth():
    layer = mc.convert(nn.Sequential(nn.Conv2d(3, 4, 3)), ball="geodesic", smooth=2)[0]
    assert layer.smooth == 2 and pickle.loads(pickle.dumps(layer)).smooth == 2


def test_repr_shows_the_kind_of_ball():
    assert "ball='geodesic', steps=6" in repr(MetricConv2d(4, 6, 3, ball="geodesic", steps=6))
    assert "ball='geodesic', steps=2, smooth=0" in repr(MetricConv2d(4, 6, 3, ball="geodesic", steps=2, smooth=0))
    assert "smooth" not in repr(MetricConv2d(4, 6, 3, ball="geodesic"))
    assert "ball" not in repr(MetricConv2d(4, 6, 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ball": "round"}, "`ball` (='round') must be one of 'tangent', 'geodesic'"),
        ({"ball": "geodesic", "steps": 0}, "`steps` (=0) must be at least 1"),
        ({"ball": "geodesic", "smooth": -1}, "`smooth` (=-1) must be at least 0"),
        ({"ball": "geodesic", "smooth": 0.5}, "`smooth` (=0.5) must be an int"),
        ({"smooth": 2}, "`smooth` (=2) requires ball='geodesic'"),
        ({"steps": 3}, "`steps` (=3) requires ball='geodesic'"),
    ],
)
def test_bad_arguments_raise_with_name_and_value(options, message):
    with pytest.raises(ValueError) as caught:
        MetricConv2d(4, 6, 3, **options)
    assert message in str(caught.value)


def exported_sizes():
    return ({2: torch.export.Dim("height", min=4), 3: torch.export.Dim("width", min=4)},)


def test_exported_layer_accepts_other_sizes():
    layer = randomize_predictors(MetricConv2d(2, 2, 3, padding=1, ball="geodesic", steps=1)).eval()
    program = torch.export.export(layer, (torch.randn(1, 2, 6, 5),), dynamic_shapes=exported_sizes())
    image = torch.randn(1, 2, 4, 7)
    torch.testing.assert_close(program.module()(image), layer(image))


@pytest.mark.slow
def test_onnx_layer_accepts_other_sizes(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    layer = randomize_predictors(MetricConv2d(2, 2, 3, padding=1, ball="geodesic", steps=1)).eval()
    path = tmp_path / "layer.onnx"
    options = {"dynamo": True, "opset_version": 20, "dynamic_shapes": exported_sizes(), "verbose": False}
    torch.onnx.export(layer, (torch.randn(1, 2, 6, 5),), path, **options)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    image = torch.randn(1, 2, 4, 7)
    (y,) = session.run(None, {session.get_inputs()[0].name: image.numpy()})
    torch.testing.assert_close(torch.from_numpy(y), layer(image).detach(), atol=1e-5, rtol=1e-5)
