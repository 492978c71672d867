"""Networks of several processes, started by torchrun, train as one of a single process: DDP and FSDP2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, sys
import torch
import metricconv as mc
from torch import distributed, nn

processes = int(os.environ.get("WORLD_SIZE", 1))
torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1, stride=2))
net, images = mc.convert(net), torch.randn(4, 2, 8, 8)
model = net
if processes > 1:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (processes,))
    if sys.argv[2] == "ddp":
        model = nn.parallel.DistributedDataParallel(net)
    else:
        for layer in (net[0], net[2], net):
            fully_shard(layer, mesh=mesh)
    images = images.chunk(processes)[distributed.get_rank()]
optimizer = torch.optim.SGD(mc.nn.param_groups(net, lr=0.05, metric_lr_mult=1.0))
for _ in range(4):
    optimizer.zero_grad()
    model(images).square().mean().backward()
    optimizer.step()
state = {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in net.named_parameters()}
if processes == 1 or distributed.get_rank() == 0:
    torch.save({name: p.detach() for name, p in state.items()}, sys.argv[1])
if processes > 1:
    distributed.destroy_process_group()
"""


def train(path: Path, processes: int = 1, strategy: str = "") -> dict[str, torch.Tensor]:
    script = path.with_suffix(".py")
    script.write_text(SCRIPT, encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", *launcher, str(script), str(path), strategy]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(path, weights_only=True)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_network_of_two_processes_trains_as_one(strategy, tmp_path):
    one, two = train(tmp_path / "one.pt"), train(tmp_path / "two.pt", 2, strategy)
    assert any(value.any() for name, value in one.items() if "predictor" in name)
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-6, msg=name)
