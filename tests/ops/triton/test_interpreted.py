"""Run the kernels in Triton's interpreter, which Triton must know about before it is imported: in processes apart."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
SHARDS = {"interpreted.py": 8, "interpreted_lattice.py": 2}  # processes that a parallel run can share out


@pytest.mark.parametrize(("name", "shard"), [(name, shard) for name, count in SHARDS.items() for shard in range(count)])
def test_kernels_agree_with_the_reference_in_the_interpreter(name: str, shard: int) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "INTERPRETED_SHARD": f"{shard}/{SHARDS[name]}"}
    for variable in [v for v in environment if v.startswith("PYTEST_")]:  # what a parallel run tells its own workers
        del environment[variable]
    file = Path(__file__).with_name(name)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(file)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, cwd=file.parents[3])
    assert found.returncode == 0, found.stdout[-8000:] + found.stderr[-2000:]
