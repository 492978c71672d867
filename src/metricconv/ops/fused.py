"""Steps of a metric layer before the operator: by kernels where there are some, otherwise in plain PyTorch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import _checks
from ..metrics import Metric, Parametrization
from ..supports import Grid
from . import cpu, export, triton
from .backends import BACKENDS
from .functional import support_conv

__all__ = ["conv_with_few_outputs", "parametrize"]

_CONVOLUTIONS = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}


def parametrize(
    parametrization: Parametrization,
    raw: Tensor,
    start: Tensor | None = None,
    gain: Tensor | None = None,
    radius: float = 1,
    *,
    backend: str = "auto",
) -> Metric:
    """Return ``parametrization(raw, start, gain, radius)``; "reference" always computes it in plain PyTorch."""
    _checks.instance_of(parametrization, Parametrization, "parametrization")
    _checks.floating(raw, "raw")
    _checks.one_of(backend, ("auto", *BACKENDS), "backend")
    if backend != "reference":
        for kernels in (export, triton, cpu):
            metric = kernels.parametrize(parametrization, raw, start, gain, radius)
            if metric is not None:
                return metric
    return parametrization(raw, start, gain, radius)


def conv_with_few_outputs(
    input: Tensor, weight: Tensor, bias: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """Return the ordinary convolution: torch's in 1-D to 3-D, by kernels for few output channels where faster."""
    if input.dim() - 2 not in _CONVOLUTIONS:
        support = Grid(tuple(weight.shape[2:]), tuple(dilation))
        return support_conv(input, support, weight, bias, stride=tuple(stride), padding=tuple(padding))
    y = triton.conv_with_few_outputs(input, weight, bias, stride, padding, dilation)
    return _CONVOLUTIONS[input.dim() - 2](input, weight, bias, stride, padding, dilation) if y is None else y
