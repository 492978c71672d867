"""What training a network of adaptive convolutions needs beside the layers."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .. import _checks
from ..supports import Support
from .base import AdaptiveConv


def adaptive_layers(model: nn.Module) -> Iterator[tuple[str, AdaptiveConv]]:
    """Yield the adaptive convolutions of a model, by name."""
    _checks.instance_of(model, nn.Module, "model")
    yield from ((name, m) for name, m in model.named_modules() if isinstance(m, AdaptiveConv))


def param_groups(
    model: nn.Module,
    lr: float | Tensor,
    metric_lr_mult: float = 0.1,
    weight_decay: float = 0.0,
    metric_weight_decay: float = 0.0,
) -> list[dict[str, Any]]:
    """Split a model's parameters for an optimiser: the heads learn at ``lr · metric_lr_mult``, the rest at ``lr``.

    They have weight decays of their own too, ``metric_weight_decay`` and ``weight_decay``. A multiplier of 0.1 suits
    tangent balls; geodesic balls, and deformable and shifted layers, want 0.01.

    >>> from metricconv.nn import MetricConv2d
    >>> groups = param_groups(MetricConv2d(3, 8, 3), lr=0.1)
    >>> [(g["name"], g["lr"], len(g["params"])) for g in groups]
    [('weights', 0.1, 2), ('geometry', 0.010000000000000002, 2)]
    """
    _checks.not_negative(lr.item() if isinstance(lr, Tensor) and lr.numel() == 1 else lr, "lr")
    _checks.not_negative(metric_lr_mult, "metric_lr_mult")
    _checks.not_negative(weight_decay, "weight_decay")
    _checks.not_negative(metric_weight_decay, "metric_weight_decay")
    predictors = [layer.predictor for _, layer in adaptive_layers(model) if layer.predictor is not None]
    heads = {id(p): p for predictor in predictors for p in predictor.parameters()}
    rest = [p for p in model.parameters() if id(p) not in heads]
    return [
        {"name": "weights", "params": rest, "lr": lr, "weight_decay": weight_decay},
        {
            "name": "geometry",
            "params": list(heads.values()),
            "lr": lr * metric_lr_mult,
            "weight_decay": metric_weight_decay,
        },
    ]


def geometry_l1(model: nn.Module) -> Tensor:
    """Return the mean, over the weight and bias of every head, of mean|·|: zero where the layers are at their identity.

    Add λ times this to a loss to keep the geometry near an ordinary convolution's.
    """
    predictors = [layer.predictor for _, layer in adaptive_layers(model) if layer.predictor is not None]
    means = [p.abs().mean() for predictor in predictors for p in predictor.parameters()]
    if not means:
        raise ValueError("`model` has no adaptive convolution with a predictor to regularise")
    return torch.stack(means).mean()


def set_geometry_gain(model: nn.Module, gain: float) -> None:
    """Multiply what every head predicts by ``gain``: 0 freezes the geometry at its identity, 1 is the usual.

    Call it with a growing gain to warm up, between a backward pass and the next forward pass. A model without adaptive
    convolutions is left as it is.
    """
    _checks.not_negative(gain, "gain")
    for _, layer in adaptive_layers(model):
        layer.geometry_gain.fill_(gain)


def reset_geometry(model: nn.Module) -> None:
    """Set every head of a model to zero, and its gain to 1: layers look where ordinary convolutions do, as at first.

    Weights stay. Call it after code that initialises all parameters of a model, those of heads included.
    """
    for _, layer in adaptive_layers(model):
        layer.reset_geometry()


@contextlib.contextmanager
def record_supports(model: nn.Module) -> Iterator[dict[str, Support]]:
    """Keep, by layer name, where each adaptive convolution looked last; no hooks are left behind.

    >>> from metricconv.nn import MetricConv2d
    >>> layer = MetricConv2d(3, 8, 3)
    >>> with record_supports(layer) as seen:
    ...     _ = layer(torch.randn(1, 3, 8, 8))
    >>> seen[""].metric.spatial
    torch.Size([6, 6])
    """
    seen: dict[str, Support] = {}
    with watch_supports(model, seen.__setitem__):
        yield seen


@contextlib.contextmanager
def watch_supports(model: nn.Module, see: Callable[[str, Support], None]) -> Iterator[None]:
    """Call ``see`` with a layer's name and where it looks, each time that an adaptive convolution looks."""
    layers = dict(adaptive_layers(model))
    before = {name: layer._recorder for name, layer in layers.items()}

    def record(name: str, support: Support) -> None:
        see(name, support)
        around = before[name]
        if around is not None:
            around(support)

    for name, layer in layers.items():
        layer._recorder = functools.partial(record, name)
    try:
        yield
    finally:
        for name, layer in layers.items():
            layer._recorder = before[name]
