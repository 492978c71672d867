"""Networks whose training steps are timed on a CPU: ResNet-18 with adaptive layers 2 to 4, and a small U-Net."""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

import metricconv as mc

# Name of a network, number of images, and their height and width.
CASES = [("ResNet-18", 16, 28), ("ResNet-18", 64, 28), ("ResNet-18", 16, 64), ("ResNet-18", 4, 128), ("U-Net", 4, 96)]
LAYERS: dict[str, Callable[[nn.Module, list[str]], nn.Module]] = {
    "standard": lambda net, select: net,
    "metric": lambda net, select: mc.convert(net, select),
    "metric (reference)": lambda net, select: mc.convert(net, select, backend="reference"),
    "geodesic": lambda net, select: mc.convert(net, select, ball="geodesic"),
    "deformable": lambda net, select: mc.convert(net, select, to=mc.nn.DeformableConv2d),
}


class ResNet18(nn.Sequential):
    """The ResNet-18 of torchvision, whose compiled operators some CPU builds of torch cannot load."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        inputs = 64
        for stage, outputs in enumerate((64, 128, 256, 512), 1):
            blocks = _Residual(inputs, outputs, 1 if stage == 1 else 2), _Residual(outputs, outputs, 1)
            self.add_module(f"layer{stage}", nn.Sequential(*blocks))
            inputs = outputs
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2, self.relu = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out: Tensor = self.relu(y + self.shortcut(x))
        return out


class UNet(nn.Module):
    """A U-Net of three resolutions with 32, 64 and 128 channels and two 3×3 convolutions at each."""

    def __init__(self, channels: int = 3, widths: tuple[int, ...] = (32, 64, 128)) -> None:
        super().__init__()
        inputs = (channels, *widths[:-1])
        self.down = nn.ModuleList(_block(a, b) for a, b in zip(inputs, widths, strict=True))
        self.up = nn.ModuleList(_block(a + b, a) for a, b in itertools.pairwise(widths))
        self.head = nn.Conv2d(widths[0], channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to the same shape; H and W are multiples of 4."""
        skipped = []
        for block in self.down[:-1]:
            x = block(x)
            skipped.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.down[-1](x)
        for block, other in zip(reversed(self.up), reversed(skipped), strict=True):
            x = block(torch.cat([other, nn.functional.interpolate(x, scale_factor=2)], 1))
        out: Tensor = self.head(x)
        return out


def _block(inputs: int, outputs: int) -> nn.Sequential:
    convolutions = [nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)]
    return nn.Sequential(convolutions[0], nn.ReLU(), convolutions[1], nn.ReLU())


def training_step(name: str, layer: str, batch: int, size: int, perturbation: float = 0.0) -> Callable[[], object]:
    """Return a function that runs one training step: forward, backward, SGD.

    Args:
        name: the network, "ResNet-18" or "U-Net".
        layer: the kind of layers, a key of ``LAYERS``.
        batch, size: number of images, their height and width.
        perturbation: standard deviation of the predictors' weights; 0 leaves all sampling locations on pixels.
    """
    torch.manual_seed(0)
    x = torch.randn(batch, 3, size, size)
    if name == "ResNet-18":
        model: nn.Module = ResNet18()
        select = ["layer2.*", "layer3.*", "layer4.*"]
    else:
        model, select = UNet(), ["down.*", "up.*"]
    model = LAYERS[layer](model, select).train()
    for module in model.modules():
        if isinstance(module, mc.nn.AdaptiveConv) and module.predictor is not None:
            nn.init.normal_(module.predictor.weight, std=perturbation)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> object:
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step
