"""Which engines can run here, and what the others would need and bring."""

import dataclasses

from . import cpu, triton


@dataclasses.dataclass(frozen=True)
class EngineState:
    """One engine on this machine.

    Args:
        name: as ``support_conv`` takes it for ``backend``.
        what: what it computes, and how fast it was measured to be.
        missing: what it lacks to run here, and what to do about it; None if it can run.
    """

    name: str
    what: str
    missing: str | None

    @property
    def available(self) -> bool:
        """Whether it can run here."""
        return self.missing is None

    def __str__(self) -> str:
        state = "available" if self.missing is None else f"not available: {self.missing}"
        return f"{self.name}: {state}\n    {self.what}"


@dataclasses.dataclass(frozen=True)
class BackendReport:
    """The state of every engine, in order of preference. Print it."""

    engines: tuple[EngineState, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.engines))


def backend_report() -> BackendReport:
    """Return which engines can run here and, for those that cannot, what is missing and what they would gain.

    >>> print(backend_report())  # doctest: +ELLIPSIS
    triton: ...
    cpu: ...
    reference: available
        any support, any dimension, any order of derivative, in plain PyTorch
    """
    missing = cpu.absence()
    return BackendReport(
        (
            EngineState("triton", _TRITON, triton.absence()),
            EngineState("cpu", _CPU, missing and f"{missing}; pip install 'metricconv[cpu]'"),
            EngineState("reference", _REFERENCE, None),
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
