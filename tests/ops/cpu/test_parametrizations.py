"""The kernel of Spectral7 agrees with plain PyTorch: metric, gradient, second derivative, NaN."""

import math

import pytest
import torch
from torch import Tensor

import metricconv as mc
from metricconv.ops import parametrize

pytest.importorskip("numba")
from metricconv.ops import cpu

START = mc.metrics.Spectral7().identity().float()
GAIN = torch.tensor(0.7)


def fused(parametrization: mc.metrics.Parametrization, raw: Tensor) -> mc.metrics.Metric:
    metric = cpu.parametrize(parametrization, raw, START, GAIN, 2.0)
    assert metric is not None
    return metric


def computed(metric: mc.metrics.Metric, raw: Tensor) -> list[Tensor]:
    tensors = list(metric.tensors().values())
    generator = torch.Generator().manual_seed(1)
    grads = [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t) for t in tensors]
    return [*(t.detach() for t in tensors), *torch.autograd.grad(tensors, raw, grads)]


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("scale", [0.0, 1e-3, 0.5, 3.0, 50.0])
def test_kernel_agrees_with_plain_torch_in_double_precision(scale: float, detached: bool) -> None:
    parametrization = mc.metrics.Spectral7(s_max=2.0, eps_omega=0.3, detach_factor=detached)
    raw = (scale * torch.randn(3, 2, 7, 5, 9)).requires_grad_()
    precise = raw.detach().double().requires_grad_()
    found = computed(fused(parametrization, raw), raw)
    expected = computed(parametrization(precise, START.double(), GAIN.double(), 2.0), precise)
    for a, b in zip(found, expected, strict=True):
        assert float((a - b).abs().max()) <= 1e-5 * float(b.abs().max())


def test_saturated_parameters_have_no_gradient() -> None:
    raw = torch.full((1, 1, 7, 1, 4), 1e6, requires_grad=True)
    *tensors, grad = computed(fused(mc.metrics.Spectral7(), raw), raw)
    assert all(t.isfinite().all() for t in tensors) and not grad.any()


def test_nan_reaches_the_metric() -> None:
    raw = torch.zeros(1, 1, 7, 1, 33)
    raw[..., 5] = math.nan
    for tensor in fused(mc.metrics.Spectral7(), raw).tensors().values():
        assert tensor[..., 5].isnan().all() and tensor.isnan().sum() == tensor.shape[2]


def test_second_derivatives_are_those_of_plain_torch() -> None:
    parametrization = mc.metrics.Spectral7(detach_factor=False)
    raw = torch.randn(1, 1, 7, 2, 3, requires_grad=True)

    def second(metric: mc.metrics.Metric) -> Tensor:
        (grad,) = torch.autograd.grad(sum(t.square().sum() for t in metric.tensors().values()), raw, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), raw)[0]

    found = second(fused(parametrization, raw))
    torch.testing.assert_close(found, second(parametrization(raw, START, GAIN, 2.0)), rtol=1e-3, atol=1e-3)


def test_layer_uses_the_kernel_unless_the_reference_is_requested() -> None:
    raw = torch.zeros(1, 1, 7, 2, 2, requires_grad=True)
    names = {
        backend: parametrize(mc.metrics.Spectral7(), raw, START, GAIN, backend=backend).tensors()["M"].grad_fn.name()
        for backend in ("auto", "cpu", "reference")
    }
    assert "Spectral7" in names["auto"] and "Spectral7" in names["cpu"] and "Spectral7" not in names["reference"]


@pytest.mark.parametrize(
    "parametrization",
    [mc.metrics.Cholesky(), mc.metrics.Spectral6(), mc.metrics.Spectral7(frame="givens")],
    ids=lambda p: type(p).__name__ + str(getattr(p, "frame", "")),
)
def test_other_parametrizations_are_left_to_plain_torch(parametrization: mc.metrics.Parametrization) -> None:
    raw = torch.zeros(1, 1, parametrization.channels, 2, 2)
    assert cpu.parametrize(parametrization, raw, parametrization.identity().float(), GAIN, 1.0) is None
