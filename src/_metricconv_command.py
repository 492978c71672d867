"""Entry point of the command ``metricconv``, outside of the package to handle Ctrl+C while that is imported."""

import contextlib
import importlib
import os
import signal

__all__ = ["exit_on_interrupt", "main"]


def exit_on_interrupt() -> None:
    """Exit at once with code 130 on Ctrl+C, unless the process ignores it.

    Some compiled modules turn the KeyboardInterrupt of Python's handler into another error while they are imported.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def main() -> None:
    """Import the command line and run it; Ctrl+C exits with code 130, without a traceback."""
    exit_on_interrupt()
    cli = importlib.import_module("metricconv.cli")
    with contextlib.suppress(ModuleNotFoundError):  # reported by main
        importlib.import_module("metricconv.cli.app")
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


def _exit(*_: object) -> None:
    os._exit(130)
