"""The command line ``metricconv``: filters, plots and reports (the extra ``cli``)."""

import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command with the arguments of the process, and exit.

    A process that is terminated (SIGTERM) deletes its temporary files, as after Ctrl+C, and exits with code 143.
    """
    signal.signal(signal.SIGTERM, _terminate)
    try:
        try:
            from .app import run
        except ModuleNotFoundError as missing:
            if (missing.name or "").startswith("metricconv"):
                raise
            sys.exit(f"metricconv: the command line needs {missing.name}: pip install 'metricconv[cli]'")
        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:  # during imports, too
        sys.exit(130)


def _terminate(*_: object) -> None:
    sys.exit(128 + signal.SIGTERM)
