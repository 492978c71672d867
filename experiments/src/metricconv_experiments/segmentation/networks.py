"""A compact encoder-decoder, and the layers that replace its 3×3 convolutions."""

import itertools
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d

from metricconv.conversion import convert
from metricconv.metrics.parametrizations import affine, constants
from metricconv.nn import AdaptiveConv
from metricconv.nn.predictor import Predictor
from metricconv.supports import Deformable

from .setting import Setting

# Channels of the three stages; those with 5×5 kernels have about as many weights as with 3×3 kernels.
WIDTHS = {3: (16, 32, 32), 5: (10, 20, 20)}

_GEOMETRY: dict[str, dict[str, Any]] = {
    "deformable": {"to": "deformable"},
    "metric-randers": {},
    "metric-riemann": {"eps_omega": 1.0},
    "metric-geodesic": {"ball": "geodesic"},
    "metric-asymmetric": {"parametrization": "asymmetric"},
}


class UNet(nn.Module):
    """An encoder-decoder with skip connections (B, 1, H, W) → (B, H, W); H and W are multiples of 4.

    Each stage has two convolutions. The second and the third stage work at half and a quarter of the resolution.

    Args:
        kernel: side of the kernels, 3 or 5.
    """

    def __init__(self, kernel: int = 3) -> None:
        super().__init__()
        widths = WIDTHS[kernel]
        inputs = (1, *widths[:-1])
        self.encoder = nn.ModuleList(_block(i, o, kernel) for i, o in zip(inputs, widths, strict=True))
        self.decoder = nn.ModuleList(_block(i + o, o, kernel) for i, o in itertools.pairwise(widths[::-1]))
        self.head = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the structure."""
        skipped: list[Tensor] = []
        for stage in self.encoder:
            x = stage(max_pool2d(skipped[-1], 2) if skipped else x)
            skipped.append(x)
        for stage, skip in zip(self.decoder, skipped[-2::-1], strict=True):
            x = stage(torch.cat([interpolate(x, scale_factor=2, mode="bilinear", align_corners=False), skip], 1))
        return self.head(x).squeeze(1)


def _block(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        conv = nn.Conv2d(channels, outputs, kernel, padding=kernel // 2, bias=False)
        layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class ChainConv2d(AdaptiveConv):
    """Convolution along a chain of samples: one of the two sides of ``kernel_size`` is 1, the other is odd.

    The samples are one pixel apart along the axis of the kernel. Across it, each sample is displaced by a predicted
    amount, in (−1, 1) pixels, from its neighbor towards the center, which is not displaced. The predictor is a 3×3
    convolution.
    """

    dim: ClassVar[int] = 2

    def identity_parameters(self) -> Tensor:
        """Return zero displacements."""
        return constants([0.0] * (max(self.kernel_size) - 1))

    def add_predictor(self, identity: Tensor) -> None:
        """Add a predictor with 3×3 kernels."""
        super().add_predictor(identity)
        self.predictor = Predictor(
            self.in_channels, len(identity) * self.metric_groups, (3, 3), (1, 1), (1, 1), (1, 1), self.padding_mode
        )

    def make_support(self, predicted: Tensor) -> Deformable:
        """Return the chain whose displacements are the sums of the steps from the center."""
        step = affine(predicted, gain=self.geometry_gain).tanh()  # [B, G, P - 1, H, W]
        before, after = step.chunk(2, 2)
        center = torch.zeros_like(step[:, :, :1])
        across = torch.cat([before.flip(2).cumsum(2).flip(2), center, after.cumsum(2)], 2)  # [B, G, P, H, W]
        along = torch.zeros_like(across)
        displacement = (across, along) if self.kernel_size[0] == 1 else (along, across)
        return Deformable(torch.stack(displacement, 3), self.kernel_size, stride=self.stride)


class SnakeConv2d(nn.Module):
    """Half of the output channels from horizontal chains, the other half from vertical ones.

    A chain has as many samples as the kernel of the convolution that is replaced, so that it has as many weights.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        samples = conv.weight[0, 0].numel()
        halves = conv.weight.detach().flatten(2).chunk(2)
        self.chains = nn.ModuleList()
        for weight, kernel in zip(halves, ((1, samples), (samples, 1)), strict=True):
            with torch.random.fork_rng(devices=[]):  # these weights are replaced
                chain = ChainConv2d(
                    conv.in_channels, len(weight), kernel, padding=tuple(k // 2 for k in kernel), bias=False
                )
            with torch.no_grad():
                chain.weight.copy_(weight.view_as(chain.weight))
            self.chains.append(chain)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of both kinds of chains."""
        return torch.cat([chain(x) for chain in self.chains], 1)


def is_replaced(name: str, conv: nn.Module) -> bool:
    """Return whether a convolution is replaced: all 3×3 convolutions except the first one."""
    return getattr(conv, "kernel_size", None) == (3, 3) and name != "encoder.0.0"


def build(setting: Setting) -> nn.Module:
    """Return the network of a setting, with random weights from torch's generator.

    Adaptive layers start from the weights of the ordinary convolutions, so that networks with the same seed do.
    """
    network = UNet(5 if setting.method == "standard-5x5" else 3)
    if setting.method == "snake":
        for name, module in list(network.named_modules()):
            if isinstance(module, nn.Conv2d) and is_replaced(name, module):
                network.set_submodule(name, SnakeConv2d(module))
    elif setting.method in _GEOMETRY:
        return convert(network, is_replaced, inplace=True, **_GEOMETRY[setting.method])
    return network
