"""A script: trains a tiny network, in one process or by torchrun in several, and writes its row."""

import functools
import sys
from pathlib import Path


def main(root: Path, output: Path, devices: int) -> None:
    import torch

    from classification.tiny import TinyResNet
    from metricconv_experiments.classification import datasets, networks, runs
    from metricconv_experiments.classification.grids import single
    from metricconv_experiments.classification.setting import Setting

    torch.set_num_threads(1)
    datasets.SHAPES.clear()
    # Batch normalization is per process on CPUs (on GPUs it is synchronized), so group normalization is used.
    networks.NETWORKS["tiny"] = functools.partial(TinyResNet, norm=functools.partial(torch.nn.GroupNorm, 4))
    setting = Setting(dataset="cifar10", network="tiny", batch=16, epochs=2, multiplier=1.0, lr=0.05)
    strategy = "ddp" if devices > 1 else "auto"
    trainer = {"accelerator": "cpu", "devices": devices, "strategy": strategy, "progress": False}
    runner = runs.Runner(runs.RunOptions(output / "work", root, trainer=trainer))
    runs.run_all(runs.table(output), single([setting]), runner)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
