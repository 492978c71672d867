"""What the engine's tests share; and the interpreter's shared out among processes, each told its number."""

import os
from collections.abc import Iterator

import pytest
import torch

from metricconv import _interpolation


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "INTERPRETED_SHARD" in os.environ:
        shard, shards = map(int, os.environ["INTERPRETED_SHARD"].split("/"))
        items[:] = items[shard::shards]


@pytest.fixture(autouse=True)
def _same_lattice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reference in float64 count as whole what kernels in float32 do: derivatives jump there."""
    tolerance = _interpolation.lattice_tolerance(torch.float32)
    monkeypatch.setitem(_interpolation._LATTICE_TOLERANCE, torch.float64, tolerance)


@pytest.fixture
def tf32() -> Iterator[None]:
    """Let products of float32 be taken in TF32."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = before
