"""The images that are denoised, and the noise."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from metricconv import _checks
from metricconv._files import writing

from ..data import Dataset, MissingData, fetch, fetch_archive, files_digest, find, open_gray, pixels_digest

SIZE = (256, 256)

CAMERAMAN_PIXELS = "f6e16531bfb1838d95097c8908ce4f26e21f20ac001099bc03902f165426455f"
_BSDS300_FILES = "edf684ee30c4630ca9a08f6331498d37853eb2c9356a57721cf38f1f3c617d4e"
# Numbers of training and test images.
_COUNTS = {"bsds300": (200, 100), "voc2012": (1464, 1449)}


def _fetch_cameraman(path: Path) -> None:
    """Download the first image of Set12 from the repository of DnCNN."""
    fetch("https://raw.githubusercontent.com/cszn/DnCNN/master/testsets/Set12/01.png", path)
    if pixels_digest(open_gray(path)) != CAMERAMAN_PIXELS:
        raise ValueError(f"the image downloaded for {path.name} is not the paper's cameraman")


def _fetch_bsds300(path: Path) -> None:
    """Download BSDS300, with folders ``train`` and ``test``."""

    def verify(folder: Path) -> None:
        if files_digest(folder, "*/*.jpg") != _BSDS300_FILES:
            raise ValueError("the archive downloaded for BSDS300 does not contain its 200 + 100 images")

    home = "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/bsds/BSDS300-images.tgz"
    fetch_archive(home, "BSDS300/images", path, verify)


CAMERAMAN = Dataset(
    "cameraman",
    ("cameraman256.png", "Set12/01.png"),
    "expected the classical 256 × 256 gray image as cameraman256.png (scikit-image's camera is a different image)",
    _fetch_cameraman,
)
BSDS300 = Dataset(
    "BSDS300",
    ("BSDS300",),
    "expected BSDS300/train/*.jpg and BSDS300/test/*.jpg",
    _fetch_bsds300,
)
VOC2012 = Dataset(
    "PASCAL VOC 2012",
    ("VOCdevkit/VOC2012",),
    "expected the content of VOCtrainval_11-May-2012.tar, with VOCdevkit/VOC2012/ImageSets/Segmentation",
)
DATASETS = {"bsds300": BSDS300, "voc2012": VOC2012}


def splits(name: str, root: Path | None = None, *, download: bool = False) -> tuple[list[Path], list[Path]]:
    """Return the paths of the training and test images, in a fixed order; raise ``MissingData`` for other images.

    Rows of a table are identified by the name of the dataset, so the images must always be the same. For BSDS300 the
    contents of all files are checked, for VOC the number of images.
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
            f"{folder} has {len(train)} training and {len(test)} test images, expected {expected[0]} and {expected[1]} "
            f"for {dataset.name}: {dataset.advice}"
        )
    if name == "bsds300":
        found = files_digest(inner, "*/*.jpg")
        if found != _BSDS300_FILES:
            raise MissingData(
                f"{folder} contains other images than {dataset.name}: the SHA-256 of their names and contents begins "
                f"with {found[:12]}, expected {_BSDS300_FILES[:12]}: {dataset.advice}"
            )
    return train, test


def read_cameraman(root: Path | None = None, *, download: bool = False) -> Tensor:
    """Return the paper's photograph (H, W) in [0, 1]; raise ``MissingData`` for another image of that name."""
    path = find(CAMERAMAN, root, download=download)
    image = torch.from_numpy(open_gray(path))
    if not CAMERAMAN_PIXELS.startswith(pixels_of(image)):
        raise MissingData(
            f"{path} is not the paper's cameraman: the SHA-256 of its pixels begins with {pixels_of(image)}, expected "
            f"{CAMERAMAN_PIXELS[:12]}: {CAMERAMAN.advice}; use --image for other images"
        )
    return image


def load(paths: list[Path], size: tuple[int, int] = SIZE) -> Tensor:
    """Return gray images (N, 1, H, W) in [0, 1]."""
    return torch.from_numpy(np.stack([open_gray(path, size) for path in paths])).unsqueeze(1)


def add_noise(clean: Tensor, sigma: float, seed: int, *, stored: bool = False, draws: int = 1) -> list[Tensor]:
    """Return noisy versions of an image or a batch, drawn one after the other from one generator.

    Args:
        clean: any shape, in [0, 1].
        sigma: standard deviation of the Gaussian noise.
        seed: seed of the generator, always on the CPU.
        stored: clamp to [0, 1] and round to 8 bits, as for a PNG file: the paper's protocol for datasets.
        draws: number of noisy versions.
    """
    check_sigma(sigma)
    generator = torch.Generator().manual_seed(seed)
    noisy = [clean + sigma * torch.randn(clean.shape, generator=generator) for _ in range(draws)]
    return [(n.clamp(0, 1) * 255).round() / 255 for n in noisy] if stored else noisy


def check_sigma(sigma: float) -> None:
    """Raise ValueError unless a standard deviation is positive and finite."""
    if not 0 < sigma < math.inf:
        raise ValueError(
            f"`sigma` (={sigma}) must be positive: the standard deviation of the noise, for images in [0, 1]"
        )


def check_grid(ks: Iterable[int], sigmas: Iterable[float], seed: int, counts: Mapping[str, int]) -> None:
    """Raise ValueError for invalid kernel sizes, noise, seed or counts."""
    for sigma in sigmas:
        check_sigma(sigma)
    for k in ks:
        if k < 1 or k % 2 == 0:
            raise ValueError(f"`k` (={k}) must be a positive odd number")
    _checks.whole(seed, "seed", minimum=0)
    for name, count in counts.items():
        _checks.whole(count, name, minimum=1)


def pixels_of(image: Tensor) -> str:
    """Return an identifier of an image (H, W): twelve digits of the SHA-256 of its pixels."""
    return pixels_digest(image.numpy())[:12]


def save_gray(path: Path, image: Tensor) -> None:
    """Write an image (H, W), clamped to [0, 1], as an 8-bit PNG."""
    with writing(path) as temporary:
        Image.fromarray((image.clamp(0, 1) * 255).round().to(torch.uint8).numpy()).save(temporary)
