"""The operators as torch knows them: schemas, shapes without data, derivatives."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..flops import count_products
from .backward import backward
from .call import Call, by_tap, empty_output
from .launch import forward
from .shortcut import first_derivative, shortcut

_ARGUMENTS = (
    "Tensor input, Tensor weight, Tensor? modulation, Tensor? field, Tensor? drift, Tensor? table, str kind, "
    "SymInt[] kernel_size, float[] spacing, SymInt[] dilation, SymInt[] stride, SymInt[] padding, SymInt groups, "
    "str padding_mode"
)
_LIBRARY = torch.library.Library("metricconv", "FRAGMENT")
_LIBRARY.define(
    f"support_conv({_ARGUMENTS}, Tensor? bias, bool channels_last) -> Tensor", tags=[torch.Tag.pt2_compliant_tag]
)
_LIBRARY.define(
    f"support_conv_backward({_ARGUMENTS}, Tensor grad, bool[] needs) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=[torch.Tag.pt2_compliant_tag],
)

_operator = torch.ops.metricconv.support_conv.default
_backward_operator = torch.ops.metricconv.support_conv_backward.default


def _prepare(x: Tensor, weight: Tensor, *others: Any) -> tuple[Any, ...]:
    """Return the arguments with the weights as kernels read them, once for the forward and the backward pass."""
    return x, by_tap(weight, x.dtype), *others


def _forward(*args: Any) -> Tensor:
    *call, bias, channels_last = args
    return forward(Call(*call), bias, channels_last)


def _forward_fake(*args: Any) -> Tensor:
    *fields, _, channels_last = args
    call = Call(*fields)
    return empty_output(call.x, call.weight.shape[0], call.grid.size, channels_last)


def _backward_impl(*args: Any) -> tuple[Tensor, ...]:
    """Return the gradients of input, weight, modulation, field and drift; an empty tensor for one not needed."""
    *fields, grad, needs = args
    call = Call(*fields)
    if grad.numel() == 0:
        return tuple(g.zero_() for g in _backward_fake(*args))
    grad = grad.contiguous(memory_format=torch.channels_last)
    found = backward(call, grad, needs)
    if found[2] is not None and call.modulation is not None:
        found[2] = found[2].to(call.modulation.dtype)
    return tuple(g if g is not None and n else grad.new_empty(0) for g, n in zip(found, needs, strict=True))


def _backward_fake(*args: Any) -> tuple[Tensor, ...]:
    *fields, grad, needs = args
    call = Call(*fields)

    def channels_last(like: Tensor) -> Tensor:
        n, c, h, w = like.shape
        return like.new_empty((n, h, w, c)).permute(0, 3, 1, 2)

    found = [channels_last(call.x), channels_last(call.weight).float()]
    found += [grad if t is None else t.new_empty(t.shape) for t in (call.modulation, call.field, call.drift)]
    return tuple(g if n else grad.new_empty(0) for g, n in zip(found, needs, strict=True))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *call, bias, _ = inputs
    ctx.save_for_backward(*call[:6])
    ctx.numbers = call[6:]
    ctx.bias_dtype = None if bias is None else bias.dtype


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, weight, modulation, field, drift, table = ctx.saved_tensors
    needs = [bool(n) for n in ctx.needs_input_grad[:5]]
    found = _backward(x, weight, modulation, field, drift, table, *ctx.numbers, grad, needs)
    bias = grad.sum((0, 2, 3), dtype=ctx.bias_dtype) if ctx.needs_input_grad[-2] else None
    grads = [g if n else None for g, n in zip(found, needs, strict=True)]
    return *grads, None, *[None] * len(ctx.numbers), bias, None


def _autocast(device: str) -> Callable[..., Tensor]:
    """Return the operator under autocast: image, modulation and bias in its dtype, the geometry as it is."""

    def cast(t: Tensor | None) -> Tensor | None:
        return t if t is None or t.dtype == torch.float64 else t.to(torch.get_autocast_dtype(device))

    def call(x: Tensor, weight: Tensor, modulation: Tensor | None, *others: Any) -> Tensor:
        *numbers, bias, channels_last = others
        arguments = (cast(x), weight, cast(modulation), *numbers, cast(bias), channels_last)
        with torch.autocast(device, enabled=False):
            y: Tensor = _operator(*arguments)
        return y

    return call


def refuse(ctx: Any, *grads: Tensor) -> None:
    """Refuse a double backward, in place of a formula for it."""
    raise NotImplementedError(
        "the fused kernels have first derivatives only: for a double backward call the operator with "
        'backend="reference"'
    )


for _device in ("CUDA", "CPU"):  # CPU serves Triton's interpreter, TRITON_INTERPRET=1
    _LIBRARY.impl("support_conv", _autocast(_device.lower()), f"Autocast{_device}")
    _LIBRARY.impl("support_conv", _forward, _device)
    _LIBRARY.impl("support_conv_backward", _backward_impl, _device)
torch.library.register_fake("metricconv::support_conv", _forward_fake, lib=_LIBRARY)
torch.library.register_fake("metricconv::support_conv_backward", _backward_fake, lib=_LIBRARY)
torch.library.register_autograd("metricconv::support_conv", _differentiate, setup_context=_keep, lib=_LIBRARY)
torch.library.register_autograd("metricconv::support_conv_backward", refuse, lib=_LIBRARY)
count_products(torch.ops.metricconv.support_conv, torch.ops.metricconv.support_conv_backward)
support_conv = shortcut(_operator, _forward, _keep, _differentiate, _prepare)
_backward = first_derivative(_backward_operator, _backward_impl)
