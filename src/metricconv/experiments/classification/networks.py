"""ResNets for small images, with the later convolutions replaced; and their weights, from a file and to one."""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ... import _checks
from ..._files import writing
from ..._torchvision import import_torchvision
from ...convert import convert, dilate_last_layer
from ...metrics import Cholesky, Spectral6, Spectral7
from ...nn import AdaptiveConv, DeformableConv2d, MetricConv2d, ShiftedConv2d, adaptive_layers
from ..data import read_saved
from .setting import Setting

_SELECT = {"2-4": "paper", "4": "layer4.*"}
# Starts whose weights come from Caffe: the stride of a stage sits in its first 1×1 convolution, colours are in reverse.
_CAFFE = ("resnet50-imagenet",)
# What to call the weights of a start, by the file's name: they are not torchvision's.
LABELS = {
    "resnet18-imagenet-backbone": "ResNet-18, ImageNet convolutions (float16), BN statistics recalibrated on {dataset}",
    "resnet50-imagenet": "ResNet-50, Keras/Caffe ImageNet weights, BN statistics recalibrated on {dataset}",
    "torchvision": "torchvision's IMAGENET1K_V1, BN statistics recalibrated on {dataset}",
}


def _resnet(name: str) -> Callable[[int], nn.Module]:
    def make(classes: int) -> nn.Module:
        return getattr(import_torchvision("torchvision.models"), name)(num_classes=classes)

    return make


# By name, a maker of a ResNet (conv1, maxpool, layer1 to layer4, fc) with so many classes.
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    name: _resnet(name) for name in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
}


def build(setting: Setting, classes: int, channels: int = 3, pretrained: dict[str, Tensor] | None = None) -> nn.Module:
    """Return the network of a setting; its random weights are drawn from torch's generator.

    Args:
        setting: what to build.
        classes, channels: of the dataset.
        pretrained: an ImageNet network's weights by torchvision's names. All that fit are kept; with ``init="paper"``
            those of conv1, of layer4's downsampling and of the replaced convolutions are not, as in the published
            experiments.
    """
    model = NETWORKS[_checks.one_of(setting.network, NETWORKS, "network")](classes)
    conv1 = model.get_submodule("conv1")
    assert isinstance(conv1, nn.Conv2d)
    stem = nn.Conv2d(channels, conv1.out_channels, 3, padding=1, bias=False)
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
        load_pretrained(model, pretrained, drop=("conv1.", "layer4.0.downsample.") if setting.init == "paper" else ())
    if setting.method == "standard":
        dilate_last_layer(model)  # so that all have the same resolution
        return model
    if setting.layers == "4":
        dilate_last_layer(model)
    kind, geometry = _convolution(setting)
    model = convert(model, _SELECT[str(setting.layers)], to=kind, inplace=True, init=str(setting.init), **geometry)
    if setting.weights == "fixed":
        fix_kernels(model)
    return model


def fix_kernels(model: nn.Module) -> None:
    """Make the kernel of every adaptive convolution the mean over samples and channels, for good; heads still learn."""
    for _, layer in adaptive_layers(model):
        mean = torch.full_like(layer.weight, 1 / layer.weight[0].numel(), requires_grad=False)
        del layer.weight
        layer.register_buffer("weight", mean.detach())
        layer.learn_weight = False


def start_label(start: str, dataset: str) -> str:
    """Return what to call the weights that training starts from."""
    if start == "scratch":
        return "from scratch"
    return LABELS.get(start, f"weights of {start}, BN statistics recalibrated on {{dataset}}").format(dataset=dataset)


def read_pretrained(path: Path, network: str) -> dict[str, Tensor]:
    """Read a state dictionary, tensors only, by torchvision's names; "torchvision" has it fetch its own."""
    if str(path) == "torchvision":
        weights = import_torchvision("torchvision.models").get_model_weights(network)["IMAGENET1K_V1"]
        return weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    state = read_saved(path, "weights, those of `pretrained`")
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"`pretrained` {path} must hold a state dictionary: names and tensors")
    return {name: value.float() if value.is_floating_point() else value for name, value in state.items()}


def load_pretrained(model: nn.Module, state: dict[str, Tensor], drop: Iterable[str] = ()) -> None:
    """Load the weights that fit; the model keeps its others.

    The centre of an ImageNet stem's 7 × 7 kernel becomes the 3 × 3 one; grey images take the sum over colours. The
    classifier stays unless it has as many classes.
    """
    own = model.state_dict()
    fitting = {}
    for name, value in state.items():
        if name not in own or name.startswith(tuple(drop)):
            continue
        if name == "conv1.weight":
            value = _fit_stem(value, own[name])
        if value.shape == own[name].shape:
            fitting[name] = value
        elif not name.startswith("fc."):
            raise ValueError(
                f"`pretrained` has {name} of shape {tuple(value.shape)}; the network's is {tuple(own[name].shape)}"
            )
    if not any(name.startswith("layer") for name in fitting):
        raise ValueError("`pretrained` has none of the network's weights: names such as 'layer1.0.conv1.weight'")
    model.load_state_dict(own | fitting)


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace the running statistics of batch normalisation by those of some batches of images."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    momenta = [m.momentum for m in norms]
    training = model.training
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over the batches
    model.train()
    for x in batches:
        model(x)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.train(training)


def save_network(path: Path, setting: Setting, classes: int, channels: int, model: nn.Module) -> None:
    """Write a trained network with what is needed to build it again."""
    about = {"setting": dataclasses.asdict(setting), "classes": classes, "channels": channels}
    with writing(path) as temporary:
        torch.save({**about, "state": model.state_dict()}, temporary)


def load_network(path: Path) -> tuple[Setting, nn.Module]:
    """Read what ``save_network`` wrote, for looking at it: in evaluation mode."""
    content = read_saved(path, "a network", "; delete it, and its row of runs.csv, to start anew")
    if not isinstance(content, dict) or not {"setting", "classes", "channels", "state"} <= set(content):
        raise ValueError(f"{path} is not a network that `classify` wrote")
    setting = Setting(**content["setting"])
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
    if setting.head == 7:
        numbers: Any = Spectral7(eps_omega=eps_omega, s_min=float(setting.s_min or 0), s_max=float(setting.s_max or 0))
    else:
        numbers = (Spectral6 if setting.head == 6 else Cholesky)(eps_omega=eps_omega)
    ball = "geodesic" if setting.method == "metric-geodesic" else "tangent"
    return MetricConv2d, groups | {"parametrization": numbers, "stencil": setting.stencil, "ball": ball}


def _fit_stem(weight: Tensor, own: Tensor) -> Tensor:
    if weight.shape[1] == 3 and own.shape[1] == 1:
        weight = weight.sum(1, keepdim=True)
    excess = weight.shape[-1] - own.shape[-1]
    if weight.dim() == 4 and excess > 0 and excess % 2 == 0:
        weight = weight[..., excess // 2 : -(excess // 2), excess // 2 : -(excess // 2)]
    return weight
