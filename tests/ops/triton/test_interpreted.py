"""Run the kernels in Triton's interpreter, which Triton must know about before it is imported: in processes apart."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
SHARDS = 8  # processes that a parallel run can share out


@pytest.mark.parametrize("shard", range(SHARDS))
def test_kernels_agree_with_the_reference_in_the_interpreter(shard: int) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "INTERPRETED_SHARD": f"{shard}/{SHARDS}"}
    for name in [n for n in environment if n.startswith("PYTEST_")]:  # what a parallel run tells its own workers
        del environment[name]
    file = Path(__file__).with_name("interpreted.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(file)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, cwd=file.parents[3])
    assert found.returncode == 0, found.stdout[-8000:] + found.stderr[-2000:]
