"""Derivatives of samples that lie exactly on pixels: central differences, the same in every backend.

Converted layers start there, so this is the first step of every training run.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import metricconv as mc
from helpers import PADDING_MODES
from metricconv._interpolation import lattice_tolerance

nn = mc.nn
modes = pytest.mark.parametrize("padding_mode", PADDING_MODES)

# Layers at their identity start, each with the size of its input. Layers of many channels use other kernels in the CPU
# backend.
LAYERS: dict[str, tuple[Callable[..., nn.AdaptiveConv], tuple[int, ...]]] = {
    "plain": (lambda **o: nn.MetricConv2d(4, 6, 3, padding=1, **o), (6, 7)),
    "many channels": (lambda **o: nn.MetricConv2d(16, 9, 3, padding=1, **o), (6, 7)),
    "strided": (lambda **o: nn.MetricConv2d(16, 16, 3, stride=2, padding=1, **o), (7, 8)),
    "dilated": (lambda **o: nn.MetricConv2d(3, 4, 5, dilation=2, padding=4, **o), (7, 9)),
    "metric groups": (lambda **o: nn.MetricConv2d(6, 4, 3, padding=1, metric_groups=3, groups=2, **o), (5, 6)),
    "modulated": (lambda **o: nn.MetricConv2d(16, 8, 3, padding=1, modulation=True, **o), (5, 6)),
    "depthwise": (lambda **o: nn.MetricConv2d(16, 16, 3, padding=1, groups=16, **o), (5, 6)),
    "one pixel": (lambda **o: nn.MetricConv2d(4, 6, 3, padding=1, **o), (1, 1)),
    "one row": (lambda **o: nn.MetricConv2d(16, 8, 3, padding=1, **o), (1, 5)),
    "1-D": (lambda **o: nn.MetricConv1d(4, 4, 5, padding=2, **o), (9,)),
    "1-D, many channels": (lambda **o: nn.MetricConv1d(16, 16, 3, padding=1, **o), (9,)),
    "3-D": (lambda **o: nn.MetricConv3d(2, 4, 3, padding=1, **o), (3, 4, 5)),
    "3-D, many channels": (lambda **o: nn.MetricConv3d(16, 8, 3, padding=1, **o), (3, 4, 5)),
    "geodesic": (lambda **o: nn.MetricConv2d(4, 6, 3, padding=1, ball="geodesic", **o), (6, 7)),
    "geodesic, many channels": (lambda **o: nn.MetricConv2d(16, 8, 5, padding=2, ball="geodesic", **o), (6, 7)),
    "deformable": (lambda **o: nn.DeformableConv2d(4, 6, 3, padding=1, **o), (6, 7)),
    "deformable, many channels": (lambda **o: nn.DeformableConv2d(16, 8, 3, padding=1, modulation=True, **o), (6, 7)),
    "even kernel": (lambda **o: nn.DeformableConv2d(4, 6, 4, padding=2, **o), (6, 7)),
    "shifted": (lambda **o: nn.ShiftedConv2d(4, 6, 3, padding=1, **o), (6, 7)),
}
layers = pytest.mark.parametrize("name", LAYERS)


def make(name: str, padding_mode: str, dtype: torch.dtype) -> tuple[nn.AdaptiveConv, Tensor]:
    constructor, size = LAYERS[name]
    layer = constructor(padding_mode=padding_mode).to(dtype)
    return layer, torch.randn(2, layer.in_channels, *size, dtype=dtype)


def outcome(layer: nn.AdaptiveConv, x: Tensor, backend: str) -> dict[str, Tensor]:
    """Return the output and all gradients."""
    layer.backend = backend
    x = x.detach().requires_grad_()
    y = layer(x)
    parameters = dict(layer.named_parameters())
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
    grads = torch.autograd.grad(y, [x, *parameters.values()], upstream)
    return {"output": y.detach(), **dict(zip(["input", *parameters], grads, strict=True))}


@modes
@layers
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_backends_agree_at_the_identity_start(name, padding_mode, dtype):
    layer, x = make(name, padding_mode, dtype)
    found, expected = outcome(layer, x, "cpu"), outcome(layer, x, "reference")
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    for key, value in expected.items():
        error = (found[key] - value).norm() / value.norm().clamp_min(1e-2)
        assert error <= tolerance, (key, error)


@modes
@layers
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_derivative_at_the_identity_is_the_central_difference_quotient(name, padding_mode, backend):
    layer, x = make(name, padding_mode, torch.float64)
    grads = outcome(layer, x, backend)
    parameters = dict(layer.named_parameters())
    generator = torch.Generator().manual_seed(1)
    upstream = torch.randn(grads["output"].shape, generator=generator).double()
    layer.backend = "reference"
    predictor = {key: p for key, p in parameters.items() if key.startswith("predictor")}
    assert predictor
    for key, parameter in predictor.items():
        direction, step = torch.randn_like(parameter), 1e-6
        values = []
        with torch.no_grad():
            for sign in (1, -1):
                parameter.add_(direction, alpha=sign * step)
                values.append((layer(x) * upstream).sum())
                parameter.sub_(direction, alpha=sign * step)
        quotient = (values[0] - values[1]) / (2 * step)
        slope = (grads[key] * direction).sum()
        scale = (grads[key].abs() * direction.abs()).sum()
        assert (slope - quotient).abs() <= 1e-4 * scale + 1e-7, key


SIGNAL = [10.0, 20.0, 40.0]
# At positions −2, −1, 0, 1, 2, 3, 4 of the signal.
SLOPES = {
    "zeros": [0.0, 5.0, 10.0, 15.0, -10.0, -20.0, 0.0],
    "border": [0.0, 0.0, 5.0, 15.0, 10.0, 0.0, 0.0],
    "reflect": [0.0, -15.0, 0.0, 15.0, 0.0, -15.0, 0.0],
    "circular": [15.0, -5.0, -10.0, 15.0, -5.0, -10.0, 15.0],
}


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("shift", [0.0, 6e-8, -6e-8, 5e-6, -5e-6])
@modes
def test_slopes_at_integer_positions_equal_hand_computed_values(padding_mode, shift, backend):
    x, slopes = torch.tensor(SIGNAL).view(1, 1, 3), []
    for position in range(-2, 5):
        # The output of one sample at pixel 0, displaced to the position.
        vector = torch.full((1, 1, 1, 1, 1), position + shift, requires_grad=True)
        y = mc.support_conv(
            x[:, :, :3], mc.Deformable(vector, (1,)), torch.ones(1, 1, 1), stride=3, padding_mode=padding_mode,
            backend=backend,
        )  # fmt: skip
        slopes.append(torch.autograd.grad(y, vector)[0].item())
    assert slopes == pytest.approx(SLOPES[padding_mode], abs=1e-4)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("channels", [2, 16])
@modes
def test_rounding_of_an_offset_does_not_change_its_gradient(padding_mode, channels, backend):
    x, weight = torch.randn(1, channels, 5, 6), torch.randn(3, channels, 3, 3)
    whole = torch.randint(-3, 4, (1, 1, 9, 2, 5, 6)).float()

    def gradient(offsets: Tensor) -> Tensor:
        offsets = offsets.requires_grad_()
        y = mc.support_conv(
            x, mc.Deformable(offsets, (3, 3)), weight, padding=1, padding_mode=padding_mode, backend=backend
        )
        return torch.autograd.grad(y.square().sum(), offsets)[0]

    expected = gradient(whole.clone())
    for direction in (-torch.inf, torch.inf):
        rounded = torch.nextafter(whole, torch.full_like(whole, direction))
        torch.testing.assert_close(gradient(rounded), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@modes
def test_only_integer_coordinates_have_central_differences(padding_mode, backend):
    """One axis whole, the other not: the quotient is that of the interpolated image."""
    x, weight = torch.randn(1, 16, 5, 6).double(), torch.randn(3, 16, 3, 3).double()
    offsets = torch.randint(-2, 3, (1, 1, 9, 2, 5, 6)).double()
    offsets += torch.randint(0, 2, offsets.shape) * (0.2 + 0.6 * torch.rand(offsets.shape).double())

    def value(o: Tensor, backend: str) -> Tensor:
        support = mc.Deformable(o, (3, 3))
        y = mc.support_conv(x, support, weight, padding=1, padding_mode=padding_mode, backend=backend)
        return (y * torch.linspace(-1, 1, y.numel()).view(y.shape).double()).sum()

    leaf = offsets.clone().requires_grad_()
    gradient = torch.autograd.grad(value(leaf, backend), leaf)[0]
    direction = torch.randn_like(offsets)
    quotient = (value(offsets + 1e-6 * direction, "reference") - value(offsets - 1e-6 * direction, "reference")) / 2e-6
    torch.testing.assert_close((gradient * direction).sum(), quotient, rtol=1e-5, atol=1e-5)


def ridge() -> mc.Randers:
    """A metric that is symmetric about its middle row, along which horizontal geodesics run straight."""
    y = torch.linspace(-3, 3, 7, dtype=torch.float64).abs()
    M = torch.zeros(1, 1, 3, 7, 6, dtype=torch.float64)
    M[:, :, 0], M[:, :, 2] = 0.4 + 0.1 * y.view(7, 1), 0.5 + 0.15 * y.view(7, 1)
    return mc.Randers(M, torch.zeros(1, 1, 2, 7, 6, dtype=torch.float64))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("padding_mode", ["border", "circular"])
def test_geodesics_along_rows_of_nodes_have_the_central_derivative(padding_mode, backend):
    metric, x = ridge(), torch.randn(1, 3, 7, 6).double()
    stencil, weight = mc.stencils.square_onion(5), torch.randn(2, 3, 5, 5).double()

    def value(M: Tensor, omega: Tensor, backend: str) -> Tensor:
        ball = mc.GeodesicBall(mc.Randers(M, omega), stencil, steps=4, padding_mode=padding_mode)
        y = mc.support_conv(x, ball, weight, padding=2, padding_mode=padding_mode, backend=backend)
        return (y * torch.linspace(-1, 1, y.numel()).view(y.shape).double()).sum()

    leaves = [t.clone().requires_grad_() for t in (metric.M, metric.omega)]
    gradients = torch.autograd.grad(value(*leaves, backend), leaves)
    directions = [torch.randn_like(t) for t in leaves]
    ends = [[t.detach() + s * 1e-6 * d for t, d in zip(leaves, directions, strict=True)] for s in (1, -1)]
    quotient = (value(*ends[0], "reference") - value(*ends[1], "reference")) / 2e-6
    slope = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    torch.testing.assert_close(slope, quotient, rtol=1e-4, atol=1e-4)


@modes
def test_forward_mode_and_reverse_mode_agree_on_the_lattice(padding_mode):
    x, weight = torch.randn(1, 2, 4, 5).double(), torch.randn(3, 2, 3, 3).double()
    offsets = torch.randint(-2, 3, (1, 1, 9, 2, 4, 5)).double()
    direction = torch.randn_like(offsets)

    def value(o: Tensor) -> Tensor:
        support = mc.Deformable(o, (3, 3))
        return mc.support_conv(x, support, weight, padding=1, padding_mode=padding_mode, backend="reference").sum()

    _, tangent = torch.func.jvp(value, (offsets,), (direction,))
    gradient = torch.func.grad(value)(offsets)
    torch.testing.assert_close(tangent, (gradient * direction).sum())
    leaf = offsets.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(value(leaf), leaf)[0], gradient)


def test_lattice_tolerance_covers_the_rounding_of_large_balls():
    for kernel_size, dilation in ((31, 1), (15, 4), (7, 8)):
        layer = nn.MetricConv2d(2, 2, kernel_size, dilation=dilation, padding=dilation * (kernel_size // 2))
        support, _ = layer.predict_support(torch.randn(1, 2, 9, 9))
        offsets = support.offsets()
        assert (offsets - offsets.round()).abs().max() <= lattice_tolerance(torch.float32) / 2
