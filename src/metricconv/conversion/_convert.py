"""Replacement of the convolutions of a network, in both directions."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .. import _checks, _compat
from .._deprecation import renamed_arguments
from ..nn import AdaptiveConv, adaptive_layers
from ..supports import Grid
from . import _registry
from ._plan import CONVOLUTIONS, Conversion, Select, plan_conversion, resolve_layers
from ._reparameterization import update_guards

# Adaptive and ordinary grids agree to this, in pixels; sampling locations are rounded to float32.
_TOLERANCE = 1e-4


@renamed_arguments(parametrisation="parametrization")
def convert(
    model: nn.Module,
    select: Select = "all",
    to: str | type[AdaptiveConv] = "metric",
    *,
    inplace: bool = False,
    report: Callable[[str], Any] | None = None,
    **geometry: Any,
) -> nn.Module:
    """Return the network with adaptive convolutions instead of ordinary ones; they start from the same weights.

    The converted network computes the same outputs until it is trained. Predictors are trainable, also those of frozen
    convolutions: in a frozen network only the geometry is trained.

    Transposed convolutions are unchanged. So are subclasses of ordinary convolutions with a forward pass of their own,
    except those with a rule (see ``register_conversion``): timm's ``Conv2dSame``, ``StdConv2d``, ``ScaledStdConv2d``
    and their variants. Weight standardization becomes a parametrization of the weight, which is then stored as
    ``parametrizations.weight.original``.

    Some blocks have a method that folds their convolutions into one for inference, such as ``reparameterize`` of timm's
    RepVGG, MobileOne and FastViT, or ``fuse`` of ultralytics' networks. It would discard the geometry, so it raises an
    error if there are adaptive convolutions inside; the report names it. To fold such a network, leave these blocks out
    of ``select``.

    Args:
        model: any module. It is copied with its weights, and left unchanged. With ``inplace=True`` it is converted
            itself, and adaptive convolutions hold the same Parameters as the convolutions they replace. This is
            necessary for networks that torch cannot copy, such as those with ``nn.utils.weight_norm`` or pruned layers.
        select: which convolutions: a glob or several of module names ("layer4.*"), a predicate ``(name, conv)``, or a
            preset: "all" odd kernels wider than 1 (default), or the "last_stage" of the network, which is its last
            block where blocks are numbered, as in a MobileNet. A shared layer is selected by any of its names.
        to: "metric" (default), which is ``MetricConv1d``, ``MetricConv2d`` or ``MetricConv3d``; "deformable", "shifted"
            or "dilated", for images; or a class of adaptive convolutions. Convolutions with another number of spatial
            axes than the class are unchanged.
        inplace: convert the model itself (default False).
        report: called with one line for each selected convolution, for example ``print``.
        **geometry: options of the layers, such as ``parametrization`` or ``metric_groups``; also ``padding_mode``,
            which changes outputs near the border, instead of that of the convolution.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
    >>> _ = convert(net, report=print)
    0: 3×3, 3 → 8: converted
    2: 1×1, 8 → 4: unchanged: a 1×1 kernel has no neighbors
    """
    _check_arguments(model, inplace, report)
    model = model if inplace else _copied(model)
    plan = plan_conversion(model, select, to)
    if report is not None:
        for line in plan:
            report(str(line))
    layers = resolve_layers(to)
    replacements: dict[int, nn.Module] = {
        id(c.conv): _replacement(c, layers[len(c.conv.kernel_size)], geometry) for c in plan if not c.reason
    }
    if not replacements:
        name = type(model).__name__
        raise ValueError(f"`select` (={select!r}) converts no convolution of {name}: {_why_none(model, plan)}")
    return _replaced(model, replacements)


def to_conv(model: nn.Module, *, inplace: bool = False, report: Callable[[str], Any] | None = None) -> nn.Module:
    """Return the network with ordinary convolutions where the geometry is the identity, with the same weights.

    A geometry is the identity if the gain or all parameters of the predictor are zero, and the sampling locations are
    then those of the ordinary convolution. Other layers are unchanged, and reported.

    Args:
        model: any module. It is copied with its weights, and left unchanged, unless ``inplace=True``.
        inplace: convert the model itself (default False).
        report: called with one line for each adaptive convolution, for example ``print``.

    >>> net = convert(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)))
    >>> _ = nn.init.normal_(net[1].predictor.weight)
    >>> _ = to_conv(net, report=print)
    0: MetricConv2d: converted
    1: MetricConv2d: unchanged: its predictor is not zero
    """
    _check_arguments(model, inplace, report)
    model = model if inplace else _copied(model)
    replacements: dict[int, nn.Module] = {}
    for name, layer in adaptive_layers(model):
        reason = _reason_to_keep(layer)
        if not reason:
            replacements[id(layer)] = _ordinary(layer)
        if report is not None:
            report(f"{name}: {_class_name(layer)}: " + (f"unchanged: {reason}" if reason else "converted"))
    return _replaced(model, replacements)


def _check_arguments(model: nn.Module, inplace: bool, report: Callable[[str], Any] | None) -> None:
    _checks.instance_of(model, nn.Module, "model")
    _checks.boolean(inplace, "inplace")
    if report is not None and not callable(report):
        raise TypeError(f"`report` (={report!r}) must be a function of one line, such as print")


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:
        raise ValueError(f"`model` cannot be copied ({error}): `inplace=True` converts it without a copy") from error


def _replaced(model: nn.Module, replacements: dict[int, nn.Module]) -> nn.Module:
    """Put new modules where the old ones, given by id, are registered."""
    if id(model) in replacements:
        return replacements[id(model)]
    for parent in list(model.modules()):
        for name, child in _compat.submodules(parent).items():  # named_children() would skip repeated modules
            if id(child) in replacements:
                setattr(parent, name, replacements[id(child)])
    update_guards(model)
    return model


def _why_none(model: nn.Module, plan: list[Conversion]) -> str:
    """Return why no convolution of a model is converted."""
    names = [name for name, module in model.named_modules() if isinstance(module, CONVOLUTIONS)]
    adaptive = sum(isinstance(module, AdaptiveConv) for module in model.modules())
    if plan:
        return f"{len(plan)} of its {len(names)} convolutions are selected; `report=print` prints why each is unchanged"
    if names:
        return f"none of its {len(names)} convolutions is selected; their names are {', '.join(map(repr, names[:3]))} …"
    return f"it has no ordinary convolution, and {adaptive} adaptive ones"


def _replacement(planned: Conversion, layer_class: type[AdaptiveConv], geometry: dict[str, Any]) -> AdaptiveConv:
    try:
        return _registry.replace(planned.conv, layer_class, geometry)
    except (TypeError, ValueError) as error:
        raise type(error)(f"layer {planned.name!r}: {error}") from error


@torch.no_grad()
def _reason_to_keep(layer: AdaptiveConv) -> str:
    """Return why an adaptive convolution cannot be replaced by an ordinary one, or ""."""
    if layer.predictor is None or layer.identity is None:
        return "its metric is given or computed from the input"
    if layer.weight.is_meta:
        return "it is on the meta device"
    if nn.utils.parametrize.is_parametrized(layer) and not _parametrizations(layer):
        return "its parametrization cannot be moved to another layer"
    if any(value for key, value in vars(layer).items() if key.endswith("_hooks")):
        return "it has hooks, which would be lost"
    if layer.pads_at_run_time:
        return "an ordinary convolution has no padding='same' with this stride and kernel"
    if layer.geometry_gain != 0 and any(parameter.any() for parameter in layer.predictor.parameters()):
        return "its predictor is not zero"
    raw = layer.identity.new_zeros(1, layer.metric_groups, len(layer.identity), *(1,) * layer.dim)
    offsets = layer.make_support(raw).offsets()
    grid = Grid(layer.kernel_size, layer.dilation).offsets().to(offsets)
    if (offsets - grid).abs().max() > _TOLERANCE:
        return "its initial sampling locations are not those of an ordinary convolution"
    return ""


def _ordinary(layer: AdaptiveConv) -> nn.Module:
    """Return an ordinary convolution with the Parameters of an adaptive one."""
    conv_class: type[Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[layer.dim]
    conv = conv_class(
        layer.in_channels,
        layer.out_channels,
        layer.kernel_size,
        layer.stride,
        layer.padding,
        layer.dilation,
        layer.groups,
        layer.bias is not None,
        "replicate" if layer.padding_mode == "border" else layer.padding_mode,
        device="meta",
    )
    functions = _parametrizations(layer)
    weight: Any = layer.parametrizations.weight.original if functions else layer.weight  # type: ignore[union-attr]
    conv.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, requires_grad=False)
    conv.bias = layer.bias
    for function in functions:
        nn.utils.parametrize.register_parametrization(conv, "weight", function)
    return conv.train(layer.training)


def _parametrizations(layer: AdaptiveConv) -> list[nn.Module]:
    """Return the parametrizations of the weight, if nothing else is parametrized and none of them is invertible."""
    if not nn.utils.parametrize.is_parametrized(layer):
        return []
    functions = dict(layer.parametrizations)  # type: ignore[arg-type]
    movable = set(functions) == {"weight"} and not any(hasattr(f, "right_inverse") for f in functions["weight"])
    return list(functions["weight"]) if movable else []


def _class_name(layer: AdaptiveConv) -> str:
    """Return the name of the class, also of a parametrized layer, whose class torch replaces."""
    return type(layer).__name__.removeprefix("Parametrized")
