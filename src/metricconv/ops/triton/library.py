"""The operators ``metricconv::support_conv`` and its backward, as functions of tensors."""

from typing import Any

import torch
from torch import Tensor

from ..operators import register_convolution
from .backward_pass import backward
from .conv_call import ConvCall, empty_output, kernel_weight
from .forward_pass import forward


def _prepare(x: Tensor, weight: Tensor, *others: Any) -> tuple[Any, ...]:
    """Return the arguments with the weights in the layout and dtype of the kernels."""
    return x, kernel_weight(weight, x.dtype), *others


def _forward(*args: Any) -> Tensor:
    *shared, bias, channels_last = args
    return forward(ConvCall(*shared), bias, channels_last)


def _forward_fake(*args: Any) -> Tensor:
    *shared, _, channels_last = args
    call = ConvCall(*shared)
    return empty_output(call.x, call.weight.shape[0], call.grid.size, channels_last)


def _backward(*args: Any) -> list[Tensor | None]:
    *shared, grad, needs = args
    call = ConvCall(*shared)
    gradients = backward(call, grad.contiguous(memory_format=torch.channels_last), needs)
    if gradients[2] is not None and call.modulation is not None:
        gradients[2] = gradients[2].to(call.modulation.dtype)
    return gradients


def _backward_fake(*args: Any) -> list[Tensor | None]:
    call = ConvCall(*args[:-2])

    def channels_last(like: Tensor) -> Tensor:
        n, c, h, w = like.shape
        return like.new_empty((n, h, w, c)).permute(0, 3, 1, 2)

    others = (call.modulation, call.field, call.drift)
    return [
        channels_last(call.x),
        channels_last(call.weight).float(),
        *(None if t is None else t.new_empty(t.shape) for t in others),
    ]


support_conv = register_convolution(
    "support_conv",
    "Tensor input, Tensor weight, Tensor? modulation, Tensor? field, Tensor? drift, Tensor? table, str kind, "
    "SymInt[] kernel_size, float[] spacing, SymInt[] dilation, SymInt[] stride, SymInt[] padding, SymInt groups, "
    "str padding_mode",
    tensors=6,
    gradients=5,
    forward=_forward,
    forward_fake=_forward_fake,
    backward=_backward,
    backward_fake=_backward_fake,
    devices=("CUDA", "CPU"),  # CPU for Triton's interpreter
    prepare=_prepare,
    autocast=True,
)
