"""A tiny data root: eleven small pictures in place of cameraman and BSDS300."""

import numpy as np
import pytest
import skimage
from PIL import Image

from metricconv.experiments import data
from metricconv.experiments.denoising import pictures


def picture(seed, shape=(24, 20)):
    """Return a smooth 8-bit picture with an edge in it."""
    noise = np.random.default_rng(seed).normal(size=shape)
    smooth = skimage.filters.gaussian(noise, 2)
    smooth[:, shape[1] // 2 :] += np.ptp(smooth)
    return np.uint8(255 * (smooth - smooth.min()) / np.ptp(smooth))


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    Image.fromarray(picture(0)).save(folder / "cameraman256.png")
    for part, seeds in (("train", range(1, 7)), ("test", range(7, 11))):
        (folder / "BSDS300" / part).mkdir(parents=True)
        for seed in seeds:
            Image.fromarray(picture(seed)).save(folder / "BSDS300" / part / f"{seed}.jpg")
    return folder


def expected(root):
    """Return what the datasets' checks compare with, by name, for such a root."""
    return {
        "CAMERAMAN_PIXELS": data.pixels_digest(data.open_grey(root / "cameraman256.png")),
        "_BSDS300_FILES": data.files_digest(root / "BSDS300", "*/*.jpg"),
        "_COUNTS": {"bsds300": (6, 4), "voc2012": (2, 1)},
    }


@pytest.fixture(autouse=True)
def tiny_datasets(root, monkeypatch):
    for name, value in expected(root).items():
        monkeypatch.setattr(pictures, name, value)
