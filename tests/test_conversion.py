"""Conversion of networks to adaptive convolutions: selection, reports, rules, errors."""

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import metricconv as mc
from layers import assert_equal_outputs
from metricconv.conversion import plan_conversion, register_conversion
from metricconv.nn import DeformableConv2d, MetricConv1d, MetricConv2d, MetricConv3d, adaptive_layers


@pytest.mark.parametrize("to", ["metric", MetricConv2d, "deformable", DeformableConv2d, "shifted", "dilated"])
def test_layers_of_every_type_start_equal_with_stride_dilation_and_groups(to):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4, bias=False),
        nn.BatchNorm2d(8),
    )
    model(torch.randn(4, 3, 16, 16))  # statistics of the batch normalization
    assert_equal_outputs(model, mc.convert(model, to=to, metric_groups=1), 16, 16)


def test_original_is_unchanged_and_inplace_conversion_shares_parameters():
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


def resnet() -> nn.Module:
    """Return a network with the names of a small ResNet."""
    layers = [("conv1", nn.Conv2d(3, 8, 7, 2, 3)), ("relu", nn.ReLU())]
    for n in range(1, 5):
        blocks = [OrderedDict(conv1=nn.Conv2d(8, 8, 3), conv2=nn.Conv2d(8, 8, 3)) for _ in range(2)]
        layers.append((f"layer{n}", nn.Sequential(*map(nn.Sequential, blocks))))
    return nn.Sequential(OrderedDict(layers))


def test_selection_by_glob_list_predicate_and_preset():
    def converted(select):
        return {name for name, _ in adaptive_layers(mc.convert(resnet(), select))}

    assert converted("layer4.*") == converted("last_stage") == {f"layer4.{b}.conv{c}" for b in (0, 1) for c in (1, 2)}
    assert converted(["layer1.0.*", "conv1"]) == {"layer1.0.conv1", "layer1.0.conv2", "conv1"}
    assert converted(lambda name, conv: conv.in_channels == 3) == {"conv1"}
    assert len(converted("all")) == 17


def test_repeated_layer_stays_shared():
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
def test_shared_layer_is_selected_by_any_of_its_names_and_reported_once(select):
    lines: list[str] = []
    converted = mc.convert(Siamese(), select, report=lines.append)
    assert [line.split(":")[0] for line in lines] == ["decoder.0", "decoder.1"]
    assert converted.encoder[0] is converted.decoder[0] and isinstance(converted.decoder[0], MetricConv2d)
    assert [name for name, _ in adaptive_layers(converted)] == ["encoder.0", "decoder.1"]
    assert [c.name for c in plan_conversion(Siamese())] == ["encoder.0", "encoder.1", "decoder.1"]


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize(
    "change", [nn.utils.weight_norm, lambda conv: prune.l1_unstructured(conv, "weight", 0.5)], ids=["norm", "pruned"]
)
def test_network_that_torch_cannot_copy_is_converted_in_place(change):
    model = nn.Sequential(change(nn.Conv2d(3, 4, 3)), nn.Conv2d(4, 4, 3))
    x = torch.randn(1, 3, 9, 9)
    expected = model(x)
    with pytest.raises(
        ValueError, match=r"`model` cannot be copied \(Only Tensors .*\): `inplace=True` converts it without"
    ):
        mc.convert(model)
    assert mc.convert(model, inplace=True) is model
    assert [type(layer) for layer in model] == [nn.Conv2d, MetricConv2d]
    torch.testing.assert_close(model(x), expected)


def test_single_convolution_is_converted():
    assert isinstance(mc.convert(nn.Conv2d(3, 4, 3)), MetricConv2d)


class Padded(nn.Conv2d):
    """A subclass with the forward pass of nn.Conv2d."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 3, padding=1)

    @staticmethod
    def stride_of(name: str) -> int:
        return 1


class Doubled(nn.Conv2d):
    """A subclass with a forward pass of its own."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_report_names_unchanged_layers_with_the_reason():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.Conv2d(4, 4, 1),
        nn.Conv2d(4, 4, 2),
        Padded(4, 4),
        Doubled(4, 4, 3),
        nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3)),
        nn.LazyConv2d(4, 3),
        nn.ConvTranspose2d(4, 4, 3, stride=2),
    )
    lines: list[str] = []
    mc.convert(model, report=lines.append)
    assert [line.split(": ", 2)[2] for line in lines] == [
        "converted",
        "unchanged: a 1×1 kernel has no neighbors",
        "unchanged: an even kernel has no center",
        "converted",
        "unchanged: Doubled has a forward pass of its own; see register_conversion",
        "unchanged: it is parametrized or has hooks, which would be lost",
        "unchanged: it is lazy and has no weights yet: run the network, then convert it",
        "unchanged: ConvTranspose2d is a transposed convolution",
    ]
    assert lines[-1].startswith("7: 3×3, 4 → 4, stride 2: ")
    plan = plan_conversion(model)
    assert [bool(c.reason) for c in plan] == [False, True, True, False, True, True, True, True]


def test_subclasses_with_other_methods_properties_or_tensors_are_unchanged():
    class WithProperty(nn.Conv2d):
        @property
        def scale(self):
            return 1

    class WithMethod(nn.Conv2d):
        def _conv_forward(self, x, weight, bias):
            return x

    with_parameter = Padded(3, 3)
    with_parameter.gain = nn.Parameter(torch.ones(1))
    model = nn.Sequential(WithProperty(3, 3, 3), WithMethod(3, 3, 3), with_parameter)
    assert all("has a forward pass of its own" in c.reason for c in plan_conversion(model))


def test_registered_rule_converts_a_subclass():
    def rule(conv, layer_class, options):
        layer = layer_class.from_conv(conv, **options)
        layer.register_forward_hook(lambda layer, inputs, output: 2 * output)
        return layer

    class Own(Doubled):
        pass

    register_conversion(Own, rule)
    model = nn.Sequential(Own(3, 4, 3, padding=1))
    converted = mc.convert(model, metric_groups=3)
    assert converted[0].metric_groups == 3
    assert_equal_outputs(model, converted, 8, 8)
    register_conversion(Own, lambda conv, layer_class, options: conv)
    with pytest.raises(TypeError, match="layer '0': `result of the rule of Own` must be a AdaptiveConv"):
        mc.convert(model)
    for kind in (nn.Conv2d, nn.Linear, 3):
        with pytest.raises(TypeError, match="`kind`"):
            register_conversion(kind, rule)
    with pytest.raises(TypeError, match="`rule`"):
        register_conversion(Own, None)


@pytest.mark.parametrize(("dim", "layer_class"), [(1, MetricConv1d), (2, MetricConv2d), (3, MetricConv3d)])
@pytest.mark.parametrize("to", ["metric", "class"])
def test_signals_images_and_volumes_are_converted_equal(dim, layer_class, to):
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dim]
    model = nn.Sequential(conv(3, 4, 3, 2, 1), nn.ReLU(), conv(4, 2, 3, padding=1, padding_mode="replicate"))
    converted = mc.convert(model, to="metric" if to == "metric" else layer_class)
    assert [type(layer) for layer in converted] == [layer_class, nn.ReLU, layer_class]
    assert_equal_outputs(model, converted, *(8, 7, 6)[:dim])


@pytest.mark.parametrize(("to", "name"), [("shifted", "ShiftedConv2d"), (MetricConv2d, "MetricConv2d")])
def test_convolutions_of_other_dimensions_are_unchanged_and_reported(to, name):
    model = nn.ModuleList([nn.Conv1d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.Conv3d(3, 4, 3)])
    lines: list[str] = []
    converted = mc.convert(model, to=to, report=lines.append)
    assert [type(layer).__name__ for layer in converted] == ["Conv1d", name, "Conv3d"]
    assert lines[0].endswith(f"unchanged: {name} cannot replace a convolution with 1 spatial axis")
    assert lines[2].endswith(f"unchanged: {name} cannot replace a convolution with 3 spatial axes")


def test_converted_network_trains():
    model = mc.convert(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1)))
    x, y = torch.randn(4, 3, 8, 8), torch.randn(4, 1, 8, 8)
    optimizer = torch.optim.Adam(mc.nn.param_groups(model, lr=1e-2))
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_model_that_cannot_be_converted_is_unchanged():
    model = resnet()
    with pytest.raises(ValueError, match="`metric_groups`"):
        mc.convert(model, inplace=True, metric_groups=7)
    assert not list(adaptive_layers(model))


def test_bad_arguments_raise():
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    with pytest.raises(ValueError, match=r"`select` \(='nothing\*'\) converts no convolution"):
        mc.convert(model, "nothing*")
    for kind in (nn.Conv2d, mc.nn.AdaptiveConv, mc.nn.MetricConv, 3):
        with pytest.raises(
            TypeError, match=r"`to` \(=.* must be 'metric', 'deformable', 'shifted', 'dilated' or a class"
        ):
            mc.convert(model, to=kind)
    with pytest.raises(ValueError, match=r"`to` \(='dilate'\) must be one of 'metric', 'deformable'"):
        mc.convert(model, to="dilate")
    for select in (3, None, [3]):
        with pytest.raises(TypeError, match=r"`select` \(=.*\) must be a preset, a glob"):
            mc.convert(model, select)
    for function in (mc.convert, mc.to_conv):
        with pytest.raises(TypeError, match="`model` must be a Module, got int"):
            function(3)
        with pytest.raises(TypeError, match=r"`report` \(=True\) must be a function of one line"):
            function(model, report=True)
    with pytest.raises(ValueError, match="last_stage"):
        mc.convert(model, "last_stage")


def test_convolutions_with_hooks_are_unchanged():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3))
    net[0].register_full_backward_hook(lambda *_: None)
    net[1].register_state_dict_pre_hook(lambda *_: None)
    assert [type(layer) for layer in mc.convert(net)] == [nn.Conv2d, nn.Conv2d, MetricConv2d]


def test_convolutions_with_a_replaced_forward_pass_are_unchanged():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    original = net[0].forward
    net[0].forward = lambda x: 2 * original(x)  # as accelerate does
    assert [type(layer) for layer in mc.convert(net)] == [nn.Conv2d, MetricConv2d]
    assert "has been replaced" in plan_conversion(net)[0].reason


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn])
def test_convolutions_of_unsupported_dtypes_are_unchanged(dtype):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    net[0].weight = nn.Parameter(net[0].weight.detach().to(dtype))
    assert [type(layer) for layer in mc.convert(net)] == [nn.Conv2d, MetricConv2d]
    assert plan_conversion(net)[0].reason == f"weights of dtype {dtype} are not supported"


def test_errors_name_the_layer_or_the_layers_to_select():
    with pytest.raises(ValueError, match=r"^layer '0': `in_channels` \(=3\) must be divisible by `metric_groups`"):
        mc.convert(nn.Sequential(nn.Conv2d(3, 4, 3)), metric_groups=4)
    with pytest.raises(ValueError, match=r"it has no ordinary convolution, and 0 adaptive ones"):
        mc.convert(nn.Sequential(nn.Linear(3, 4)))
    with pytest.raises(ValueError, match=r"it has no ordinary convolution, and 1 adaptive ones"):
        mc.convert(mc.convert(nn.Sequential(nn.Conv2d(3, 4, 3))))
    with pytest.raises(ValueError, match=r"none of its 2 convolutions is selected; their names are '0', '1'"):
        mc.convert(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)), "conv9.*")
    with pytest.raises(ValueError, match=r"1 of its 1 convolutions are selected; `report=print` prints why"):
        mc.convert(nn.Sequential(nn.Conv2d(3, 4, 1)))


@pytest.mark.parametrize("stages", [2, 3])
def test_last_stage_needs_more_than_half_of_the_convolutions_in_stages(stages):
    layers = {name: nn.Conv2d(4, 4, 3) for name in ("stem", "neck")}
    net = nn.ModuleDict(layers | {f"layer{n + 1}": nn.Sequential(nn.Conv2d(4, 4, 3)) for n in range(stages)})
    if stages == 2:
        with pytest.raises(ValueError, match="that hold most convolutions"):
            mc.convert(net, "last_stage")
    else:
        assert [name for name, _ in adaptive_layers(mc.convert(net, "last_stage"))] == ["layer3.0"]


def test_numbers_in_a_side_branch_are_not_stages():
    branch = nn.Sequential(OrderedDict(conv1=nn.Sequential(nn.Conv2d(4, 4, 3))))
    net = nn.ModuleDict({"mixed_a": nn.Conv2d(3, 4, 3), "mixed_b": nn.Conv2d(4, 4, 3), "aux": branch})
    with pytest.raises(ValueError, match=r"requires numbered stages, .* that hold most convolutions"):
        mc.convert(net, "last_stage")
