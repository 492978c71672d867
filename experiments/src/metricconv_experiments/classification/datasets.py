"""Datasets as arrays, read from torchvision's layouts, an .npz file, or Debian's package."""

import dataclasses
import gzip
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from metricconv._torchvision import import_torchvision

from .. import data
from .setting import DATASETS

_IDX = {"train_x": "train-images-idx3-ubyte", "train_y": "train-labels-idx1-ubyte",
        "test_x": "t10k-images-idx3-ubyte", "test_y": "t10k-labels-idx1-ubyte"}  # fmt: skip
_TORCHVISION = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST", "cifar10": "CIFAR10", "cifar100": "CIFAR100"}
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
NAMES = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"),
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    "cifar100": tuple(name.replace("_", " ") for name in _CIFAR100.split()),
}
# Number of training images, number of test images and shape of an image, by dataset.
SHAPES = {
    "mnist": (60000, 10000, (28, 28, 1)),
    "fashion-mnist": (60000, 10000, (28, 28, 1)),
    "cifar10": (50000, 10000, (32, 32, 3)),
    "cifar100": (50000, 10000, (32, 32, 3)),
}


@dataclasses.dataclass(frozen=True)
class Images:
    """A dataset in memory.

    Args:
        name: name of the dataset.
        train_x, test_x: uint8, (N, H, W, C).
        train_y, test_y: int64, (N,), the classes 0 to ``classes`` − 1.
        classes: number of classes.
    """

    name: str
    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    classes: int

    @property
    def channels(self) -> int:
        """1 for gray images, 3 for color images."""
        return self.train_x.shape[3]

    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and the standard deviation of each channel of the training images, in units of 255."""
        levels = np.arange(256) / 255
        counts = np.stack([np.bincount(self.train_x[..., c].ravel(), minlength=256) for c in range(self.channels)])
        frequencies = counts / counts.sum(1, keepdims=True)
        mean = frequencies @ levels
        return mean, np.sqrt(frequencies @ levels**2 - mean**2)


def load(name: str, root: Path | None = None, *, download: bool = False) -> Images:
    """Read a dataset below ``root``, METRICCONV_DATA or ~/.cache/metricconv; raise ``MissingData`` if there is none."""
    path = data.find(SOURCES[name], root, download=download)
    arrays = _read(name, path)
    for half in ("train", "test"):
        x, y = arrays[f"{half}_x"], arrays[f"{half}_y"]
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[3] not in (1, 3) or y.shape != x.shape[:1] or not len(y):
            raise ValueError(
                f"{path} must contain {half}_x (N, H, W, 1 or 3) of uint8 and {half}_y (N,), got "
                f"{x.shape} of {x.dtype} and {y.shape}"
            )
        if y.min() < 0 or y.max() >= len(NAMES[name]):
            raise ValueError(
                f"{path} has labels {y.min()} to {y.max()}; those of {name} are 0 to {len(NAMES[name]) - 1}"
            )
        if name in SHAPES:
            train, test, one = SHAPES[name]
            expected = (train if half == "train" else test, *one)
            if x.shape != expected:
                raise ValueError(f"{path} is not {name}: {half}_x must be of shape {expected}, got {x.shape}")
    return Images(name, **{key: arrays[key] for key in _IDX}, classes=len(NAMES[name]))


def _read(name: str, path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npz":
        return _read_npz(path)
    if name.startswith("cifar"):
        return _read_torchvision(name, path)
    return {key: _read_idx(path / file) for key, file in _IDX.items()}


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = sorted(set(_IDX) - set(file.files))
            if missing:
                raise ValueError(f"no {', '.join(missing)}")
            arrays = {key: file[key] for key in _IDX}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read as a dataset: {error}") from None
    return arrays | {key: arrays[key].astype(np.int64) for key in ("train_y", "test_y")}


def _read_idx(path: Path) -> np.ndarray:
    """Read bytes in the IDX format, compressed or not; images get a channel axis."""
    packed = path.with_name(f"{path.name}.gz")
    try:
        content = path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes())
    except (gzip.BadGzipFile, EOFError) as error:
        raise ValueError(f"{packed} cannot be read: {error}") from None
    axes = content[3] if content[:3] == b"\0\0\x08" else 0
    shape = np.frombuffer(content, ">u4", axes, 4) if axes and len(content) >= 4 + 4 * axes else np.array([])
    values = np.frombuffer(content, np.uint8, offset=min(4 + 4 * axes, len(content)))
    if not len(shape) or values.size != np.prod(shape, dtype=np.int64):
        raise ValueError(f"{path} is not a complete file in the IDX format")
    return values.reshape(*shape, 1) if len(shape) == 3 else values.astype(np.int64)


def _read_torchvision(name: str, path: Path) -> dict[str, np.ndarray]:
    """Read torchvision's layout with torchvision, which checks the MD5 of the files."""
    arrays: dict[str, np.ndarray] = {}
    for half in ("train", "test"):
        try:
            part = _torchvision(name)(str(path.parent), train=half == "train")
        except RuntimeError as error:
            raise ValueError(f"{path} is damaged: {error}") from None
        arrays |= {f"{half}_x": np.asarray(part.data), f"{half}_y": np.asarray(part.targets, np.int64)}
    return arrays


def _torchvision(name: str) -> Any:
    return getattr(import_torchvision("torchvision.datasets"), _TORCHVISION[name])


def _download(name: str, depth: int) -> Callable[[Path], None]:
    def fetch(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _torchvision(name)(str(path.parents[depth]), download=True)
        except RuntimeError as error:
            raise ValueError(f"{name} cannot be downloaded: {error}") from None

    return fetch


def _source(name: str, layout: str, *more: str) -> data.Dataset:
    paths = (layout, f"{name}.npz", *more)
    advice = f"expected torchvision's {layout}, or {name}.npz with train_x, train_y, test_x, test_y"
    return data.Dataset(name, paths, advice, _download(name, layout.count("/")))


SOURCES = {
    "mnist": _source("mnist", "MNIST/raw"),
    # The last path is that of Debian's package dataset-fashion-mnist, for any root.
    "fashion-mnist": _source("fashion-mnist", "FashionMNIST/raw", "/usr/share/datasets/fashion-mnist"),
    "cifar10": _source("cifar10", "cifar-10-batches-py"),
    "cifar100": _source("cifar100", "cifar-100-python"),
}
assert tuple(SOURCES) == DATASETS
