"""A tiny data root: eleven small images in place of cameraman and BSDS300."""

import numpy as np
import pytest
import skimage
from PIL import Image

from metricconv_experiments import data
from metricconv_experiments.denoising import inputs


def image(seed, shape=(24, 20)):
    """Return a smooth 8-bit image with an edge in it."""
    noise = np.random.default_rng(seed).normal(size=shape)
    smooth = skimage.filters.gaussian(noise, 2)
    smooth[:, shape[1] // 2 :] += np.ptp(smooth)
    return np.uint8(255 * (smooth - smooth.min()) / np.ptp(smooth))


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    Image.fromarray(image(0)).save(folder / "cameraman256.png")
    for part, seeds in (("train", range(1, 7)), ("test", range(7, 11))):
        (folder / "BSDS300" / part).mkdir(parents=True)
        for seed in seeds:
            Image.fromarray(image(seed)).save(folder / "BSDS300" / part / f"{seed}.jpg")
    return folder


def expected(root):
    """Return what the datasets' checks compare with, by name, for such a root."""
    return {
        "CAMERAMAN_PIXELS": data.pixels_digest(data.open_gray(root / "cameraman256.png")),
        "_BSDS300_FILES": data.files_digest(root / "BSDS300", "*/*.jpg"),
        "_COUNTS": {"bsds300": (6, 4), "voc2012": (2, 1)},
    }


@pytest.fixture(autouse=True)
def tiny_datasets(root, monkeypatch):
    for name, value in expected(root).items():
        monkeypatch.setattr(inputs, name, value)


@pytest.fixture(autouse=True)
def no_other_roots(tmp_path, monkeypatch):
    monkeypatch.delenv("METRICCONV_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
