"""Properties of the operator on random problems: linearity, equivariance, independence, agreement of backends."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import metricconv as mc
from helpers import CONVOLUTIONS, PADDING_MODES, SUPPORT_KINDS, make_support, mapped
from ops.cases import random_case, relative, truth

few = settings(max_examples=15)
kinds = st.sampled_from(SUPPORT_KINDS)
modes = st.sampled_from((*PADDING_MODES, "replicate"))
seeds = st.integers(0, 2**16)


def random_problem(seed, kind, size=(5, 6)):
    """Return an input of 4 channels, weights in 2 groups and a support of 2 metric groups, in float64."""
    torch.manual_seed(seed)
    x, weight = torch.randn(2, 4, *size).double(), torch.randn(3 * 2, 2, 3, 3).double()
    return x, weight, make_support(kind, (3, 3), 2, 2, size)


@few
@given(seeds, kinds, modes, st.floats(-3, 3), st.sampled_from(["auto", "reference"]))
def test_operator_is_linear_in_input_and_weight(seed, kind, mode, factor, backend):
    x, weight, support = random_problem(seed, kind)

    def conv(x, weight):
        options = {"padding": 1, "groups": 2, "padding_mode": mode, "backend": backend}
        return mc.support_conv(x, support, weight, **options)

    other_x, other_weight = torch.randn_like(x), torch.randn_like(weight)
    y = conv(x, weight)
    torch.testing.assert_close(conv(x + factor * other_x, weight), y + factor * conv(other_x, weight))
    torch.testing.assert_close(conv(x, weight + factor * other_weight), y + factor * conv(x, other_weight))


@few
@given(seeds, kinds, st.integers(-9, 9), st.integers(-9, 9))
def test_operator_is_shift_equivariant_under_circular_padding(seed, kind, down, right):
    x, weight, support = random_problem(seed, kind)
    options = {"padding": 1, "groups": 2, "padding_mode": "circular"}
    shifted = mapped(support, lambda t: t.roll((down, right), (-2, -1)))
    y = mc.support_conv(x, support, weight, **options)
    y_shifted = mc.support_conv(x.roll((down, right), (2, 3)), shifted, weight, **options)
    torch.testing.assert_close(y_shifted, y.roll((down, right), (2, 3)), atol=1e-10, rtol=0)


@few
@given(seeds, kinds, modes)
def test_images_of_a_batch_are_independent(seed, kind, mode):
    x, weight, support = random_problem(seed, kind)
    options = {"padding": 1, "groups": 2, "padding_mode": mode}
    y = mc.support_conv(x, support, weight, **options)
    first = mapped(support, lambda t: t[:1])
    torch.testing.assert_close(mc.support_conv(x[:1], first, weight, **options), y[:1])


@settings(max_examples=25)
@given(st.data(), st.integers(1, 3))
def test_grid_support_equals_torch_convolution(data, dim):
    def sizes(low, high):
        return tuple(data.draw(st.lists(st.integers(low, high), min_size=dim, max_size=dim)))

    kernel, stride, dilation, padding = sizes(1, 3), sizes(1, 3), sizes(1, 3), sizes(0, 2)
    groups = data.draw(st.sampled_from([1, 2]))
    extra = sizes(0, 3)  # beyond the smallest size that gives an output
    axes = zip(dilation, kernel, extra, padding, strict=True)
    size = tuple(max(d * (k - 1) + 1 + e - 2 * p, 1) for d, k, e, p in axes)
    x, weight, bias = torch.randn(2, 2 * groups, *size), torch.randn(4, 2, *kernel), torch.randn(4)
    expected = CONVOLUTIONS[dim](x, weight, bias, stride, padding, dilation, groups)
    y = mc.support_conv(x, mc.Grid(kernel, dilation), weight, bias, stride=stride, padding=padding, groups=groups)
    torch.testing.assert_close(y, expected, atol=1e-4, rtol=1e-4)


@few
@given(seeds, st.integers(1, 3), st.integers(1, 3))
def test_deformable_support_without_offsets_equals_torch_convolution(seed, stride, dilation):
    torch.manual_seed(seed)
    x, weight = torch.randn(2, 4, 8, 9), torch.randn(6, 2, 3, 3)
    out = F.conv2d(x, weight, None, stride, 1, dilation, 2)
    offset = torch.zeros(2, 18, *out.shape[2:])
    y = mc.deform_conv2d(x, offset, weight, None, stride, 1, dilation)
    torch.testing.assert_close(y, out, atol=1e-4, rtol=1e-4)


@few
@given(seeds)
def test_backends_agree_on_random_problems(seed):
    torch.manual_seed(seed)
    tensors, run = random_case(seed, largest=6).make()
    assert relative(run(tensors), truth(run, tensors)["output"]) <= 1e-4
