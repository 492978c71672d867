"""A user's mistakes: said in one line, without a traceback."""

import contextlib
from collections.abc import Iterator
from pathlib import Path


class UserError(Exception):
    """What a user can mend: a file that is not there, a value out of range, an extra not installed."""


@contextlib.contextmanager
def lack_of_memory(path: Path) -> Iterator[None]:
    """Name the picture for which there is not enough memory, whoever asked for it."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "DefaultCPUAllocator" not in str(error):  # torch's own
            raise
        raise UserError(f"{path}: not enough memory for this picture with these options") from error
