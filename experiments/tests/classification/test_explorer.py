"""The explorer loads the networks that ``classify`` trained."""

import pytest
import torch

from layers import randomize_predictors
from metricconv._errors import UserError
from metricconv_experiments.classification import networks
from metricconv_experiments.classification.setting import Setting

pytest.importorskip("gradio")

from metricconv.app.explorer import Explorer, ExplorerSettings
from metricconv.app.networks import load_checkpoint


@pytest.mark.parametrize(("method", "channels"), [("metric-randers", 3), ("deformable", 1)])
def test_checkpoint_of_classify_is_loaded(tmp_path, method, channels):
    setting = Setting(method=method, layers="4")
    net = randomize_predictors(networks.build(setting, 7, channels)).eval()
    networks.save_trained(tmp_path / "network.pt", setting, 7, channels, net)
    explorer = Explorer()
    explorer.uploads["small"] = torch.rand(32, 32, 3).numpy()
    layer, *_ = explorer.load(str(tmp_path / "network.pt"))
    ((kind, ball),) = explorer.balls(ExplorerSettings("small", layer=layer), (9, 9), str(tmp_path / "network.pt"))
    assert layer == "layer4.0.conv1" and kind == ("fitted" if method == "deformable" else "tangent")
    assert ball.samples.shape == (9, 2)
    x = torch.rand(1, channels, 32, 32)
    with torch.no_grad():
        assert torch.allclose(load_checkpoint(tmp_path / "network.pt")(x), net(x), atol=1e-5)


def test_unknown_setting_raises(tmp_path):
    torch.save({"setting": {"methd": "standard"}}, tmp_path / "network.pt")
    with pytest.raises(UserError, match="cannot be rebuilt"):
        load_checkpoint(tmp_path / "network.pt")


def test_network_without_adaptive_layers_raises(tmp_path):
    setting = Setting(method="standard")
    networks.save_trained(tmp_path / "network.pt", setting, 7, 3, networks.build(setting, 7))
    with pytest.raises(UserError, match="no adaptive convolutions"):
        load_checkpoint(tmp_path / "network.pt")
