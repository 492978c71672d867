"""The two derivatives at lattice points that the study compares."""

import contextlib
from collections.abc import Iterator

from metricconv import _interpolation

DERIVATIVES = ("one-sided", "central")


@contextlib.contextmanager
def lattice_derivative(name: str) -> Iterator[None]:
    """Use one of ``DERIVATIVES`` at lattice points inside of the block, in forward and backward passes alike.

    "central" is the library's definition. For "one-sided", no position is treated as a lattice point: the derivative
    there is the slope of the cell that contains the rounded position, as in version 0.1.
    """
    if name not in DERIVATIVES:
        raise ValueError(f"`derivative` (={name!r}) must be one of {', '.join(DERIVATIVES)}")
    table = _interpolation._LATTICE_TOLERANCE
    before = dict(table)
    if name == "one-sided":
        table.update(dict.fromkeys(table, -1.0))
    try:
        yield
    finally:
        table.update(before)
