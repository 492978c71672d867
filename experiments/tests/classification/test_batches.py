"""Batches on the device: order, reproducibility, distribution over processes, augmentation."""

import numpy as np
import pytest
import torch

from classification import tiny
from metricconv_experiments.classification.batches import (
    PADDING,
    DeviceDataset,
    TestBatches,
    TrainBatches,
    pad_crop,
    resized_crop,
)
from metricconv_experiments.classification.datasets import Images

CPU = torch.device("cpu")


@pytest.fixture
def images():
    generator = np.random.default_rng(0)
    return Images("cifar10", *tiny.images(50, generator), *tiny.images(30, generator), classes=10)


def test_epoch_contains_every_image_once_normalized(images):
    dataset = DeviceDataset(images, CPU)
    batches = list(TrainBatches(dataset, 10, "none", seed=0))
    x, y = (torch.cat(part) for part in zip(*batches, strict=True))
    assert len(batches) == 5 and x.shape == (50, 3, 8, 8)
    assert sorted(y.tolist()) == sorted(images.train_y.tolist())
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)
    assert batches[0][0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("augmentation", ["none", "pad-crop", "resized-crop"])
def test_epochs_differ_and_are_reproducible(images, augmentation):
    batches = TrainBatches(DeviceDataset(images, CPU), 25, augmentation, seed=3)

    def epoch(n):
        batches.sampler.set_epoch(n)
        return torch.cat([x for x, _ in batches])

    first, second = epoch(0), epoch(1)
    assert torch.equal(first, epoch(0)) and torch.equal(second, epoch(1)) and not torch.equal(first, second)


def test_processes_split_each_batch(images):
    dataset = DeviceDataset(images, CPU)
    whole = list(TrainBatches(dataset, 20, "pad-crop", seed=1))
    parts = [list(TrainBatches(dataset, 20, "pad-crop", seed=1, rank=r, world=2)) for r in (0, 1)]
    for (x, _), (x0, _), (x1, _) in zip(whole, *parts, strict=True):
        assert torch.equal(x, torch.stack([x0, x1], 1).flatten(0, 1))
    tests = [TestBatches(dataset, dataset.test, 7, rank=r, world=4) for r in range(4)]
    assert sum(len(y) for part in tests for _, y in part) == 30 and [len(part) for part in tests] == [2, 2, 1, 1]


def test_pad_crop_is_a_possibly_flipped_window_of_the_padded_image():
    x = torch.arange(2 * 6 * 6).view(2, 6, 6, 1).to(torch.uint8)
    padded = torch.nn.functional.pad(x, (0, 0, *(PADDING,) * 4))
    chance = torch.tensor([[0.0, 0.99, 0.2, 0, 0], [0.5, 0.5, 0.8, 0, 0]])
    cut = pad_crop(padded, torch.tensor([1, 0]), chance, x.shape[1:3])
    assert torch.equal(cut[0], padded[1, :6, 8:])
    assert torch.equal(cut[1], padded[0, 4:10, 4:10].flip(1)) and torch.equal(cut[1], x[0].flip(1))


def test_resized_crop_of_the_whole_image_is_the_image():
    x = torch.rand(3, 3, 8, 8)
    whole = torch.tensor([0.5, 0.5, 0.2, 1.0, 0.5]).expand(3, 5)
    torch.testing.assert_close(resized_crop(x, whole), x)
    torch.testing.assert_close(resized_crop(x, whole * torch.tensor([1, 1, 4, 1, 1])), x.flip(3))
    patch = resized_crop(x, torch.tensor([0.0, 0.0, 0.2, 0.0, 0.5]).expand(3, 5))
    assert patch.shape == x.shape and patch.std() < x.std()


def test_held_out_images_are_fixed_and_not_trained_on(images):
    images.train_x[:, 0, 0, 0] = np.arange(50)  # a number for each
    dataset = DeviceDataset(images, CPU, holdout=10, train_images=30)
    train, held = (set(half.x[:, 0, 0, 0].tolist()) for half in (dataset.train, dataset.held))
    assert len(train) == 30 and len(held) == 10 and not train & held
    assert held == set(DeviceDataset(images, CPU, holdout=10).held.x[:, 0, 0, 0].tolist())


def test_invalid_counts_raise(images):
    with pytest.raises(ValueError, match=r"`train_images` \(=45\) and `holdout` \(=10\)"):
        DeviceDataset(images, CPU, holdout=10, train_images=45)
    with pytest.raises(ValueError, match=r"`batch` \(=51\)"):
        TrainBatches(DeviceDataset(images, CPU), 51, "none", 0)
    with pytest.raises(ValueError, match=r"`batch` \(=9\) .* divisible by the number of processes, 2"):
        TrainBatches(DeviceDataset(images, CPU), 9, "none", 0, world=2)
