"""A small ResNet whose later 3×3 convolutions are standard, deformable or metric convolutions."""

from torch import Tensor, nn

from metricconv.conversion import convert
from metricconv.nn import AdaptiveConv, DeformableConv2d, MetricConv2d

ADAPTIVE: dict[str, type[AdaptiveConv]] = {"metric": MetricConv2d, "deformable": DeformableConv2d}
LAYERS = ("standard", *ADAPTIVE)


class Block(nn.Module):
    """Two 3×3 convolutions with batch normalization, and a shortcut."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Sequential()
        if stride > 1 or in_channels != out_channels:
            self.shortcut.append(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the input's size divided by the stride."""
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + self.shortcut(x)).relu()


class SmallResNet(nn.Module):
    """Three stages of one block, with ``width``, 2·``width`` and 4·``width`` channels."""

    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.layer1 = Block(width, width, 1)
        self.layer2 = Block(width, 2 * width, 2)
        self.layer3 = Block(2 * width, 4 * width, 2)
        self.fc = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores (B, classes) of images (B, channels, H, W)."""
        return self.fc(self.layer3(self.layer2(self.layer1(self.stem(x)))).mean((2, 3)))


def build(layer: str, channels: int, classes: int, width: int, backend: str) -> nn.Module:
    """Return the network, with the 3×3 convolutions of its last two stages, of stride 1 and 2, converted to ``layer``.

    Weights are drawn from torch's generator, in the same order for every ``layer``.
    """
    network = SmallResNet(channels, classes, width)
    if layer == "standard":
        return network
    return convert(network, ("layer2.conv?", "layer3.conv?"), ADAPTIVE[layer], inplace=True, backend=backend)
