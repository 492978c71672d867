"""Fill the uninitialised memory of NumPy with NaN, as that of torch, so that unwritten outputs show."""

from typing import Any

import numpy as np
import pytest


class _Poisoned:
    """NumPy with NaN in newly allocated arrays."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, *args: Any) -> np.ndarray:
        return np.full(*args[:1], np.nan, *args[1:])

    def empty_like(self, like: np.ndarray) -> np.ndarray:
        return np.full_like(like, np.nan)


@pytest.fixture(autouse=True)
def _poisoned(poison: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    from metricconv.ops.cpu import layouts, partition

    for module in (layouts, partition):  # modules without kernels: numba needs NumPy itself
        monkeypatch.setattr(module, "np", _Poisoned())
