"""The command line ``metricconv``: filters, plots and reports (the extra ``cli``)."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command with the arguments of the process, and exit."""
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
