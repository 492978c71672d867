"""The operators ``metricconv::support_conv_cpu`` and its backward, as functions of tensors."""

from typing import Any

from torch import Tensor

from ..operators import register_convolution
from . import blocks, partition
from .arguments import CpuArguments, new_output, view_3d


def _forward(*args: Any) -> Tensor:
    *shared, bias, channels_last = _detached(args)
    arguments = CpuArguments(*shared)
    if arguments.uses_blocks:
        out = new_output(arguments, channels_last)
        if out.numel():
            blocks.forward(arguments, view_3d(arguments, out), bias)
        return out
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
    *shared, _, channels_last = args
    return new_output(CpuArguments(*shared), channels_last)


def _backward(*args: Any) -> tuple[Tensor | None, ...]:
    *shared, grad, needs = _detached(args)
    arguments = CpuArguments(*shared)
    compute = blocks.backward if arguments.uses_blocks else partition.backward
    return tuple(compute(arguments, view_3d(arguments, grad), tuple(needs)))


def _backward_fake(*args: Any) -> tuple[Tensor | None, ...]:
    arguments = CpuArguments(*args[:-2])
    tensors = (arguments.x, arguments.weight, arguments.modulation, arguments.params)
    return tuple(None if t is None else t.new_empty(t.shape) for t in tensors)


def _detached(values: tuple[Any, ...]) -> list[Any]:
    """Detach all tensors, which ``numpy()`` requires."""
    return [value.detach() if isinstance(value, Tensor) else value for value in values]


support_conv = register_convolution(
    "support_conv_cpu",
    "Tensor input, Tensor weight, Tensor? modulation, Tensor? field, Tensor table, str kind, int dim, "
    "SymInt[] dilation, SymInt[] stride, SymInt[] padding, SymInt groups, str padding_mode, int steps, "
    "SymInt[] nodes, float[] spacing, bool circular",
    tensors=5,
    gradients=4,
    forward=_forward,
    forward_fake=_forward_fake,
    backward=_backward,
    backward_fake=_backward_fake,
    devices=("CPU",),
)
