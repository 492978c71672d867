"""Theorem 1: one operator for all supports."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import metricconv as mc
from helpers import (
    CONVOLUTIONS,
    PADDING_MODES,
    SUPPORT_KINDS,
    loop_conv,
    loop_deform_conv2d,
    make_support,
    randers,
    random_modulation,
)

STRIDE, PADDING, SIZE = (2, 1), (1, 0), (5, 4)  # uneven, so that mixed-up axes show


def out_size(kernel_size, dilation=(1, 1)):
    axes = zip(SIZE, kernel_size, dilation, STRIDE, PADDING, strict=True)
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, s, p in axes)


def awkward(batch, kernel_size=(3, 3)):
    """An input of 6 channels in permuted memory, weights in 2 groups, a bias and the modulation of 3 metric groups."""
    out = out_size(kernel_size)
    return (
        torch.randn(batch, *SIZE[::-1], 6, dtype=torch.float64).permute(0, 3, 2, 1),
        torch.randn(*kernel_size, 4, 3, dtype=torch.float64).permute(2, 3, 0, 1),
        torch.randn(4, dtype=torch.float64),
        random_modulation(batch, *out, 3, kernel_size[0] * kernel_size[1], dtype=torch.float64).permute(0, 3, 4, 1, 2),
    )


@pytest.mark.parametrize("batch", [0, 1, 33])
@pytest.mark.parametrize(
    ("kind", "kernel_size"),
    [
        *((k, (3, 3)) for k in SUPPORT_KINDS),
        *((k, (3, 1)) for k in SUPPORT_KINDS if k not in ("riemannian", "randers")),
    ],
)
def test_all_supports_equal_the_python_loop(kind, kernel_size, batch):
    x, weight, bias, modulation = awkward(batch, kernel_size)
    support = make_support(kind, kernel_size, batch, 3, out_size(kernel_size))
    options = {"stride": STRIDE, "padding": PADDING, "groups": 2, "modulation": modulation[:, : support.groups]}
    expected = loop_conv(x, support.offsets(), weight, bias, dilation=(1, 1), **options)
    y = mc.support_conv(x, support, weight, bias, **options)
    assert y.shape == (batch, 4, *out_size(kernel_size))
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("padding_mode", PADDING_MODES)
@pytest.mark.parametrize("kind", SUPPORT_KINDS)
def test_all_padding_modes_equal_the_python_loop(kind, padding_mode):
    x, weight, bias, _ = awkward(2)
    support = make_support(kind, (3, 3), 2, 3, out_size((3, 3), (2, 1)), dilation=(2, 1))
    options = {"stride": STRIDE, "padding": PADDING, "groups": 2, "padding_mode": padding_mode}
    expected = loop_conv(x, support.offsets(), weight, bias, dilation=(2, 1), **options)
    torch.testing.assert_close(mc.support_conv(x, support, weight, bias, **options), expected)


@pytest.mark.parametrize("kind", SUPPORT_KINDS)
@pytest.mark.parametrize(
    ("size", "stride", "padding", "out"), [((6,), (2,), (1,), (3,)), ((3, 4, 3), (2, 1, 2), (1, 0, 1), (2, 2, 2))]
)
def test_one_and_three_dimensions_equal_the_python_loop(kind, size, stride, padding, out):
    dim = len(size)
    x, weight = torch.randn(2, 4, *size).double(), torch.randn(2, 2, *(3,) * dim).double()
    support = make_support(kind, (3,) * dim, 2, 2, out)
    options = {"stride": stride, "padding": padding, "groups": 2, "padding_mode": "border"}
    expected = loop_conv(x, support.offsets(), weight, dilation=(1,) * dim, **options)
    torch.testing.assert_close(mc.support_conv(x, support, weight, **options), expected)


@pytest.mark.parametrize("kind", ["shifted", "randers"])
def test_four_dimensions_equal_the_python_loop(kind):
    x, weight = torch.randn(1, 2, 2, 3, 2, 2).double(), torch.randn(1, 2, 3, 3, 3, 3).double()
    support = make_support(kind, (3, 3, 3, 3), 1, 2, (1, 3, 2, 1))
    options = {"stride": (2, 1, 1, 2), "padding": (1, 1, 1, 1)}
    expected = loop_conv(x, support.offsets(), weight, dilation=(1, 1, 1, 1), **options)
    torch.testing.assert_close(mc.support_conv(x, support, weight, **options), expected)


@pytest.mark.parametrize("kernel_size", [(2, 3), (4, 2), (1, 1)])
def test_even_kernels_are_centered_between_pixels(kernel_size):
    x, weight, bias, _ = awkward(2, kernel_size)
    support = make_support("shifted", kernel_size, 2, 2, out_size(kernel_size))
    options = {"stride": STRIDE, "padding": PADDING, "groups": 2}
    expected = loop_conv(x, support.offsets(), weight, bias, dilation=(1, 1), **options)
    torch.testing.assert_close(mc.support_conv(x, support, weight, bias, **options), expected)


@pytest.mark.parametrize("kind", ["shifted", "deformable", "randers"])
def test_fields_broadcast_over_images_groups_and_pixels(kind):
    x, weight, _, _ = awkward(2)
    support = make_support(kind, (3, 3))
    modulation = random_modulation(1, 1, 9, 1, 1, dtype=torch.float64)
    options = {"stride": STRIDE, "padding": PADDING, "groups": 2, "modulation": modulation}
    expected = loop_conv(x, support.offsets(), weight, dilation=(1, 1), **options)
    torch.testing.assert_close(mc.support_conv(x, support, weight, **options), expected)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize(
    ("groups", "options"),
    [
        (1, {}),
        (1, {"padding": 1}),
        (1, {"padding": 2, "dilation": 2}),
        (1, {"padding": 1, "stride": 2}),
        (1, {"padding": 3, "stride": 3, "dilation": 2}),
        (2, {"padding": 1}),
        (6, {"padding": 1, "stride": 2}),
    ],
    ids=["plain", "padded", "dilated", "strided", "all", "grouped", "depthwise"],
)
def test_grid_support_equals_standard_convolution(dim, groups, options):
    x, weight, bias = torch.randn(2, 6, *(7, 6, 5)[:dim]), torch.randn(6, 6 // groups, *(3,) * dim), torch.randn(6)
    expected = CONVOLUTIONS[dim](x, weight, bias, groups=groups, **options)
    rest = {name: value for name, value in options.items() if name != "dilation"}
    y = mc.support_conv(x, mc.Grid(3, options.get("dilation", 1), dim=dim), weight, bias, groups=groups, **rest)
    torch.testing.assert_close(y, expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("kernel_size", [(2, 2), (4, 3), (1, 5)])
def test_grid_support_equals_standard_convolution_for_uneven_kernels(kernel_size):
    x, weight = torch.randn(2, 3, 7, 6), torch.randn(4, 3, *kernel_size)
    y = mc.support_conv(x, mc.Grid(kernel_size), weight, padding=(1, 2), stride=(2, 1))
    torch.testing.assert_close(y, F.conv2d(x, weight, padding=(1, 2), stride=(2, 1)), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("support", ["shifted", "dilated", "deformable", "ball"])
def test_supports_at_their_identity_equal_standard_convolution(support):
    x, weight = torch.randn(2, 3, 7, 6), torch.randn(4, 3, 5, 5)
    supports = {
        "shifted": lambda: mc.Shifted(torch.zeros(1, 1, 2, 1, 1), 5, 2),
        "dilated": lambda: mc.Dilated(torch.ones(1, 1, 1, 1, 1), 5, 2),
        "deformable": lambda: mc.Deformable(torch.zeros(1, 1, 25, 2, 1, 1), 5, 2),
        "ball": lambda: mc.TangentBall(mc.Riemannian.isotropic(4.0), mc.stencils.square_onion(5), 2),
    }
    y = mc.support_conv(x, supports[support](), weight, padding=4)
    torch.testing.assert_close(y, F.conv2d(x, weight, padding=4, dilation=2), atol=1e-4, rtol=1e-4)


def test_shift_of_one_reads_the_next_pixel():
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).view(1, 1, 2, 3)
    for shift, expected in {(0.0, 1.0): [2, 3, 0, 5, 6, 0], (1.0, 0.0): [4, 5, 6, 0, 0, 0]}.items():
        y = mc.support_conv(x, mc.Shifted(torch.tensor(shift).view(1, 1, 2, 1, 1), 1), torch.ones(1, 1, 1, 1))
        assert y.flatten().tolist() == expected


def test_shift_by_whole_pixels_equals_convolution_of_the_shifted_image():
    x, weight = torch.randn(1, 2, 6, 7), torch.randn(3, 2, 3, 3)
    shift = torch.tensor([1.0, -2.0]).view(1, 1, 2, 1, 1)
    y = mc.support_conv(x, mc.Shifted(shift, 3), weight, padding=1, padding_mode="circular")
    expected = F.conv2d(F.pad(x.roll((-1, 2), (2, 3)), (1, 1, 1, 1), mode="circular"), weight)
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize(
    ("ours", "torchs"),
    [
        ("border", "replicate"),
        ("replicate", "replicate"),
        ("reflect", "reflect"),
        ("circular", "circular"),
        ("zeros", "constant"),
    ],
)
def test_padding_modes_equal_torch_pad(dim, ours, torchs):
    x, weight = torch.randn(2, 2, *(5, 4, 3)[:dim]), torch.randn(3, 2, *(3,) * dim)
    expected = CONVOLUTIONS[dim](F.pad(x, (2,) * (2 * dim), mode=torchs), weight, stride=2)
    y = mc.support_conv(x, mc.Grid(3, dim=dim), weight, stride=2, padding=2, padding_mode=ours)
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("batch", [0, 1, 33])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("offset_groups", [1, 3])
def test_deform_conv2d_equals_the_python_loop(batch, masked, offset_groups):
    kernel_size, dilation = (3, 2), (2, 1)
    out = out_size(kernel_size, dilation)
    x, weight, bias, _ = awkward(batch, kernel_size)
    offset = torch.randn(batch, 2 * offset_groups * 6, *out).double()
    mask = torch.rand(batch, offset_groups * 6, *out).double() if masked else None
    arguments = (x, offset, weight, bias, STRIDE, PADDING, dilation, mask)
    torch.testing.assert_close(mc.deform_conv2d(*arguments), loop_deform_conv2d(*arguments))


def test_deform_conv2d_equals_torchvision():
    torchvision = pytest.importorskip("torchvision")
    if not torchvision.extension._has_ops():
        pytest.skip("this torchvision was built for another torch: its compiled operators are missing")
    x, weight, bias, _ = awkward(3, (3, 2))
    offset, mask = torch.randn(3, 36, *out_size((3, 2))).double(), torch.rand(3, 18, *out_size((3, 2))).double()
    arguments = (x, offset, weight, bias, STRIDE, PADDING, (1, 1), mask)
    torch.testing.assert_close(mc.deform_conv2d(*arguments), torchvision.ops.deform_conv2d(*arguments))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_metric_conv_equals_support_conv_over_square_onion_balls(dim):
    size = (5, 4, 3)[:dim]
    x, weight = torch.randn(2, 4, *size).double(), torch.randn(6, 2, *(3,) * dim).double()
    metric = randers(dim, 2, 2, size)
    ball = mc.TangentBall(metric, mc.stencils.square_onion(3, dim))
    expected = mc.support_conv(x, ball, weight, padding=1, groups=2)
    torch.testing.assert_close(mc.metric_conv(x, metric, weight, padding=1), expected)
    functions = {1: mc.ops.metric_conv1d, 2: mc.ops.metric_conv2d, 3: mc.ops.metric_conv3d}
    torch.testing.assert_close(functions[dim](x, metric, weight, padding=1), expected)
    torch.testing.assert_close(functions[dim](input=x, metric=metric, weight=weight, padding=1), expected)
    other = dim % 3 + 1
    with pytest.raises(ValueError, match=rf"`metric` has {dim} spatial axes; metric_conv{other}d needs {other}"):
        functions[other](x, metric, weight)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("ball", ["tangent", "geodesic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "replicate", "circular"])
def test_metric_conv_equals_the_layer(ball, padding_mode, stride):
    metric = randers(2, 1, 1, (6, 6) if stride == 1 else (3, 3), dtype=torch.float32)
    options = {"stride": stride, "padding": 2, "padding_mode": padding_mode, "ball": ball}
    options |= {"steps": 5, "smooth": 2} if ball == "geodesic" else {}
    layer = mc.nn.MetricConv2d(4, 6, 5, metric=metric, **options)
    x = torch.randn(2, 4, 6, 6)
    y = mc.metric_conv(x, metric, layer.weight, layer.bias, **options)
    torch.testing.assert_close(y, layer(x))


@pytest.mark.parametrize(("kernel_size", "dilation", "radius"), [((3, 3), 1, 1.0), ((5, 3), (1, 3), 3.0)])
def test_metric_conv_with_round_metric_equals_convolution(kernel_size, dilation, radius):
    x, weight = torch.randn(2, 3, 9, 8).double(), torch.randn(4, 3, *kernel_size).double()
    metric = mc.Riemannian.isotropic(torch.full((1, 1, 1, 1), radius).double())
    y = mc.metric_conv(x, metric, weight, padding=2, dilation=dilation)
    torch.testing.assert_close(y, F.conv2d(x, weight, padding=2, dilation=dilation))


def test_user_defined_support_works():
    class Spiral(mc.Support):
        kernel_size, dilation = (1, 4), (1, 1)

        def offsets(self, samples: slice | None = None) -> Tensor:
            turn = torch.arange(4.0)
            return (turn * torch.stack([turn.sin(), turn.cos()])).T[samples or slice(None)].view(1, 1, -1, 2, 1, 1)

        def tensors(self) -> dict[str, Tensor]:
            return {}

    x, weight = torch.randn(1, 2, 5, 5), torch.randn(2, 2, 1, 4)
    expected = loop_conv(x, Spiral().offsets(), weight, stride=(1, 1), padding=(0, 2), dilation=(1, 1))
    torch.testing.assert_close(
        mc.support_conv(x, Spiral(), weight, padding=(0, 2)).double(), expected, atol=1e-5, rtol=0
    )
