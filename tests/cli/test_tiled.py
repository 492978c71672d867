"""Files larger than memory, from the command line: the same picture, whatever the way."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
import zarr

from metricconv import filters
from metricconv.cli import images
from metricconv.cli.app import run

KNOBS = ["-k", "3", "--metric", "edge", "--iota", "0.2", "--scale", "1.0", "--tile", "32"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 65535, (70, 90), dtype=np.uint16)


@pytest.fixture
def expected(pixels):
    images.write(Path("whole.png"), images.Picture(pixels))
    assert run(["filter", "whole.png", "filtered.png", *KNOBS[:-2]]) == 0
    return images.read(Path("filtered.png")).pixels


def save(path, pixels):
    if path.endswith(".zarr"):
        zarr.save(path, pixels)
    elif path.endswith(".npy"):
        np.save(path, pixels)
    else:
        tifffile.imwrite(path, pixels, tile=(32, 32), compression="zlib")


def load(path):
    if path.endswith(".zarr"):
        return zarr.load(path)
    return np.load(path) if path.endswith(".npy") else tifffile.imread(path)


@pytest.mark.parametrize("source", ["in.zarr", "in.tif", "in.npy"])
@pytest.mark.parametrize("output", ["out.zarr", "out.tif", "out.npy"])
def test_tiles_make_the_same_picture(pixels, expected, source, output):
    save(source, pixels)
    assert run(["filter", source, output, *KNOBS]) == 0
    found = load(output)
    assert found.dtype == np.uint16 and np.abs(found.astype(int) - expected).max() <= 1
    assert not [p for p in Path().iterdir() if p.name.startswith(".")]


def test_colour_stays_colour(pixels):
    colour = np.dstack([pixels[:60, :80] // n for n in (1, 2, 3)])
    tifffile.imwrite("in.tif", colour, photometric="rgb")
    assert run(["filter", "in.tif", "out.tif", "-m", "box", "-k", "3", "--tile", "32"]) == 0
    found = images.read(Path("out.tif"))
    assert found.channel_axis == 2
    assert np.array_equal(found.pixels, np.rint(65535 * filters.box_filter(colour, 3, channel_axis=-1)))


def test_a_zarr_needs_no_option(pixels):
    zarr.save("in.zarr", pixels)
    assert run(["filter", "in.zarr", "out.zarr", "-m", "box", "-k", "3"]) == 0
    assert np.array_equal(zarr.load("out.zarr"), np.rint(65535 * filters.box_filter(pixels, 3)))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["filter", "nowhere.zarr", "out.zarr"], "no such file"),
        (["filter", "group.zarr", "out.zarr"], "group.zarr/first"),
        (["filter", "in.zarr", "out.zarr", "-m", "random"], "is not there for tiles"),
        (["filter", "in.zarr", "out.zarr", "--tile", "30"], "a multiple of 16"),
        (["filter", "in.zarr", "out.png"], "tiles are written to .zarr"),
        (["filter", "in.zarr", "there.zarr"], "there.zarr: exists"),
        (["filter", "broken.zarr", "out.zarr"], "cannot be read in tiles"),
        (["filter", "wide.zarr", "out.zarr"], "more than 1 GB"),
        (["filter", "in.zarr", "out.zarr", "--max-pixels", "9"], "--max-pixels 9: of no use with tiles"),
        (["filter", "photo.png", "out.zarr"], "tiles are read from .zarr"),
        (["filter", "in.zarr", "in.zarr/out.zarr"], "in.zarr/out.zarr: lies inside of the input in.zarr"),
    ],
)
def test_mistakes_are_one_line(pixels, arguments, words, capsys):
    zarr.save("in.zarr", pixels)
    zarr.open_group("group.zarr", mode="w").create_array("first", data=pixels)
    zarr.open_array("wide.zarr", mode="w", shape=(2**16, 2**16), chunks=(2**16, 2**16), dtype=np.uint8)
    Path("there.zarr").mkdir()
    Path("broken.zarr").mkdir()
    images.write(Path("photo.png"), images.Picture(pixels))
    assert run(arguments) == 1
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and "\n" not in error and words in error
    assert not Path("out.zarr").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused_by_the_name_of_the_file(value, capsys):
    floats = np.zeros((70, 90), np.float32)
    floats[60, 80] = value
    np.save("in.npy", floats)
    for method in ("box", "tangent"):
        assert run(["filter", "in.npy", "out.npy", "-m", method, "-k", "3", "--tile", "32"]) == 1
        assert capsys.readouterr().err.strip() == "error: in.npy: holds numbers that are not finite"
    assert not Path("out.npy").exists()


def test_force_replaces_a_whole_store(pixels):
    zarr.save("in.zarr", pixels)
    zarr.save("out.zarr", np.zeros((3, 3)))
    assert run(["filter", "in.zarr", "out.zarr", "-m", "box", "-k", "3", "--force"]) == 0
    assert zarr.load("out.zarr").shape == pixels.shape
