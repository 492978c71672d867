"""Two processes train as one does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from metricconv._files import read_table

REPOSITORY = Path(__file__).parents[3]


def train(root: Path, output: Path, processes: int) -> dict[str, str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    options = {"data-root": root, "output": output, "work": output / "work", "accelerator": "cpu", "size": 16}
    options |= {"recipe": "paper", "method": "utb 0.9", "weights": "learnt", "k": 3, "sigma": 0.1, "epochs": 3}
    options |= {"devices": processes, "strategy": "ddp" if processes > 1 else "auto"}
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    paths = os.pathsep.join(str(REPOSITORY / name) for name in ("src", "experiments/src", "experiments/tests"))
    done = subprocess.run(
        [sys.executable, *launcher, "-m", "denoising.twin", "denoise-dataset", *arguments],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (row,) = read_table(output / "dataset.csv")
    return row


@pytest.mark.slow
def test_two_processes_give_the_errors_of_one(root, tmp_path):
    one, two = (train(root, tmp_path / str(n), n) for n in (1, 2))
    assert two["devices"] == "2"
    for name in ("train_mse", "test_mse"):
        assert float(two[name]) == pytest.approx(float(one[name]), rel=1e-4)
