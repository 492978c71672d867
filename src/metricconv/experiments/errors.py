"""A user's mistake ends a command in one clear line, not in a traceback."""

import contextlib
from collections.abc import Iterator

from .._torchvision import TorchvisionError


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Turn what a wrong argument or a bad file raises into one line on stderr and exit code 1.

    For commands, as a decorator: ``@in_one_line()``. Mistakes of ours (any other exception) keep their traceback.
    """
    try:
        yield
    except (TorchvisionError, ValueError, OSError) as error:
        raise SystemExit(f"error: {' '.join(str(error).split())}") from None
