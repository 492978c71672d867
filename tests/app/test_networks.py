"""Networks from checkpoints, and checkpoints that mean harm."""

import pickle
import re

import pytest
import torch
import torchvision

import metricconv as mc
from layers import randomize_predictors
from metricconv._errors import UserError
from metricconv.app.explorer import Explorer, ExplorerSettings
from metricconv.app.networks import load_checkpoint


def converted(to=mc.nn.MetricConv2d, **geometry):
    net = torchvision.models.resnet18(num_classes=7)
    return randomize_predictors(mc.convert(net, "layer2.*", to=to, **geometry)).eval()


@pytest.mark.parametrize(
    ("to", "geometry"),
    [
        (mc.nn.MetricConv2d, {}),
        (mc.nn.MetricConv2d, {"parametrization": "cholesky"}),
        (mc.nn.MetricConv2d, {"parametrization": "spectral6"}),
        (mc.nn.MetricConv2d, {"parametrization": "cholesky", "eps_omega": 1.0}),
        (mc.nn.DeformableConv2d, {}),
        (mc.nn.ShiftedConv2d, {}),
    ],
)
def test_state_dictionary_is_loaded(tmp_path, to, geometry):
    net = converted(to, **geometry)
    torch.save(net.state_dict(), tmp_path / "net.pt")
    x = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(load_checkpoint(tmp_path / "net.pt")(x), net(x), atol=1e-5)


def test_lightning_checkpoint_with_geometry_is_loaded(tmp_path):
    net = converted(eps_omega=1.0)
    state = {f"net.{key}": value for key, value in net.state_dict().items()} | {"loss.weight": torch.ones(7)}
    torch.save(
        {"state_dict": state, "geometry": {"parametrization": "spectral7", "eps_omega": 1.0}, "epoch": 3},
        tmp_path / "last.ckpt",
    )
    x = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(load_checkpoint(tmp_path / "last.ckpt")(x), net(x), atol=1e-5)


def test_layers_of_the_published_experiments_give_a_warning(tmp_path):
    net = mc.convert(torchvision.models.resnet18(num_classes=7), "layer[234].?.conv?")
    torch.save(net.state_dict(), tmp_path / "bare.pt")
    lines = []
    assert load_checkpoint(tmp_path / "bare.pt", lines.append).layer4[0].conv1.stride == (2, 2)
    assert len(lines) == 1 and re.match(r"bare.pt: strides are unknown: .* if it has stride 1", lines[0])


def test_other_conversions_load_without_warning(tmp_path):
    torch.save(converted().state_dict(), tmp_path / "net.pt")
    lines = []
    load_checkpoint(tmp_path / "net.pt", lines.append)
    assert lines == []


def test_cached_balls_outlive_their_network():
    explorer = Explorer(converted())
    explorer.uploads["small"] = torch.rand(64, 64, 3).numpy()
    here = ExplorerSettings("small", layer="layer2.0.conv1")
    (before,) = explorer.balls(here, (20, 36), "model")
    explorer.models.clear()
    (after,) = explorer.balls(here, (20, 36), "model")
    assert torch.equal(before[1].outline, after[1].outline)


def test_checkpoint_of_classify_needs_the_experiments(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    torch.save({"setting": {}}, tmp_path / "network.pt")
    with pytest.raises(UserError, match=r"network.pt: .*pip install \./experiments"):
        load_checkpoint(tmp_path / "network.pt")


def test_balls_of_layer_match_its_support():
    explorer = Explorer(converted())
    explorer.uploads["small"] = torch.rand(64, 64, 3).numpy()
    here = ExplorerSettings("small", layer="layer2.0.conv2")
    ((kind, ball),) = explorer.balls(here, (20, 36), "model")
    support = explorer.support(here, "model")
    assert kind == "tangent" and tuple(support.spatial) == (8, 8)
    center = torch.tensor([2.0, 4.0]).double()  # of the layer's pixels, each 8 of the image wide
    expected = (center + support.offsets()[0, 0, :, :, 2, 4] + 0.5) * 8 - 0.5
    moved = torch.tensor(ball.pixel).double() - ((center + 0.5) * 8 - 0.5)
    assert torch.allclose(ball.samples - moved, expected, atol=1e-4)
    with pytest.raises(UserError, match="no adaptive layer"):
        explorer.balls(ExplorerSettings("small", layer="layer1"), (20, 36), "model")


@pytest.mark.parametrize(("ball", "stride"), [("tangent", 1), ("tangent", 2), ("geodesic", 1)])
def test_balls_of_constant_metric_have_its_radius(ball, stride):
    metric = mc.Riemannian.isotropic(3.0)
    layer = mc.nn.MetricConv2d(3, 4, 3, stride=stride, padding=1, metric=metric, ball=ball)
    explorer = Explorer(torch.nn.Sequential(layer))
    explorer.uploads["small"] = torch.rand(64, 48, 3).numpy()
    ((kind, found),) = explorer.balls(ExplorerSettings("small", layer="0"), (20, 36), "model")
    assert kind == ball and found.pixel == pytest.approx((20, 36))
    for points in (found.outline, found.samples):
        low, high = (points - torch.tensor([20.0, 36.0]).double()).aminmax(dim=0)
        assert torch.allclose(low, -high, atol=1e-3) and torch.allclose(high, torch.tensor(3.0).double(), atol=1e-3)


class Harm:
    def __reduce__(self):
        return (print, ("harm",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (Harm(), "weights_only"),
        ([1, 2], "not a state dictionary"),
        ({"a.weight": torch.ones(2)}, "no adaptive convolutions"),
        (
            {"a.weight": torch.ones(2, 2, 3, 3), "a.predictor.weight": torch.ones(7, 2, 3, 3)},
            "names match none of",
        ),
    ],
)
def test_invalid_checkpoints_raise(tmp_path, content, message, capsys):
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(UserError, match=message):
        load_checkpoint(tmp_path / "a.pt")
    assert "harm" not in capsys.readouterr().out


def test_pickle_is_not_executed(tmp_path, capsys):
    (tmp_path / "a.pt").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(UserError, match="weights_only"):
        load_checkpoint(tmp_path / "a.pt")
    assert "harm" not in capsys.readouterr().out


def test_mismatched_tensor_shapes_raise(tmp_path):
    state = converted().state_dict() | {"bn1.weight": torch.ones(3)}
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(UserError, match="does not match"):
        load_checkpoint(tmp_path / "a.pt")
