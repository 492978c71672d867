"""Which backends are available, and what the others require."""

import dataclasses

from .backends import BACKENDS

__all__ = ["BackendReport", "BackendState", "backend_report"]


@dataclasses.dataclass(frozen=True)
class BackendState:
    """State of one backend on this machine.

    Args:
        name: the value of ``backend`` in ``support_conv``.
        description: what it computes, with its measured speed.
        missing: the missing requirement and how to satisfy it, or None if the backend is available.
    """

    name: str
    description: str
    missing: str | None

    @property
    def available(self) -> bool:
        """Whether the backend can run on this machine."""
        return self.missing is None

    def __str__(self) -> str:
        state = "available" if self.missing is None else f"not available: {self.missing}"
        return f"{self.name}: {state}\n    {self.description}"


@dataclasses.dataclass(frozen=True)
class BackendReport:
    """State of every backend, in order of preference; print it to read it."""

    backends: tuple[BackendState, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.backends))


def backend_report() -> BackendReport:
    """Return which backends are available and, for the others, what is missing and how much faster they are.

    >>> print(backend_report())  # doctest: +ELLIPSIS
    triton: ...
    cpu: ...
    reference: available
        any support, any dimension, any order of derivative, in plain PyTorch
    """
    return BackendReport(tuple(BackendState(b.name, b.description, b.missing_dependency()) for b in BACKENDS.values()))
