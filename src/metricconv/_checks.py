"""Argument checks; errors state the argument, its value and what is expected."""

import math
import numbers
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy

# Accepted types of points and vectors.
Vectors: TypeAlias = "Tensor | numpy.ndarray[Any, Any] | Sequence[Any]"


def tuple_of(value: int | Sequence[int], dim: int, name: str, *, minimum: int) -> tuple[int, ...]:
    """Convert an int, or one int per axis, to a tuple of ``dim`` ints of at least ``minimum``."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * dim
    several = f" or {dim} ints, one per spatial axis" if dim > 1 else ""
    if len(values) != dim or not all(map(is_whole, values)):
        raise ValueError(f"`{name}` (={value!r}) must be an int{several}")
    if any(v < minimum for v in values):
        raise ValueError(f"`{name}` (={value!r}) must be at least {minimum}" + " along every axis" * (dim > 1))
    return tuple(int(v) for v in values)


def is_whole(value: object) -> bool:
    """Return whether a value is a Python or NumPy integer, not a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def whole(value: int, name: str, *, minimum: int) -> int:
    """Check that a value is an int of at least ``minimum``, and return it."""
    return tuple_of(value, 1, name, minimum=minimum)[0]


def odd(value: int, name: str) -> int:
    """Check that a value is a positive odd int, and return it."""
    if not is_whole(value) or value < 1 or value % 2 == 0:
        raise ValueError(f"`{name}` (={value!r}) must be a positive odd number")
    return int(value)


def fraction(value: object, name: str) -> None:
    """Check that a value is a number in (0, 1]."""
    if not isinstance(value, numbers.Real) or not 0 < float(value) <= 1:
        raise ValueError(f"`{name}` (={value!r}) must be in (0, 1]")


def positive(value: object, name: str) -> float:
    """Check that a value is a positive finite number, and return it."""
    if not isinstance(value, numbers.Real) or not 0 < float(value) < math.inf:
        raise ValueError(f"`{name}` (={value!r}) must be positive and finite")
    return float(value)


def boolean(value: object, name: str) -> bool:
    """Check that a value is a Python or NumPy bool, and return it."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError(f"`{name}` (={value!r}) must be True or False")
    return bool(value)


def one_of(value: str, choices: Iterable[str], name: str) -> str:
    """Check that a value is one of ``choices``, and return it."""
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(f"`{name}` (={value!r}) must be one of {', '.join(map(repr, choices))}")
    return value


def divisible(value: int, by: int, name: str, by_name: str) -> None:
    """Check that ``value`` is a multiple of ``by``."""
    if by < 1 or value % by:
        raise ValueError(f"`{name}` (={value}) must be divisible by `{by_name}` (={by})")


def floating(tensor: Tensor, name: str) -> Tensor:
    """Check that a value is a floating-point tensor, and return it."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"`{name}` must be a torch.Tensor, got {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise TypeError(f"`{name}` must hold floating-point numbers, got dtype {tensor.dtype}")
    return tensor


def vectors(value: Vectors, name: str) -> Tensor:
    """Convert points or vectors, a tensor, array or nested lists, to a tensor."""
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"`{name}` must be a torch.Tensor, an array or lists of numbers, got {value!r}") from None
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"`{name}` must hold real numbers, got dtype {tensor.dtype}")
    return tensor


def instance_of(value: object, expected: type, name: str) -> None:
    """Check the type of a value."""
    if not isinstance(value, expected):
        raise TypeError(f"`{name}` must be a {expected.__name__}, got {type(value).__name__}")


def finite(tensor: Tensor, name: str) -> None:
    """Check that a tensor is finite; the error names the first index that is not. Synchronizes with the device."""
    bad = ~torch.isfinite(tensor)
    if bool(bad.any()):
        index = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"`{name}` must be finite, got {tensor[index].item()} at index {index} "
            f"({int(bad.sum())} such of {tensor.numel()} values)"
        )


def not_negative(value: object, name: str) -> None:
    """Check that a value is a finite number of at least 0."""
    if not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
        raise ValueError(f"`{name}` (={value!r}) must be finite and at least 0")


# Former names, still used by other modules.
share, truth = fraction, boolean
