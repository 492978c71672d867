"""The contract of a backend, and the choice between them."""

import contextlib
import contextvars
import functools
import logging
import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from . import cpu, export, reference, triton
from .displacements import ByDisplacements, placeholder
from .problem import Problem

__all__ = ["BACKENDS", "Backend", "choose_backend", "record_backends"]

_LOGGER = logging.getLogger(__name__)

_RECORD: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar("record", default=None)

# The reference is far slower on more products than this: a fallback is then logged.
_LARGE = 2**22


class Backend(Protocol):
    """A way to compute the operator. The modules ``triton``, ``cpu`` and ``reference`` are backends."""

    name: str
    description: str  # what it computes, with its measured speed

    def missing_dependency(self) -> str | None:
        """Return what the backend lacks on this machine and how to obtain it, or None."""

    def unsupported_reason(self, problem: Problem) -> str | None:
        """Return why the backend does not support a problem, or None."""

    def run(self, problem: Problem) -> Tensor:
        """Return the output (B, C_out, *out) of a problem that the backend supports."""
        ...


# In order of preference: "auto" selects the first that supports the problem.
BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (triton, cpu, export, reference)}


@contextlib.contextmanager
def record_backends() -> Iterator[set[str]]:
    """Record the names of the backends that are chosen in the context, except in code that is being compiled."""
    names: set[str] = set()
    token = _RECORD.set(names)
    try:
        yield names
    finally:
        _RECORD.reset(token)


def choose_backend(problem: Problem, name: str = "auto") -> Backend:
    """Return the backend of that name, or with "auto" the first that supports the problem."""
    backend = _select(problem, name)
    if not torch.compiler.is_compiling() and (record := _RECORD.get()) is not None:
        record.add(backend.name)
    return backend


def _select(problem: Problem, name: str) -> Backend:
    if not isinstance(name, str) or name != "auto":
        return _backend_by_name(problem, name)
    reasons = {}
    for selected in BACKENDS:
        backend, reason = _supporting(problem, selected)
        if reason is None:
            break
        reasons[selected] = reason
    if not torch.compiler.is_compiling() and _LOGGER.isEnabledFor(logging.INFO):
        _log_choice(problem, selected, reasons)
    return backend


def _backend_by_name(problem: Problem, name: str) -> Backend:
    if not isinstance(name, str) or name not in BACKENDS:
        raise ValueError(f"`backend` (={name!r}) must be 'auto' or one of these: {_availability(problem)}")
    backend, reason = _supporting(problem, name)
    if reason is not None:
        raise ValueError(f"`backend` (={name!r}) does not support this: {reason}. Available: {_availability(problem)}")
    return backend


def _supporting(problem: Problem, name: str) -> tuple[Backend, str | None]:
    """Return a backend, or the same by displacements if only that supports the problem; and why none does, or None."""
    backend = BACKENDS[name]
    reason = backend.unsupported_reason(problem)
    if reason is not None and backend.unsupported_reason(placeholder(problem)) is None:
        return ByDisplacements(backend), None
    return backend, reason


def _availability(problem: Problem) -> str:
    states = {name: _supporting(problem, name)[1] for name in BACKENDS}
    return "; ".join(f"{name} ({'available' if why is None else why})" for name, why in states.items())


def _log_choice(problem: Problem, name: str, reasons: dict[str, str]) -> None:
    """Log the choice at level DEBUG, and at INFO, once, a fallback to the reference that costs time."""
    unsupported = "; ".join(f"{other}: {reason}" for other, reason in reasons.items())
    _LOGGER.debug("backend %s selected (%s)", name, unsupported)
    x, support = problem.input, problem.support
    products = x.shape[0] * x.shape[1] * support.samples * math.prod(problem.grid.size)
    if name == "reference" and (x.is_cuda or products >= _LARGE):
        _log_fallback(f"the slower backend 'reference' computes on {x.device} ({unsupported})")


@functools.lru_cache(maxsize=256)
def _log_fallback(message: str) -> None:
    """Log a message the first time only."""
    _LOGGER.info(message)
