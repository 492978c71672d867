"""What the tests of classification share: a tiny network by name, and a dataset of any size in a folder."""

import pytest

from experiments.classification import tiny
from metricconv.experiments.classification import datasets, networks


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
