"""Checks of users' arguments: each names the argument, its value and what was expected."""

import math
import numbers
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy

# Points or vectors as users have them.
Vectors: TypeAlias = "Tensor | numpy.ndarray[Any, Any] | Sequence[Any]"


def tuple_of(value: int | Sequence[int], dim: int, name: str, *, minimum: int) -> tuple[int, ...]:
    """Turn an int, or one int an axis, into a tuple of ``dim`` ints that are at least ``minimum``."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * dim
    several = f" or {dim} ints, one for each spatial axis" if dim > 1 else ""
    if len(values) != dim or not all(map(is_whole, values)):
        raise ValueError(f"`{name}` (={value!r}) must be an int{several}")
    if any(v < minimum for v in values):
        raise ValueError(f"`{name}` (={value!r}) must be at least {minimum}" + " along every axis" * (dim > 1))
    return tuple(int(v) for v in values)


def is_whole(value: object) -> bool:
    """Return whether a number is an int, or NumPy's; True and False are none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def whole(value: int, name: str, *, minimum: int) -> int:
    """Return an int that is at least ``minimum``."""
    return tuple_of(value, 1, name, minimum=minimum)[0]


def odd(value: int, name: str) -> int:
    """Return a positive odd number."""
    if not is_whole(value) or value < 1 or value % 2 == 0:
        raise ValueError(f"`{name}` (={value!r}) must be a positive odd number, so that there is a central pixel")
    return int(value)


def share(value: object, name: str) -> None:
    """Refuse what is no number in (0, 1]."""
    if not isinstance(value, numbers.Real) or not 0 < float(value) <= 1:
        raise ValueError(f"`{name}` (={value!r}) must be in (0, 1]")


def positive(value: object, name: str) -> float:
    """Return a positive and finite number."""
    if not isinstance(value, numbers.Real) or not 0 < float(value) < math.inf:
        raise ValueError(f"`{name}` (={value!r}) must be positive and finite")
    return float(value)


def truth(value: object, name: str) -> bool:
    """Return what is True or False, or NumPy's."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError(f"`{name}` (={value!r}) must be True or False")
    return bool(value)


def one_of(value: str, choices: Iterable[str], name: str) -> str:
    """Return ``value`` when it is one of ``choices``."""
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(f"`{name}` (={value!r}) must be one of {', '.join(map(repr, choices))}")
    return value


def divisible(value: int, by: int, name: str, by_name: str) -> None:
    """Refuse a count that does not split evenly."""
    if by < 1 or value % by:
        raise ValueError(f"`{name}` (={value}) must be divisible by `{by_name}` (={by})")


def floating(tensor: Tensor, name: str) -> Tensor:
    """Return ``tensor`` when it is a tensor of floating-point numbers."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"`{name}` must be a torch.Tensor, got {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise TypeError(f"`{name}` must hold floating-point numbers, got dtype {tensor.dtype}")
    return tensor


def vectors(value: Vectors, name: str) -> Tensor:
    """Return points or vectors, whole or not, as a tensor: a tensor already, an array or nested lists."""
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"`{name}` must be a torch.Tensor, an array or lists of numbers, got {value!r}") from None
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"`{name}` must hold real numbers, got dtype {tensor.dtype}")
    return tensor


def instance_of(value: object, expected: type, name: str) -> None:
    """Refuse a value of another type."""
    if not isinstance(value, expected):
        raise TypeError(f"`{name}` must be a {expected.__name__}, got {type(value).__name__}")


def finite(tensor: Tensor, name: str) -> None:
    """Refuse NaN and infinity, naming the first place where one stands. Synchronises with the device."""
    bad = ~torch.isfinite(tensor)
    if bool(bad.any()):
        place = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"`{name}` must be finite, got {tensor[place].item()} at index {place} "
            f"({int(bad.sum())} such of {tensor.numel()} values)"
        )


def not_negative(value: object, name: str) -> None:
    """Refuse what is no finite number of at least 0."""
    if not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
        raise ValueError(f"`{name}` (={value!r}) must be finite and at least 0")
