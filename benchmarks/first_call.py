"""First call of a layer, kernel compilation included: in a new process, on a GPU or, for ``CPU_LAYERS``, on the CPU."""

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from metricconv.nn import DeformableConv2d, MetricConv2d

ROOT = Path(__file__).parents[1]
REGIME = "first call"


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer with 3 × 3 samples: its name in the table, and the size and dtype of its input."""

    name: str
    size: tuple[int, int, int, int]
    dtype: str

    def __str__(self) -> str:
        """Return the shape's name in the table."""
        return f"{REGIME}, ({','.join(map(str, self.size))}) k3"


LAYERS = (
    Layer("metric", (8, 64, 64, 64), "bfloat16"),
    Layer("metric", (8, 64, 64, 64), "float32"),
    Layer("metric", (128, 512, 8, 8), "bfloat16"),
    Layer("metric", (1, 1, 256, 256), "float32"),
    Layer("metric, depthwise", (8, 128, 56, 56), "float16"),
    Layer("deformable v2", (8, 128, 32, 32), "bfloat16"),
    Layer("geodesic", (8, 64, 64, 64), "bfloat16"),
)


# Each family of CPU kernels.
CPU_LAYERS = tuple(
    Layer(name, (1, channels, 16, 16), "float32") for name in ("metric", "geodesic") for channels in (1, 16, 64)
)


def measure(layer: Layer) -> dict[str, float]:
    """Return the milliseconds of the first forward pass, and with the first backward pass, with an empty kernel cache.

    Raises:
        RuntimeError: the process failed; with the last line of its error.
    """
    with tempfile.TemporaryDirectory() as cache:
        return measure_with_cache(layer, cache)


def measure_with_cache(layer: Layer, cache: str) -> dict[str, float]:
    """As ``measure``, with the kernels that the folder ``cache`` contains; others are stored there."""
    command = [sys.executable, "-m", "benchmarks.first_call", str((*LAYERS, *CPU_LAYERS).index(layer))]
    environment = {**os.environ, "TRITON_CACHE_DIR": cache, "NUMBA_CACHE_DIR": cache}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1])
    forward, both = map(float, done.stdout.split())
    return {"fwd": forward, "fwd+bwd": both}


def module(layer: Layer) -> nn.Module:
    """Return the layer, on the CPU in float32."""
    channels = layer.size[1]
    if layer.name.startswith("deformable"):
        return DeformableConv2d(channels, channels, 3, padding=1, modulation=True)
    ball = "geodesic" if layer.name == "geodesic" else "tangent"
    groups = channels if layer.name.endswith("depthwise") else 1
    return MetricConv2d(channels, channels, 3, padding=1, groups=groups, ball=ball)


def first_call(layer: Layer, device: str = "cuda") -> tuple[float, float]:
    """Return the milliseconds of the first forward pass, and with the first backward pass, in this process."""
    dtype = getattr(torch, layer.dtype)
    torch.set_float32_matmul_precision("high")
    some = torch.randn(64, 64, device=device, dtype=dtype)
    _synchronized(some @ some)  # initializes torch's own libraries
    net = module(layer).to(device, dtype)
    x = torch.randn(layer.size, device=device, dtype=dtype).to(memory_format=torch.channels_last).requires_grad_()
    start = time.perf_counter()
    y = _synchronized(net(x))
    forward = time.perf_counter() - start
    y.sum().backward()
    _synchronized(y)
    return 1e3 * forward, 1e3 * (time.perf_counter() - start)


def _synchronized(t: torch.Tensor) -> torch.Tensor:
    if t.is_cuda:
        torch.cuda.synchronize()
    return t


if __name__ == "__main__":
    selected = (*LAYERS, *CPU_LAYERS)[int(sys.argv[1])]
    print(*first_call(selected, "cpu" if selected in CPU_LAYERS else "cuda"))
