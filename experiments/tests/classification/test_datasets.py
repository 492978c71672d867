"""Datasets: the same arrays from every layout; errors for missing or damaged files."""

import gzip

import numpy as np
import pytest

from classification import tiny
from metricconv_experiments.classification import datasets
from metricconv_experiments.data import MissingData

SHAPES = dict(datasets.SHAPES)


@pytest.fixture(autouse=True)
def nowhere_else(monkeypatch, tmp_path):
    monkeypatch.delenv("METRICCONV_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def gray(count):
    x, y = tiny.images(count, np.random.default_rng(count))
    return x[..., 0], y.astype(np.uint8)


def write_idx(folder, compress=False):
    folder.mkdir(parents=True)
    arrays = {}
    for half, prefix, count in (("train", "train", 12), ("test", "t10k", 5)):
        for axis, kind, array in zip("xy", ("images-idx3", "labels-idx1"), gray(count), strict=True):
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
            content = header + array.tobytes()
            name = f"{prefix}-{kind}-ubyte" + ".gz" * compress
            (folder / name).write_bytes(gzip.compress(content) if compress else content)
            arrays[f"{half}_{axis}"] = array
    return arrays


@pytest.mark.parametrize("compress", [False, True])
def test_idx_files_are_read_plain_or_compressed(tmp_path, compress):
    arrays = write_idx(tmp_path / "MNIST/raw", compress)
    images = datasets.load("mnist", tmp_path)
    assert np.array_equal(images.train_x[..., 0], arrays["train_x"]) and images.train_x.shape == (12, 8, 8, 1)
    assert np.array_equal(images.test_y, arrays["test_y"]) and images.test_y.dtype == np.int64
    assert images.channels == 1 and images.classes == 10


def test_statistics_are_those_of_the_training_images(tmp_path):
    tiny.write_dataset(tmp_path)
    images = datasets.load("cifar10", tmp_path)
    mean, std = images.statistics()
    np.testing.assert_allclose(mean, (images.train_x / 255).mean((0, 1, 2)))
    np.testing.assert_allclose(std, (images.train_x / 255).std((0, 1, 2)))


def test_missing_dataset_error_states_expected_layout(tmp_path):
    with pytest.raises(
        MissingData, match=r"no cifar100 in .*: expected torchvision's cifar-100-python, or cifar100.npz"
    ):
        datasets.load("cifar100", tmp_path)


@pytest.mark.parametrize("half", ["train", "test"])
def test_datasets_of_other_shapes_raise(tmp_path, monkeypatch, half):
    tiny.write_dataset(tmp_path, "cifar100")
    assert datasets.load("cifar100", tmp_path).train_x.shape == (96, 8, 8, 3)
    whole = SHAPES["cifar100"]
    assert whole == (50000, 10000, (32, 32, 3)) and set(SHAPES) == set(datasets.SOURCES)
    shape = whole if half == "train" else (96, 41, (8, 8, 3))
    monkeypatch.setattr(datasets, "SHAPES", {"cifar100": shape})
    expected, found = ("(50000, 32, 32, 3)", "(96, 8, 8, 3)") if half == "train" else ("(41, 8, 8, 3)", "(40, 8, 8, 3)")
    with pytest.raises(ValueError, match=f"cifar100.npz is not cifar100: {half}_x must be of shape") as error:
        datasets.load("cifar100", tmp_path)
    assert str(error.value).endswith(f"{expected}, got {found}")
    monkeypatch.setattr(datasets, "SHAPES", {"cifar100": (96, 40, (8, 8, 3))})
    assert len(datasets.load("cifar100", tmp_path).test_y) == 40


def test_damaged_files_raise(tmp_path):
    (tmp_path / "cifar10.npz").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"cifar10.npz cannot be read as a dataset"):
        datasets.load("cifar10", tmp_path)
    np.savez(tmp_path / "cifar10.npz", train_x=np.zeros(3))
    with pytest.raises(ValueError, match=r"no test_x, test_y, train_y"):
        datasets.load("cifar10", tmp_path)
    labels = {"train_y": np.array([0, 99]), "test_y": np.array([0, 1])}
    pixels = np.zeros((2, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "cifar10.npz", train_x=pixels, test_x=pixels, **labels)
    with pytest.raises(ValueError, match=r"labels 0 to 99; those of cifar10 are 0 to 9"):
        datasets.load("cifar10", tmp_path)
    np.savez(tmp_path / "cifar10.npz", train_x=pixels.astype(float), test_x=pixels, **labels)
    with pytest.raises(ValueError, match=r"train_x \(N, H, W, 1 or 3\) of uint8"):
        datasets.load("cifar10", tmp_path)
    (tmp_path / "cifar-100-python").mkdir()
    with pytest.raises(ValueError, match="is damaged"):
        datasets.load("cifar100", tmp_path)
    write_idx(tmp_path / "MNIST/raw")
    whole = (tmp_path / "MNIST/raw/train-images-idx3-ubyte").read_bytes()
    (tmp_path / "MNIST/raw/train-images-idx3-ubyte").write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="not a complete file in the IDX format"):
        datasets.load("mnist", tmp_path)
