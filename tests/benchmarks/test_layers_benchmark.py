"""Benchmarks of whole layers on a CPU: networks, rows, plot."""

import pytest
import torch

from benchmarks import layers, networks
from metricconv._files import read_table
from metricconv.nn import AdaptiveConv


@pytest.fixture(autouse=True)
def _threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ["ResNet-18", "U-Net"])
def test_converted_network_starts_with_the_loss_of_the_standard_one(name):
    losses = [networks.training_step(name, layer, 4, 64)() for layer in ("standard", "metric (reference)")]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-3, atol=1e-5)


def test_all_3x3_convolutions_of_the_unet_are_replaced():
    net = networks.LAYERS["metric"](networks.UNet(), ["down.*", "up.*"])
    assert sum(isinstance(module, AdaptiveConv) for module in net.modules()) == 10


@pytest.mark.slow
def test_rows_are_labelled_and_plotted(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(layers, "SWEEP", [(1, 2, 5, 3), (2, 8, 4, 3)])
    monkeypatch.setattr(layers, "MEMORY", (16,))
    monkeypatch.setattr(networks, "CASES", [("U-Net", 1, 8)])
    for part in ("sweep", "memory", "networks"):
        layers.main([part, "--output", str(tmp_path), "--seconds", "0", "--label", "now"])
    (table,) = tmp_path.glob("*-layers.csv")
    rows = read_table(table)
    assert {row["part"] for row in rows} == {"sweep", "memory", "networks"} and {row["label"] for row in rows} == {
        "now"
    }
    assert all(float(row["p50_ms"]) > 0 for row in rows if row["part"] != "memory")
    layers.main(["plot", "--output", str(tmp_path), "--label", "now"])
    assert table.with_suffix(".png").stat().st_size > 5000
