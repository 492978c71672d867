"""Which convolutions of a network are converted, and why others are not."""

import dataclasses
import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn

from .. import _checks
from ..nn import (
    AdaptiveConv,
    DeformableConv2d,
    DilatedConv2d,
    MetricConv1d,
    MetricConv2d,
    MetricConv3d,
    ShiftedConv2d,
)
from ..nn.base import LAZY
from . import _registry, _reparameterization

Convolution: TypeAlias = (
    nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
)
# A preset, one or several globs of module names, or a predicate (name, conv).
Select: TypeAlias = str | Iterable[str] | Callable[[str, Any], bool]

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
# By name, the class for each number of spatial axes.
LAYERS: dict[str, dict[int, type[AdaptiveConv]]] = {
    "metric": {1: MetricConv1d, 2: MetricConv2d, 3: MetricConv3d},
    "deformable": {2: DeformableConv2d},
    "shifted": {2: ShiftedConv2d},
    "dilated": {2: DilatedConv2d},
}


@dataclasses.dataclass(frozen=True)
class Conversion:
    """What happens to one convolution of a network.

    Args:
        name: name of the module.
        conv: the convolution.
        reason: why it is not converted; empty if it is.
        folded_by: method of an enclosing block that would fold the convolution into another one and thereby discard its
            geometry, such as "RepVggBlock.reparameterize"; empty if there is none.
    """

    name: str
    conv: Convolution
    reason: str = ""
    folded_by: str = ""

    def __str__(self) -> str:
        size = "×".join(map(str, self.conv.kernel_size))
        what = f"{size}, {self.conv.in_channels} → {self.conv.out_channels}"
        what += f", stride {self.conv.stride[0]}" * (max(self.conv.stride) > 1)
        what += f", groups {self.conv.groups}" * (self.conv.groups > 1)
        if self.reason:
            return f"{self.name}: {what}: unchanged: {self.reason}"
        return f"{self.name}: {what}: converted" + (f"; {self.folded_by}() now raises" if self.folded_by else "")


def plan_conversion(
    model: nn.Module, select: Select = "all", to: str | type[AdaptiveConv] = "metric"
) -> list[Conversion]:
    """Return, for each convolution that ``select`` names, whether ``convert`` would convert it, or why not."""
    _checks.instance_of(model, nn.Module, "model")
    layers = resolve_layers(to)
    selected = _predicate(model, select, layers)
    folds = _reparameterization.folding_methods(model)
    found: dict[int, Conversion] = {}
    for name, conv in model.named_modules(remove_duplicate=False):  # a shared layer under each of its names
        if isinstance(conv, CONVOLUTIONS) and id(conv) not in found and selected(name, conv):
            found[id(conv)] = Conversion(name, conv, _reason_against(conv, layers), folds.get(id(conv), ""))
    return list(found.values())


def resolve_layers(to: str | type[AdaptiveConv]) -> Mapping[int, type[AdaptiveConv]]:
    """Return the class of adaptive convolutions for each number of spatial axes that has one."""
    if isinstance(to, str):
        return LAYERS[_checks.one_of(to, LAYERS, "to")]
    if not (isinstance(to, type) and issubclass(to, AdaptiveConv) and hasattr(to, "dim")):
        names = ", ".join(map(repr, LAYERS))
        raise TypeError(f"`to` (={to!r}) must be {names} or a class of adaptive convolutions, such as MetricConv2d")
    return {to.dim: to}


def _reason_against(conv: Convolution, layers: Mapping[int, type[AdaptiveConv]]) -> str:
    name = type(conv).__name__
    dim = len(conv.kernel_size)
    if isinstance(conv, TRANSPOSED):
        return f"{name} is a transposed convolution"
    if isinstance(conv, nn.modules.lazy.LazyModuleMixin):
        return f"{LAZY}: run the network, then convert it"
    if max(conv.kernel_size) == 1:
        return f"a {'×'.join('1' * dim)} kernel has no neighbors"
    if any(k % 2 == 0 for k in conv.kernel_size):
        return "an even kernel has no center"
    if dim not in layers:
        classes = ", ".join(layer.__name__ for layer in layers.values())
        return f"{classes} cannot replace a convolution with {dim} spatial {'axis' if dim == 1 else 'axes'}"
    hooked = any(value for key, value in vars(conv).items() if key.endswith("_hooks"))
    if hooked or nn.utils.parametrize.is_parametrized(conv):
        return "it is parametrized or has hooks, which would be lost"
    if {"forward", "_conv_forward"} & vars(conv).keys():
        return "its forward pass has been replaced in this instance, which would be lost"
    if conv.weight.dtype not in _checks.FLOATS:
        return f"weights of dtype {conv.weight.dtype} are not supported"
    if _registry.rule_for(conv) is None:
        return f"{name} has a forward pass of its own; see register_conversion"
    return ""


def _predicate(
    model: nn.Module, select: Select, layers: Mapping[int, type[AdaptiveConv]]
) -> Callable[[str, Convolution], bool]:
    if isinstance(select, str) and select == "all":
        return lambda name, conv: True
    if isinstance(select, str) and select == "last_stage":
        modules = model.named_modules()
        stage = _last_stage([n for n, m in modules if isinstance(m, CONVOLUTIONS) and not _reason_against(m, layers)])
        return lambda name, conv: name.startswith(stage)
    if callable(select):
        return select
    globs: list[Any] = (
        [select] if isinstance(select, str | Tensor) or not isinstance(select, Iterable) else list(select)
    )
    if not all(isinstance(pattern, str) for pattern in globs):
        raise TypeError(f"`select` (={select!r}) must be a preset, a glob or several, or a predicate (name, conv)")
    return lambda name, conv: any(fnmatch.fnmatchcase(name, pattern) for pattern in globs)


def _last_stage(names: list[str]) -> str:
    """Return the prefix of the last numbered stage, such as "layer4." or "stages.3.", among names of convolutions."""
    numbered = [match for match in (re.match(r"(\D*)(\d+)\.", name) for name in names) if match]
    stems = [match[1] for match in numbered]
    stem = max(sorted(set(stems)), key=stems.count, default="")
    if 2 * stems.count(stem) <= len(names):  # the numbers are those of a stem or a side branch
        raise ValueError(
            "`select` (='last_stage') requires numbered stages, such as layer1, layer2, that hold most convolutions: "
            "name the layers instead"
        )
    return f"{stem}{max(int(match[2]) for match in numbered if match[1] == stem)}."
