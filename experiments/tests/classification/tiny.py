"""A ResNet so small, and a dataset so easy, that training takes a moment."""

import numpy as np
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int, norm):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = norm(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = norm(outside)
        self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), norm(outside))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + self.downsample(x)).relu()


class TinyResNet(nn.Module):
    """Named as torchvision's, with a stem for large images that the experiment replaces."""

    def __init__(self, classes: int, norm=nn.BatchNorm2d):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn1 = norm(8)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(Block(8, 8, 1, norm))
        self.layer2 = nn.Sequential(Block(8, 8, 2, norm))
        self.layer3 = nn.Sequential(Block(8, 16, 2, norm))
        self.layer4 = nn.Sequential(Block(16, 16, 2, norm), Block(16, 16, 1, norm))
        self.fc = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def images(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Noise with a bright bar, whose position is the class: (count, 8, 8, 3) and labels 0 to 3."""
    y = generator.integers(0, 4, count)
    x = generator.integers(0, 80, (count, 8, 8, 3), dtype=np.uint8)
    for image, label in zip(x, y, strict=True):
        image[2 * label : 2 * label + 2] += 120
    return x, y


def write_dataset(folder, name: str = "cifar10", train: int = 96, test: int = 40) -> None:
    generator = np.random.default_rng(0)
    train_x, train_y = images(train, generator)
    test_x, test_y = images(test, generator)
    np.savez(folder / f"{name}.npz", train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y)
