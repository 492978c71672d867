"""The reference backend: derivatives of any order, bounded memory, extreme values."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import metricconv as mc
from helpers import PADDING_MODES, SUPPORT_KINDS, make_support, randers, random_modulation, rebuilt
from metricconv.ops import reference

REFERENCE = {"backend": "reference"}
modes = pytest.mark.parametrize("padding_mode", PADDING_MODES)


def leaves(*tensors):
    return [t.detach().clone().requires_grad_() for t in tensors]


def operator(support, **options):
    """The operator as a function of tensors alone: input, weight, bias, modulation, then the support's parameters."""

    def function(x, weight, bias, modulation, *numbers):
        return mc.support_conv(
            x, rebuilt(support, numbers), weight, bias, modulation=modulation, **REFERENCE, **options
        )

    return function


def small_problem(kind, channels=4, groups=2, batch=2, size=(4, 3), out=(2, 2), dim=2):
    """Inputs in float64, off the lattice if the support can be."""
    support = make_support(kind, (3,) * dim, batch, groups, out)
    x, weight = torch.randn(batch, channels, *size), torch.randn(2, channels // groups, *(3,) * dim)
    modulation = random_modulation(batch, support.groups, 3**dim, *out)
    numbers = support.tensors().values()
    return support, leaves(*(t.double() for t in (x, weight, torch.randn(2), modulation)), *numbers)


@pytest.mark.parametrize("kind", SUPPORT_KINDS)
def test_first_derivatives_are_exact_off_the_lattice(kind):
    support, tensors = small_problem(kind, out=(2, 3))
    assert gradcheck(operator(support, stride=(2, 1), padding=1, groups=2), tensors)


@modes
@pytest.mark.parametrize("kind", SUPPORT_KINDS)
def test_first_derivatives_are_exact_in_every_padding_mode(kind, padding_mode):
    support, tensors = small_problem(kind, out=(4, 3))
    assert gradcheck(operator(support, padding=1, groups=2, padding_mode=padding_mode), tensors, fast_mode=True)


@pytest.mark.parametrize("kind", ["shifted", "randers"])
@pytest.mark.parametrize(("dim", "size"), [(1, (4,)), (3, (2, 2, 2))])
def test_first_derivatives_are_exact_in_other_dimensions(kind, dim, size):
    support, tensors = small_problem(kind, 2, 1, 1, size, (1,) * dim if dim == 3 else (4,), dim)
    assert gradcheck(operator(support, padding=1, groups=1), tensors)


@pytest.mark.parametrize("kind", SUPPORT_KINDS)
def test_second_derivatives_are_exact_off_the_lattice(kind):
    support, tensors = small_problem(kind, 2, 2, 1, (3, 3), (1, 2))
    assert gradgradcheck(operator(support, padding=(0, 1), stride=2, groups=2), tensors)


@pytest.mark.parametrize("kind", SUPPORT_KINDS)
def test_chunk_size_does_not_affect_output_and_gradients(kind, monkeypatch):
    support, tensors = small_problem(kind, out=(4, 3))
    function = operator(support, padding=1, groups=2)

    def output_and_gradients():
        y = function(*tensors)
        return y, *torch.autograd.grad(y.square().sum(), tensors)

    whole = output_and_gradients()
    for elements in (1, 2 * 4 * 12 * 4):  # one sample at a time, then four
        monkeypatch.setattr(reference, "_CHUNK_ELEMENTS", elements)
        for part, all_at_once in zip(output_and_gradients(), whole, strict=True):
            torch.testing.assert_close(part, all_at_once)


def test_second_derivatives_are_exact_in_chunks(monkeypatch):
    monkeypatch.setattr(reference, "_CHUNK_ELEMENTS", 1)
    support, tensors = small_problem("randers", 2, 2, 1, (3, 3), (1, 2))
    assert gradgradcheck(operator(support, padding=(0, 1), stride=2, groups=2), tensors, fast_mode=True)


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that any operation returns."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [
            t.untyped_storage().nbytes() // t.element_size() for t in tree_leaves(result) if isinstance(t, torch.Tensor)
        ]
        self.elements = max([self.elements, *sizes])
        return result


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("kind", ["riemannian", "shifted"])
def test_intermediates_are_at_most_one_chunk_for_large_kernels(kind, groups, monkeypatch):
    budget = 2**14
    monkeypatch.setattr(reference, "_CHUNK_ELEMENTS", budget)
    support = make_support(kind, (31, 31), 1, groups, (8, 8), dtype=torch.float32)
    x, weight = leaves(torch.randn(1, 6, 8, 8), torch.randn(2, 6, 31, 31))
    numbers = leaves(*support.tensors().values())
    with LargestTensor() as largest:
        y = mc.support_conv(x, rebuilt(support, numbers), weight, padding=15, **REFERENCE)
        torch.autograd.grad(y.sum(), [x, weight, *numbers])
    assert largest.elements <= budget < 961 * x.numel() / 20


def test_samples_of_large_kernels_are_not_saved_for_backward(monkeypatch):
    monkeypatch.setattr(reference, "_CHUNK_ELEMENTS", 2**14)
    support = make_support("randers", (31, 31), 1, 1, (8, 8), dtype=torch.float32)
    x, weight, *numbers = leaves(torch.randn(1, 6, 8, 8), torch.randn(2, 6, 31, 31), *support.tensors().values())
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        mc.support_conv(x, rebuilt(support, numbers), weight, padding=15, **REFERENCE)
    assert sum(kept.values()) < 961 * x.numel() / 10


def test_forward_mode_derivatives_agree_with_backward_ones():
    support, tensors = small_problem("randers", out=(2, 3))
    function = operator(support, stride=(2, 1), padding=1, groups=2)
    tensors = [t.detach() for t in tensors]
    tangents = [torch.randn_like(t) for t in tensors]
    y, forward = torch.func.jvp(function, tuple(tensors), tuple(tangents))
    cotangent = torch.randn_like(y)
    backward = torch.func.vjp(function, *tensors)[1](cotangent)
    products = [(b * t).sum() for b, t in zip(backward, tangents, strict=True)]
    torch.testing.assert_close((forward * cotangent).sum(), torch.stack(products).sum())


def test_vmap_over_images_equals_batched_call():
    x, metric, weight = torch.randn(3, 2, 5, 4).double(), randers(2, 3, 1, (5, 4)), torch.randn(4, 2, 3, 3).double()

    def one(image, M, omega):
        return mc.metric_conv(image[None], mc.Randers(M[None], omega[None]), weight, padding=1, **REFERENCE)[0]

    torch.testing.assert_close(
        torch.func.vmap(one)(x, metric.M, metric.omega), mc.metric_conv(x, metric, weight, padding=1, **REFERENCE)
    )


@modes
@pytest.mark.parametrize("field", ["M", "omega"])
def test_nan_in_a_metric_affects_its_pixel_only(field, padding_mode):
    metric = randers(2, 1, 1, (4, 5))
    fields = {name: t.clone() for name, t in metric.tensors().items()}
    fields[field][..., 2, 3] = math.nan
    y = mc.metric_conv(
        torch.randn(1, 2, 4, 5).double(),
        mc.Randers(**fields),
        torch.randn(1, 2, 3, 3).double(),
        padding=1,
        padding_mode=padding_mode,
        **REFERENCE,
    )
    assert y.isnan().nonzero().tolist() == [[0, 0, 2, 3]]


@modes
@pytest.mark.parametrize("far", [1e30, -1e30, math.inf])
def test_huge_offsets_give_finite_outputs_and_gradients(far, padding_mode):
    displacement, x = leaves(torch.full((1, 1, 9, 2, 4, 5), far), torch.randn(1, 2, 4, 5))
    weight = torch.randn(3, 2, 3, 3)
    y = mc.support_conv(x, mc.Deformable(displacement, 3), weight, padding=1, padding_mode=padding_mode, **REFERENCE)
    assert y.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), [displacement, x]))
    if padding_mode == "zeros":
        assert not y.any()


def test_a_metric_that_is_not_positive_gives_finite_outputs_and_gradients():
    M, omega = leaves(torch.tensor([0.0, 0.0, -1.0]).view(1, 1, 3, 1, 1), torch.tensor([2.0, -3.0]).view(1, 1, 2, 1, 1))
    y = mc.metric_conv(torch.randn(1, 2, 6, 6), mc.Randers(M, omega), torch.randn(3, 2, 3, 3), padding=1, **REFERENCE)
    assert y.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), [M, omega]))


@pytest.mark.parametrize("family", [mc.Riemannian, mc.Randers])
@pytest.mark.parametrize("stencil", [mc.stencils.onion(3), mc.stencils.square_onion(3)])
def test_gradients_are_finite_at_the_identity_metric(family, stencil):
    metric = family.isotropic(1.0).map(lambda t: t.clone().requires_grad_())
    y = mc.metric_conv(
        torch.randn(1, 2, 6, 6), metric, torch.randn(3, 2, 3, 3), stencil=stencil, padding=1, **REFERENCE
    )
    assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), list(metric.tensors().values())))


def test_outputs_and_gradients_are_deterministic():
    support, tensors = small_problem("deformable", out=(4, 3))
    torch.use_deterministic_algorithms(True)
    try:
        runs = []
        for _ in range(2):
            y = operator(support, padding=1, groups=2)(*tensors)
            runs.append([y, *torch.autograd.grad(y.square().sum(), tensors)])
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_all_output_values_are_written(poison):
    x, weight, metric = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3), randers(2, dtype=torch.float32)
    assert mc.metric_conv(x, metric, weight, padding=1, **REFERENCE).isfinite().all()


def test_images_of_one_pixel_are_supported():
    y = mc.support_conv(torch.full((1, 1, 1, 1), 2.0), mc.Grid(3), torch.ones(1, 1, 3, 3), padding=1, **REFERENCE)
    assert y.item() == 2
    y = mc.support_conv(
        torch.full((1, 1, 1, 1), 2.0),
        mc.Grid(3),
        torch.ones(1, 1, 3, 3),
        padding=1,
        padding_mode="reflect",
        **REFERENCE,
    )
    assert y.item() == 18


def test_grid_positions_have_the_precision_of_the_input():
    x = torch.sin(torch.arange(6000, dtype=torch.float64)).expand(1, 1, 3, -1)
    weight = torch.full((1, 1, 3, 3), 1 / 9, dtype=torch.float64)
    y = mc.support_conv(x, mc.Grid(3, spacing=0.4), weight, backend="reference")
    near, far = y[0, 0, 0, 10], y[0, 0, 0, 10 + 710 * 4]  # 710 is 226 turns, but for 6e-5

    def mean(pixel):
        left, here, right = (x[0, 0, 0, pixel + step] for step in (0, 1, 2))
        return (here + 0.4 * (left + here * 0 + right) + 2 * 0.6 * here) / 3

    torch.testing.assert_close(near, mean(10), rtol=0, atol=1e-14)
    torch.testing.assert_close(far, mean(10 + 710 * 4), rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_grid_between_pixels_returns_the_dtype_of_the_input(dtype):
    x, weight = torch.ones(1, 1, 5, 5, dtype=dtype), torch.full((1, 1, 3, 3), 1 / 8, dtype=dtype)
    y = mc.support_conv(x, mc.Grid(3, spacing=0.7), weight, **REFERENCE)
    torch.testing.assert_close(y, torch.full((1, 1, 3, 3), 9 / 8, dtype=dtype))


def test_subclass_of_grid_uses_its_own_offsets():
    class Turned(mc.Grid):
        def offsets(self, samples: slice | None = None) -> torch.Tensor:
            return super().offsets(samples).flip(3)

    x, weight = torch.randn(1, 1, 5, 5), torch.randn(1, 1, 3, 3)
    y = mc.support_conv(x, Turned(3), weight, **REFERENCE)
    torch.testing.assert_close(y, torch.nn.functional.conv2d(x, weight.mT))


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (2, 3)])
def test_positions_are_exact_in_long_signals(kernel, stride):
    length = 2**22
    torch.manual_seed(0)
    x = torch.zeros(1, 1, length)
    x[..., -60:] = torch.randn(60)
    support = mc.Shifted(torch.full((1, 1, 1, 1), 0.3), kernel)
    weight = torch.randn(1, 1, kernel)
    y = mc.support_conv(x, support, weight, stride=stride, backend="reference")
    start = (length - kernel) // stride * stride - 45  # where the same outputs lie in a short piece
    short = mc.support_conv(x[..., start:], support, weight, stride=stride, backend="reference")
    torch.testing.assert_close(y[..., -short.shape[-1] :], short)
    assert short.abs().max() > 0.5
