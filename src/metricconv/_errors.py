"""A user's mistakes: said in one line, without a traceback."""

import contextlib
from collections.abc import Iterator
from pathlib import Path


class UserError(Exception):
    """What a user can mend: a file that is not there, a value out of range, an extra not installed."""


@contextlib.contextmanager
def lack_of_memory(picture: Path | str = "this picture") -> Iterator[None]:
    """Say for which picture there is not enough memory, whoever asked for it."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "DefaultCPUAllocator" not in str(error):  # torch's own
            raise
        raise UserError(f"{picture}: not enough memory with these options") from error
