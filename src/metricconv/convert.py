"""Swap ordinary convolutions inside an existing network for adaptive ones, weights kept."""

import copy
import dataclasses
import fnmatch
import re
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from . import _checks
from .nn import AdaptiveConv, MetricConv2d
from .nn.base import LAZY

Select = str | Iterable[str] | Callable[[str, nn.Conv2d], bool]


@dataclasses.dataclass(frozen=True)
class Conversion:
    """What happens to one convolution: ``reason`` says why it stays, and is empty when it is swapped."""

    name: str
    conv: nn.Conv2d
    reason: str = ""

    def __str__(self) -> str:
        size = "×".join(map(str, self.conv.kernel_size))
        what = f"{size}, {self.conv.in_channels} → {self.conv.out_channels}"
        what += f", stride {self.conv.stride[0]}" * (max(self.conv.stride) > 1)
        what += f", groups {self.conv.groups}" * (self.conv.groups > 1)
        return f"{self.name}: {what}: " + (f"stays: {self.reason}" if self.reason else "swapped")


def convert(
    model: nn.Module,
    select: Select = "all",
    to: type[AdaptiveConv] = MetricConv2d,
    inplace: bool = False,
    report: Callable[[str], Any] | None = None,
    **geometry: Any,
) -> nn.Module:
    """Return the network with convolutions swapped for adaptive ones that start from the same weights.

    With the default ``init="identity"`` the converted network gives the original's outputs at first. The heads of
    swapped layers learn, those of frozen convolutions too: a frozen network then learns its geometry alone.

    Args:
        model: any module. It is copied, weights and all, and left as it is; with ``inplace=True`` it is converted
            itself, and the swapped layers hold the very Parameters of the convolutions they replace. Networks that
            torch cannot copy, such as those with ``nn.utils.weight_norm`` or pruned layers, need that.
        select: which convolutions: a glob or several over module names ("layer4.*"), a predicate ``(name, conv)``, or a
            preset: "all" odd kernels wider than 1; "last_stage" of the network, which is its last block where blocks
            are numbered, as in a MobileNet; "paper": the 3×3 convolutions of a ResNet's layer2 to layer4, with layer4
            kept at stride 1 and dilated by 2 after its first block, as in the published experiments (this changes the
            outputs). Of the names of a shared layer, one is enough.
        to: the adaptive convolution: ``MetricConv2d``, ``DeformableConv2d``, ``ShiftedConv2d``, ``DilatedConv2d``.
        report: called with one line for each 2-D convolution looked at, for example ``print``.
        **geometry: options of ``to``, such as ``parametrization`` or ``metric_groups``; also ``padding_mode``, which
            changes outputs near the border, instead of the convolution's own.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
    >>> _ = convert(net, report=print)
    0: 3×3, 3 → 8: swapped
    2: 1×1, 8 → 4: stays: a 1×1 kernel has no neighbours
    """
    _checks.instance_of(model, nn.Module, "model")
    if report is not None and not callable(report):
        raise TypeError(f"`report` (={report!r}) must be a function of one line, such as print")
    if not (isinstance(to, type) and issubclass(to, AdaptiveConv) and getattr(to, "dim", None) == 2):
        raise TypeError(f"`to` (={to!r}) must be a class of adaptive convolutions of images, such as MetricConv2d")
    model = model if inplace else _copied(model)
    convs = [conv for conv in model.modules() if isinstance(conv, nn.Conv2d)]
    settings = [(conv.stride, conv.dilation, conv.padding) for conv in convs]
    try:
        if select == "paper":
            dilate_last_layer(model)
        plan = plan_conversion(model, select)
        if report is not None:
            for line in plan:
                report(str(line))
        swapped = {id(c.conv): _swapped(c, to, geometry) for c in plan if not c.reason}
        if not swapped:
            raise ValueError(
                f"`select` (={select!r}) swaps no convolution of {type(model).__name__}: {_why_none(model, plan)}"
            )
    except BaseException:  # a model that is not converted is left as it was
        for conv, setting in zip(convs, settings, strict=True):
            conv.stride, conv.dilation, conv.padding = setting
        raise
    if id(model) in swapped:
        return swapped[id(model)]
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # named_children() would show a shared layer once only
            if id(child) in swapped:
                setattr(parent, name, swapped[id(child)])
    return model


def _why_none(model: nn.Module, plan: list[Conversion]) -> str:
    """Return why no convolution of a model is swapped."""
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    adaptive = sum(isinstance(module, AdaptiveConv) for module in model.modules())
    if plan:
        return f"{len(plan)} of its {len(names)} nn.Conv2d were looked at; `report=print` tells why they stay"
    if names:
        return f"none of its {len(names)} nn.Conv2d is chosen, such as {', '.join(map(repr, names[:3]))}"
    return f"it has no nn.Conv2d, and {adaptive} adaptive convolutions already"


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:
        raise ValueError(f"`model` cannot be copied ({error}): `inplace=True` converts it itself") from error


def _swapped(chosen: Conversion, to: type[AdaptiveConv], geometry: dict[str, Any]) -> AdaptiveConv:
    try:
        return to.from_conv(chosen.conv, **geometry)
    except (TypeError, ValueError) as error:
        raise type(error)(f"layer {chosen.name!r}: {error}") from error


def plan_conversion(model: nn.Module, select: Select = "all") -> list[Conversion]:
    """Return, for each ordinary 2-D convolution that ``select`` names, whether it would be swapped or why it stays."""
    _checks.instance_of(model, nn.Module, "model")
    convs = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Conv2d)]
    chosen = _predicate(select, convs)
    found: dict[int, Conversion] = {}
    for name, conv in model.named_modules(remove_duplicate=False):  # a shared layer under each of its names
        if isinstance(conv, nn.Conv2d) and id(conv) not in found and chosen(name, conv):
            found[id(conv)] = Conversion(name, conv, _reason_to_stay(conv))
    return list(found.values())


def _reason_to_stay(conv: nn.Conv2d) -> str:
    if isinstance(conv, nn.modules.lazy.LazyModuleMixin):
        return f"{LAZY}: run the network once, then convert it"
    if max(conv.kernel_size) == 1:
        return "a 1×1 kernel has no neighbours"
    if any(k % 2 == 0 for k in conv.kernel_size):
        return "an even kernel has no centre"
    hooked = any(value for name, value in vars(conv).items() if name.endswith("_hooks"))
    if hooked or nn.utils.parametrize.is_parametrized(conv):
        return "it is parametrized or hooked, which a swap would lose"
    if type(conv) is not nn.Conv2d:
        return f"{type(conv).__name__} may compute something else than nn.Conv2d"
    return ""


def _predicate(select: Select, convs: list[tuple[str, nn.Conv2d]]) -> Callable[[str, nn.Conv2d], bool]:
    if select == "all":
        return lambda name, conv: True
    if select == "paper":
        return lambda name, conv: bool(re.match(r"layer[234]\.", name)) and conv.kernel_size == (3, 3)
    if select == "last_stage":
        stage = _last_stage([name for name, conv in convs if not _reason_to_stay(conv)])
        return lambda name, conv: name.startswith(stage)
    if callable(select):
        return select
    globs = [select] if isinstance(select, str) else list(select) if isinstance(select, Iterable) else [select]
    if not all(isinstance(pattern, str) for pattern in globs):
        raise TypeError(f"`select` (={select!r}) must be a preset, a glob or several, or a predicate (name, conv)")
    return lambda name, conv: any(fnmatch.fnmatchcase(name, pattern) for pattern in globs)


def _last_stage(names: list[str]) -> str:
    """Return the prefix of the last numbered stage, such as "layer4." or "stages.3.", among convolutions' names."""
    numbered = [match for match in (re.match(r"(\D*)(\d+)\.", name) for name in names) if match]
    stems = [match[1] for match in numbered]
    stem = max(sorted(set(stems)), key=stems.count, default="")
    if 2 * stems.count(stem) <= len(names):  # a stem or a side branch has numbers, the stages have not
        raise ValueError(
            "`select` (='last_stage') needs numbered stages, such as layer1, layer2, that hold most convolutions: name "
            "the layers instead"
        )
    return f"{stem}{max(int(match[2]) for match in numbered if match[1] == stem)}."


def dilate_last_layer(model: nn.Module) -> None:
    """Keep a ResNet's layer4 at its input's size, with dilation 2 after the first block."""
    if not all(hasattr(model, f"layer{n}") for n in (2, 3, 4)):
        raise ValueError(f"`select` (='paper') needs a ResNet with layer2 to layer4, got {type(model).__name__}")
    for index, block in enumerate(model.get_submodule("layer4").children()):
        for conv in block.modules():
            if isinstance(conv, nn.Conv2d):
                conv.stride = (1, 1)
                if index and conv.kernel_size == (3, 3):
                    conv.dilation, conv.padding = (2, 2), (2, 2)
