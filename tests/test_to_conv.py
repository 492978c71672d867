"""Conversion of adaptive convolutions back to ordinary ones, and folding for inference."""

import copy
import pickle

import pytest
import torch
from torch import nn

import metricconv as mc
from layers import assert_equal_outputs, randomize_predictors
from metricconv.nn import MetricConv2d


class Block(nn.Module):
    """A block that can be folded, and sums features with a method named like another one's fold."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        return self.fuse(self.conv(x), x)

    def fuse(self, x, y):
        return x + y

    def reparameterize(self):
        self.conv = nn.Identity()


def test_folding_of_adaptive_convolutions_raises():
    model = nn.Sequential(Block(), Block())
    lines: list[str] = []
    converted = mc.convert(model, "0.*", report=lines.append)
    assert lines == ["0.conv: 3×3, 3 → 3: converted; Block.reparameterize() now raises"]
    assert_equal_outputs(model, converted, 8, 8)
    message = r"^Block.reparameterize\(\) would discard the geometry .* such as 'conv'"
    for net in (converted, copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        with pytest.raises(RuntimeError, match=message):
            net[0].reparameterize()
        net[1].reparameterize()
        assert isinstance(net[1].conv, nn.Identity)
    model[0].reparameterize()
    mc.to_conv(converted, inplace=True)
    converted[0].reparameterize()
    assert isinstance(converted[0].conv, nn.Identity)


def test_to_conv_returns_ordinary_convolutions_where_the_geometry_is_the_identity():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1, bias=False),
        nn.Conv2d(4, 4, (3, 5), padding=2, dilation=2, padding_mode="replicate"),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3),
    ).double()
    model[0].weight.requires_grad_(False)
    converted = mc.convert(model, modulation=True).train()
    converted[1].eval()
    randomize_predictors(converted[2:])
    mc.nn.set_geometry_gain(converted[2], 0.0)
    lines: list[str] = []
    plain = mc.to_conv(converted, report=lines.append)
    assert lines == [
        "0: MetricConv2d: converted",
        "1: MetricConv2d: converted",
        "2: MetricConv2d: converted",
        "3: MetricConv2d: unchanged: its predictor is not zero",
    ]
    assert [type(layer) for layer in plain] == [nn.Conv2d] * 3 + [MetricConv2d]
    assert [repr(layer) for layer in plain[:3]] == [repr(layer) for layer in model[:3]]
    assert [layer.training for layer in plain] == [True, False, True, True]
    assert not plain[0].weight.requires_grad and plain[1].weight.dtype == torch.float64
    assert all(torch.equal(plain[n].weight, model[n].weight) for n in range(4))
    x = torch.randn(1, 3, 21, 25).double()
    torch.testing.assert_close(plain(x), converted(x), atol=1e-12, rtol=0)
    assert type(mc.to_conv(converted[0])) is nn.Conv2d
    weight = converted[0].weight
    assert mc.to_conv(converted, inplace=True) is converted and converted[0].weight is weight


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (MetricConv2d(3, 4, 3, metric="gradient"), "its metric is given or computed from the input"),
        (MetricConv2d(3, 4, 3, stencil="onion"), "its initial sampling locations are not those of an ordinary"),
        (MetricConv2d(3, 4, 3, radius=2.0), "its initial sampling locations are not"),
        (MetricConv2d(3, 4, 3, stride=2, padding="same"), "an ordinary convolution has no padding='same' with this"),
        (nn.utils.parametrizations.weight_norm(MetricConv2d(3, 4, 3)), "its parametrization cannot be moved"),
        (MetricConv2d(3, 4, 3, device="meta"), "it is on the meta device"),
    ],
)
def test_to_conv_reports_the_reason_against_other_layers(layer, reason):
    lines: list[str] = []
    model = mc.to_conv(nn.Sequential(layer), report=lines.append)
    assert f"0: MetricConv2d: unchanged: {reason}" in lines[0] and isinstance(model[0], MetricConv2d)


@pytest.mark.parametrize(
    ("to", "options"),
    [("metric", {}), ("metric", {"ball": "geodesic"}), ("deformable", {}), ("shifted", {}), ("dilated", {})],
)
def test_to_conv_inverts_convert_for_every_layer(to, options):
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 5, dilation=2, padding_mode="circular", padding=4))
    plain = mc.to_conv(mc.convert(model, to=to, **options))
    assert repr(plain) == repr(model)
    assert_equal_outputs(model, plain, 24, 24)


def test_to_conv_of_a_fixed_kernel_has_a_frozen_weight():
    layer = MetricConv2d(3, 4, 3, learn_weight=False)
    conv = mc.to_conv(layer)
    assert not conv.weight.requires_grad and torch.equal(conv.weight, layer.weight)
