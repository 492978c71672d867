"""The pictures that are denoised, and the noise: always the same for the same seed."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ... import _checks
from ..._files import writing
from ..data import Dataset, MissingData, fetch, fetch_archive, files_digest, find, open_grey, pixels_digest

SIZE = (256, 256)

CAMERAMAN_PIXELS = "f6e16531bfb1838d95097c8908ce4f26e21f20ac001099bc03902f165426455f"
_BSDS300_FILES = "edf684ee30c4630ca9a08f6331498d37853eb2c9356a57721cf38f1f3c617d4e"
# How many pictures to train on, and to test on, a dataset has.
_COUNTS = {"bsds300": (200, 100), "voc2012": (1464, 1449)}


def _fetch_cameraman(path: Path) -> None:
    """Fetch the first picture of Set12 from the repository of DnCNN, where it is public."""
    fetch("https://raw.githubusercontent.com/cszn/DnCNN/master/testsets/Set12/01.png", path)
    if pixels_digest(open_grey(path)) != CAMERAMAN_PIXELS:
        raise ValueError(f"what was downloaded for {path.name} is another picture than the paper's cameraman")


def _fetch_bsds300(path: Path) -> None:
    """Fetch the archive of BSDS300's home, in which ``train`` and ``test`` lie below ``images``."""

    def verify(folder: Path) -> None:
        if files_digest(folder, "*/*.jpg") != _BSDS300_FILES:
            raise ValueError("what was downloaded for BSDS300 does not hold its 200 + 100 pictures")

    home = "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/bsds/BSDS300-images.tgz"
    fetch_archive(home, "BSDS300/images", path, verify)


CAMERAMAN = Dataset(
    "cameraman",
    ("cameraman256.png", "Set12/01.png"),
    "put the classical 256 × 256 grey picture there as cameraman256.png (not scikit-image's, which is another)",
    _fetch_cameraman,
)
BSDS300 = Dataset(
    "BSDS300",
    ("BSDS300",),
    "put its pictures there as BSDS300/train/*.jpg and BSDS300/test/*.jpg",
    _fetch_bsds300,
)
VOC2012 = Dataset(
    "PASCAL VOC 2012",
    ("VOCdevkit/VOC2012",),
    "unpack VOCtrainval_11-May-2012.tar there, so that VOCdevkit/VOC2012/ImageSets/Segmentation is found",
)
DATASETS = {"bsds300": BSDS300, "voc2012": VOC2012}


def splits(name: str, root: Path | None = None, *, download: bool = False) -> tuple[list[Path], list[Path]]:
    """Return the pictures to train on and those to test on, in a fixed order; refuse a folder of other pictures.

    Rows of a table are told apart by the dataset's name, so that it must stand for the same pictures everywhere. Of
    BSDS300 every byte is checked, of VOC the number of pictures.
    """
    dataset = DATASETS[_checks.one_of(name, DATASETS, "dataset")]
    folder = find(dataset, root, download=download)
    inner = folder if name == "voc2012" or (folder / "train").is_dir() else folder / "images"
    if name == "bsds300":
        train, test = (sorted((inner / part).glob("*.jpg")) for part in ("train", "test"))
    else:
        lists = (folder / "ImageSets" / "Segmentation" / f"{part}.txt" for part in ("train", "val"))
        train, test = ([folder / "JPEGImages" / f"{n}.jpg" for n in path.read_text().split()] for path in lists)
    expected = _COUNTS[name]
    if (len(train), len(test)) != expected:
        raise MissingData(
            f"{folder} has {len(train)} pictures to train on and {len(test)} to test on, not the {expected[0]} and "
            f"{expected[1]} of {dataset.name}: {dataset.advice}"
        )
    if name == "bsds300":
        found = files_digest(inner, "*/*.jpg")
        if found != _BSDS300_FILES:
            raise MissingData(
                f"{folder} has as many pictures as {dataset.name}, but not the same: the SHA-256 of their names and "
                f"contents begins with {found[:12]}, not {_BSDS300_FILES[:12]}: {dataset.advice}"
            )
    return train, test


def read_cameraman(root: Path | None = None, *, download: bool = False) -> Tensor:
    """Return the paper's photograph (H, W), in [0, 1]; refuse another picture of its name."""
    path = find(CAMERAMAN, root, download=download)
    image = torch.from_numpy(open_grey(path))
    if not CAMERAMAN_PIXELS.startswith(pixels_of(image)):
        raise MissingData(
            f"{path} is not the paper's cameraman: the SHA-256 of its pixels begins "
            f"with {pixels_of(image)}, not {CAMERAMAN_PIXELS[:12]}: {CAMERAMAN.advice}, or name it as --image"
        )
    return image


def load(paths: list[Path], size: tuple[int, int] = SIZE) -> Tensor:
    """Return pictures as grey (N, 1, H, W), in [0, 1]."""
    return torch.from_numpy(np.stack([open_grey(path, size) for path in paths])).unsqueeze(1)


def add_noise(clean: Tensor, sigma: float, seed: int, *, stored: bool = False, draws: int = 1) -> list[Tensor]:
    """Return so many noisy versions of a picture or a batch, drawn one after the other from one generator.

    Args:
        clean: any shape, in [0, 1].
        sigma: the standard deviation of the Gaussian noise.
        seed: of the generator, which is the CPU's on every machine.
        stored: clamp to [0, 1] and round to 8 bits, as if stored as PNG: the paper's protocol for datasets.
        draws: how many.
    """
    check_sigma(sigma)
    generator = torch.Generator().manual_seed(seed)
    noisy = [clean + sigma * torch.randn(clean.shape, generator=generator) for _ in range(draws)]
    return [(n.clamp(0, 1) * 255).round() / 255 for n in noisy] if stored else noisy


def check_sigma(sigma: float) -> None:
    """Refuse a standard deviation that is none."""
    if not 0 < sigma < math.inf:
        raise ValueError(f"`sigma` (={sigma}) must be positive: the noise's standard deviation, for images in [0, 1]")


def check_grid(ks: Iterable[int], sigmas: Iterable[float], seed: int, counts: Mapping[str, int]) -> None:
    """Refuse sizes, noises, a seed and counts of which nothing can be made."""
    for sigma in sigmas:
        check_sigma(sigma)
    for k in ks:
        if k < 1 or k % 2 == 0:
            raise ValueError(f"`k` (={k}) must be a positive odd number")
    _checks.whole(seed, "seed", minimum=0)
    for name, count in counts.items():
        _checks.whole(count, name, minimum=1)


def pixels_of(image: Tensor) -> str:
    """Return what tells a picture (H, W) from others of its name: twelve digits of the SHA-256 of its pixels."""
    return pixels_digest(image.numpy())[:12]


def save_grey(path: Path, image: Tensor) -> None:
    """Write an image (H, W) as an 8-bit PNG; what is out of [0, 1] is clamped."""
    with writing(path) as temporary:
        Image.fromarray((image.clamp(0, 1) * 255).round().to(torch.uint8).numpy()).save(temporary)
