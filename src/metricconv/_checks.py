"""Argument checks; errors state the argument, its value and what is expected."""

import contextvars
import math
import numbers
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from . import _compat
from ._interpolation import PADDING_MODES

if TYPE_CHECKING:
    import numpy

# Range of positive numbers: their squares are finite in float32, and not 0.
_LEAST_NUMBER, _MOST_NUMBER = 1e-18, 1e18
# Larger ratios of the spacings of two axes have no effect: balls do not reach the next pixel.
_MOST_SPACING = 1e3
# Largest integer of most arguments; larger ones do not fit into torch's.
_LARGEST = 2**31 - 1
# Supported dtypes of images and weights.
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

# Accepted types of points and vectors.
Vectors: TypeAlias = "Tensor | numpy.ndarray[Any, Any] | Sequence[Any]"

# Set by ``metricconv.check_finite``.
checking_finite = contextvars.ContextVar("checking_finite", default=False)


def tuple_of(value: int | Sequence[int], dim: int, name: str, *, minimum: int) -> tuple[int, ...]:
    """Convert an int, or one int per axis, to a tuple of ``dim`` ints of at least ``minimum``."""
    values = tuple(value) if isinstance(value, tuple | list | Sequence) else (value,) * dim
    if len(values) != dim or not values or not all(map(is_whole, values)):
        several = f" or {dim} ints, one per spatial axis" if dim > 1 else ""
        raise ValueError(f"`{name}` (={value!r}) must be an int{several}")
    if min(values) < minimum:
        raise ValueError(f"`{name}` (={value!r}) must be at least {minimum}" + " along every axis" * (dim > 1))
    if max(values) > _LARGEST:
        raise ValueError(f"`{name}` (={value!r}) must be at most {_LARGEST}")
    return tuple(map(int, values))


def is_whole(value: object) -> bool:
    """Return whether a value is a Python or NumPy integer, not a bool."""
    return isinstance(value, int | numbers.Integral) and not isinstance(value, bool)


def whole(value: int, name: str, *, minimum: int) -> int:
    """Check that a value is an int of at least ``minimum``, and return it."""
    return tuple_of(value, 1, name, minimum=minimum)[0]


def odd(value: int, name: str) -> int:
    """Check that a value is a positive odd int, and return it."""
    if not is_whole(value) or value < 1 or value % 2 == 0:
        raise ValueError(f"`{name}` (={value!r}) must be a positive odd number")
    return whole(value, name, minimum=1)


def number(value: object) -> float:
    """Return a real number as a float; NaN, which no range contains, for other values."""
    try:
        return float(value) if isinstance(value, numbers.Real) else math.nan
    except OverflowError:
        return math.nan


def fraction(value: object, name: str) -> float:
    """Check that a value is a number in (0, 1], and return it."""
    if not 0 < number(value) <= 1:
        raise ValueError(f"`{name}` (={value!r}) must be in (0, 1]")
    return number(value)


def positive(value: object, name: str) -> float:
    """Check that a value is a positive number whose square float32 can hold, and return it."""
    if not _LEAST_NUMBER <= number(value) <= _MOST_NUMBER:
        raise ValueError(
            f"`{name}` (={value!r}) must be positive and finite, between {_LEAST_NUMBER} and {_MOST_NUMBER}"
        )
    return number(value)


def relative_spacing(spacing: object, dim: int) -> tuple[float, ...]:
    """Return the distance between pixels along each of ``dim`` axes, relative to the smallest one.

    Args:
        spacing: a positive number, one per axis, or None for the same along all axes.
    """
    given: object = 1.0 if spacing is None else spacing
    if hasattr(given, "tolist") and not isinstance(given, Tensor):  # an array
        given = given.tolist()
    values = given if isinstance(given, tuple | list) else (given,) * dim
    if len(values) != dim:
        raise ValueError(f"`spacing` (={spacing!r}) must be a positive number, or one for each of {dim} spatial axes")
    steps = [positive(step, "spacing") for step in values]
    return tuple(min(step / min(steps), _MOST_SPACING) for step in steps)


def seed(value: object, name: str) -> int:
    """Check that a value is an integer that ``torch.Generator`` accepts, and return it."""
    if not is_whole(value) or not -(2**63) <= value < 2**64:  # type: ignore[operator]
        raise ValueError(f"`{name}` (={value!r}) must be an integer of at most 64 bits")
    return int(value)  # type: ignore[call-overload]


def boolean(value: object, name: str) -> bool:
    """Check that a value is a Python or NumPy bool, and return it."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError(f"`{name}` (={value!r}) must be True or False")
    return bool(value)


def one_of(value: str, choices: Iterable[str], name: str) -> str:
    """Check that a value is one of ``choices``, and return it."""
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"`{name}` (={value!r}) must be one of {', '.join(map(repr, choices))}")
    return value


def padding_mode(value: str, name: str = "padding_mode", choices: Sequence[str] = PADDING_MODES) -> str:
    """Check that a value is a padding mode, and return it; torch's "replicate" is returned as "border"."""
    known = (*choices, "replicate") if "border" in choices else choices
    return "border" if one_of(value, known, name) == "replicate" else value


def divisible(value: int, by: int, name: str, by_name: str) -> None:
    """Check that ``value`` is a multiple of ``by``."""
    if by < 1 or value % by:
        raise ValueError(f"`{name}` (={value}) must be divisible by `{by_name}` (={by})")


def floating(tensor: Tensor, name: str) -> Tensor:
    """Check that a value is a dense tensor of floating-point numbers of 16 bits or more, and return it."""
    dense(tensor, name)
    if tensor.dtype not in FLOATS:
        least = " of 16 bits or more" if tensor.is_floating_point() else ""
        raise TypeError(f"`{name}` must hold floating-point numbers{least}, got dtype {tensor.dtype}")
    return tensor


def dense(tensor: Tensor, name: str) -> Tensor:
    """Check that a value is a tensor, neither sparse nor nested, and return it."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"`{name}` must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.is_nested or tensor.layout is not torch.strided:
        raise TypeError(f"`{name}` must be a dense tensor, got a {'nested' if tensor.is_nested else 'sparse'} one")
    return tensor


def with_values(tensor: Tensor, name: str) -> Tensor:
    """Check that a tensor is not on the meta device, and return it."""
    if tensor.is_meta:
        raise ValueError(f"`{name}` must have values, got a tensor on the meta device")
    return tensor


def same_values(tensor: Tensor, name: str, like: Tensor) -> Tensor:
    """Check that a tensor is not on the meta device unless ``like`` is, and return it."""
    return tensor if like.is_meta else with_values(tensor, name)


def vectors(value: "Vectors | float", name: str, dtype: torch.dtype | None = None) -> Tensor:
    """Convert points, vectors or numbers, a tensor, array or nested lists, to a tensor; lists to a given dtype."""
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=dtype, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise TypeError(f"`{name}` must be a torch.Tensor, an array or lists of numbers, got {value!r}") from None
    small = tensor.is_floating_point() and tensor.dtype not in FLOATS
    if tensor.is_complex() or tensor.dtype == torch.bool or tensor.is_quantized or small:
        raise TypeError(f"`{name}` must hold real numbers, got dtype {tensor.dtype}")
    return with_values(dense(tensor, name), name)


def instance_of(value: object, expected: type, name: str) -> None:
    """Check the type of a value."""
    if not isinstance(value, expected):
        raise TypeError(f"`{name}` must be a {expected.__name__}, got {type(value).__name__}")


def finite(tensor: Tensor, name: str) -> None:
    """Check that a tensor is finite; the error names the first index that is not. Synchronizes with the device."""
    with_values(tensor, name)
    bad = ~torch.isfinite(tensor)
    if bool(bad.any()):
        index = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"`{name}` must be finite, got {tensor[index].item()} at index {index} "
            f"({int(bad.sum())} such of {tensor.numel()} values)"
        )


def finite_where_cheap(tensor: Tensor, name: str) -> None:
    """Check that a tensor is finite: on the CPU, and on other devices within ``check_finite``.

    A check on a GPU in every forward pass would make the CPU wait for all kernels before it. Traced and compiled graphs
    are not checked, since they cannot depend on values.
    """
    traced = (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or _compat.functorch_active()
        or _compat.dispatch_mode_active()
    )
    if traced or tensor.is_meta or type(tensor) not in (Tensor, torch.nn.Parameter):
        return
    if tensor.device.type == "cpu" or checking_finite.get():
        finite(tensor, name)


def not_negative(value: object, name: str) -> float:
    """Check that a value is a finite number of at least 0, and return it."""
    if not 0 <= number(value) < math.inf:
        raise ValueError(f"`{name}` (={value!r}) must be finite and at least 0")
    return number(value)


def not_traced(what: str) -> None:
    """Raise an error while ``torch.jit.trace`` traces, which would fail with an internal error."""
    if torch.jit.is_tracing():
        raise NotImplementedError(f"torch.jit.trace does not support {what}: use torch.export.export")
