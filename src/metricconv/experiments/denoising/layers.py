"""The single layers that are compared on a dataset: as published, and with a recipe of our own."""

from typing import Any

import torch
from torch import Tensor, nn

from ... import _checks
from ...metrics import Cholesky
from ...nn import AdaptiveConv, DeformableConv2d, MetricConv2d
from ...nn.predictor import Predictor

OURS = ("standard", "two plain layers", "deformable", "utb", "ugb", "deformable deep", "utb deep", "ugb deep")


def published_layer(method: str, eps_omega: float | None, weights: str, k: int) -> AdaptiveConv:
    """Return one k × k layer as the released code starts it: weights 1/k², zeros past the border, no bias.

    The head of a metric starts with L_yy and L_xx at the mean of the k × k pixels, that of offsets with weights 0; the
    biases of both are drawn from ±1/k.
    """
    options: dict[str, Any] = {"padding": k // 2, "bias": False, "learn_weight": weights == "learnt", "init": "paper"}
    layer: AdaptiveConv
    if method == "utb":
        parametrization = Cholesky(eps_omega=1.0 if eps_omega is None else eps_omega)
        layer = MetricConv2d(1, 1, k, parametrization=parametrization, stencil="polar", **options)
    else:
        layer = DeformableConv2d(1, 1, k, **options)
        if k > 11:
            layer.predictor = ProductPredictor(2 * k**2, k)
    assert layer.predictor is not None
    with torch.no_grad():
        layer.predictor.bias.uniform_(-1 / k, 1 / k)
        if method == "utb":
            layer.predictor.weight[[0, 2]] = 1 / k**2
    return layer


def our_layer(method: str, k: int) -> nn.Module:
    """Return a layer that starts as the k × k mean, reflects at the border and has a bias; ``method`` of ``OURS``.

    The two plain layers start at random. The "deep" heads have one hidden layer. Its width, and that of the two plain
    layers, is such that there are about as many parameters as a deformable layer of the same k has.
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
    options: dict[str, Any] = {"padding": k // 2, "padding_mode": "reflect", "init": "paper"}
    kind, _, depth = method.partition(" ")
    layer: AdaptiveConv
    if kind == "deformable":
        layer = DeformableConv2d(1, 1, k, **options)
    else:
        parametrization = Cholesky(eps_omega=0.1)
        layer = MetricConv2d(
            1, 1, k, parametrization=parametrization, radius=k // 2, ball=_BALLS[kind], stencil="polar", **options
        )
        layer.identity = parametrization.identity()
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    if depth:
        assert layer.predictor is not None
        numbers = layer.predictor.weight.shape[0]
        width = max(round((budget - numbers) / ((numbers + 1) * k**2 + 1)), 2)
        layer.predictor = DeepPredictor(numbers, width, k)
    return layer


_BALLS = {"utb": "tangent", "ugb": "geodesic"}


class ProductPredictor(Predictor):
    """The head of a layer of one channel that predicts many numbers, as one product of two matrices.

    Libraries of convolutions are made for many channels: with one, and large windows, this is several times as fast.
    The windows' matrix has a row of ones for the bias, and rows of zeros up to a multiple of eight for tensor cores.
    """

    def __init__(self, numbers: int, k: int) -> None:
        super().__init__(1, numbers, (k, k), (1, 1), (k // 2, k // 2), (1, 1), "zeros")

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, numbers, H, W)."""
        batch, _, height, width = x.shape
        k, taps = self.weight.shape[-1], self.weight[0].numel()
        padded = nn.functional.pad(x.squeeze(1), [k // 2] * 4)
        windows = x.new_zeros(batch, taps + 8 - taps % 8, height, width)
        windows[:, :taps].unflatten(1, (k, k)).copy_(padded.unfold(1, height, 1).unfold(2, width, 1))
        windows[:, taps] = 1
        weight = torch.cat([self.weight.flatten(1), self.bias.unsqueeze(1)], 1)
        weight = nn.functional.pad(weight, (0, windows.shape[1] - taps - 1))
        return torch.bmm(weight.expand(batch, -1, -1), windows.flatten(2)).unflatten(2, (height, width))


class DeepPredictor(Predictor):
    """A predictor with one hidden layer of k × k filters and rectifiers; its last layer starts at zero."""

    def __init__(self, numbers: int, width: int, k: int) -> None:
        super().__init__(width, numbers, (k, k), (1, 1), (k // 2, k // 2), (1, 1), "reflect")
        self.hidden = nn.Conv2d(1, width, k, padding=k // 2, padding_mode="reflect")

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, numbers, H, W)."""
        return super().forward(torch.relu(self.hidden(x)))
