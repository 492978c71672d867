"""The gate: no time is reported for a computation that is wrong."""

import dataclasses
import math

import torch
from torch import Tensor

from .._interpolation import lattice_tolerance, use_lattice_tolerance
from .cases import Contender, Inputs, Shape

TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 1e-2}
TF32_TOLERANCE = 1e-2
# Numbers in the images of a check: so many that wide layers go the way that is timed.
_NUMBERS = 2**19


def errors(contender: Contender, shape: Shape, device: str, expected: Contender | None = None) -> dict[str, float]:
    """Return the relative errors ‖a − b‖/‖b‖ of the output, with and without gradients, and of every gradient.

    The truth is what the contender ``expected`` finds in float64, or the same one, as where float64 is the reference's
    affair. The shape is ``cut``.
    """
    small = cut(shape)
    torch.manual_seed(0)
    tensors = contender.inputs(small, device)
    precise = {name: t.detach().double().requires_grad_() for name, t in tensors.items()}
    gradient = torch.randn(small.batch, small.channels, small.height, small.width, device=device)
    result = _with_gradients(contender, small, tensors, gradient)
    # Derivatives jump at lattice points: the same coordinates have to count as whole in both precisions.
    with use_lattice_tolerance(torch.float64, lattice_tolerance(torch.float32)):
        truth = _with_gradients(expected or contender, small, precise, gradient)
    return {name: _relative(result[name], truth[name]) for name in truth}


def cut(shape: Shape) -> Shape:
    """Return a few images of at most 23×53 pixels: odd numbers, so that tiles do not fit, and tiles that are timed."""
    height, width = min(shape.height, 23), min(shape.width, 53)
    images = max(2, math.ceil(_NUMBERS / (shape.channels * height * width)))
    return dataclasses.replace(shape, batch=min(shape.batch, images), height=height, width=width)


def _with_gradients(contender: Contender, shape: Shape, tensors: Inputs, gradient: Tensor) -> dict[str, Tensor]:
    y = contender.call(shape, tensors)
    grads = torch.autograd.grad(y, list(tensors.values()), gradient.to(y.dtype))
    with torch.no_grad():
        alone = contender.call(shape, tensors)
    return {"output": y.detach(), "output alone": alone, **dict(zip(tensors, grads, strict=True))}


def _relative(value: Tensor, truth: Tensor) -> float:
    error = torch.linalg.vector_norm(value.double() - truth) / torch.linalg.vector_norm(truth).clamp_min(1e-30)
    return float(error)
