"""Figures go to memory, and are closed after each test."""

import matplotlib
import pytest

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def _closed():
    yield
    from matplotlib import pyplot as plt

    plt.close("all")
