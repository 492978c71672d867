"""Fill uninitialized memory with NaN in all tests of this folder, so that unwritten outputs show."""

import pytest


@pytest.fixture(autouse=True)
def _poisoned(poison: None) -> None:
    pytest.importorskip("numba")
