"""The torch.library operators: schemas, fake implementations, autograd."""

from typing import Any

import torch
from torch import Tensor

from ..flops import count_products
from . import partition
from .arguments import CpuArguments, new_output, view_3d

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
    *inputs, bias, channels_last = map(_detached, args)
    arguments = CpuArguments(*inputs)
    channels_last_kernel = arguments.writes_channels_last(channels_last)
    out = new_output(arguments, channels_last_kernel)
    if bias is None:
        out.zero_()
    else:
        out.copy_(bias.view(-1, *(1,) * arguments.dim).expand_as(out))
    if out.numel():
        partition.forward(arguments, view_3d(arguments, out))
    return out if channels_last_kernel == channels_last else new_output(arguments, channels_last).copy_(out)


def _forward_fake(*args: Any) -> Tensor:
    *inputs, _, channels_last = args
    return new_output(CpuArguments(*inputs), channels_last)


def _backward_impl(*args: Any) -> tuple[Tensor, ...]:
    """Return the gradients of input, weight, modulation and params; an empty tensor where not needed."""
    *inputs, grad, needs = map(_detached, args)
    if grad.numel() == 0:
        return tuple(g.zero_() for g in _backward_fake(*args))
    arguments = CpuArguments(*inputs)
    gradients = partition.backward(arguments, view_3d(arguments, grad), tuple(needs))
    return tuple(grad.new_empty(0) if g is None else g for g in gradients)


def _backward_fake(*args: Any) -> tuple[Tensor, ...]:
    *inputs, grad, needs = args
    arguments = CpuArguments(*inputs)
    tensors = (arguments.x, arguments.weight, arguments.modulation, arguments.params)
    return tuple(
        t.new_empty(t.shape) if t is not None and n else grad.new_empty(0) for t, n in zip(tensors, needs, strict=True)
    )


def _detached(value: Any) -> Any:
    """Detach a tensor, which ``numpy()`` requires."""
    return value.detach() if isinstance(value, Tensor) else value


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *arguments, bias, _ = inputs
    ctx.save_for_backward(*arguments[:5])
    ctx.options = arguments[5:]
    ctx.has_bias = bias is not None


def _autograd_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, weight, modulation, params, stencil = ctx.saved_tensors
    needs = [bool(n) for n in ctx.needs_input_grad[:4]]
    gradients = _backward(x, weight, modulation, params, stencil, *ctx.options, grad, needs)
    bias = grad.sum([0, *range(2, grad.dim())]) if ctx.has_bias and ctx.needs_input_grad[-2] else None
    grads = [g if n else None for g, n in zip(gradients, needs, strict=True)]
    return *grads, None, *[None] * len(ctx.options), bias, None


def _raise_on_double_backward(ctx: Any, *grads: Tensor) -> None:
    raise NotImplementedError(
        'the CPU kernels have first derivatives only: for a double backward call the operator with backend="reference"'
    )


_LIBRARY.impl("support_conv_cpu", _forward, "CPU")
_LIBRARY.impl("support_conv_cpu_backward", _backward_impl, "CPU")
torch.library.register_fake("metricconv::support_conv_cpu", _forward_fake, lib=_LIBRARY)
torch.library.register_fake("metricconv::support_conv_cpu_backward", _backward_fake, lib=_LIBRARY)
torch.library.register_autograd(
    "metricconv::support_conv_cpu", _autograd_backward, setup_context=_save_for_backward, lib=_LIBRARY
)
torch.library.register_autograd("metricconv::support_conv_cpu_backward", _raise_on_double_backward, lib=_LIBRARY)
count_products(torch.ops.metricconv.support_conv_cpu, torch.ops.metricconv.support_conv_cpu_backward)
