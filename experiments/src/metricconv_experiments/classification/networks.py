"""ResNets for small images with replaced convolutions; reading and writing their weights."""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from metricconv import _checks
from metricconv._files import writing
from metricconv._torchvision import import_torchvision
from metricconv.conversion import convert
from metricconv.metrics import Cholesky, Spectral6, Spectral7
from metricconv.nn import AdaptiveConv, DeformableConv2d, MetricConv2d, ShiftedConv2d, adaptive_layers

from ..data import read_saved
from ..networks import dilate_last_layer, is_published_choice, use_constant_kernel, use_published_init
from ..results import upgraded
from .setting import Setting

_SELECT: dict[str, Callable[[str, nn.Module], bool]] = {
    "2-4": is_published_choice,
    "4": lambda name, conv: name.startswith("layer4.") and is_published_choice(name, conv),
}
_INITS = {"paper": use_published_init, "constant": use_constant_kernel}
# Weights from Caffe: the stride of a stage is in its first 1×1 convolution, and the order of colors is reversed.
_CAFFE = ("resnet50-imagenet",)
# Descriptions of pretrained weights, by file name.
LABELS = {
    "resnet18-imagenet-backbone": "ResNet-18, ImageNet convolutions (float16), BN statistics recalibrated on {dataset}",
    "resnet50-imagenet": "ResNet-50, Keras/Caffe ImageNet weights, BN statistics recalibrated on {dataset}",
    "torchvision": "torchvision's IMAGENET1K_V1, BN statistics recalibrated on {dataset}",
}


class NarrowResNet(nn.Module):
    """A ResNet of basic blocks as torchvision's, with ``width`` instead of 64 channels in its first stage.

    Args:
        classes: number of classes.
        width: channels of the first stage; every other stage has twice as many as the stage before it.
        blocks: blocks of each of the four stages: 2 for ResNet-18, 1 for ResNet-10.
    """

    def __init__(self, classes: int, width: int, blocks: int = 2) -> None:
        super().__init__()
        basic_block = import_torchvision("torchvision.models").resnet.BasicBlock
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inside = width
        for stage in range(4):
            outside, stride = width * 2**stage, 1 + (stage > 0)
            shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
            first = basic_block(inside, outside, stride, shortcut if stage else None)
            others = [basic_block(outside, outside) for _ in range(1, blocks)]
            self.add_module(f"layer{stage + 1}", nn.Sequential(first, *others))
            inside = outside
        self.fc = nn.Linear(inside, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores (B, classes) of images."""
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.fc(x.mean((2, 3)))


def _resnet(name: str) -> Callable[[int], nn.Module]:
    def make(classes: int) -> nn.Module:
        return getattr(import_torchvision("torchvision.models"), name)(num_classes=classes)

    return make


# ResNets with an eighth of the channels, for small studies. The second one is for a CPU: it has one block per stage,
# and its stem has stride 2.
NARROW, SMALL = "resnet18-width8", "resnet10-width8"
# Functions that return a ResNet (conv1, maxpool, layer1 to layer4, fc) with the given number of classes.
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    **{name: _resnet(name) for name in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")},
    NARROW: lambda classes: NarrowResNet(classes, 8),
    SMALL: lambda classes: NarrowResNet(classes, 8, blocks=1),
}


def build(setting: Setting, classes: int, channels: int = 3, pretrained: dict[str, Tensor] | None = None) -> nn.Module:
    """Return the network of a setting, with random weights from torch's generator.

    Args:
        setting: defines the network.
        classes, channels: numbers of classes and channels of the dataset.
        pretrained: weights of an ImageNet network by torchvision's names. All weights of matching shape are used;
            except for ``init="identity"``, those of conv1, of the downsampling in layer4 and of the replaced
            convolutions are not, as in the published experiments.
    """
    model = NETWORKS[_checks.one_of(setting.network, NETWORKS, "network")](classes)
    conv1 = model.get_submodule("conv1")
    assert isinstance(conv1, nn.Conv2d)
    stem = nn.Conv2d(channels, conv1.out_channels, 3, 2 if setting.network == SMALL else 1, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    model.add_module("conv1", stem)
    model.add_module("maxpool", nn.Identity())
    if setting.start in _CAFFE:
        for stage in ("layer2", "layer3", "layer4"):
            first: Any = model.get_submodule(f"{stage}.0")
            first.conv1.stride, first.conv2.stride = (2, 2), (1, 1)
    if pretrained is not None:
        if setting.start in _CAFFE:
            pretrained = pretrained | {"conv1.weight": pretrained["conv1.weight"].flip(1)}
        load_pretrained(model, pretrained, drop=("conv1.", "layer4.0.downsample.") if setting.init in _INITS else ())
    dilate_last_layer(model)  # the same resolution for all methods
    if setting.zero_gamma:
        zero_last_gamma(model)
    if setting.method != "standard":
        kind, geometry = _convolution(setting)
        with torch.random.fork_rng(devices=[], enabled=setting.init in _INITS):  # these weights are replaced
            model = convert(model, _SELECT[str(setting.layers)], to=kind, inplace=True, **geometry)
        if setting.init in _INITS:
            for _, layer in adaptive_layers(model):
                _INITS[str(setting.init)](layer)
    if setting.weights == "fixed":
        for name, conv in model.named_modules():
            if _SELECT[str(setting.layers)](name, conv):
                fix_kernel(conv)
    return model


def fix_kernel(conv: nn.Module) -> None:
    """Fix the kernel of a convolution to the mean over samples and channels; a predictor stays trainable."""
    weight = conv.weight
    assert isinstance(weight, Tensor)
    mean = torch.full_like(weight, 1 / weight[0].numel(), requires_grad=False)
    del conv.weight
    conv.register_buffer("weight", mean.detach())
    if isinstance(conv, AdaptiveConv):
        conv.learn_weight = False


@torch.no_grad()
def zero_last_gamma(model: nn.Module) -> None:
    """Set γ of the last batch normalization of each residual block to 0, so that blocks start as their shortcuts."""
    for block in model.modules():
        if hasattr(block, "downsample"):
            last: Any = getattr(block, "bn3", None) or block.get_submodule("bn2")
            nn.init.zeros_(last.weight)


def start_label(start: str, dataset: str) -> str:
    """Return a description of the initial weights."""
    if start == "scratch":
        return "from scratch"
    return LABELS.get(start, f"weights of {start}, BN statistics recalibrated on {{dataset}}").format(dataset=dataset)


def read_pretrained(path: Path, network: str) -> dict[str, Tensor]:
    """Read a state dictionary with torchvision's names; the path "torchvision" selects torchvision's weights."""
    if str(path) == "torchvision":
        weights = import_torchvision("torchvision.models").get_model_weights(network)["IMAGENET1K_V1"]
        return weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    state = read_saved(path, "pretrained weights")
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"`pretrained` {path} must contain a state dictionary of tensors")
    return {name: value.float() if value.is_floating_point() else value for name, value in state.items()}


def load_pretrained(model: nn.Module, state: dict[str, Tensor], drop: Iterable[str] = ()) -> None:
    """Load the weights of matching shape; other weights of the model are not changed.

    The 3 × 3 kernel of the stem is the center of the 7 × 7 kernel; for gray images, summed over colors. The classifier
    is loaded only if the number of classes is the same.
    """
    current = model.state_dict()
    matching = {}
    for name, value in state.items():
        if name not in current or name.startswith(tuple(drop)):
            continue
        if name == "conv1.weight":
            value = _fit_stem(value, current[name])
        if value.shape == current[name].shape:
            matching[name] = value
        elif not name.startswith("fc."):
            raise ValueError(
                f"`pretrained` has {name} of shape {tuple(value.shape)}; the network's is {tuple(current[name].shape)}"
            )
    if not any(name.startswith("layer") for name in matching):
        raise ValueError("`pretrained` has no weights of the network; expected names such as 'layer1.0.conv1.weight'")
    model.load_state_dict(current | matching)


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace the running statistics of batch normalization with those of given batches of images."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    momenta = [m.momentum for m in norms]
    training = model.training
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over batches
    model.train()
    for x in batches:
        model(x)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.train(training)


def save_trained(path: Path, setting: Setting, classes: int, channels: int, model: nn.Module) -> None:
    """Write a trained network, its setting and the numbers of classes and channels."""
    about = {"setting": dataclasses.asdict(setting), "classes": classes, "channels": channels}
    with writing(path) as temporary:
        torch.save({**about, "state": model.state_dict()}, temporary)


def load_trained(path: Path) -> tuple[Setting, nn.Module]:
    """Return the setting and the network, in evaluation mode, from a file written by ``save_trained``."""
    content = read_saved(path, "a network", "; delete it and its row in runs.csv to train again")
    if not isinstance(content, dict) or not {"setting", "classes", "channels", "state"} <= set(content):
        raise ValueError(f"{path} was not written by `classify`")
    setting = Setting(**upgraded(content["setting"]))
    model = build(setting, content["classes"], content["channels"])
    model.load_state_dict(content["state"])
    return setting, model.eval()


def _convolution(setting: Setting) -> tuple[type[AdaptiveConv], dict[str, Any]]:
    """Return the class of the replaced convolutions and their options."""
    groups = {"metric_groups": setting.metric_groups}
    if setting.method == "deformable":
        return DeformableConv2d, groups
    if setting.method == "shifted":
        return ShiftedConv2d, groups
    eps_omega = float(setting.eps_omega or 0)
    if setting.metric_parameters == 7:
        parametrization: Any = Spectral7(
            eps_omega=eps_omega, s_min=float(setting.s_min or 0), s_max=float(setting.s_max or 0)
        )
    else:
        parametrization = (Spectral6 if setting.metric_parameters == 6 else Cholesky)(eps_omega=eps_omega)
    ball = "geodesic" if setting.method == "metric-geodesic" else "tangent"
    return MetricConv2d, groups | {"parametrization": parametrization, "stencil": setting.stencil, "ball": ball}


def _fit_stem(weight: Tensor, target: Tensor) -> Tensor:
    if weight.shape[1] == 3 and target.shape[1] == 1:
        weight = weight.sum(1, keepdim=True)
    excess = weight.shape[-1] - target.shape[-1]
    if weight.dim() == 4 and excess > 0 and excess % 2 == 0:
        weight = weight[..., excess // 2 : -(excess // 2), excess // 2 : -(excess // 2)]
    return weight
