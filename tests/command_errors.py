"""Check of the errors that commands print."""

from metricconv.cli.app import run


def fails(arguments, capsys, *words):
    """Check that a command fails with one line that holds these words."""
    assert run(arguments) == 1
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and "\n" not in error and "Traceback" not in error
    assert all(word in error for word in words), error
