"""Two processes train as one does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from metricconv_experiments.classification import runs

REPOSITORY = Path(__file__).parents[3]


def train(root: Path, output: Path, processes: int) -> dict[str, str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    script = ["-m", "classification.twin", str(root), str(output), str(processes)]
    paths = os.pathsep.join(str(REPOSITORY / name) for name in ("src", "experiments/src", "experiments/tests"))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *launcher, *script], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (row,) = runs.table(output).rows
    assert row["processes"] == str(processes)
    return row


@pytest.mark.slow
def test_two_processes_give_the_loss_and_accuracy_of_one(data_root, tmp_path):
    one, two = (train(data_root, tmp_path / str(n), n) for n in (1, 2))
    assert float(two["train_loss"]) == pytest.approx(float(one["train_loss"]), rel=1e-4)
    assert two["top1"] == one["top1"]
