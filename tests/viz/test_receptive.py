"""Receptive fields by composing supports."""

import copy
import math

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

import metricconv as mc
from layers import randomize_predictors
from metricconv.viz import canvas, plot_receptive_field, receptive_field
from rendering import near, pixels


def test_two_boxes_compose_to_a_tent():
    net = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=1))
    found = receptive_field(net, torch.randn(1, 2, 9, 9), (4, 4))
    tent = torch.tensor([0, 0, 1, 2, 3, 2, 1, 0, 0]) / 9
    assert torch.allclose(found, torch.outer(tent, tent), atol=1e-6)


@pytest.mark.parametrize("point", [np.array([2, 3]), torch.tensor([2, 3]), [np.int64(2), 3]])
def test_point_may_be_array_or_tensor(point):
    net, image = nn.Conv2d(1, 1, 3, padding=1), torch.zeros(1, 1, 6, 6)
    assert torch.equal(receptive_field(net, image, point), receptive_field(net, image, (2, 3)))


def test_works_without_gradient_mode():
    net, image = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1)), torch.rand(1, 1, 5, 5)
    expected = receptive_field(net, image, (2, 2))
    with torch.inference_mode():
        torch.testing.assert_close(receptive_field(net, image * 1, (2, 2)), expected)


def test_receptive_field_of_adaptive_layer_is_its_support():
    layer = randomize_predictors(mc.nn.MetricConv2d(1, 2, 3, padding=1, eps_omega=0.5), 0.5)
    image = torch.randn(1, 1, 16, 16)
    found = receptive_field(layer, image, (8, 7))
    with mc.nn.record_supports(layer) as supports:
        layer(image)
    positions = torch.tensor([8.0, 7.0]) + supports[""].offsets()[0, 0, :, :, 8, 7]
    grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"), -1)
    tents = (1 - (positions.view(-1, 1, 1, 2) - grid).abs()).clamp_min(0).prod(-1)
    assert torch.allclose(found, tents.mean(0), atol=1e-5)


def test_converted_network_has_receptive_field_of_original():
    net = torchvision.models.resnet18().eval()
    converted = mc.convert(net, select="layer[12].*")
    image = torch.rand(1, 3, 48, 48)
    a, b = (receptive_field(n, image, (3, 2), "layer2") for n in (net, converted))
    assert torch.allclose(a, b, atol=1e-5) and a.sum() == pytest.approx(1)


def test_residual_connections_increase_weight_of_center():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, x):
            return torch.relu(self.conv(x) + x)

    found = receptive_field(Block(), torch.randn(1, 1, 5, 5), (2, 2))
    assert found[2, 2] == pytest.approx((1 + 1 / 9) / 2) and found[1, 1] == pytest.approx(1 / 18)


def test_model_is_unchanged():
    net = nn.Sequential(mc.nn.MetricConv2d(1, 2, 3), nn.BatchNorm2d(2), nn.MaxPool2d(2), nn.Conv2d(2, 1, 1))
    net[1].eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    receptive_field(net, torch.randn(1, 1, 12, 12), (1, 1))
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert net.training and not net[1].training
    assert all(p.requires_grad for p in net.parameters()) and not any(m._forward_hooks for m in net.modules())


def test_plot_covers_receptive_field():
    net = nn.Sequential(nn.Conv2d(1, 1, 9, padding=4), nn.Conv2d(1, 1, 9, padding=4))
    axes = canvas.new_axes()[0, 0]
    assert plot_receptive_field(net, torch.zeros(1, 1, 40, 40), (10, 30), axes=axes) is axes
    rendered = pixels(axes.figure)
    line = np.argwhere(near(rendered, canvas.VERMILLION, 0.15))
    middle = axes.transData.transform([(30, 10)])[0]
    assert np.allclose(line.mean(0), [len(rendered) - middle[1], middle[0]], atol=6)


@pytest.mark.parametrize(
    ("layer", "point", "message"),
    [
        ("nowhere", (0, 0), "not the name of a layer"),
        ("0", (9, 0), r"inside the layer's output of size \(6, 6\)"),
        ("0", (1,), r"`point` \(=\(1,\)\) must be two integers"),
        ("0", (1.5, 0), r"`point` \(=\(1.5, 0\)\)"),
        ("0", None, r"`point` \(=None\)"),
        ("0", np.array([1.5, 0]), r"`point` \(=array\(\[1.5, 0. \]\)\)"),
        ("0", torch.tensor(1), r"`point` \(=tensor\(1\)\)"),
    ],
)
def test_invalid_arguments_raise(layer, point, message):
    with pytest.raises(ValueError, match=message):
        receptive_field(nn.Sequential(nn.Conv2d(1, 1, 3)), torch.zeros(1, 1, 8, 8), point, layer)


@pytest.mark.parametrize("part", [0.0, 2.0, math.nan])
def test_parts_must_be_between_0_and_1(part):
    with pytest.raises(ValueError, match=r"`parts`.*must lie between 0 and 1"):
        plot_receptive_field(nn.Conv2d(1, 1, 3), torch.zeros(1, 1, 8, 8), (1, 1), parts=[part])


def test_layer_of_unknown_support_raises():
    class Gain(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.gain.sum()

    with pytest.raises(ValueError, match=r"has a Gain \(1\), whose support is unknown"):
        receptive_field(nn.Sequential(nn.Conv2d(1, 1, 3), Gain()), torch.zeros(1, 1, 8, 8), (0, 0))


def test_glu_contributes_both_halves():
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GLU(1), nn.Conv2d(2, 2, 3, padding=1))
    found = receptive_field(net, torch.zeros(1, 1, 5, 5), (2, 2))
    torch.testing.assert_close(found[2].mul(81), torch.tensor([3.0, 6.0, 9.0, 6.0, 3.0]))


def test_attention_raises():
    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(2, 1, batch_first=True)

        def forward(self, x):
            flat = x.flatten(2).mT
            return self.attention(flat, flat, flat)[0].mT.reshape(x.shape)

    with pytest.raises(ValueError, match=r"has a MultiheadAttention \(attention\), whose support is unknown"):
        receptive_field(Attending(), torch.zeros(1, 2, 8, 8), (0, 0))


def test_layer_used_twice_has_support_per_call():
    torch.manual_seed(0)
    layer = randomize_predictors(mc.nn.MetricConv2d(1, 1, 3, padding=1), 1.0)
    image = torch.rand(1, 1, 15, 15)
    once, twice = (nn.Sequential(layer, nn.MaxPool2d(2), other) for other in (copy.deepcopy(layer), layer))
    expected = receptive_field(once, image, (3, 3))
    torch.testing.assert_close(receptive_field(twice, image, (3, 3)), expected)
    ordinary = receptive_field(twice, image, (3, 3), adaptive=False)
    assert ordinary.ndim == 2 and not torch.allclose(ordinary, expected)
