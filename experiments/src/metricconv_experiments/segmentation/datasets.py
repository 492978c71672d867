"""DRIVE and CrackForest as arrays: gray images, masks, fields of view and thin structures.

The images are read once and stored in a compressed file next to them; later runs read this file alone.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from metricconv._files import writing

from .. import data
from .scores import thinned
from .setting import DATASETS

# Structures of at most this width, in pixels, are thin.
THIN = 3
# Images of CrackForest with a file number up to this are for training, the others for testing.
_LAST_TRAINING = 72

SOURCES = {
    "drive": data.Dataset("DRIVE", ("drive-segmentation.npz", "DRIVE"), "expected DRIVE/{training,test}/images/*.png"),
    "crackforest": data.Dataset(
        "CrackForest", ("crackforest-segmentation.npz", "CrackForest"), "expected CrackForest/images/*.jpg"
    ),
}


@dataclasses.dataclass(frozen=True)
class Images:
    """Images of one half of a dataset; all arrays are (N, H, W).

    Args:
        gray: gray values, uint8: the green channel of DRIVE, the luminance of CrackForest.
        mask: pixels of the structure.
        field: pixels that are evaluated: the field of view of DRIVE, all pixels of CrackForest.
        thin: pixels of the structure whose nearest centerline pixel has a width of at most ``THIN``.
    """

    gray: np.ndarray
    mask: np.ndarray
    field: np.ndarray
    thin: np.ndarray


def load(name: str, root: Path | None = None) -> tuple[Images, Images]:
    """Return the training and the test images of a dataset."""
    path = data.find(SOURCES[name], root)
    if path.is_dir():
        path = prepare(name, path)
    with np.load(path) as stored:
        train, test = (
            Images(*(stored[f"{half}_{field.name}"] for field in dataclasses.fields(Images)))
            for half in ("train", "test")
        )
    if len(train.gray) != DATASETS[name]:
        raise ValueError(f"{path} has {len(train.gray)} training images, expected {DATASETS[name]}")
    return train, test


def prepare(name: str, folder: Path) -> Path:
    """Read the images of a dataset and write them to a file next to its folder; return the path of the file."""
    halves = {"drive": _drive, "crackforest": _crackforest}[name](folder)
    arrays = {
        f"{half}_{key}": value
        for half, images in zip(("train", "test"), halves, strict=True)
        for key, value in vars(images).items()
    }
    path = folder.with_name(SOURCES[name].paths[0])
    with writing(path) as temporary:
        np.savez_compressed(temporary, **arrays)
    return path


def thin_structures(mask: np.ndarray) -> np.ndarray:
    """Return the pixels of a mask (H, W) whose nearest centerline pixel has a width of at most ``THIN``.

    The width at a centerline pixel is 2d − 1, where d is its distance to the nearest pixel outside of the mask.
    """
    from scipy.ndimage import distance_transform_edt

    centerline = thinned(torch.from_numpy(mask)[None])[0].numpy()
    if not centerline.any():
        return np.zeros_like(mask)
    width = 2 * distance_transform_edt(np.pad(mask, 1, mode="edge"))[1:-1, 1:-1] - 1
    nearest = distance_transform_edt(~centerline, return_distances=False, return_indices=True)
    return mask & (width[tuple(nearest)] <= THIN)


def _drive(folder: Path) -> list[Images]:
    halves = []
    for half in ("training", "test"):
        names = sorted(path.name for path in (folder / half / "images").glob("*.png"))
        gray = [_read(folder / half / "images" / name, "RGB")[..., 1] for name in names]
        mask = [_read(folder / half / "vessels" / name) > 127 for name in names]
        field = [_read(folder / half / "mask" / name) > 127 for name in names]
        halves.append(_images(gray, mask, field))
    return halves


def _crackforest(folder: Path) -> list[Images]:
    halves = []
    paths = sorted((folder / "images").glob("*.jpg"))
    for selected in (
        [path for path in paths if int(path.stem) <= _LAST_TRAINING],
        [path for path in paths if int(path.stem) > _LAST_TRAINING],
    ):
        gray = [_read(path) for path in selected]
        mask = [_read(folder / "cracks" / f"{path.stem}.png") > 127 for path in selected]
        halves.append(_images(gray, mask, [np.ones_like(one) for one in mask]))
    return halves


def _images(gray: Sequence[np.ndarray], mask: Sequence[np.ndarray], field: Sequence[np.ndarray]) -> Images:
    inside = [one & other for one, other in zip(mask, field, strict=True)]
    thin = [thin_structures(one) for one in inside]
    return Images(np.stack(gray), np.stack(inside), np.stack(field), np.stack(thin))


def _read(path: Path, mode: str = "L") -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert(mode))
