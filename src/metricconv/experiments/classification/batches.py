"""Batches that never leave the device: the dataset lies there as bytes, and a batch is a gather.

Order and augmentation of an epoch are drawn at once, for the whole batch of all processes, from the run's seed and the
epoch's number: a run that is resumed, or split over processes, sees the same pictures.
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
# Of the area and of the aspect ratio, as in torchvision's RandomResizedCrop; the paper prints none.
_AREA = 0.08, 1.0
_ASPECT = 3 / 4, 4 / 3


class Half(NamedTuple):
    """Images (N, H, W, C), uint8, and labels (N,), int64, on a device."""

    x: Tensor
    y: Tensor


class Pictures:
    """A dataset on a device, split into training, held-out and test images.

    Args:
        images: the dataset.
        device: where to keep it.
        holdout: how many training images to hold out: always the same.
        train_images: how many of the others to train on; None for all.
    """

    def __init__(self, images: Images, device: torch.device, holdout: int = 0, train_images: int | None = None) -> None:
        available = len(images.train_x)
        wanted = available - holdout if train_images is None else train_images
        if not 0 < wanted <= available - holdout:
            raise ValueError(
                f"`train_images` (={train_images}) and `holdout` (={holdout}) must fit into the {available} training "
                f"images of {images.name}"
            )
        order = np.random.default_rng(0).permutation(available) if wanted < available else np.arange(available)
        chosen, held = order[:wanted], order[available - holdout :]
        self.classes, self.channels = images.classes, images.channels
        self.train = _half(images.train_x[chosen], images.train_y[chosen], device)
        self.held = _half(images.train_x[held], images.train_y[held], device) if holdout else None
        self.test = _half(images.test_x, images.test_y, device)
        mean, std = images.statistics()
        self.mean = torch.tensor(mean, dtype=torch.float32, device=device)
        self.std = torch.tensor(std, dtype=torch.float32, device=device).clamp_min(1e-6)

    @functools.cached_property
    def padded(self) -> Tensor:
        """The training images with a black margin, as torchvision's RandomCrop sees them."""
        return torch.nn.functional.pad(self.train.x, (0, 0, *(PADDING,) * 4))

    def normalised(self, x: Tensor) -> Tensor:
        """Turn bytes (B, H, W, C) into what a network sees: (B, C, H, W), with channels last in memory."""
        return ((x.float() / 255 - self.mean) / self.std).permute(0, 3, 1, 2)


class TrainBatches:
    """Goes over the training images in a new order each epoch, augmented; what fills no batch is left out.

    Args:
        pictures: the dataset.
        batch: images a step, over all processes.
        augmentation: "none", "pad-crop" or "resized-crop"; the last two also flip.
        seed: of the run.
        rank, world: of this process, and how many there are; each takes its share of every batch.
    """

    def __init__(
        self, pictures: Pictures, batch: int, augmentation: str, seed: int, rank: int = 0, world: int = 1
    ) -> None:
        count = len(pictures.train.y)
        if batch > count or batch % world:
            raise ValueError(
                f"`batch` (={batch}) must be at most the number of training images, {count}, and divisible by the "
                f"number of processes, {world}"
            )
        self.pictures, self.batch, self.augmentation, self.seed = pictures, batch, augmentation, seed
        self.rank, self.world, self.epoch = rank, world, 0

    def __len__(self) -> int:
        return len(self.pictures.train.y) // self.batch

    @property
    def sampler(self) -> "TrainBatches":
        """Whose ``set_epoch`` Lightning calls at the start of every epoch."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration is."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        train, device = self.pictures.train, self.pictures.train.y.device
        drawn = torch.Generator().manual_seed(int(np.random.SeedSequence((self.seed, self.epoch)).generate_state(1)[0]))
        order = torch.randperm(len(train.y), generator=drawn).to(device)
        chance = torch.rand(len(train.y), 5, generator=drawn).to(device)
        for start in range(0, len(self) * self.batch, self.batch):
            mine = slice(start + self.rank, start + self.batch, self.world)
            yield self._augmented(order[mine], chance[mine]), train.y[order[mine]]

    def _augmented(self, indices: Tensor, chance: Tensor) -> Tensor:
        if self.augmentation == "none":
            return self.pictures.normalised(self.pictures.train.x[indices])
        if self.augmentation == "pad-crop":
            return self.pictures.normalised(
                pad_crop(self.pictures.padded, indices, chance, self.pictures.train.x.shape[1:3])
            )
        return resized_crop(self.pictures.normalised(self.pictures.train.x[indices]), chance)


class TestBatches:
    """Goes over held-out or test images in their order; each of several processes takes its share."""

    __test__ = False  # pytest takes the name for a test's

    def __init__(self, pictures: Pictures, half: Half, batch: int = 1000, rank: int = 0, world: int = 1) -> None:
        self.pictures, self.half, self.batch = pictures, half, batch
        self.rank, self.world = rank, world

    def __len__(self) -> int:
        return math.ceil(len(self.half.y[self.rank :: self.world]) / self.batch)

    def __iter__(self) -> Iterator[Batch]:
        x, y = (part[self.rank :: self.world] for part in self.half)
        for start in range(0, len(y), self.batch):
            some = slice(start, start + self.batch)
            yield self.pictures.normalised(x[some]), y[some]


def pad_crop(padded: Tensor, indices: Tensor, chance: Tensor, size: torch.Size) -> Tensor:
    """Cut a window of the image's own size out of padded images, and flip half of them: (B, H, W, C)."""
    height, width = size
    room = padded.shape[1] - height + 1
    top, left = (chance[:, :2] * room).long().clamp_max(room - 1).unbind(1)
    along = torch.arange(width, device=padded.device)
    columns = torch.where(chance[:, 2:3] < 0.5, along, along.flip(0)) + left.unsqueeze(1)  # [B, W]
    rows = torch.arange(height, device=padded.device) + top.unsqueeze(1)  # [B, H]
    return padded[indices.view(-1, 1, 1), rows.unsqueeze(2), columns.unsqueeze(1)]


def resized_crop(x: Tensor, chance: Tensor) -> Tensor:
    """Cut a patch of random area and proportions out of each image, stretch it to the full size, flip half of them."""
    area = _AREA[0] + (_AREA[1] - _AREA[0]) * chance[:, 3]
    aspect = (math.log(_ASPECT[0]) + math.log(_ASPECT[1] / _ASPECT[0]) * chance[:, 4]).exp().sqrt()
    width, height = (area.sqrt() * aspect).clamp_max(1), (area.sqrt() / aspect).clamp_max(1)
    centre = (2 * chance[:, :2] - 1) * (1 - torch.stack([width, height], 1))
    flip = torch.where(chance[:, 2] < 0.5, 1.0, -1.0)
    zero = torch.zeros_like(width)
    rows = torch.stack([width * flip, zero, centre[:, 0], zero, height, centre[:, 1]], 1).view(-1, 2, 3)
    grid = torch.nn.functional.affine_grid(rows, list(x.shape), align_corners=False)
    return grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def _half(x: np.ndarray, y: np.ndarray, device: torch.device) -> Half:
    return Half(torch.from_numpy(np.ascontiguousarray(x)).to(device), torch.from_numpy(y.copy()).to(device))
