"""Errors of the command line and the explorer, printed in one line without a traceback."""

import contextlib
from collections.abc import Iterator
from pathlib import Path


class UserError(Exception):
    """An error that the user can fix: a missing file, a value out of range, an extra not installed.

    Args:
        message: what is wrong.
        hint: the command-line option that helps, not shown in the explorer.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message, self.hint = message, hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


@contextlib.contextmanager
def out_of_memory_as_user_error(name: Path | str = "this image") -> Iterator[None]:
    """Raise a ``UserError`` that names the image when memory runs out."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "DefaultCPUAllocator" not in str(error):  # raised by torch
            raise
        raise UserError(f"{name}: not enough memory with these options") from error
