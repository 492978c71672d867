"""Conversion: the same network, now adaptive."""

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import metricconv as mc
from metricconv.convert import plan_conversion
from metricconv.nn import DeformableConv2d, MetricConv2d, ShiftedConv2d, adaptive_layers

torchvision = pytest.importorskip("torchvision")


def same_outputs(model: nn.Module, converted: nn.Module, size: int = 64) -> None:
    model.eval(), converted.eval()
    x = torch.randn(2, 3, size, size)
    with torch.no_grad():
        expected = model(x)
        error = (converted(x) - expected).abs().max() / expected.abs().max()
    assert error < 1e-4


def calm(model: nn.Module) -> nn.Module:
    """Give batch normalisation some statistics, so that outputs are of order 1."""
    model.train()
    with torch.no_grad():
        model(torch.randn(4, 3, 64, 64))
    return model.eval()


@pytest.mark.parametrize("name", ["resnet18", pytest.param("resnet50", marks=pytest.mark.slow), "mobilenet_v2"])
def test_converted_torchvision_network_equals_the_original_at_init(name):
    model = calm(torchvision.models.get_model(name, weights=None))
    converted = mc.convert(model)
    assert len(list(adaptive_layers(converted))) == sum(
        isinstance(m, nn.Conv2d) and m.kernel_size != (1, 1) for m in model.modules()
    )
    same_outputs(model, converted)


def test_converted_timm_convnext_equals_the_original_at_init():
    timm = pytest.importorskip("timm")
    model = timm.create_model("convnext_atto", pretrained=False, num_classes=7)
    converted = mc.convert(model)
    kinds = {(m.kernel_size, m.groups > 1) for _, m in adaptive_layers(converted)}
    assert kinds == {((7, 7), True)}  # depthwise; the even patch-embedding kernels stay
    same_outputs(model, converted)


@pytest.mark.parametrize("to", [MetricConv2d, DeformableConv2d, ShiftedConv2d])
def test_every_adaptive_kind_converts_equal_at_init_with_dilation_and_groups(to):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4, bias=False),
        nn.BatchNorm2d(8),
    )
    same_outputs(calm(model), mc.convert(model, to=to, metric_groups=1), 16)


def test_original_is_untouched_and_inplace_moves_the_same_parameters():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
    weight = model[0].weight
    before = copy.deepcopy(model.state_dict())
    converted = mc.convert(model)
    assert isinstance(model[0], nn.Conv2d) and converted[0].weight is not weight
    nn.init.zeros_(converted[0].weight)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert mc.convert(model, inplace=True) is model and model[0].weight is weight


def test_dtype_training_mode_and_frozen_weights_are_kept():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)).double()
    model[0].eval()
    model[0].weight.requires_grad_(False)
    converted = mc.convert(model)
    assert converted[0].predictor.weight.dtype == torch.float64
    assert not converted[0].training and converted[1].training
    assert not converted[0].weight.requires_grad and converted[0].predictor.weight.requires_grad


def test_selection_by_glob_list_predicate_and_preset():
    model = torchvision.models.resnet18(weights=None)

    def swapped(select):
        return {name for name, _ in adaptive_layers(mc.convert(model, select))}

    assert swapped("layer4.*") == swapped("last_stage") == {f"layer4.{b}.conv{c}" for b in (0, 1) for c in (1, 2)}
    assert swapped(["layer1.0.*", "conv1"]) == {"layer1.0.conv1", "layer1.0.conv2", "conv1"}
    assert swapped(lambda name, conv: conv.in_channels == 3) == {"conv1"}
    assert swapped("paper") == {f"layer{n}.{b}.conv{c}" for n in (2, 3, 4) for b in (0, 1) for c in (1, 2)}


def test_paper_preset_keeps_layer4_at_stride_1_and_dilates_its_later_blocks():
    model = torchvision.models.resnet18(weights=None)
    converted = mc.convert(model, "paper")
    first, second = converted.layer4
    assert first.conv1.stride == (1, 1) and first.conv1.dilation == (1, 1) and first.downsample[0].stride == (1, 1)
    assert second.conv1.dilation == second.conv1.padding == (2, 2)
    assert model.layer4[0].conv1.stride == (2, 2)
    assert converted(torch.randn(2, 3, 32, 32)).shape == (2, 1000)
    with pytest.raises(ValueError, match=r"`select` \(='paper'\) needs a ResNet"):
        mc.convert(nn.Sequential(nn.Conv2d(3, 3, 3)), "paper")


def test_a_layer_used_twice_stays_shared():
    conv = nn.Conv2d(3, 3, 3, padding=1)
    converted = mc.convert(nn.Sequential(conv, nn.ReLU(), conv))
    assert converted[0] is converted[2] and isinstance(converted[0], MetricConv2d)


class Siamese(nn.Module):
    """An encoder and a decoder that share their first layer."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Conv2d(3, 3, 3, padding=1)
        self.encoder = nn.Sequential(shared, nn.Conv2d(3, 3, 3))
        self.decoder = nn.Sequential(shared, nn.Conv2d(3, 3, 3))


@pytest.mark.parametrize("select", ["decoder.*", lambda name, conv: name.startswith("decoder")])
def test_a_shared_layer_is_chosen_by_any_of_its_names_and_reported_once(select):
    lines: list[str] = []
    converted = mc.convert(Siamese(), select, report=lines.append)
    assert [line.split(":")[0] for line in lines] == ["decoder.0", "decoder.1"]
    assert converted.encoder[0] is converted.decoder[0] and isinstance(converted.decoder[0], MetricConv2d)
    assert [name for name, _ in adaptive_layers(converted)] == ["encoder.0", "decoder.1"]
    assert [c.name for c in plan_conversion(Siamese())] == ["encoder.0", "encoder.1", "decoder.1"]


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize(
    "hooked", [nn.utils.weight_norm, lambda conv: prune.l1_unstructured(conv, "weight", 0.5)], ids=["norm", "pruned"]
)
def test_a_network_that_torch_cannot_copy_is_converted_in_place(hooked):
    model = nn.Sequential(hooked(nn.Conv2d(3, 4, 3)), nn.Conv2d(4, 4, 3))
    x = torch.randn(1, 3, 9, 9)
    expected = model(x)
    with pytest.raises(ValueError, match=r"`model` cannot be copied \(Only Tensors .*\): `inplace=True` converts it"):
        mc.convert(model)
    assert mc.convert(model, inplace=True) is model
    assert [type(layer) for layer in model] == [nn.Conv2d, MetricConv2d]
    torch.testing.assert_close(model(x), expected)


def test_a_lone_convolution_converts():
    assert isinstance(mc.convert(nn.Conv2d(3, 4, 3)), MetricConv2d)


def test_report_names_what_stays_and_why():
    class Padded(nn.Conv2d):
        pass

    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.Conv2d(4, 4, 1),
        nn.Conv2d(4, 4, 2),
        Padded(4, 4, 3),
        nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3)),
        nn.LazyConv2d(4, 3),
    )
    lines: list[str] = []
    mc.convert(model, report=lines.append)
    assert [line.split(": ", 2)[2] for line in lines] == [
        "swapped",
        "stays: a 1×1 kernel has no neighbours",
        "stays: an even kernel has no centre",
        "stays: Padded may compute something else than nn.Conv2d",
        "stays: it is parametrized or hooked, which a swap would lose",
        "stays: it is lazy and has no weights yet: run the network once, then convert it",
    ]
    assert [bool(c.reason) for c in plan_conversion(model)] == [False, True, True, True, True, True]


def test_converted_network_trains():
    model = mc.convert(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1)))
    x, y = torch.randn(4, 3, 8, 8), torch.randn(4, 1, 8, 8)
    optimiser = torch.optim.Adam(mc.nn.param_groups(model, lr=1e-2))
    losses = []
    for _ in range(15):
        optimiser.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_a_model_that_cannot_be_converted_is_left_as_it_was():
    model = torchvision.models.resnet18(weights=None)
    with pytest.raises(ValueError, match="`metric_groups`"):
        mc.convert(model, "paper", inplace=True, metric_groups=7)
    assert model.layer4[0].conv1.stride == (2, 2) and model.layer4[1].conv1.dilation == (1, 1)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"`select` \(='nothing\*'\) swaps no convolution"):
        mc.convert(nn.Sequential(nn.Conv2d(3, 4, 3)), "nothing*")
    for kind in (nn.Conv2d, mc.nn.AdaptiveConv, mc.nn.MetricConv1d):
        with pytest.raises(TypeError, match="`to`"):
            mc.convert(nn.Sequential(nn.Conv2d(3, 4, 3)), to=kind)
    for select in (3, None, [3]):
        with pytest.raises(TypeError, match=r"`select` \(=.*\) must be a preset, a glob"):
            mc.convert(nn.Sequential(nn.Conv2d(3, 4, 3)), select)
    with pytest.raises(TypeError, match="`model` must be a Module, got int"):
        mc.convert(3)
    with pytest.raises(ValueError, match="last_stage"):
        mc.convert(nn.Sequential(nn.Conv2d(3, 4, 3)).append(nn.ReLU())[0], "last_stage")


def test_a_hook_of_any_kind_keeps_a_convolution_as_it_is():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3))
    net[0].register_full_backward_hook(lambda *_: None)
    net[1].register_state_dict_pre_hook(lambda *_: None)
    assert [type(layer) for layer in mc.convert(net)] == [nn.Conv2d, nn.Conv2d, MetricConv2d]


def test_a_refusal_names_the_layer_or_what_was_looked_at():
    with pytest.raises(ValueError, match=r"^layer '0': `in_channels` \(=3\) must be divisible by `metric_groups`"):
        mc.convert(nn.Sequential(nn.Conv2d(3, 4, 3)), metric_groups=4)
    with pytest.raises(ValueError, match=r"it has no nn\.Conv2d, and 0 adaptive convolutions already"):
        mc.convert(nn.Sequential(nn.ConvTranspose2d(3, 4, 3)))
    with pytest.raises(ValueError, match=r"it has no nn\.Conv2d, and 1 adaptive convolutions already"):
        mc.convert(mc.convert(nn.Sequential(nn.Conv2d(3, 4, 3))))
    with pytest.raises(ValueError, match=r"none of its 2 nn\.Conv2d is chosen, such as '0', '1'"):
        mc.convert(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)), "conv9.*")
    with pytest.raises(ValueError, match=r"1 of its 1 nn\.Conv2d were looked at; `report=print` tells why"):
        mc.convert(nn.Sequential(nn.Conv2d(3, 4, 1)))
    with pytest.raises(TypeError, match=r"`report` \(=True\) must be a function of one line"):
        mc.convert(nn.Sequential(nn.Conv2d(3, 4, 3)), report=True)


@pytest.mark.parametrize("stages", [2, 3])
def test_last_stage_needs_more_than_half_of_the_convolutions_in_stages(stages):
    layers = {name: nn.Conv2d(4, 4, 3) for name in ("stem", "neck")}
    net = nn.ModuleDict(layers | {f"layer{n + 1}": nn.Sequential(nn.Conv2d(4, 4, 3)) for n in range(stages)})
    if stages == 2:
        with pytest.raises(ValueError, match="that hold most convolutions"):
            mc.convert(net, "last_stage")
    else:
        assert [name for name, _ in adaptive_layers(mc.convert(net, "last_stage"))] == ["layer3.0"]


def test_numbers_of_a_side_branch_are_no_stages():
    branch = nn.Sequential(OrderedDict(conv1=nn.Sequential(nn.Conv2d(4, 4, 3))))
    net = nn.ModuleDict({"mixed_a": nn.Conv2d(3, 4, 3), "mixed_b": nn.Conv2d(4, 4, 3), "aux": branch})
    with pytest.raises(ValueError, match=r"needs numbered stages, .* that hold most convolutions"):
        mc.convert(net, "last_stage")
