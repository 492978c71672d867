"""The operators as torch knows them: schemas, shapes without data, derivatives."""

from typing import Any

import torch
from torch import Tensor

from ..flops import count_products
from . import bands
from .launch import Call, empty_output, solid

_ARGUMENTS = (
    "Tensor input, Tensor weight, Tensor? modulation, Tensor? field, Tensor table, str kind, int dim, "
    "SymInt[] dilation, SymInt[] stride, SymInt[] padding, SymInt groups, str padding_mode, int steps, "
    "SymInt[] nodes, float[] spacing, bool circular"
)
_LIBRARY = torch.library.Library("metricconv", "FRAGMENT")
_LIBRARY.define(
    f"support_conv_cpu({_ARGUMENTS}, Tensor? bias, bool channels_last) -> Tensor", tags=[torch.Tag.pt2_compliant_tag]
)
_LIBRARY.define(
    f"support_conv_cpu_backward({_ARGUMENTS}, Tensor grad, bool[] needs) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=[torch.Tag.pt2_compliant_tag],
)

support_conv = torch.ops.metricconv.support_conv_cpu.default
_backward = torch.ops.metricconv.support_conv_cpu_backward.default


def _forward(*args: Any) -> Tensor:
    *fields, bias, channels_last = map(_detached, args)
    call = Call(*fields)
    rows = call.lays_rows(channels_last)
    out = empty_output(call, rows)
    if bias is None:
        out.zero_()
    else:
        out.copy_(bias.view(-1, *(1,) * call.dim).expand_as(out))
    if out.numel():
        bands.forward(call, solid(call, out))
    return out if rows == channels_last else empty_output(call, channels_last).copy_(out)


def _forward_fake(*args: Any) -> Tensor:
    *fields, _, channels_last = args
    return empty_output(Call(*fields), channels_last)


def _backward_impl(*args: Any) -> tuple[Tensor, ...]:
    """Return the gradients of input, weight, modulation and field; an empty tensor for one not needed."""
    *fields, grad, needs = map(_detached, args)
    if grad.numel() == 0:
        return tuple(g.zero_() for g in _backward_fake(*args))
    call = Call(*fields)
    found = bands.backward(call, solid(call, grad), tuple(needs))
    return tuple(grad.new_empty(0) if g is None else g for g in found)


def _backward_fake(*args: Any) -> tuple[Tensor, ...]:
    *fields, grad, needs = args
    call = Call(*fields)
    tensors = (call.x, call.weight, call.modulation, call.field)
    return tuple(
        t.new_empty(t.shape) if t is not None and n else grad.new_empty(0) for t, n in zip(tensors, needs, strict=True)
    )


def _detached(value: Any) -> Any:
    """Cut a tensor from the graph, without which it cannot be seen as an array."""
    return value.detach() if isinstance(value, Tensor) else value


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *call, bias, _ = inputs
    ctx.save_for_backward(*call[:5])
    ctx.numbers = call[5:]
    ctx.biased = bias is not None


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, weight, modulation, field, table = ctx.saved_tensors
    needs = [bool(n) for n in ctx.needs_input_grad[:4]]
    found = _backward(x, weight, modulation, field, table, *ctx.numbers, grad, needs)
    bias = grad.sum([0, *range(2, grad.dim())]) if ctx.biased and ctx.needs_input_grad[-2] else None
    grads = [g if n else None for g, n in zip(found, needs, strict=True)]
    return *grads, None, *[None] * len(ctx.numbers), bias, None


def _refuse(ctx: Any, *grads: Tensor) -> None:
    raise NotImplementedError(
        'the CPU kernels have first derivatives only: for a double backward call the operator with backend="reference"'
    )


_LIBRARY.impl("support_conv_cpu", _forward, "CPU")
_LIBRARY.impl("support_conv_cpu_backward", _backward_impl, "CPU")
torch.library.register_fake("metricconv::support_conv_cpu", _forward_fake, lib=_LIBRARY)
torch.library.register_fake("metricconv::support_conv_cpu_backward", _backward_fake, lib=_LIBRARY)
torch.library.register_autograd("metricconv::support_conv_cpu", _differentiate, setup_context=_keep, lib=_LIBRARY)
torch.library.register_autograd("metricconv::support_conv_cpu_backward", _refuse, lib=_LIBRARY)
count_products(torch.ops.metricconv.support_conv_cpu, torch.ops.metricconv.support_conv_cpu_backward)
