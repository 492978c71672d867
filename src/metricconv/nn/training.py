"""Training of networks with adaptive convolutions: parameter groups, regularization, warm-up, recording."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .. import _checks
from ..supports import Support
from .base import ACTIVE_RECORDINGS, RECORDERS, AdaptiveConv

__all__ = [
    "adaptive_layers",
    "geometry_l1",
    "param_groups",
    "record_supports",
    "reset_geometry",
    "set_geometry_gain",
    "watch_supports",
]
_MAX_GAIN = 1e4  # float16 holds it


def adaptive_layers(model: nn.Module) -> Iterator[tuple[str, AdaptiveConv]]:
    """Yield the name and the module of every adaptive convolution of a model."""
    _checks.instance_of(model, nn.Module, "model")
    yield from ((name, m) for name, m in model.named_modules() if isinstance(m, AdaptiveConv))


def param_groups(
    model: nn.Module,
    lr: float | Tensor,
    metric_lr_mult: float = 0.1,
    weight_decay: float | None = None,
    metric_weight_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Return two parameter groups for an optimizer: all parameters except those of predictors, and the predictors.

    Args:
        model: any module.
        lr: learning rate of the first group.
        metric_lr_mult: learning rate of the predictors, relative to ``lr``. 0.1 (default) suits tangent balls; 0.01
            suits geodesic balls, deformable and shifted layers.
        weight_decay: weight decay of the first group. Default: that of the optimizer.
        metric_weight_decay: weight decay of the predictors. Default: that of the optimizer.

    >>> from metricconv.nn import MetricConv2d
    >>> groups = param_groups(MetricConv2d(3, 8, 3), lr=0.1)
    >>> [(g["name"], g["lr"], len(g["params"])) for g in groups]
    [('weights', 0.1, 2), ('geometry', 0.010000000000000002, 2)]
    """
    _checks.not_negative(lr.item() if isinstance(lr, Tensor) and lr.numel() == 1 else lr, "lr")
    _checks.not_negative(metric_lr_mult, "metric_lr_mult")
    predictors = [layer.predictor for _, layer in adaptive_layers(model) if layer.predictor is not None]
    predictor_parameters = {id(p): p for predictor in predictors for p in predictor.parameters()}
    rest = [p for p in model.parameters() if id(p) not in predictor_parameters]
    groups: list[dict[str, Any]] = [
        {"name": "weights", "params": rest, "lr": lr},
        {"name": "geometry", "params": list(predictor_parameters.values()), "lr": lr * metric_lr_mult},
    ]
    decays = {"weight_decay": weight_decay, "metric_weight_decay": metric_weight_decay}
    for group, (name, decay) in zip(groups, decays.items(), strict=True):
        if decay is not None:  # without the key the optimizer's own weight decay applies
            _checks.not_negative(decay, name)
            group["weight_decay"] = decay
    return groups


def geometry_l1(model: nn.Module) -> Tensor:
    """Return the mean of mean|p| over the weights and biases p of all predictors; zero if all layers are identities.

    Add λ times this to a loss to keep the geometry close to that of an ordinary convolution.
    """
    predictors = [layer.predictor for _, layer in adaptive_layers(model) if layer.predictor is not None]
    means = [p.abs().mean() for predictor in predictors for p in predictor.parameters()]
    if not means:
        raise ValueError("`model` has no adaptive convolution with a predictor to regularize")
    return torch.stack(means).mean()


def set_geometry_gain(model: nn.Module, gain: float) -> None:
    """Multiply the output of every predictor by ``gain``: 0 fixes the geometry at its identity, 1 is the default.

    Call it with an increasing gain to warm up, between a backward pass and the next forward pass. A model without
    adaptive convolutions is unchanged.
    """
    if _checks.not_negative(gain, "gain") > _MAX_GAIN:
        raise ValueError(f"`gain` (={gain!r}) must be at most {_MAX_GAIN:.0e}")
    for _, layer in adaptive_layers(model):
        layer.geometry_gain.fill_(gain)


def reset_geometry(model: nn.Module) -> None:
    """Set every predictor of a model to zero and its gain to 1, so that layers sample the ordinary grid again.

    Weights are unchanged. Call it after code that initializes all parameters of a model, including the predictors'.
    """
    for _, layer in adaptive_layers(model):
        layer.reset_geometry()


@contextlib.contextmanager
def record_supports(model: nn.Module) -> Iterator[dict[str, Support]]:
    """Record the most recent support of each adaptive convolution, by layer name, while the context is active.

    >>> from metricconv.nn import MetricConv2d
    >>> layer = MetricConv2d(3, 8, 3)
    >>> with record_supports(layer) as supports:
    ...     _ = layer(torch.randn(1, 3, 8, 8))
    >>> supports[""].metric.spatial
    torch.Size([6, 6])
    """
    supports: dict[str, Support] = {}
    with watch_supports(model, supports.__setitem__):
        yield supports


@contextlib.contextmanager
def watch_supports(model: nn.Module, callback: Callable[[str, Support], None]) -> Iterator[None]:
    """Call ``callback(name, support)`` at every forward pass of an adaptive convolution of a model.

    Forward passes in other threads are not reported.
    """
    names = {id(layer): name for name, layer in adaptive_layers(model)}

    def record(layer: AdaptiveConv, support: Support) -> None:
        if id(layer) in names:
            callback(names[id(layer)], support)

    token = RECORDERS.set((*RECORDERS.get(), record))
    ACTIVE_RECORDINGS.append(record)
    try:
        yield
    finally:
        ACTIVE_RECORDINGS.remove(record)
        RECORDERS.reset(token)
