"""Invariants of the operator under changes of image, batch and precision."""

import pytest
import torch
import torch.nn.functional as F

import metricconv as mc
from helpers import SUPPORT_KINDS, loop_conv, make_support, mapped, randers, random_modulation, riemannian


@pytest.mark.parametrize("kind", SUPPORT_KINDS)
def test_shift_equivariance_is_exact_under_circular_padding(kind):
    x, weight = torch.randn(1, 2, 6, 5).double(), torch.randn(3, 2, 3, 3).double()
    support, shift = make_support(kind, (3, 3), 1, 1, (6, 5)), (2, -1)
    moved = mapped(support, lambda t: t.roll(shift, (-2, -1)))
    y = mc.support_conv(x, support, weight, padding=1, padding_mode="circular")
    y_moved = mc.support_conv(x.roll(shift, (2, 3)), moved, weight, padding=1, padding_mode="circular")
    torch.testing.assert_close(y_moved, y.roll(shift, (2, 3)), atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", SUPPORT_KINDS)
def test_batch_independence(kind):
    x, weight = torch.randn(3, 4, 5, 4).double(), torch.randn(2, 4, 3, 3).double()
    support = make_support(kind, (3, 3), 3, 2, (5, 4))
    together = mc.support_conv(x, support, weight, padding=1)
    for b in range(3):
        own = mapped(support, lambda t, b=b: t[b : b + 1])
        torch.testing.assert_close(mc.support_conv(x[b : b + 1], own, weight, padding=1), together[b : b + 1])


def test_no_gradient_flows_between_images_of_a_batch():
    x = torch.randn(3, 4, 5, 4, requires_grad=True)
    metric = randers(2, 3, 2, (5, 4), dtype=torch.float32).map(lambda t: t.clone().requires_grad_())
    y = mc.metric_conv(x, metric, torch.randn(2, 4, 3, 3), padding=1)
    for grad in torch.autograd.grad(y[1].square().sum(), [x, *metric.tensors().values()]):
        assert [bool(g.any()) for g in grad] == [False, True, False]


@pytest.mark.parametrize("name", ["onion", "square_onion", "polar"])
def test_rotating_image_metric_and_stencil_rotates_the_output(name):
    k = 4 if name == "polar" else 3
    stencil = getattr(mc.stencils, name)(k)
    x, weight, metric = torch.randn(2, 3, 6, 5).double(), torch.randn(2, 3, k, k).double(), randers(2, 2, 1, (6, 5))
    (yy, yx, xx), (wy, wx) = metric.M.unbind(2), metric.omega.unbind(2)
    turned = mc.Randers(torch.stack([xx, -yx, yy], 2), torch.stack([-wx, wy], 2))  # v ↦ (−v_x, v_y), as rot90 does
    turned = turned.map(lambda t: t.rot90(1, (-2, -1)))
    turned_weight = weight.roll(-1, 3) if name == "polar" else weight.rot90(1, (2, 3))  # polar: columns are angles
    # An even kernel keeps the size of its input with dilation 2 and padding 3.
    options = {"padding": 3, "dilation": 2} if name == "polar" else {"padding": 1}
    options |= {"padding_mode": "border", "stencil": stencil}
    y = mc.metric_conv(x, metric, weight, **options)
    torch.testing.assert_close(mc.metric_conv(x.rot90(1, (2, 3)), turned, turned_weight, **options), y.rot90(1, (2, 3)))


@pytest.mark.parametrize("padding_mode", ["border", "reflect", "circular"])
@pytest.mark.parametrize("kind", SUPPORT_KINDS)
def test_a_constant_image_stays_constant_under_uniform_weights(kind, padding_mode):
    support = make_support(kind, (3, 3), 2, 2, (5, 4))
    x, weight = torch.full((2, 4, 5, 4), 3.5).double(), torch.full((1, 4, 3, 3), 1 / 36).double()
    y = mc.support_conv(x, support, weight, padding=1, padding_mode=padding_mode)
    torch.testing.assert_close(y, torch.full_like(y, 3.5))


@pytest.mark.parametrize("kind", ["grid", "deformable", "randers"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_dtype_is_accurate_to_rounding(kind, dtype):
    wide = dtype if dtype == torch.float64 else torch.float32
    support = make_support(kind, (3, 3), 2, 2, (8, 8), dtype=wide)
    x, weight, bias = (torch.randn(shape).to(dtype) for shape in ((2, 4, 8, 8), (4, 2, 3, 3), (4,)))
    modulation = random_modulation(2, support.groups, 9, 8, 8).to(dtype)
    options = {"groups": 2, "modulation": modulation}
    truth = loop_conv(x, support.offsets(), weight, bias, stride=(1, 1), padding=(1, 1), dilation=(1, 1), **options)
    y = mc.support_conv(x, support, weight, bias, padding=1, **options)
    assert y.dtype == dtype
    rounding = torch.finfo(dtype).eps / 2
    tolerance = rounding * truth.abs() + (1e-12 if dtype == torch.float64 else 2e-5)
    assert ((y.double() - truth).abs() <= tolerance).all()


def test_autocast_applies_to_products_but_not_to_the_metric():
    x, weight, bias, metric = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3), torch.randn(4), randers(2, 2, 1, (6, 6))
    metric = metric.to(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = mc.metric_conv(x, metric, weight, bias, padding=1)
        assert y.dtype == F.conv2d(x, weight).dtype == torch.bfloat16
    half = [t.bfloat16() for t in (x, weight, bias)]
    assert torch.equal(y, mc.metric_conv(half[0], metric, half[1], half[2], padding=1))
    rounded = metric.map(lambda t: t.bfloat16())
    assert not torch.equal(y, mc.metric_conv(half[0], rounded, half[1], half[2], padding=1))


def test_autocast_does_not_change_float64():
    x, weight = torch.randn(1, 2, 5, 5).double(), torch.randn(3, 2, 3, 3).double()
    with torch.autocast("cpu", torch.bfloat16):
        y = mc.metric_conv(x, riemannian(2), weight)
        assert y.dtype == F.conv2d(x, weight).dtype == torch.float64


def test_meta_tensors_give_output_shapes():
    metric = riemannian(2, dtype=torch.float32).to("meta")
    y = mc.metric_conv(torch.empty(2, 3, 8, 8, device="meta"), metric, torch.empty(4, 3, 3, 3, device="meta"), stride=2)
    assert (y.device.type, y.shape) == ("meta", (2, 4, 3, 3))
