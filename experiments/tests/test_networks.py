"""The initialization and the layers of the published experiments."""

import pytest
import torch
from torch import nn

import metricconv as mc
from metricconv.metrics import Cholesky, Spectral6, Spectral7
from metricconv.nn import DeformableConv2d, MetricConv2d, ShiftedConv2d
from metricconv_experiments import networks

torchvision = pytest.importorskip("torchvision")


def test_constant_layers_have_constant_kernels_and_unscaled_balls():
    layer = networks.constant_layer(MetricConv2d, 4, 6, 3, stencil="onion")
    torch.testing.assert_close(layer.weight, torch.full((6, 4, 3, 3), 1 / 36))
    support, _ = layer.predict_support(torch.randn(1, 4, 8, 8))
    radius = support.offsets().norm(dim=3)[0, 0, 0]
    torch.testing.assert_close(radius, torch.full((6, 6), 0.8**-0.5))
    assert (layer.bias.abs() <= 1 / 6).all() and layer.bias.any()


def test_constant_layers_survive_a_move():
    layer = networks.constant_layer(MetricConv2d, 4, 6, 3, parametrization=Cholesky(), radius=2.0)
    assert not layer.double().float().identity.any() and layer.radius == 2


def test_constant_layers_draw_the_bias_alone():
    torch.manual_seed(3)
    expected = torch.empty(6).uniform_(-1 / 6, 1 / 6)
    torch.manual_seed(3)
    assert torch.equal(networks.constant_layer(DeformableConv2d, 4, 6, 3).bias, expected)
    torch.manual_seed(3)
    networks.constant_layer(MetricConv2d, 4, 6, 3, bias=False)
    assert torch.equal(torch.empty(6).uniform_(-1 / 6, 1 / 6), expected)


def published(parametrization, channels=4):
    layer = MetricConv2d(channels, 6, 3, padding=1, parametrization=parametrization)
    networks.use_published_init(layer)
    return layer


def radii(layer, x):
    """The radii of the balls along both axes: (B, 2, H, W)."""
    metric = layer.predict_support(x)[0].metric
    return metric.M[:, 0, [0, 2]].rsqrt()


def test_published_balls_with_7_parameters_start_round_with_random_frames():
    layer = published(Spectral7(), channels=64)
    x = torch.randn(2, 64, 8, 8)
    torch.testing.assert_close(radii(layer, x), torch.full((2, 2, 8, 8), 0.8**-0.5), rtol=1e-4, atol=0)
    support, _ = layer.predict_support(x)
    torch.testing.assert_close(support.metric.omega, torch.zeros(()).expand_as(support.metric.omega), rtol=0, atol=1e-3)
    rows = layer.predictor.weight.detach()
    bound = 1 / 24  # that of nn.Conv2d(64, 7, 3)
    assert rows[:2].abs().max() <= bound and rows[:2].std().item() == pytest.approx(bound / 3**0.5, rel=0.1)
    assert (rows[2:] == 1e-6).all() and not layer.predictor.bias.any() and not layer.identity.any()
    assert not layer.bias.any() and (layer.weight == 1 / 576).all()


def test_published_balls_with_6_parameters_depend_on_the_input():
    layer = published(Spectral6(), channels=64)
    (found,) = radii(layer, torch.randn(1, 64, 8, 8))
    assert found.max() / found.min() > 1.3 and found.max() <= 10
    assert radii(layer, torch.zeros(1, 64, 8, 8)).sub(10).abs().max() < 0.01
    assert layer.predictor.weight[2:].std().item() == pytest.approx(1 / 24 / 3**0.5, rel=0.1)


def test_published_cholesky_factors_start_as_the_mean_of_the_input():
    layer = published(Cholesky())
    found = radii(layer, torch.full((1, 4, 8, 8), 0.49))[..., 1:-1, 1:-1]
    torch.testing.assert_close(found, torch.full((1, 2, 6, 6), 2.0), rtol=1e-3, atol=0)


@pytest.mark.parametrize("make", [DeformableConv2d, ShiftedConv2d])
def test_published_baselines_start_with_random_offsets(make):
    layer = make(64, 6, 3, padding=1)
    networks.use_published_init(layer)
    assert (layer.predictor.weight == 1e-6).all() and (layer.weight == 1 / 576).all()
    assert layer.predictor.bias.unique().numel() > 1 and layer.predictor.bias.abs().max() <= 1 / 24


def test_published_init_covers_all_metric_groups():
    layer = MetricConv2d(4, 6, 3, metric_groups=2)
    networks.use_published_init(layer)
    random = (layer.predictor.weight != 1e-6).flatten(1).all(1)
    assert random.tolist() == 2 * ([True] * 2 + [False] * 5)


def test_published_choice_is_the_3x3_convolutions_of_layers_2_to_4():
    converted = mc.convert(torchvision.models.resnet18(weights=None), networks.is_published_choice)
    names = {name for name, _ in mc.nn.adaptive_layers(converted)}
    assert names == {f"layer{n}.{b}.conv{c}" for n in (2, 3, 4) for b in (0, 1) for c in (1, 2)}


def test_last_layer_gets_stride_1_and_its_later_blocks_dilation_2():
    model = torchvision.models.resnet18(weights=None)
    networks.dilate_last_layer(model)
    first, second = model.layer4
    assert first.conv1.stride == (1, 1) and first.conv1.dilation == (1, 1) and first.downsample[0].stride == (1, 1)
    assert second.conv1.dilation == second.conv1.padding == (2, 2)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 1000)
    with pytest.raises(ValueError, match="`model` must be a ResNet"):
        networks.dilate_last_layer(nn.Sequential(nn.Conv2d(3, 3, 3)))
