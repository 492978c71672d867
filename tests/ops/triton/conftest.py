"""Fixtures of the Triton tests, and the part of the interpreter tests that one process runs.

INTERPRETED_PART="quick i/n" selects every sixth case of each test that is not marked ``slow``, "other i/n" the
remaining cases: of these, those at positions i, i + n, i + 2n, ….
"""

import collections
import os
import re
from collections.abc import Iterator

import pytest
import torch

from metricconv import _interpolation


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "INTERPRETED_PART" in os.environ:
        tier, shard, shards = re.split("[ /]", os.environ["INTERPRETED_PART"])
        cases: collections.Counter[str] = collections.Counter()
        selected = []
        for item in items:
            test = item.nodeid.partition("[")[0]
            quick = cases[test] % 6 == 0 and item.get_closest_marker("slow") is None
            if quick == (tier == "quick"):
                selected.append(item)
            cases[test] += 1
        items[:] = selected[int(shard) :: int(shards)]


@pytest.fixture(autouse=True)
def _same_integer_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the integer tolerance of float32 for the reference in float64: derivatives are discontinuous there."""
    tolerance = _interpolation.lattice_tolerance(torch.float32)
    monkeypatch.setitem(_interpolation._LATTICE_TOLERANCE, torch.float64, tolerance)


@pytest.fixture
def tf32() -> Iterator[None]:
    """Allow TF32 for float32 products."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = before
