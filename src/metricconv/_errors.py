"""Errors of the command line and the explorer, printed in one line without a traceback."""

import contextlib
from collections.abc import Iterator
from pathlib import Path


class UserError(Exception):
    """An error that the user can fix: a missing file, a value out of range, an extra not installed."""


@contextlib.contextmanager
def out_of_memory_as_user_error(name: Path | str = "this image") -> Iterator[None]:
    """Raise a ``UserError`` that names the image when memory runs out."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "DefaultCPUAllocator" not in str(error):  # raised by torch
            raise
        raise UserError(f"{name}: not enough memory with these options") from error
