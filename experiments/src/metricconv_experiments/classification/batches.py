"""Batches of a dataset that is stored on the device as bytes; a batch is a gather.

The order and the augmentation of an epoch are drawn at once, for all processes, from the seed of the run and the number
of the epoch. A run that is resumed or distributed therefore uses the same images.
"""

import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from .datasets import Images

Batch = tuple[Tensor, Tensor]

PADDING = 4
# Ranges of the area and the aspect ratio of a crop, as in torchvision's RandomResizedCrop; the paper gives none.
_AREA = 0.08, 1.0
_ASPECT = 3 / 4, 4 / 3


class LabeledImages(NamedTuple):
    """Images (N, H, W, C), uint8, and labels (N,), int64, on a device."""

    x: Tensor
    y: Tensor


class DeviceDataset:
    """A dataset on a device, split into training, held-out and test images.

    Args:
        images: the dataset.
        device: device to store it on.
        holdout: number of training images to hold out; the choice is fixed.
        train_images: number of the other images to train on; None for all.
    """

    def __init__(self, images: Images, device: torch.device, holdout: int = 0, train_images: int | None = None) -> None:
        available = len(images.train_x)
        count = available - holdout if train_images is None else train_images
        if not 0 < count <= available - holdout:
            raise ValueError(
                f"`train_images` (={train_images}) and `holdout` (={holdout}) must fit into the {available} training "
                f"images of {images.name}"
            )
        order = np.random.default_rng(0).permutation(available) if count < available else np.arange(available)
        selected, held = order[:count], order[available - holdout :]
        self.classes, self.channels = images.classes, images.channels
        self.train = _to_device(images.train_x[selected], images.train_y[selected], device)
        self.held = _to_device(images.train_x[held], images.train_y[held], device) if holdout else None
        self.test = _to_device(images.test_x, images.test_y, device)
        mean, std = images.statistics()
        self.mean = torch.tensor(mean, dtype=torch.float32, device=device)
        self.std = torch.tensor(std, dtype=torch.float32, device=device).clamp_min(1e-6)

    @functools.cached_property
    def padded(self) -> Tensor:
        """The training images with zero padding, as in torchvision's RandomCrop."""
        return torch.nn.functional.pad(self.train.x, (0, 0, *(PADDING,) * 4))

    def normalized(self, x: Tensor) -> Tensor:
        """Return bytes (B, H, W, C) as the input of a network: (B, C, H, W), normalized, channels last in memory."""
        return ((x.float() / 255 - self.mean) / self.std).permute(0, 3, 1, 2)


class TrainBatches:
    """Batches of augmented training images in a new order each epoch; an incomplete last batch is dropped.

    Args:
        dataset: the dataset.
        batch: batch size over all processes.
        augmentation: "none", "pad-crop" or "resized-crop"; the last two also flip.
        seed: random seed.
        rank, world: index of this process and number of processes; each takes a part of every batch.
    """

    def __init__(
        self, dataset: DeviceDataset, batch: int, augmentation: str, seed: int, rank: int = 0, world: int = 1
    ) -> None:
        count = len(dataset.train.y)
        if batch > count or batch % world:
            raise ValueError(
                f"`batch` (={batch}) must be at most the number of training images, {count}, and divisible by the "
                f"number of processes, {world}"
            )
        self.dataset, self.batch, self.augmentation, self.seed = dataset, batch, augmentation, seed
        self.rank, self.world, self.epoch = rank, world, 0

    def __len__(self) -> int:
        return len(self.dataset.train.y) // self.batch

    @property
    def sampler(self) -> "TrainBatches":
        """This object: Lightning calls ``set_epoch`` of a loader's sampler at the start of every epoch."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        train, device = self.dataset.train, self.dataset.train.y.device
        drawn = torch.Generator().manual_seed(int(np.random.SeedSequence((self.seed, self.epoch)).generate_state(1)[0]))
        order = torch.randperm(len(train.y), generator=drawn).to(device)
        chance = torch.rand(len(train.y), 5, generator=drawn).to(device)
        for start in range(0, len(self) * self.batch, self.batch):
            mine = slice(start + self.rank, start + self.batch, self.world)
            yield self._augmented(order[mine], chance[mine]), train.y[order[mine]]

    def _augmented(self, indices: Tensor, chance: Tensor) -> Tensor:
        if self.augmentation == "none":
            return self.dataset.normalized(self.dataset.train.x[indices])
        if self.augmentation == "pad-crop":
            return self.dataset.normalized(
                pad_crop(self.dataset.padded, indices, chance, self.dataset.train.x.shape[1:3])
            )
        return resized_crop(self.dataset.normalized(self.dataset.train.x[indices]), chance)


class TestBatches:
    """Batches of held-out or test images in order; each process takes a part of them."""

    __test__ = False  # the name is not that of a test class

    def __init__(
        self, dataset: DeviceDataset, images: LabeledImages, batch: int = 1000, rank: int = 0, world: int = 1
    ) -> None:
        self.dataset, self.images, self.batch = dataset, images, batch
        self.rank, self.world = rank, world

    def __len__(self) -> int:
        return math.ceil(len(self.images.y[self.rank :: self.world]) / self.batch)

    def __iter__(self) -> Iterator[Batch]:
        x, y = (part[self.rank :: self.world] for part in self.images)
        for start in range(0, len(y), self.batch):
            some = slice(start, start + self.batch)
            yield self.dataset.normalized(x[some]), y[some]


def pad_crop(padded: Tensor, indices: Tensor, chance: Tensor, size: torch.Size) -> Tensor:
    """Crop padded images to their original size at random positions, and flip half of them: (B, H, W, C)."""
    height, width = size
    positions = padded.shape[1] - height + 1
    top, left = (chance[:, :2] * positions).long().clamp_max(positions - 1).unbind(1)
    along = torch.arange(width, device=padded.device)
    columns = torch.where(chance[:, 2:3] < 0.5, along, along.flip(0)) + left.unsqueeze(1)  # [B, W]
    rows = torch.arange(height, device=padded.device) + top.unsqueeze(1)  # [B, H]
    return padded[indices.view(-1, 1, 1), rows.unsqueeze(2), columns.unsqueeze(1)]


def resized_crop(x: Tensor, chance: Tensor) -> Tensor:
    """Crop a patch of random area and aspect ratio from each image, resize it to full size, and flip half of them."""
    area = _AREA[0] + (_AREA[1] - _AREA[0]) * chance[:, 3]
    aspect = (math.log(_ASPECT[0]) + math.log(_ASPECT[1] / _ASPECT[0]) * chance[:, 4]).exp().sqrt()
    width, height = (area.sqrt() * aspect).clamp_max(1), (area.sqrt() / aspect).clamp_max(1)
    center = (2 * chance[:, :2] - 1) * (1 - torch.stack([width, height], 1))
    flip = torch.where(chance[:, 2] < 0.5, 1.0, -1.0)
    zero = torch.zeros_like(width)
    rows = torch.stack([width * flip, zero, center[:, 0], zero, height, center[:, 1]], 1).view(-1, 2, 3)
    grid = torch.nn.functional.affine_grid(rows, list(x.shape), align_corners=False)
    return grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def _to_device(x: np.ndarray, y: np.ndarray, device: torch.device) -> LabeledImages:
    return LabeledImages(torch.from_numpy(np.ascontiguousarray(x)).to(device), torch.from_numpy(y.copy()).to(device))
