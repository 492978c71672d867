"""The command ``metricconv``: filters, pictures and reports without a line of Python (the extra ``cli``)."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command with the arguments of this process, and leave with its exit code."""
    try:
        from .app import run
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("metricconv"):
            raise
        sys.exit(f"metricconv: the command line needs {missing.name}: pip install 'metricconv[cli]'")
    sys.exit(run(sys.argv[1:]))
