"""Networks: sizes as in the paper, independence of images, weights that survive conversion."""

from pathlib import Path

import pytest
import torch
from torch import nn

from layers import stir
from metricconv.experiments.classification import networks
from metricconv.experiments.classification.setting import METHODS, Setting
from metricconv.experiments.training import parameters
from metricconv.nn import adaptive_layers


def calm(model: nn.Module, channels: int = 3) -> nn.Module:
    """Give batch normalisation some statistics."""
    networks.recalibrate(model, [torch.randn(8, channels, 8, 8)])
    return model.eval()


@pytest.mark.parametrize(
    ("method", "millions"), [("standard", 11.22), ("shifted", 11.28), ("metric-randers", 11.42), ("deformable", 11.73)]
)
def test_sizes_are_those_of_the_papers_networks(method, millions):
    model = networks.build(Setting(method=method), 100)
    assert parameters(model) / 1e6 == pytest.approx(millions, abs=0.005)


@pytest.mark.parametrize("method", METHODS)
def test_outputs_of_an_image_do_not_depend_on_its_batch(method):
    model = calm(stir(networks.build(Setting(network="tiny", method=method), 4), 0.3)).double()
    x = torch.randn(5, 3, 8, 8).double()
    with torch.no_grad():
        together, alone = model(x), torch.cat([model(image[None]) for image in x])
    torch.testing.assert_close(together, alone, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_by_default_a_network_starts_as_the_standard_one(method):
    torch.manual_seed(1)
    standard = calm(networks.build(Setting(network="tiny", method="standard"), 4))
    torch.manual_seed(1)
    model = networks.build(Setting(network="tiny", method=method), 4)
    model.load_state_dict(standard.state_dict(), strict=False)
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(model.eval()(x), standard(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_pretrained_weights_round_trip_through_conversion(method, tmp_path):
    source = networks.NETWORKS["tiny"](7)
    torch.save(source.state_dict(), tmp_path / "weights.pth")
    weights = networks.read_pretrained(tmp_path / "weights.pth", "tiny")
    setting = Setting(network="tiny", method=method, start="weights")
    model = networks.build(setting, 4, 3, weights)
    state = model.state_dict()
    for name, value in source.state_dict().items():
        if not name.startswith(("fc.", "conv1.")):
            assert torch.equal(state[name], value), name
    assert torch.equal(state["conv1.weight"], source.conv1.weight[:, :, 2:-2, 2:-2])
    path = tmp_path / "network.pt"
    networks.save_network(path, setting, 4, 3, model)
    again, loaded = networks.load_network(path)
    assert again == setting and all(torch.equal(value, state[name]) for name, value in loaded.state_dict().items())


def test_a_network_of_other_strides_is_read_as_it_was_written(tmp_path):
    setting = Setting(network="resnet50", method="standard", start="resnet50-imagenet")
    state = networks.build(Setting(network="resnet50", method="standard"), 4).state_dict()
    model = calm(networks.build(setting, 4, pretrained=state))
    networks.save_network(tmp_path / "network.pt", setting, 4, 3, model)
    _, again = networks.load_network(tmp_path / "network.pt")
    assert again.layer3[0].conv1.stride == (2, 2) and again.layer3[0].conv2.stride == (1, 1)
    x = torch.randn(1, 3, 8, 8)
    assert torch.equal(again(x), model(x))


def test_torchvisions_weights_are_read_as_tensors_alone(monkeypatch):
    asked = {}
    monkeypatch.setattr(
        "torchvision.models._api.load_state_dict_from_url", lambda url, **options: asked.update(options)
    )
    networks.read_pretrained(Path("torchvision"), "resnet18")
    assert asked["weights_only"] and asked["check_hash"]


def test_the_papers_init_throws_away_what_the_published_code_does():
    source = networks.NETWORKS["tiny"](4)
    model = networks.build(Setting(network="tiny", init="paper", start="x"), 4, 3, source.state_dict())
    assert torch.equal(model.layer1[0].conv1.weight, source.layer1[0].conv1.weight)
    assert torch.equal(model.fc.weight, source.fc.weight)
    assert not torch.equal(model.conv1.weight, source.conv1.weight[:, :, 2:-2, 2:-2])
    assert not torch.equal(model.layer4[0].downsample[0].weight, source.layer4[0].downsample[0].weight)
    assert all((layer.weight == 1 / layer.weight[0].numel()).all() for _, layer in adaptive_layers(model))


@pytest.mark.parametrize("init", ["identity", "paper"])
def test_fixed_weights_are_the_mean_and_no_parameters(init):
    model = networks.build(Setting(network="tiny", weights="fixed", init=init), 4)
    layers = dict(adaptive_layers(model))
    assert len(layers) == 8 and all("learn_weight=False" in repr(layer) for layer in layers.values())
    assert all((layer.weight == 1 / layer.weight[0].numel()).all() for layer in layers.values())
    assert not {f"{name}.weight" for name in layers} & {name for name, _ in model.named_parameters()}
    assert all(layer.radius == (1 if init == "paper" else layer.dilation[0]) for layer in layers.values())


def test_layer_4_alone_is_replaced_and_keeps_its_resolution():
    model = networks.build(Setting(network="tiny", layers="4"), 4)
    names = [name for name, _ in adaptive_layers(model)]
    assert names == [f"layer4.{block}.conv{conv}" for block in (0, 1) for conv in (1, 2)]
    assert model.layer4(torch.randn(1, 16, 4, 4)).shape == (1, 16, 4, 4)


def test_knobs_of_the_metric_reach_the_layers():
    setting = Setting(network="tiny", eps_omega=0.9, metric_groups=2, s_min=0.2, s_max=2.0, stencil="onion")
    layer = networks.build(setting, 4).layer4[0].conv1
    assert (layer.parametrization.eps_omega, layer.parametrization.s_min, layer.parametrization.s_max) == (0.9, 0.2, 2)
    assert layer.metric_groups == 2 and layer.stencil.radii.max() == 1
    riemann = networks.build(Setting(network="tiny", method="metric-riemann"), 4).layer4[0].conv1
    assert riemann.parametrization.channels == 5
    assert networks.build(Setting(network="tiny", head=6), 4).layer4[0].conv1.parametrization.channels == 6


def test_grey_images_take_the_sum_of_the_stem_over_colours():
    source = networks.NETWORKS["tiny"](4)
    model = networks.build(Setting(network="tiny", start="x"), 4, 1, source.state_dict())
    torch.testing.assert_close(model.conv1.weight, source.conv1.weight.sum(1, keepdim=True)[:, :, 2:-2, 2:-2])


def test_recalibration_takes_the_statistics_of_the_images_and_leaves_momentum_alone():
    model = nn.Sequential(nn.BatchNorm2d(3))
    x = torch.randn(64, 3, 8, 8) * 3 + 2
    networks.recalibrate(model.eval(), x.split(16))
    torch.testing.assert_close(model[0].running_mean, x.mean((0, 2, 3)))
    assert model[0].momentum == 0.1 and not model.training


def test_weights_that_do_not_fit_are_refused(tmp_path):
    (tmp_path / "broken.pth").write_bytes(b"no weights")
    with pytest.raises(ValueError, match="cannot be read as weights"):
        networks.read_pretrained(tmp_path / "broken.pth", "tiny")
    torch.save([torch.ones(3)], tmp_path / "list.pth")
    with pytest.raises(ValueError, match="must hold a state dictionary"):
        networks.read_pretrained(tmp_path / "list.pth", "tiny")
    model = networks.NETWORKS["tiny"](4)
    with pytest.raises(ValueError, match="none of the network's weights"):
        networks.load_pretrained(model, {"stem.weight": torch.ones(3)})
    with pytest.raises(ValueError, match=r"layer1.0.conv1.weight of shape \(3,\)"):
        networks.load_pretrained(model, {"layer1.0.conv1.weight": torch.ones(3)})
    networks.save_network(tmp_path / "network.pt", Setting(network="tiny", method="standard"), 4, 3, model)
    whole = (tmp_path / "network.pt").read_bytes()
    for content in (b"", whole[: len(whole) // 2]):
        (tmp_path / "network.pt").write_bytes(content)
        with pytest.raises(ValueError, match=r"network\.pt cannot be read as a network: .+; delete it, and its row"):
            networks.load_network(tmp_path / "network.pt")
    torch.save({"a": 1}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="not a network that `classify` wrote"):
        networks.load_network(tmp_path / "other.pt")
