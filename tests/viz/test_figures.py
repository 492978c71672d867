"""Compression of the figures of the documentation."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from matplotlib import colormaps
from PIL import Image

pytest.importorskip("skimage")


@pytest.fixture(scope="module")
def figures():
    path = Path(__file__).parents[2] / "docs" / "_figures.py"
    spec = importlib.util.spec_from_file_location("docs_figures", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def color_map(size):
    """Return a field in the colors of a map, over a gray image, as figures with a color bar have it."""
    gray = np.random.default_rng(0).uniform(0.3, 0.7, (size, size, 1))
    colors = colormaps["viridis"](np.linspace(0, 1, size))[None, :, :3]
    return Image.fromarray(np.rint(255 * (0.4 * gray + 0.6 * colors)).astype(np.uint8))


def test_color_map_shades_are_kept(figures, tmp_path):
    image = color_map(240)
    figures.shrink(image, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 2**16
    assert np.array_equal(np.asarray(Image.open(tmp_path / "a.png").convert("RGB")), np.asarray(image))


def test_large_and_few_color_figures_are_compressed(figures, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 1), dtype=np.uint8)
    for name, image in {"gray": Image.fromarray(noise.repeat(3, 2)), "large": color_map(600)}.items():
        image.save(tmp_path / "true.png", optimize=True)
        figures.shrink(image, tmp_path / f"{name}.png")
        with Image.open(tmp_path / f"{name}.png") as written:
            assert written.mode == "P"
        assert (tmp_path / f"{name}.png").stat().st_size < (tmp_path / "true.png").stat().st_size
