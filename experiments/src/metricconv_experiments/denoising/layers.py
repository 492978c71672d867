"""The layers that are trained on a dataset: as published, and with our recipe."""

from typing import Any

import torch
from torch import Tensor, nn

from metricconv import _checks
from metricconv.metrics import Cholesky
from metricconv.nn import AdaptiveConv, DeformableConv2d, MetricConv2d
from metricconv.nn.predictor import Predictor

from .. import networks

OURS = ("standard", "two plain layers", "deformable", "utb", "ugb", "deformable deep", "utb deep", "ugb deep")


def published_layer(method: str, eps_omega: float | None, weights: str, k: int) -> AdaptiveConv:
    """Return one k × k layer, initialized as in the released code: weights 1/k², padding mode zeros, no bias.

    The initial predictor of a metric computes L_yy and L_xx as the mean of k × k pixels; that of offsets has weights 0.
    The biases of both are uniform in ±1/k.
    """
    options: dict[str, Any] = {"padding": k // 2, "bias": False, "learn_weight": weights == "learnt"}
    layer: AdaptiveConv
    if method == "utb":
        parametrization = Cholesky(eps_omega=1.0 if eps_omega is None else eps_omega)
        layer = networks.constant_layer(
            MetricConv2d, 1, 1, k, parametrization=parametrization, stencil="polar", **options
        )
    else:
        layer = networks.constant_layer(DeformableConv2d, 1, 1, k, **options)
        if k > 11:
            layer.predictor = ProductPredictor(2 * k**2, k)
    assert layer.predictor is not None
    with torch.no_grad():
        layer.predictor.bias.uniform_(-1 / k, 1 / k)
        if method == "utb":
            layer.predictor.weight[[0, 2]] = 1 / k**2
    return layer


def our_layer(method: str, k: int) -> nn.Module:
    """Return a layer initialized as the k × k mean, with padding mode reflect and a bias; ``method`` is in ``OURS``.

    The two plain layers have random initial weights. The predictor of "deep" layers has one hidden layer. Its width,
    and that of the two plain layers, gives about as many parameters as a deformable layer of the same k has.
    """
    _checks.one_of(method, OURS, "method")
    if method == "standard":
        conv = nn.Conv2d(1, 1, k, padding=k // 2, padding_mode="reflect")
        nn.init.constant_(conv.weight, 1 / k**2)
        nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
        return conv
    budget = 2 * k**2 * (k**2 + 1) + k**2 + 1
    if method == "two plain layers":
        width = round(budget / (2 * k**2 + 1))
        first, second = (nn.Conv2d(*c, k, padding=k // 2, padding_mode="reflect") for c in ((1, width), (width, 1)))
        return nn.Sequential(first, nn.ReLU(), second)
    options: dict[str, Any] = {"padding": k // 2, "padding_mode": "reflect"}
    kind, _, depth = method.partition(" ")
    layer: AdaptiveConv
    if kind == "deformable":
        layer = networks.constant_layer(DeformableConv2d, 1, 1, k, **options)
    else:
        parametrization = Cholesky(eps_omega=0.1)
        layer = networks.constant_layer(
            MetricConv2d,
            1,
            1,
            k,
            radius=k // 2,
            parametrization=parametrization,
            ball=_BALLS[kind],
            stencil="polar",
            **options,
        )
        layer.add_predictor(parametrization.identity())
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    if depth:
        assert layer.predictor is not None
        channels = layer.predictor.weight.shape[0]
        width = max(round((budget - channels) / ((channels + 1) * k**2 + 1)), 2)
        layer.predictor = DeepPredictor(channels, width, k)
    return layer


_BALLS = {"utb": "tangent", "ugb": "geodesic"}


class ProductPredictor(Predictor):
    """The predictor of a layer with one input channel and many parameters, as a product of two matrices.

    For one input channel and large kernels this is several times as fast as a convolution. The matrix of windows has a
    row of ones for the bias, and rows of zeros up to a multiple of eight for tensor cores.
    """

    def __init__(self, channels: int, k: int) -> None:
        super().__init__(1, channels, (k, k), (1, 1), (k // 2, k // 2), (1, 1), "zeros")

    def forward(self, x: Tensor) -> Tensor:
        """Return raw parameters (B, channels, H, W)."""
        batch, _, height, width = x.shape
        k, samples = self.weight.shape[-1], self.weight[0].numel()
        padded = nn.functional.pad(x.squeeze(1), [k // 2] * 4)
        windows = x.new_zeros(batch, samples + 8 - samples % 8, height, width)
        windows[:, :samples].unflatten(1, (k, k)).copy_(padded.unfold(1, height, 1).unfold(2, width, 1))
        windows[:, samples] = 1
        weight = torch.cat([self.weight.flatten(1), self.bias.unsqueeze(1)], 1)
        weight = nn.functional.pad(weight, (0, windows.shape[1] - samples - 1))
        return torch.bmm(weight.expand(batch, -1, -1), windows.flatten(2)).unflatten(2, (height, width))


class DeepPredictor(Predictor):
    """A predictor with one hidden layer of k × k filters and ReLU; its last layer is initially zero."""

    def __init__(self, channels: int, width: int, k: int) -> None:
        super().__init__(width, channels, (k, k), (1, 1), (k // 2, k // 2), (1, 1), "reflect")
        self.hidden = nn.Conv2d(1, width, k, padding=k // 2, padding_mode="reflect")

    def forward(self, x: Tensor) -> Tensor:
        """Return raw parameters (B, channels, H, W)."""
        return super().forward(torch.relu(self.hidden(x)))
