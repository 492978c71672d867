"""User errors of commands, printed in one line."""

import contextlib
from collections.abc import Iterator

from metricconv._torchvision import TorchvisionError


@contextlib.contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Print errors about arguments and files in one line on stderr and exit with code 1.

    A decorator of commands: ``@errors_in_one_line()``. Other exceptions are not caught.
    """
    try:
        yield
    except (TorchvisionError, ValueError, OSError) as error:
        raise SystemExit(f"error: {' '.join(str(error).split())}") from None
