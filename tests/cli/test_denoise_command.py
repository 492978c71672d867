"""``metricconv denoise``: files, options and errors."""

from pathlib import Path

import numpy as np
import pytest

from command_errors import fails
from metricconv import filters
from metricconv.cli.app import run
from metricconv.io import images


@pytest.fixture
def noisy(photo):
    pixels = images.read(Path(photo)).pixels
    generator = np.random.default_rng(0)
    image = np.rint(pixels + generator.normal(0, 20, pixels.shape)).clip(0, 255).astype(np.uint8)
    opacity = np.full((36, 48, 1), 200, np.uint8)
    images.write(Path("noisy.png"), images.read(Path(photo)).with_values(image / 255))
    np.save("noisy.npy", np.concatenate([image, opacity], -1))
    return image


def test_denoise_command_equals_library(noisy):
    assert run(["denoise", "noisy.png", "out.png", "--sigma", "20"]) == 0
    expected = filters.denoise(noisy, 20, channel_axis=-1)
    assert np.array_equal(images.read(Path("out.png")).pixels, expected)
    assert run(["denoise", "noisy.png", "auto.png"]) == 0
    assert np.array_equal(images.read(Path("auto.png")).pixels, filters.denoise(noisy, channel_axis=-1))


def test_folder_is_denoised(noisy):
    assert run(["denoise", ".", "clean", "--sigma", "20"]) == 0
    assert sorted(path.name for path in Path("clean").iterdir()) == ["noisy.npy", "noisy.png", "photo.png"]


def test_alpha_is_kept(noisy):
    import PIL.Image

    PIL.Image.fromarray(np.load("noisy.npy")).save("alpha.png")
    assert run(["denoise", "alpha.png", "out.png", "--sigma", "20"]) == 0
    result = images.read(Path("out.png"))
    assert (result.opacity == 200).all()
    assert np.array_equal(result.pixels, filters.denoise(noisy, 20, channel_axis=-1))


def test_volume_with_spacing():
    volume = np.random.default_rng(0).random((4, 12, 12), dtype=np.float32)
    np.save("volume.npy", volume)
    options = ["--axes", "zyx", "--spacing", "3,1,1", "--sigma", "0.3"]
    assert run(["denoise", "volume.npy", "out.npy", *options]) == 0
    assert np.array_equal(np.load("out.npy"), filters.denoise(volume, 0.3, spacing=(3, 1, 1)))


@pytest.mark.parametrize("suffix", [".npy", ".tif", ".zarr"])
def test_tiles_equal_the_whole(suffix, noisy):
    pytest.importorskip("dask")
    gray = np.tile(noisy[..., 0], (9, 7))
    np.save("gray.npy", gray)
    assert run(["denoise", "gray.npy", "whole.npy"]) == 0
    assert run(["denoise", "gray.npy", f"tiles{suffix}", "--tile", "160"]) == 0
    if suffix != ".npy":
        assert run(["filter", f"tiles{suffix}", "tiles.npy", "-m", "box", "-k", "1", "--tile", "160"]) == 0
    difference = np.abs(np.load("tiles.npy").astype(int) - np.load("whole.npy"))
    assert difference.max() <= 1 and (difference > 0).mean() < 1e-3  # rounding to integers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sigma", "high"], "--sigma high: must be auto or a number of at least 0"),
        (["--sigma", "-1"], "--sigma -1: must be auto or a number of at least 0"),
        (["--spacing", "1"], "--spacing 1: must be two or three positive numbers"),
        (["--spacing", "1,x"], "--spacing 1,x: must be two or three positive numbers"),
        (["--spacing", "1,1,1"], "--spacing 1,1,1: must be 2 numbers for noisy.png"),
        (["--skip-existing"], "--skip-existing: requires that IN is a folder"),
    ],
)
def test_invalid_options(options, message, noisy, capsys):
    fails(["denoise", "noisy.png", "out.png", *options], capsys, message)
    assert not Path("out.png").exists()
