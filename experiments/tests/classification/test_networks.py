"""Networks: sizes as in the paper, independence of images, weights that survive conversion."""

from pathlib import Path

import pytest
import torch
from torch import nn

from layers import randomize_predictors
from metricconv.nn import adaptive_layers
from metricconv_experiments.classification import networks
from metricconv_experiments.classification.setting import METHODS, Setting
from metricconv_experiments.training import count_parameters


def calm(model: nn.Module, channels: int = 3) -> nn.Module:
    """Give batch normalization some statistics."""
    networks.recalibrate(model, [torch.randn(8, channels, 8, 8)])
    return model.eval()


@pytest.mark.parametrize(
    ("method", "millions"), [("standard", 11.22), ("shifted", 11.28), ("metric-randers", 11.42), ("deformable", 11.73)]
)
def test_sizes_are_those_of_the_papers_networks(method, millions):
    model = networks.build(Setting(method=method), 100)
    assert count_parameters(model) / 1e6 == pytest.approx(millions, abs=0.005)


@pytest.mark.parametrize("method", METHODS)
def test_outputs_of_an_image_do_not_depend_on_its_batch(method):
    model = calm(randomize_predictors(networks.build(Setting(network="tiny", method=method), 4), 0.3)).double()
    x = torch.randn(5, 3, 8, 8).double()
    with torch.no_grad():
        together, alone = model(x), torch.cat([model(image[None]) for image in x])
    torch.testing.assert_close(together, alone, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_default_network_equals_the_standard_one_initially(method):
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
    networks.save_trained(path, setting, 4, 3, model)
    again, loaded = networks.load_trained(path)
    assert again == setting and all(torch.equal(value, state[name]) for name, value in loaded.state_dict().items())


def test_network_with_caffe_strides_round_trips(tmp_path):
    setting = Setting(network="resnet50", method="standard", start="resnet50-imagenet")
    state = networks.build(Setting(network="resnet50", method="standard"), 4).state_dict()
    model = calm(networks.build(setting, 4, pretrained=state))
    networks.save_trained(tmp_path / "network.pt", setting, 4, 3, model)
    _, again = networks.load_trained(tmp_path / "network.pt")
    assert again.layer3[0].conv1.stride == (2, 2) and again.layer3[0].conv2.stride == (1, 1)
    x = torch.randn(1, 3, 8, 8)
    assert torch.equal(again(x), model(x))


def test_networks_of_earlier_versions_load_with_their_initial_geometry(tmp_path):
    setting = Setting(network="tiny", init="constant")
    model = calm(networks.build(setting, 4))
    path = tmp_path / "network.pt"
    networks.save_trained(path, setting, 4, 3, model)
    content = torch.load(path)
    content["setting"]["init"] = "paper"  # its earlier name
    del content["setting"]["zero_gamma"]
    torch.save(content, path)
    found, again = networks.load_trained(path)
    assert found == setting
    x = torch.randn(1, 3, 8, 8)
    assert torch.equal(again(x), model(x))


def test_torchvision_weights_are_read_as_tensors_only(monkeypatch):
    asked = {}
    monkeypatch.setattr(
        "torchvision.models._api.load_state_dict_from_url", lambda url, **options: asked.update(options)
    )
    networks.read_pretrained(Path("torchvision"), "resnet18")
    assert asked["weights_only"] and asked["check_hash"]


def test_paper_init_discards_the_same_weights_as_the_published_code():
    source = networks.NETWORKS["tiny"](4)
    model = networks.build(Setting(network="tiny", init="paper", start="x"), 4, 3, source.state_dict())
    assert torch.equal(model.layer1[0].conv1.weight, source.layer1[0].conv1.weight)
    assert torch.equal(model.fc.weight, source.fc.weight)
    assert not torch.equal(model.conv1.weight, source.conv1.weight[:, :, 2:-2, 2:-2])
    assert not torch.equal(model.layer4[0].downsample[0].weight, source.layer4[0].downsample[0].weight)
    assert all((layer.weight == 1 / layer.weight[0].numel()).all() for _, layer in adaptive_layers(model))


@pytest.mark.parametrize("init", ["identity", "paper", "constant"])
def test_fixed_weights_are_the_mean_and_no_parameters(init):
    model = networks.build(Setting(network="tiny", weights="fixed", init=init), 4)
    layers = dict(adaptive_layers(model))
    assert len(layers) == 8 and all("learn_weight=False" in repr(layer) for layer in layers.values())
    assert all((layer.weight == 1 / layer.weight[0].numel()).all() for layer in layers.values())
    assert not {f"{name}.weight" for name in layers} & {name for name, _ in model.named_parameters()}
    assert all(layer.radius == (layer.dilation[0] if init == "identity" else 1) for layer in layers.values())


@pytest.mark.parametrize(("layers", "count"), [("2-4", 8), ("4", 4)])
def test_fixed_standard_network_is_the_control_without_geometry(layers, count):
    """It equals an adaptive network of fixed weights whose predictors are zero."""
    torch.manual_seed(0)
    control = networks.build(Setting(network="tiny", method="standard", weights="fixed", layers=layers), 4)
    fixed = [name for name, _ in control.named_buffers() if name.endswith("weight")]
    assert len(fixed) == count and not set(fixed) & {name for name, _ in control.named_parameters()}
    adaptive = networks.build(Setting(network="tiny", method="shifted", weights="fixed", layers=layers), 4)
    adaptive.load_state_dict(control.state_dict(), strict=False)
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(control(x), adaptive(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_zero_gamma_starts_blocks_as_their_shortcuts(method):
    model = networks.build(Setting(network="tiny", method=method, zero_gamma=True), 4)
    x = torch.randn(2, 16, 4, 4)
    for block in model.layer4:
        assert torch.equal(block(x), block.downsample(x).relu())


@pytest.mark.parametrize(("network", "norm"), [("resnet18", "bn2"), ("resnet50", "bn3"), (networks.NARROW, "bn2")])
def test_zero_gamma_is_that_of_the_last_normalization_of_each_block(network, norm):
    model = networks.build(Setting(network=network, method="standard", zero_gamma=True), 4)
    zero = {name for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d) and not m.weight.any()}
    blocks = [2, 2, 2, 2] if norm == "bn2" else [3, 4, 6, 3]
    assert zero == {f"layer{n}.{b}.{norm}" for n, count in enumerate(blocks, 1) for b in range(count)}


def test_narrow_network_is_resnet18_with_8_times_fewer_channels():
    wide = networks.build(Setting(method="standard"), 5).state_dict()
    narrow = networks.build(Setting(network=networks.NARROW, method="standard"), 5).state_dict()
    assert narrow.keys() == wide.keys()
    for name, value in narrow.items():
        kept = 3 if name == "conv1.weight" else 5 if name.startswith("fc.") else None
        assert all(a in (b // 8, kept) or a == b <= 3 for a, b in zip(value.shape, wide[name].shape, strict=True)), name


def ranks_after_training(init: str) -> list[int]:
    """Train a narrow network for 8 steps; return the ranks of the channels after the first convolution of blocks."""
    torch.manual_seed(0)
    model = networks.build(Setting(network=networks.NARROW, init=init), 10)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    prototypes, found = torch.randn(10, 3, 16, 16), []
    for _ in range(8):
        y = torch.randint(10, (16,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(prototypes[y] + torch.randn(16, 3, 16, 16)), y).backward()
        optimizer.step()
    for name in ("layer2.0.bn1", "layer3.1.bn1", "layer4.1.bn1"):
        model.get_submodule(name).register_forward_hook(lambda *call: found.append(call[2]))
    with torch.no_grad():
        model(prototypes)
    activations = [x.transpose(0, 1).flatten(1).double() for x in found]
    return [int(torch.linalg.matrix_rank(x, rtol=1e-3)) for x in activations]


@pytest.mark.slow
def test_published_init_breaks_the_symmetry_of_channels():
    assert min(ranks_after_training("paper")) > 1
    assert ranks_after_training("constant") == [1, 1, 1]


def test_layer_4_is_replaced_with_the_same_resolution():
    model = networks.build(Setting(network="tiny", layers="4"), 4)
    names = [name for name, _ in adaptive_layers(model)]
    assert names == [f"layer4.{block}.conv{conv}" for block in (0, 1) for conv in (1, 2)]
    assert model.layer4(torch.randn(1, 16, 4, 4)).shape == (1, 16, 4, 4)


def test_metric_options_reach_the_layers():
    setting = Setting(network="tiny", eps_omega=0.9, metric_groups=2, s_min=0.2, s_max=2.0, stencil="onion")
    layer = networks.build(setting, 4).layer4[0].conv1
    assert (layer.parametrization.eps_omega, layer.parametrization.s_min, layer.parametrization.s_max) == (0.9, 0.2, 2)
    assert layer.metric_groups == 2 and layer.stencil.radii.max() == 1
    riemann = networks.build(Setting(network="tiny", method="metric-riemann"), 4).layer4[0].conv1
    assert riemann.parametrization.channels == 5
    assert networks.build(Setting(network="tiny", metric_parameters=6), 4).layer4[0].conv1.parametrization.channels == 6


def test_gray_images_use_the_sum_of_the_stem_over_colors():
    source = networks.NETWORKS["tiny"](4)
    model = networks.build(Setting(network="tiny", start="x"), 4, 1, source.state_dict())
    torch.testing.assert_close(model.conv1.weight, source.conv1.weight.sum(1, keepdim=True)[:, :, 2:-2, 2:-2])


def test_recalibration_replaces_statistics_and_preserves_momentum():
    model = nn.Sequential(nn.BatchNorm2d(3))
    x = torch.randn(64, 3, 8, 8) * 3 + 2
    networks.recalibrate(model.eval(), x.split(16))
    torch.testing.assert_close(model[0].running_mean, x.mean((0, 2, 3)))
    assert model[0].momentum == 0.1 and not model.training


def test_invalid_pretrained_weights_raise(tmp_path):
    (tmp_path / "broken.pth").write_bytes(b"no weights")
    with pytest.raises(ValueError, match="cannot be read as pretrained weights"):
        networks.read_pretrained(tmp_path / "broken.pth", "tiny")
    torch.save([torch.ones(3)], tmp_path / "list.pth")
    with pytest.raises(ValueError, match="must contain a state dictionary"):
        networks.read_pretrained(tmp_path / "list.pth", "tiny")
    model = networks.NETWORKS["tiny"](4)
    with pytest.raises(ValueError, match="no weights of the network"):
        networks.load_pretrained(model, {"stem.weight": torch.ones(3)})
    with pytest.raises(ValueError, match=r"layer1.0.conv1.weight of shape \(3,\)"):
        networks.load_pretrained(model, {"layer1.0.conv1.weight": torch.ones(3)})
    networks.save_trained(tmp_path / "network.pt", Setting(network="tiny", method="standard"), 4, 3, model)
    whole = (tmp_path / "network.pt").read_bytes()
    for content in (b"", whole[: len(whole) // 2]):
        (tmp_path / "network.pt").write_bytes(content)
        with pytest.raises(ValueError, match=r"network\.pt cannot be read as a network: .+; delete it and its row"):
            networks.load_trained(tmp_path / "network.pt")
    torch.save({"a": 1}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="was not written by `classify`"):
        networks.load_trained(tmp_path / "other.pt")
