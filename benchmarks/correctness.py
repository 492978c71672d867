"""The check of results: a wrong implementation is not timed."""

import dataclasses
import math

import torch
from torch import Tensor

from metricconv._interpolation import lattice_tolerance, use_lattice_tolerance

from .cases import Implementation, Inputs, Shape

TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 1e-2}
TF32_TOLERANCE = 1e-2
# Elements of the input of a check: enough for wide layers to use the same kernels as the timed shape.
_ELEMENTS = 2**19


def errors(
    implementation: Implementation, shape: Shape, device: str, expected: Implementation | None = None, seed: int = 0
) -> dict[str, float]:
    """Return the relative errors ‖a − b‖/‖b‖ of the output, with and without gradients, and of every gradient.

    The expected values are computed in float64 by ``expected``, or by the same implementation where float64 falls back
    to the reference. The shape is reduced by ``cut``.
    """
    small = cut(shape)
    torch.manual_seed(seed)
    tensors = implementation.inputs(small, device)
    precise = {name: t.detach().double().requires_grad_() for name, t in tensors.items()}
    gradient = torch.randn(small.batch, small.channels, small.height, small.width, device=device)
    result = _with_gradients(implementation, small, tensors, gradient)
    # Derivatives jump at lattice points, so both precisions must classify the same coordinates as integers.
    with use_lattice_tolerance(torch.float64, lattice_tolerance(torch.float32)):
        truth = _with_gradients(expected or implementation, small, precise, gradient)
    return {name: _relative(result[name], truth[name]) for name in truth}


def cut(shape: Shape) -> Shape:
    """Return a small shape: images of at most 23×53 pixels, not divisible into the tiles that are timed."""
    height, width = min(shape.height, 23), min(shape.width, 53)
    images = max(2, math.ceil(_ELEMENTS / (shape.channels * height * width)))
    return dataclasses.replace(shape, batch=min(shape.batch, images), height=height, width=width)


def _with_gradients(
    implementation: Implementation, shape: Shape, tensors: Inputs, gradient: Tensor
) -> dict[str, Tensor]:
    y = implementation.call(shape, tensors)
    grads = torch.autograd.grad(y, list(tensors.values()), gradient.to(y.dtype))
    with torch.no_grad():
        inference = implementation.call(shape, tensors)
    return {"output": y.detach(), "output without gradients": inference, **dict(zip(tensors, grads, strict=True))}


def _relative(value: Tensor, truth: Tensor) -> float:
    error = torch.linalg.vector_norm(value.double() - truth) / torch.linalg.vector_norm(truth).clamp_min(1e-30)
    return float(error)
