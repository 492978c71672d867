"""Fixtures of the classification tests: a tiny network, and a dataset of any size."""

import pytest

from classification import tiny
from metricconv_experiments.classification import datasets, networks


@pytest.fixture(autouse=True)
def tiny_network(monkeypatch):
    monkeypatch.setitem(networks.NETWORKS, "tiny", tiny.TinyResNet)


@pytest.fixture(autouse=True)
def datasets_of_any_size(monkeypatch):
    monkeypatch.setattr(datasets, "SHAPES", {})


@pytest.fixture
def data_root(tmp_path):
    tiny.write_dataset(tmp_path)
    return tmp_path
