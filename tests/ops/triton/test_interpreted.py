"""Run the kernels in Triton's interpreter, in subprocesses: TRITON_INTERPRET must be set before Triton is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
numpy = pytest.importorskip("numpy")
if triton.__version__ < "3.7" and numpy.lib.NumpyVersion(numpy.__version__) >= "2.4.0":
    pytest.skip("the interpreter of Triton 3.6 needs NumPy < 2.4", allow_module_level=True)
FILES = sorted(Path(__file__).parent.glob("interpreted*.py"))
# Subprocesses, which a parallel run distributes.
QUICK = [f"quick {n}/4" for n in range(4)]
OTHER = [pytest.param(f"other {n}/8", marks=pytest.mark.slow) for n in range(8)]


@pytest.mark.parametrize("part", [*QUICK, *OTHER])
def test_kernels_agree_with_reference_in_interpreter(part: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "INTERPRETED_PART": part}
    for variable in [v for v in environment if v.startswith("PYTEST_")]:  # set by pytest-xdist for its workers
        del environment[variable]
    # -m "": the part, not the marker, selects tests marked ``slow``.
    options = ["-q", "-m", "", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", *options, *map(str, FILES)]
    found = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=900, cwd=Path(__file__).parents[3]
    )
    assert found.returncode == 0, found.stdout[-8000:] + found.stderr[-2000:]
