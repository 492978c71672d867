"""Layers whose balls are not ellipsoids: they start as ordinary convolutions, learn, convert, export; any dimension."""

import itertools
import math

import pytest
import torch
from torch import nn

import metricconv as mc
from metricconv.metrics import HalfSpace, Orthant

FAMILIES = ("asymmetric", "orthant", "half_space")
LAYERS = {1: mc.nn.MetricConv1d, 2: mc.nn.MetricConv2d, 3: mc.nn.MetricConv3d}
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class MetricConv4d(mc.nn.MetricConv):
    dim = 4


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize(("kernel", "dilation"), [(3, 1), (5, 2)])
def test_layer_starts_as_the_ordinary_convolution(family, dim, kernel, dilation):
    if dim == 3 and kernel == 5:
        kernel, dilation = 3, 2
    conv = CONVOLUTIONS[dim](2, 3, kernel, padding=dilation, dilation=dilation).double()
    x = torch.randn(2, 2, *(13,) * dim).double()
    layer = LAYERS[dim].from_conv(conv, parametrization=family)
    torch.testing.assert_close(layer(x), conv(x), rtol=0, atol=1e-4 if family == "asymmetric" else 1e-9)


@pytest.mark.parametrize("parametrization", [Orthant(p=math.inf), Orthant(p=1), HalfSpace(p=math.inf), HalfSpace(p=4)])
def test_layer_with_a_fixed_exponent_starts_as_the_ordinary_convolution(parametrization):
    conv = nn.Conv2d(2, 3, 5, padding=2)
    x = torch.randn(1, 2, 9, 8)
    layer = mc.nn.MetricConv2d.from_conv2d(conv, parametrization=parametrization)
    torch.testing.assert_close(layer(x), conv(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_step_of_training_changes_the_predictor_and_the_output(family):
    torch.manual_seed(0)
    net = mc.convert(nn.Sequential(nn.Conv2d(1, 4, 3, padding=1)), parametrization=family)
    x = torch.randn(2, 1, 8, 8)
    before = net(x)
    before.square().sum().backward()
    gradient = net[0].predictor.weight.grad
    assert gradient.isfinite().all() and gradient.abs().max() > 0
    with torch.no_grad():
        net[0].predictor.weight -= 0.1 * gradient / gradient.norm()
    assert (net(x) - before).abs().max() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_layer_exports_to_onnx(family, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    layer = mc.nn.MetricConv2d(2, 3, 3, padding=1, parametrization=family).eval()
    nn.init.normal_(layer.predictor.weight, std=0.1)
    x, path = torch.randn(1, 2, 6, 7), tmp_path / "layer.onnx"
    torch.onnx.export(layer, (x,), path, dynamo=True, verbose=False)
    (y,) = onnxruntime.InferenceSession(path).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(y), layer(x).detach(), rtol=1e-4, atol=1e-4)


def test_eps_omega_of_a_family_without_drift_raises():
    with pytest.raises(ValueError, match=r"`eps_omega` \(=0.5\) has no effect on `parametrization` \(='orthant'\)"):
        mc.nn.MetricConv2d(2, 2, 3, parametrization="orthant", eps_omega=0.5)


@pytest.mark.parametrize("family", ["spectral7", *FAMILIES])
def test_layer_in_4d_starts_as_the_ordinary_convolution(family):
    x = torch.randn(1, 2, 4, 3, 4, 3).double()
    layer = MetricConv4d(2, 2, 3, padding=1, parametrization=family).double()
    expected = mc.support_conv(x, mc.Grid(3, dim=4), layer.weight, layer.bias, padding=1)
    y = layer(x)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-4)
    y.sum().backward()
    assert layer.predictor.weight.grad.isfinite().all()


def test_grid_in_4d_is_a_sum_of_3d_convolutions():
    x, weight = torch.randn(1, 2, 4, 4, 4, 4), torch.randn(3, 2, 3, 3, 3, 3)
    y = mc.support_conv(x, mc.Grid(3, dim=4), weight)
    for t in range(2):
        parts = [nn.functional.conv3d(x[:, :, t + s], weight[:, :, s]) for s in range(3)]
        torch.testing.assert_close(y[:, :, t], sum(parts), rtol=1e-4, atol=1e-4)


def test_from_conv_in_4d_raises():
    with pytest.raises(TypeError, match="torch has no convolution with 4 spatial axes"):
        MetricConv4d.from_conv(nn.Conv3d(1, 1, 3))


def test_polar_stencil_in_4d_has_unit_directions_that_sum_to_zero():
    stencil = mc.stencils.polar(4, 4)
    assert stencil.kernel_size == (4,) * 4
    torch.testing.assert_close(stencil.directions.norm(dim=1), torch.ones(256).double())
    assert stencil.directions[:64].sum(0).norm() < 1e-9
    nearest = (stencil.directions[:64] @ stencil.directions[:64].T - 2 * torch.eye(64).double()).amax(1)
    assert nearest.max() < 0.99 and nearest.min() > 0.5
    assert len(list(itertools.chain(stencil.radii.unique()))) == 4


@pytest.mark.parametrize("parametrization", ["orthant", "half_space"])
def test_geodesic_balls_of_norms_with_corners_raise(parametrization):
    with pytest.raises(ValueError, match=r"`ball` \(='geodesic'\) does not support \w+ metrics"):
        mc.nn.MetricConv2d(2, 2, 3, ball="geodesic", parametrization=parametrization)
