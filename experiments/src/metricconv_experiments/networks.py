"""The initialization and the replaced layers of the published experiments."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from metricconv.metrics import Cholesky, Parametrization, Spectral7
from metricconv.nn import AdaptiveConv, MetricConv

# Predictor weights that the released code sets to almost zero.
_ALMOST_ZERO = 1e-6


def constant_layer(make: Callable[..., AdaptiveConv], *args: Any, radius: float = 1.0, **options: Any) -> AdaptiveConv:
    """Return an adaptive layer with a constant kernel; see ``use_constant_kernel``.

    Args:
        make: the class of the layer.
        *args, **options: its arguments.
        radius: radius of the balls where the predicted M is the identity.
    """
    with torch.random.fork_rng(devices=[]):  # no random number is spent on weights that are replaced
        layer = make(*args, **options)
    use_constant_kernel(layer, radius)
    return layer


@torch.no_grad()
def use_constant_kernel(layer: AdaptiveConv, radius: float = 1.0) -> None:
    """Set the kernel to the constant 1/(C·P), and the initial raw parameters of a metric to 0; predictors stay zero."""
    fan_in = layer.weight[0].numel()
    layer.weight.fill_(1 / fan_in)
    if layer.bias is not None:
        nn.init.uniform_(layer.bias, -(fan_in**-0.5), fan_in**-0.5)
    if isinstance(layer, MetricConv) and layer.parametrization is not None:
        layer.radius = float(radius)
        layer.add_predictor(layer.parametrization.neutral())


@torch.no_grad()
def use_published_init(layer: AdaptiveConv) -> None:
    """Initialize a layer of a network as the released code does.

    Kernels are constant, and raw parameters are the output of the predictor alone. Its weights are almost zero, except
    for

    - Cholesky: the diagonal of L is the mean of the input over channels and samples, plus ε_L;
    - 6 parameters: all rows are drawn as in ``nn.Conv2d``, so the size of a ball depends on the input;
    - 7 parameters: the two rows of the frame are drawn as in ``nn.Conv2d``. Balls start with radius 0.8^(-1/2) = 1.12
      for the default scales, whatever the frame.

    Its biases are zero for metrics, and drawn as in ``nn.Conv2d`` for the baselines. With constant kernels, all output
    channels of the first convolution of a block are equal. Only random rows of the predictor in the next convolution
    treat them differently, so only spectral metrics break this symmetry in training.
    """
    use_constant_kernel(layer)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    predictor = layer.predictor
    if isinstance(layer, MetricConv) and layer.parametrization is not None:
        layer.add_predictor(torch.zeros(layer.parametrization.channels, dtype=torch.float64))
        predictor = layer.predictor
        assert predictor is not None
        _init_metric_rows(predictor.weight.unflatten(0, (layer.metric_groups, -1)), layer.parametrization)
    elif predictor is not None:
        nn.init.constant_(predictor.weight, _ALMOST_ZERO)
        bound = predictor.weight[0].numel() ** -0.5
        nn.init.uniform_(predictor.bias, -bound, bound)


def _init_metric_rows(weight: Tensor, parametrization: Parametrization) -> None:
    """Initialize the weights (G, n, C, k, k) of a predictor of metrics in two dimensions."""
    bound = weight[0, 0].numel() ** -0.5
    if isinstance(parametrization, Cholesky):
        weight.fill_(_ALMOST_ZERO)
        weight[:, [0, 2]] = bound**2
    elif isinstance(parametrization, Spectral7):
        weight.fill_(_ALMOST_ZERO)
        weight[:, : parametrization.frame_channels].uniform_(-bound, bound)
    else:
        weight.uniform_(-bound, bound)


def is_published_choice(name: str, conv: nn.Module) -> bool:
    """Return whether the published experiments replace a convolution of a ResNet: 3×3, in layer2 to layer4."""
    return bool(re.match(r"layer[234]\.", name)) and getattr(conv, "kernel_size", None) == (3, 3)


def dilate_last_layer(model: nn.Module) -> None:
    """Keep a ResNet's layer4 at its input's size, with dilation 2 after the first block."""
    if not all(hasattr(model, f"layer{n}") for n in (2, 3, 4)):
        raise ValueError(f"`model` must be a ResNet with layer2 to layer4, got {type(model).__name__}")
    for index, block in enumerate(model.get_submodule("layer4").children()):
        for conv in block.modules():
            if isinstance(conv, nn.Conv2d):
                conv.stride = (1, 1)
                if index and conv.kernel_size == (3, 3):
                    conv.dilation, conv.padding = (2, 2), (2, 2)
