"""A trained network from its checkpoint: tensors alone are read, never code.

A checkpoint is what ``metricconv reproduce classify`` keeps of a run; or a state dictionary, or what holds one under
"state_dict", as Lightning's do. Of these, the architecture is found among torchvision's ResNets by the names of the
tensors; which layers are adaptive, and of what kind, by their heads.
What the tensors cannot tell may stand beside them: "select", as for ``metricconv.convert``, and "geometry", a
dictionary of arguments of the layers. (Heads of five numbers are taken for the Cholesky parametrization; a Riemannian
"spectral7" has five too. Strides are those of torchvision unless "select" is "paper", which changes them.)
"""

import math
import textwrap
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._errors import UserError
from .._torchvision import import_torchvision
from ..convert import convert, plan_conversion
from ..metrics import PARAMETRIZATIONS
from ..nn import AdaptiveConv, DeformableConv2d, DilatedConv2d, MetricConv2d, ShiftedConv2d, adaptive_layers

ARCHITECTURES = ("resnet18", "resnet34", "resnet50", "resnet101")
_PREFIXES = ("net.", "model.", "module.", "network.")


def load_network(path: Path, report: Callable[[str], object] | None = None) -> nn.Module:
    """Return the network of a checkpoint, in evaluation mode; ``report`` is told what the file leaves open."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling fails in many ways, each with a page of advice
        raise UserError(f"{path.name}: is not a checkpoint of tensors that can be read safely") from error
    if isinstance(loaded, dict) and isinstance(loaded.get("setting"), dict):
        return _classifier(path)
    state = _state(loaded, path)
    heads = {
        key.removesuffix(".predictor.weight"): value
        for key, value in state.items()
        if key.endswith(".predictor.weight")
    }
    if not heads:
        raise UserError(f"{path.name}: has no adaptive convolutions, whose tensors are called ….predictor.weight")
    ordinary = {key for key in state if ".predictor." not in key and not key.endswith(".geometry_gain")}
    network = _architecture(ordinary, state, path)
    found = {name: _kind(state[f"{name}.weight"], head) for name, head in heads.items()}
    (kind, geometry), *others = {repr(value): value for value in found.values()}.values()
    if others:
        raise UserError(f"{path.name}: its adaptive layers are of {len(others) + 1} kinds; one is expected")
    options = loaded.get("geometry", {}) if isinstance(loaded.get("geometry", {}), dict) else {}
    select = loaded.get("select", list(heads))
    if report is not None and "select" not in loaded and _may_be_papers(network, heads):
        report(
            f'{path.name}: tensors do not tell strides; if select="paper" made this network, save it as '
            '{"state_dict": …, "select": "paper"}, or balls of layer4 are wrong'
        )
    try:
        network = convert(network, select, to=kind, **geometry | options)
        network.load_state_dict(state)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{path.name}: does not fit the network that its names tell ({_brief(error)})") from error
    return network.eval()


def _may_be_papers(network: nn.Module, heads: Iterable[str]) -> bool:
    """Say whether adaptive layers are those of ``convert(select="paper")``, which changes strides too."""
    return set(heads) == {chosen.name for chosen in plan_conversion(network, "paper")}


def _classifier(path: Path) -> nn.Module:
    """Return a network as ``classify`` has trained it, which says itself how to build it."""
    from ..experiments.classification import networks

    try:
        _, network = networks.load_network(path)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{path.name}: its network cannot be built again ({_brief(error)})") from error
    if next(adaptive_layers(network), None) is None:
        raise UserError(f"{path.name}: is a network of ordinary convolutions, whose supports are all alike")
    return network


def _state(loaded: Any, path: Path) -> dict[str, Tensor]:
    """Return the tensors by name, without the prefix that a wrapper has put before all of them."""
    state = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else None
    if not isinstance(state, dict):
        raise UserError(f"{path.name}: is not a state dictionary")
    tensors = {str(key): value for key, value in state.items() if isinstance(value, Tensor)}
    for prefix in _PREFIXES:
        inside = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        if any(key.endswith(".predictor.weight") for key in inside):
            return inside
    return tensors


def _architecture(names: set[str], state: dict[str, Tensor], path: Path) -> nn.Module:
    models = import_torchvision("torchvision.models")
    for name in ARCHITECTURES:
        with torch.device("meta"):
            skeleton = models.get_model(name)
        if set(skeleton.state_dict()) == names:
            network = models.get_model(name, num_classes=len(state["fc.weight"]))
            stem = state["conv1.weight"].shape
            if stem != network.conv1.weight.shape:  # as for the small images of CIFAR, which are not shrunk at once
                network.conv1 = nn.Conv2d(stem[1], stem[0], stem[2], padding=stem[2] // 2, bias=False)
                network.maxpool = nn.Identity()
            return network
    raise UserError(f"{path.name}: its names are those of none of {', '.join(ARCHITECTURES)}")


def _brief(error: Exception) -> str:
    """Return the beginning of a message, in one line: torch names every tensor that does not fit."""
    return textwrap.shorten(str(error), 200, placeholder=" …")


def _kind(weight: Tensor, head: Tensor) -> tuple[type[AdaptiveConv], dict[str, Any]]:
    """Tell an adaptive layer by how many numbers its head predicts."""
    numbers = head.shape[0]
    rivals: dict[int, type[AdaptiveConv]] = {
        2 * math.prod(weight.shape[2:]): DeformableConv2d,
        2: ShiftedConv2d,
        1: DilatedConv2d,
    }
    if numbers in rivals:
        return rivals[numbers], {}
    for eps_omega in (None, 1.0):
        for name, parametrization in PARAMETRIZATIONS.items():
            made = parametrization(dim=2) if eps_omega is None else parametrization(dim=2, eps_omega=eps_omega)
            if len(made.identity()) == numbers:
                options = {"parametrization": name} | ({} if eps_omega is None else {"eps_omega": eps_omega})
                return MetricConv2d, options
    raise UserError(f'a layer predicts {numbers} numbers a pixel, which no parametrization does; give its "geometry"')
