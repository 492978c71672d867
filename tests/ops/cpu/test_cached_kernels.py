"""Kernels loaded from the cache compute the same as in the process that compiled them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ops.cases import Case, outcome

CASES = {
    kind: Case(kind, "border", batch=1, channels=(2, 1), size=(23, 19), kernel=(5, 5), padding=2, modulated=True)
    for kind in ("geodesic", "randers")
}


def write_outcomes(path: str) -> None:
    """Write outputs and gradients of all cases."""
    torch.manual_seed(0)
    results = {}
    for kind, case in CASES.items():
        tensors, run = case.make()
        results[kind] = outcome(run, tensors, backend="cpu")
    torch.save(results, path)


@pytest.mark.slow
def test_cached_kernels_compute_the_same_as_compiled_ones(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(["src", "tests"])}
    outcomes, compiled = [], []
    for name in ("compiled", "cached"):
        path = tmp_path / f"{name}.pt"
        subprocess.run([sys.executable, __file__, path], env=environment, check=True)
        outcomes.append(torch.load(path))
        compiled.append({file: file.stat().st_mtime_ns for file in cache.rglob("*.nbc")})
    assert compiled[0] and compiled[0] == compiled[1]  # the second process compiled nothing
    for kind in CASES:
        for name, value in outcomes[0][kind].items():
            assert torch.equal(value, outcomes[1][kind][name]), (kind, name)


if __name__ == "__main__":
    write_outcomes(sys.argv[1])
