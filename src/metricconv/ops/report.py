"""Which backends are available, and what the others require."""

import dataclasses

from . import cpu, triton


@dataclasses.dataclass(frozen=True)
class BackendState:
    """State of one backend on this machine.

    Args:
        name: the value of ``backend`` in ``support_conv``.
        what: what it computes, with its measured speed.
        missing: the missing requirement and how to satisfy it, or None if the backend is available.
    """

    name: str
    what: str
    missing: str | None

    @property
    def available(self) -> bool:
        """Whether the backend can run on this machine."""
        return self.missing is None

    def __str__(self) -> str:
        state = "available" if self.missing is None else f"not available: {self.missing}"
        return f"{self.name}: {state}\n    {self.what}"


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
    missing = cpu.missing_dependency()
    return BackendReport(
        (
            BackendState("triton", _TRITON, triton.missing_dependency()),
            BackendState("cpu", _CPU, missing and f"{missing}; pip install 'metricconv[cpu]'"),
            BackendState("reference", _REFERENCE, None),
        )
    )


# Ratios are those of the tables in benchmarks/.
_TRITON = (
    "fused kernels for CUDA devices; on an H200, forward + backward in float32, 9 to 66 times as fast as the reference"
)
_CPU = (
    "kernels for CPUs, compiled by numba on the first call and kept for later processes; on two threads, forward + "
    "backward of tangent balls, 6 to 18 times as fast as the reference"
)
_REFERENCE = "any support, any dimension, any order of derivative, in plain PyTorch"
