"""The types of the public API, as mypy sees them."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")
ROOT = Path(__file__).parents[1]


def test_mypy_infers_the_documented_types_and_rejects_wrong_calls():
    # The options of pyproject.toml, so that the cache of `make lint` is valid here.
    files = [f"tests/typed/{name}.py" for name in ("accepted", "rejected")]
    command = [sys.executable, "-m", "mypy", "--warn-unused-ignores", *files]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
