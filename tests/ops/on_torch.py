"""Functions that numba or Triton compile, run by Python on tensors, so that autograd can differentiate them."""

import types
from typing import Any

import torch


def _sqrt(x: torch.Tensor) -> torch.Tensor:
    """Return √x with a derivative of 0 at 0."""
    return torch.where(x == 0, 0.0, torch.where(x == 0, 1.0, x).sqrt())


def _elementwise(function: Any) -> Any:
    return lambda a, b: function(torch.as_tensor(a), torch.as_tensor(b))


# What the functions take from ``np`` or ``tl``.
_PRIMITIVES = types.SimpleNamespace(
    sqrt=_sqrt,
    rsqrt=torch.rsqrt,
    abs=torch.abs,
    floor=torch.floor,
    where=torch.where,
    minimum=_elementwise(torch.minimum),
    maximum=_elementwise(torch.maximum),
    full=lambda shape, value, dtype: torch.full(shape, value, dtype=dtype),
    zeros_like=torch.zeros_like,
    float32=torch.float64,
    int32=torch.int64,
)


def on_torch(module: types.ModuleType, **replaced: Any) -> types.SimpleNamespace:
    """Return the compiled functions of a module as functions of float64 tensors, and its constants as numbers."""
    names: dict[str, Any] = dict(vars(module))
    for name, value in vars(module).items():
        function = getattr(value, "fn", value)  # of Triton; numba leaves functions that kernels call as they are
        if isinstance(function, types.FunctionType):
            names[name] = types.FunctionType(function.__code__, names, name)
        elif hasattr(value, "value") or hasattr(value, "item"):  # a tl.constexpr, a NumPy scalar
            names[name] = value.value if hasattr(value, "value") else value.item()
    names |= {"np": _PRIMITIVES, "tl": _PRIMITIVES, **replaced}
    return types.SimpleNamespace(**names)
