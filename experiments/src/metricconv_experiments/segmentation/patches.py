"""Images on the device, and random patches of them."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from . import datasets
from .setting import Setting

# Side of the window, in pixels, in which the contrast is normalized.
_WINDOW = 51
# Random changes of a patch: the largest scale, the share of gray values added or removed, and the offset.
_SCALE, _GAIN, _OFFSET = 1.25, 0.3, 0.3
_DRAWS = 8


class DeviceImages:
    """Normalized images (N, H, W) and their masks on a device; see ``datasets.Images``."""

    def __init__(self, images: datasets.Images, device: torch.device) -> None:
        self.mask, self.field, self.thin = (
            torch.from_numpy(array).to(device) for array in (images.mask, images.field, images.thin)
        )
        self.x = normalized(torch.from_numpy(images.gray).to(device).float() / 255, self.field)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, selected: Tensor) -> "DeviceImages":
        part = object.__new__(DeviceImages)
        part.x, part.mask, part.field, part.thin = (t[selected] for t in (self.x, self.mask, self.field, self.thin))
        return part


class DeviceDataset:
    """The training and the test images of a dataset on a device."""

    def __init__(self, name: str, root: Path | None, device: torch.device) -> None:
        self.train, self.test = (DeviceImages(half, device) for half in datasets.load(name, root))

    def split(self, setting: Setting) -> tuple[DeviceImages, DeviceImages]:
        """Return the training images of a setting and the images on which it is evaluated.

        The seed orders the training images. The first ones are for training, so that fewer are a part of more; the
        last ones are held out.
        """
        order = torch.from_numpy(np.random.default_rng((31, setting.seed)).permutation(len(self.train)))
        order = order.to(self.train.x.device)
        train = self.train[order[: setting.images]]
        return train, self.train[order[-setting.holdout :]] if setting.holdout else self.test


def normalized(gray: Tensor, field: Tensor) -> Tensor:
    """Return images (N, H, W) with mean 0 and variance 1 in a window around each pixel of the field, 0 outside."""
    weight = field.to(gray)
    count = _window_mean(weight).clamp_min(1e-6)
    center = _window_mean(gray * weight) / count
    variance = _window_mean(((gray - center) * weight).square()) / count
    return (gray - center) / (variance.sqrt() + 1e-2) * weight


def _window_mean(x: Tensor) -> Tensor:
    columns = avg_pool2d(x.unsqueeze(1), (_WINDOW, 1), 1, (_WINDOW // 2, 0))
    return avg_pool2d(columns, (1, _WINDOW), 1, (0, _WINDOW // 2)).squeeze(1)


def patches(images: DeviceImages, setting: Setting) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield batches of random patches: x (B, 1, S, S), and the target and the weight of each pixel, (B, S, S).

    A patch is turned by any angle, flipped, and scaled by up to 1.25 in both directions; its gray values are multiplied
    and shifted. All random numbers of a run are drawn on the CPU from its seed, so that all methods train on the same
    patches on all devices.
    """
    device = images.x.device
    drawn = torch.Generator().manual_seed(int(np.random.SeedSequence((32, setting.seed)).generate_state(1)[0]))
    chance = torch.rand(setting.steps, setting.batch, _DRAWS, generator=drawn).to(device)
    planes = torch.stack([images.x, images.mask.float(), images.field.float()], -1)  # [N, H, W, 3]
    along = torch.arange(setting.patch, device=device) - (setting.patch - 1) / 2
    grid = torch.stack(torch.meshgrid(along, along, indexing="ij"), -1)  # [S, S, 2]
    last = torch.tensor(images.x.shape[1:], device=device) - 1.0
    for u in chance:
        yield _patch(planes, grid, last, u)


def _patch(planes: Tensor, grid: Tensor, last: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    count = len(planes)
    image = (u[:, 0] * count).long().clamp_max(count - 1)
    angle, scale = 2 * math.pi * u[:, 1], _SCALE ** (2 * u[:, 2] - 1)
    flip = torch.where(u[:, 3] < 0.5, -1.0, 1.0)
    turn = torch.stack([angle.cos(), -angle.sin() * flip, angle.sin(), angle.cos() * flip], -1).view(-1, 2, 2)
    position = torch.einsum("bij,yxj->byxi", turn * scale.view(-1, 1, 1), grid) + (u[:, 4:6] * last).view(-1, 1, 1, 2)
    value = _interpolated(planes, image, position)
    gain, offset = 1 + _GAIN * (2 * u[:, 6] - 1), _OFFSET * (2 * u[:, 7] - 1)
    x = value[..., 0] * gain.view(-1, 1, 1) + offset.view(-1, 1, 1)
    inside = ((position >= 0) & (position <= last)).all(-1)
    return x.unsqueeze(1), (value[..., 1] >= 0.5).float(), ((value[..., 2] >= 0.5) & inside).float()


def _interpolated(planes: Tensor, image: Tensor, position: Tensor) -> Tensor:
    """Return the bilinear values (B, S, S, C) of images (N, H, W, C) at positions (B, S, S, 2), (y, x)."""
    _, height, width, channels = planes.shape
    flat = planes.reshape(-1, channels)
    start = position.floor()
    upper = position - start
    y, x = start.long().unbind(-1)
    value = torch.zeros((), device=planes.device)
    for dy in (0, 1):
        for dx in (0, 1):
            weight = (upper[..., 0] if dy else 1 - upper[..., 0]) * (upper[..., 1] if dx else 1 - upper[..., 1])
            row, column = (y + dy).clamp(0, height - 1), (x + dx).clamp(0, width - 1)
            value = value + weight.unsqueeze(-1) * flat[(image.view(-1, 1, 1) * height + row) * width + column]
    return value
