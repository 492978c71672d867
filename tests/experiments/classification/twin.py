"""A script: trains a tiny network, in one process or by torchrun in several, and writes its row."""

import functools
import sys
from pathlib import Path


def main(root: Path, output: Path, devices: int) -> None:
    import torch

    from experiments.classification.tiny import TinyResNet
    from metricconv.experiments.classification import datasets, networks, runs
    from metricconv.experiments.classification.grids import single
    from metricconv.experiments.classification.setting import Setting

    torch.set_num_threads(1)
    datasets.SHAPES.clear()
    # Batch normalisation sees its own process's images only; on GPUs it is synchronised, on CPUs it cannot be.
    networks.NETWORKS["tiny"] = functools.partial(TinyResNet, norm=functools.partial(torch.nn.GroupNorm, 4))
    setting = Setting(dataset="cifar10", network="tiny", batch=16, epochs=2, head_multiplier=1.0, lr=0.05)
    strategy = "ddp" if devices > 1 else "auto"
    trainer = {"accelerator": "cpu", "devices": devices, "strategy": strategy, "progress": False}
    runner = runs.Runner(runs.Options(output / "work", root, trainer=trainer))
    runs.run_all(runs.table(output), single([setting]), runner)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
