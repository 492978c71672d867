"""NumPy's uninitialised memory poisoned as torch's is, so that an output left unwritten shows."""

from typing import Any

import numpy as np
import pytest


class _Poisoned:
    """NumPy, with NaN in the memory it hands out."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, *args: Any) -> np.ndarray:
        return np.full(*args[:1], np.nan, *args[1:])

    def empty_like(self, like: np.ndarray) -> np.ndarray:
        return np.full_like(like, np.nan)


@pytest.fixture(autouse=True)
def _poisoned(poison: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    from metricconv.ops.cpu import bands, plans

    for module in (bands, plans):  # where no kernel is compiled, which must find NumPy as it is
        monkeypatch.setattr(module, "np", _Poisoned())
