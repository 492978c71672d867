"""Compare convolutions with few outputs to those of torch, for the tests in the interpreter and on a GPU."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

CASES: dict[str, dict[str, Any]] = {
    "usual": {},
    "stride": {"stride": (2, 3), "size": (7, 9)},
    "dilation": {"dilation": (2, 1), "padding": (2, 0)},
    "one pixel": {"size": (1, 1)},
    "two outputs": {"outputs": 2, "channels": 16},
    "rectangular": {"kernel": (1, 3), "padding": (0, 2)},
    "no padding": {"padding": (0, 0), "stride": (2, 2)},
}


def check_few_outputs(dtype: torch.dtype, device: str = "cpu", **options: Any) -> None:
    """Check that the fused convolution runs, and its outputs and gradients against torch in float64."""
    from metricconv.ops.triton import conv_with_few_outputs

    x, weight, bias, sizes = make_tensors(dtype, device, **options)
    with torch.autocast(device, dtype, enabled=dtype != torch.float32):
        y = conv_with_few_outputs(x, weight, bias, *sizes)
    assert y is not None and y.dtype == dtype
    grad = torch.randn(y.shape, device=device).to(dtype)
    found = torch.autograd.grad(y, (x, weight, bias), grad)
    assert [g.dtype for g in found] == [dtype, weight.dtype, bias.dtype] and found[1].stride() == weight.stride()
    exact = [t.detach().double().requires_grad_() for t in (x, weight.to(dtype), bias)]
    expected = functional.conv2d(*exact, *sizes)
    expected_gradients = torch.autograd.grad(expected, exact, grad.double())
    for one, other in zip((y, *found), (expected, *expected_gradients), strict=True):
        assert (one.double() - other).norm() <= 5e-3 * other.norm()


def make_tensors(
    dtype: torch.dtype,
    device: str = "cpu",
    *,
    channels: int = 48,
    outputs: int = 7,
    size: tuple[int, int] = (5, 6),
    kernel: tuple[int, int] = (3, 3),
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
) -> tuple[Tensor, Tensor, Tensor, tuple[tuple[int, int], ...]]:
    """Return an image in channels last, weights and bias in float32, and stride, padding and dilation."""
    last = torch.channels_last
    x = torch.randn(2, channels, *size, device=device).to(dtype).to(memory_format=last).requires_grad_()
    weight = torch.randn(outputs, channels, *kernel, device=device).to(memory_format=last).requires_grad_()
    return x, weight, torch.randn(outputs, device=device, requires_grad=True), (stride, padding, dilation)
