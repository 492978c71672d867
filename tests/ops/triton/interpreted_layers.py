"""Fused parametrizations and predictors in Triton's interpreter, run by test_interpreted.py."""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import metricconv as mc
from layers import randomize_predictors
from metricconv.ops.triton import conv_with_few_outputs
from metricconv.ops.triton.bound_kernel import BoundKernel
from ops.cases import Case
from ops.triton import few_outputs
from ops.triton.fused_parametrization import PARAMETRIZATIONS, check_parametrization

pytestmark = pytest.mark.usefixtures("poison")
triton_parametrizations = importlib.import_module("metricconv.ops.triton.parametrizations")  # not the function


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS, ids=str)
@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")  # NumPy's
def test_fused_parametrization_equals_its_formulas(parametrization: mc.metrics.Parametrization) -> None:
    check_parametrization(parametrization)


@pytest.mark.parametrize(("max_pixels", "fused"), [(12, True), (11, False)])
def test_too_many_pixels_for_one_launch_fall_back_to_the_formulas(max_pixels: int, fused: bool) -> None:
    raw = torch.randn(1, 1, 7, 3, 4)
    metric = triton_parametrizations.parametrize(mc.metrics.Spectral7(), raw, None, None, 1.0, max_pixels)
    assert (metric is not None) == fused


@pytest.mark.parametrize(("backend", "calls"), [("auto", 1), ("triton", 1), ("reference", 0)])
def test_layers_use_the_fused_parametrization_unless_backend_is_reference(
    backend: str, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr("metricconv.ops.triton.parametrize", lambda *call: seen.append(call))
    mc.nn.MetricConv2d(4, 4, 1, backend=backend)(torch.randn(1, 4, 2, 2))
    assert len(seen) == calls


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", few_outputs.CASES)
@pytest.mark.usefixtures("tf32")
def test_few_outputs_convolution_equals_torch(name: str, dtype: torch.dtype) -> None:
    few_outputs.check_few_outputs(dtype, **few_outputs.CASES[name])


def test_few_outputs_convolution_has_second_derivatives() -> None:
    x, weight, bias, sizes = few_outputs.make_tensors(torch.float16, size=(3, 3))
    seconds = []
    for conv in (conv_with_few_outputs, torch.nn.functional.conv2d):
        y = conv(x, weight.half(), bias.half(), *sizes)
        (first,) = torch.autograd.grad((y.float() / 8).square().sum(), x, create_graph=True)
        seconds.append(torch.autograd.grad((first.float() / 64).square().sum(), weight)[0])
    assert (seconds[0] - seconds[1]).norm() <= 1e-2 * seconds[1].norm()


@pytest.mark.parametrize(
    "options", [{"channels": 40}, {"channels": 100}, {"size": (2, 2), "padding": (0, 0)}, {"dtype": torch.float32}]
)
def test_few_outputs_convolution_falls_back_to_torch(options: dict[str, Any]) -> None:
    x, weight, bias, sizes = few_outputs.make_tensors(**{"dtype": torch.float16, **options})
    assert conv_with_few_outputs(x, weight.to(x.dtype), bias.to(x.dtype), *sizes) is None
    x, weight, bias, sizes = few_outputs.make_tensors(torch.float16)
    assert conv_with_few_outputs(x, weight.half(), bias.half(), *sizes) is not None
    assert conv_with_few_outputs(x, weight, bias, *sizes) is None  # an error in torch
    assert conv_with_few_outputs(x.contiguous(), weight.half(), bias.half(), *sizes) is None
    assert conv_with_few_outputs(*(t.half().to("meta") for t in (x, weight, bias)), *sizes) is None
    with torch.autocast("cpu", torch.float16):  # does not change float64
        assert conv_with_few_outputs(x.double(), weight.double(), bias.double(), *sizes) is None


def test_layers_use_the_few_outputs_convolution() -> None:
    layer = mc.nn.MetricConv2d(128, 4, 3, padding=1)
    x = torch.randn(1, 128, 4, 4).to(memory_format=torch.channels_last)
    assert layer.predictor is not None
    with torch.no_grad():
        layer.predictor.weight.normal_(std=0.02)
        expected = layer.predictor(x)
        with torch.autocast("cpu", torch.float16):
            found = layer.predictor(x)
    assert found.dtype == torch.float16 and found.is_contiguous()
    torch.testing.assert_close(found.float(), expected, rtol=1e-2, atol=1e-2)


def test_function_transforms_use_the_reference() -> None:
    tensors, run = Case(channels=(2, 2), kernel=(1, 3), size=(3, 4)).make()
    for name, tensor in tensors.items():
        slopes = []
        for backend in ("auto", "reference"):
            _, slope = torch.func.jvp(lambda t: run(tensors | {name: t}, backend=backend), (tensor,), (tensor,))  # noqa: B023
            slopes.append(slope)
        assert slopes[1].norm() > 0
        torch.testing.assert_close(*slopes)
    with pytest.raises(ValueError, match="it supports autograd's backward pass"):
        torch.func.grad(lambda x: run(tensors | {"input": x}, backend="triton").sum())(tensors["input"])


def test_batched_gradients_equal_separate_ones() -> None:
    tensors, run = Case(channels=(2, 2), kernel=(1, 3), size=(3, 4)).make()
    tensors["input"].requires_grad_()
    y = run(tensors, backend="triton")
    grads = torch.stack([torch.ones_like(y), torch.randn_like(y)])
    (batched,) = torch.autograd.grad(y, tensors["input"], grads, is_grads_batched=True, retain_graph=True)
    separate = [torch.autograd.grad(y, tensors["input"], grad, retain_graph=True)[0] for grad in grads]
    torch.testing.assert_close(batched, torch.stack(separate))


def test_layers_support_function_transforms() -> None:
    layer, x = randomize_predictors(mc.nn.MetricConv2d(2, 2, 3, padding=1)), torch.randn(1, 2, 4, 4)
    parameters = dict(layer.named_parameters())

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(layer, parameters, x).square().sum()

    found = torch.func.grad(loss)(parameters)
    expected = torch.autograd.grad(loss(parameters), list(parameters.values()))
    torch.testing.assert_close(list(found.values()), list(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_kernels_are_launched_on_the_device_of_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded, launched, launch_now = [], [], BoundKernel.__call__

    @contextlib.contextmanager
    def guard(x: torch.Tensor) -> Iterator[None]:
        guarded.append(x.device)
        yield
        guarded.pop()

    def watched(self: BoundKernel, **tensors: Any) -> None:
        launched.append((self.kernel.fn.__name__, guarded[-1] if guarded else None))
        launch_now(self, **tensors)

    for name in ("forward_pass", "backward_pass", "geodesic", "few_outputs_conv", "parametrizations"):
        monkeypatch.setattr(importlib.import_module(f"metricconv.ops.triton.{name}"), "on_device", guard)
    monkeypatch.setattr(BoundKernel, "__call__", watched)
    for ball in ("tangent", "geodesic"):
        layer = randomize_predictors(mc.nn.MetricConv2d(128, 4, 3, padding=1, ball=ball))
        x = torch.randn(1, 128, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
        with torch.autocast("cpu", torch.float16):
            layer(x).float().sum().backward()
    assert len({name for name, _ in launched}) > 8
    assert not [name for name, device in launched if device != x.device]
