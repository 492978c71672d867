"""Rules of conversion for ``nn.Conv1d``, ``nn.Conv2d``, ``nn.Conv3d`` and known subclasses of them."""

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .. import _checks
from ..nn import AdaptiveConv

# rule(conv, layer_class, options) returns the adaptive convolution that replaces ``conv``.
Rule: TypeAlias = Callable[[Any, type[AdaptiveConv], dict[str, Any]], AdaptiveConv]

_BASES = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# By the full name of the class, so that its package need not be imported.
_RULES: dict[str, Rule] = {}


def register_conversion(kind: type[nn.Module] | str, rule: Rule) -> None:
    """Register how ``convert`` replaces a subclass of an ordinary convolution; its own subclasses are not included.

    Subclasses that inherit their forward pass from ``nn.Conv1d``, ``nn.Conv2d`` or ``nn.Conv3d`` need no rule.

    Args:
        kind: the class, or its full name "package.module.Class" if it should not be imported.
        rule: ``rule(conv, layer_class, options)`` returns an instance of ``layer_class`` that computes the same as
            ``conv``; ``options`` are those given to ``convert``.

    >>> class Doubled(nn.Conv2d):
    ...     def forward(self, x):
    ...         return 2 * super().forward(x)
    >>> def convert_doubled(conv, layer_class, options):
    ...     layer = layer_class.from_conv(conv, **options)
    ...     layer.register_forward_hook(lambda layer, inputs, output: 2 * output)
    ...     return layer
    >>> register_conversion(Doubled, convert_doubled)
    """
    if not (isinstance(kind, str) or (isinstance(kind, type) and issubclass(kind, _BASES) and kind not in _BASES)):
        raise TypeError(f"`kind` (={kind!r}) must be a subclass of nn.Conv1d, nn.Conv2d or nn.Conv3d, or its full name")
    if not callable(rule):
        raise TypeError(f"`rule` (={rule!r}) must be a function (conv, layer_class, options)")
    _RULES[kind if isinstance(kind, str) else _full_name(kind)] = rule


def rule_for(conv: nn.Module) -> Rule | None:
    """Return the rule of a convolution, or None if it may compute something else than an ordinary one."""
    kind = type(conv)
    if kind in _BASES:
        return _convert_plain
    if _full_name(kind) in _RULES:
        return _RULES[_full_name(kind)]
    base = next((base for base in _BASES if isinstance(conv, base)), None)
    return None if base is None or _computes_otherwise(conv, base) else _convert_plain


def _computes_otherwise(conv: nn.Module, base: type[nn.Module]) -> bool:
    """Return whether a subclass adds tensors or methods, except those that do not concern the forward pass."""
    names = [name for name, _ in (*conv.named_parameters(), *conv.named_buffers())]
    added = [cls for cls in type(conv).__mro__ if cls is not base and issubclass(cls, base)]
    members = [member for cls in added for member in vars(cls).items()]
    methods = {name for name, value in members if inspect.isfunction(value) or isinstance(value, property)}
    return bool(set(names) - {"weight", "bias"} or methods - {"__init__", "extra_repr", "reset_parameters"})


def replace(conv: nn.Module, layer_class: type[AdaptiveConv], options: dict[str, Any]) -> AdaptiveConv:
    """Return the adaptive convolution that replaces ``conv``."""
    rule = rule_for(conv)
    assert rule is not None  # as planned
    layer = rule(conv, layer_class, options)
    _checks.instance_of(layer, AdaptiveConv, f"result of the rule of {type(conv).__name__}")
    return layer


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _convert_plain(conv: Any, layer_class: type[AdaptiveConv], options: dict[str, Any]) -> AdaptiveConv:
    return layer_class.from_conv(conv, **options)


def _convert_same(conv: Any, layer_class: type[AdaptiveConv], options: dict[str, Any]) -> AdaptiveConv:
    """Convert a convolution that pads its input to an output size of ⌈input size / stride⌉, as TensorFlow does."""
    return layer_class.from_conv(conv, **{**options, "padding": "same"})


def _convert_standardized(conv: Any, layer_class: type[AdaptiveConv], options: dict[str, Any]) -> AdaptiveConv:
    """Convert a convolution with weight standardization, which becomes a parametrization of the weight."""
    same = getattr(conv, "same_pad", False)
    layer = (_convert_same if same else _convert_plain)(conv, layer_class, options)
    standardization = WeightStandardization(conv.eps, getattr(conv, "gain", None), getattr(conv, "scale", 1.0))
    nn.utils.parametrize.register_parametrization(layer, "weight", standardization.train(conv.training))
    return layer


class WeightStandardization(nn.Module):
    """Normalize each output channel of a weight to mean 0 and variance 1, then multiply it by ``gain · scale``.

    Args:
        eps: added to the variance.
        gain: a parameter with one value per output channel, or None.
        scale: a constant factor.
    """

    def __init__(self, eps: float, gain: nn.Parameter | None = None, scale: float = 1.0) -> None:
        super().__init__()
        self.eps, self.scale = eps, scale
        self.gain = gain

    def forward(self, weight: Tensor) -> Tensor:
        """Return the standardized weight, of the same shape."""
        # The same operator as in timm, so that results are equal to the last digit.
        gain = None if self.gain is None else (self.gain * self.scale).flatten()
        flat = weight.reshape(1, len(weight), -1)
        normalized = torch.nn.functional.batch_norm(flat, None, None, gain, training=True, momentum=0.0, eps=self.eps)
        return normalized.reshape_as(weight)

    def extra_repr(self) -> str:
        """Describe the parametrization in a printed model."""
        return f"eps={self.eps}, gain={self.gain is not None}, scale={self.scale:.3g}"


_RULES |= {
    "timm.layers.conv2d_same.Conv2dSame": _convert_same,
    "timm.layers.std_conv.StdConv2d": _convert_standardized,
    "timm.layers.std_conv.StdConv2dSame": _convert_standardized,
    "timm.layers.std_conv.ScaledStdConv2d": _convert_standardized,
    "timm.layers.std_conv.ScaledStdConv2dSame": _convert_standardized,
}
