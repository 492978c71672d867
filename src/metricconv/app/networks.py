"""Loading of trained networks from checkpoints; only tensors are read, no code.

A checkpoint is a file written by ``metricconv reproduce classify``, a state dictionary, or a dictionary with one under
"state_dict", as written by Lightning. The architecture is identified among torchvision's ResNets by the names of the
tensors, adaptive layers and their types by the shapes of their predictors.

An optional entry "geometry", a dictionary of arguments of the layers, describes what tensors do not. (Predictors of
five channels are taken as the Cholesky parametrization; a Riemannian "spectral7" has five too. Strides are those of
torchvision.)
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
from ..cli.external import EXPERIMENTS_MISSING, entry_points
from ..conversion import convert, plan_conversion
from ..metrics import PARAMETRIZATIONS, EllipsoidParametrization, Parametrization
from ..nn import AdaptiveConv, DeformableConv2d, DilatedConv2d, MetricConv2d, ShiftedConv2d, adaptive_layers

__all__ = ["ARCHITECTURES", "load_checkpoint"]

ARCHITECTURES = ("resnet18", "resnet34", "resnet50", "resnet101")
_PREFIXES = ("net.", "model.", "module.", "network.")


def load_checkpoint(path: Path, report: Callable[[str], object] | None = None) -> nn.Module:
    """Return the network of a checkpoint in evaluation mode; ``report`` is called with warnings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling raises many kinds of errors
        raise UserError(f"{path.name}: is not a checkpoint that can be loaded with weights_only=True") from error
    if isinstance(loaded, dict) and isinstance(loaded.get("setting"), dict):
        return _classifier(path)
    state = _state(loaded, path)
    predictors = {
        key.removesuffix(".predictor.weight"): value
        for key, value in state.items()
        if key.endswith(".predictor.weight")
    }
    if not predictors:
        raise UserError(f"{path.name}: has no adaptive convolutions (tensors named *.predictor.weight)")
    ordinary = {key for key in state if ".predictor." not in key and not key.endswith(".geometry_gain")}
    network = _architecture(ordinary, state, path)
    found = {name: _layer_type(state[f"{name}.weight"], predictor) for name, predictor in predictors.items()}
    (layer_type, geometry), *others = {repr(value): value for value in found.values()}.values()
    if others:
        raise UserError(f"{path.name}: expected adaptive layers of one type, got {len(others) + 1} types")
    options = loaded.get("geometry", {}) if isinstance(loaded.get("geometry", {}), dict) else {}
    if report is not None and _may_be_published(network, predictors):
        report(
            f"{path.name}: strides are unknown: the balls of layer4 are wrong if it has stride 1, as in the published "
            "experiments; load the file that `metricconv reproduce classify` writes instead"
        )
    try:
        network = convert(network, list(predictors), to=layer_type, **geometry | options)
        network.load_state_dict(state)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{path.name}: does not match the architecture identified by its tensor names ({_shorten(error)})"
        ) from error
    return network.eval()


def _may_be_published(network: nn.Module, predictors: Iterable[str]) -> bool:
    """Return whether the adaptive layers are those of the published experiments, which also change strides."""
    published = plan_conversion(network, ["layer2.*", "layer3.*", "layer4.*"])
    return set(predictors) == {layer.name for layer in published if layer.conv.kernel_size == (3, 3)}


def _classifier(path: Path) -> nn.Module:
    """Return a network trained by ``classify``, whose checkpoint describes its architecture."""
    loaders = entry_points("classify", "metricconv.checkpoints")
    if not loaders:
        raise UserError(f"{path.name}: was written by `metricconv reproduce classify`: {EXPERIMENTS_MISSING}")
    try:
        _, network = loaders[0].load()(path)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{path.name}: its network cannot be rebuilt ({_shorten(error)})") from error
    if next(adaptive_layers(network), None) is None:
        raise UserError(f"{path.name}: has no adaptive convolutions")
    return network


def _state(loaded: Any, path: Path) -> dict[str, Tensor]:
    """Return the tensors by name, without the common prefix added by a wrapper."""
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
            if stem != network.conv1.weight.shape:  # stem for small images as those of CIFAR, without downsampling
                network.conv1 = nn.Conv2d(stem[1], stem[0], stem[2], padding=stem[2] // 2, bias=False)
                network.maxpool = nn.Identity()
            return network
    raise UserError(f"{path.name}: tensor names match none of {', '.join(ARCHITECTURES)}")


def _shorten(error: Exception) -> str:
    """Return the beginning of an error message in one line, as torch lists every mismatched tensor."""
    return textwrap.shorten(str(error), 200, placeholder=" …")


def _layer_type(weight: Tensor, predictor: Tensor) -> tuple[type[AdaptiveConv], dict[str, Any]]:
    """Identify an adaptive layer by the number of output channels of its predictor."""
    channels = predictor.shape[0]
    baselines: dict[int, type[AdaptiveConv]] = {
        2 * math.prod(weight.shape[2:]): DeformableConv2d,
        2: ShiftedConv2d,
        1: DilatedConv2d,
    }
    if channels in baselines:
        return baselines[channels], {}
    choices: list[tuple[str, Parametrization, dict[str, Any]]] = []
    choices += [(name, parametrization(dim=2), {}) for name, parametrization in PARAMETRIZATIONS.items()]
    for name, parametrization in PARAMETRIZATIONS.items():
        if issubclass(parametrization, EllipsoidParametrization):
            choices.append((name, parametrization(dim=2, eps_omega=1.0), {"eps_omega": 1.0}))
    for name, made, options in choices:
        if len(made.identity()) == channels:
            return MetricConv2d, {"parametrization": name} | options
    raise UserError(
        f'a predictor has {channels} output channels, which match no parametrization; add a "geometry" entry'
    )
