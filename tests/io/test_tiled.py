"""Files filtered in tiles, compared with the whole image."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import tifffile
import zarr

from metricconv import filters
from metricconv.cli.app import run
from metricconv.io import images, tiled

OPTIONS = ["-k", "3", "--metric", "edge", "--iota", "0.2", "--scale", "1.0", "--tile", "32"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 65535, (70, 90), dtype=np.uint16)


@pytest.fixture
def expected(pixels):
    images.write(Path("whole.png"), images.ImageData(pixels))
    assert run(["filter", "whole.png", "filtered.png", *OPTIONS[:-2]]) == 0
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
def test_tiled_result_equals_whole_image(pixels, expected, source, output):
    save(source, pixels)
    assert run(["filter", source, output, *OPTIONS]) == 0
    found = load(output)
    assert found.dtype == np.uint16 and np.abs(found.astype(int) - expected).max() <= 1
    assert not [p for p in Path().iterdir() if p.name.startswith(".")]


def test_tiled_rgb_tiff_stays_rgb(pixels):
    color = np.dstack([pixels[:60, :80] // n for n in (1, 2, 3)])
    tifffile.imwrite("in.tif", color, photometric="rgb")
    assert run(["filter", "in.tif", "out.tif", "-m", "box", "-k", "3", "--tile", "32"]) == 0
    found = images.read(Path("out.tif"))
    assert found.channel_axis == 2
    assert np.array_equal(found.pixels, np.rint(65535 * filters.box_filter(color, 3, channel_axis=-1)))


def test_zarr_is_tiled_by_default(pixels):
    zarr.save("in.zarr", pixels)
    assert run(["filter", "in.zarr", "out.zarr", "-m", "box", "-k", "3"]) == 0
    assert np.array_equal(zarr.load("out.zarr"), np.rint(65535 * filters.box_filter(pixels, 3)))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["filter", "nowhere.zarr", "out.zarr"], "no such file"),
        (["filter", "group.zarr", "out.zarr"], "group.zarr/first"),
        (["filter", "in.zarr", "out.zarr", "-m", "random"], "not supported for tiles"),
        (["filter", "in.zarr", "out.zarr", "--tile", "30"], "a multiple of 16"),
        (["filter", "in.zarr", "out.png"], "tiles can only be written to .zarr"),
        (["filter", "in.zarr", "there.zarr"], "there.zarr: already exists"),
        (["filter", "broken.zarr", "out.zarr"], "cannot be read in tiles"),
        (["filter", "wide.zarr", "out.zarr"], "at most 1 GB"),
        (["filter", "many.zarr", "out.zarr"], "1e+18 blocks of 1 × 1, expected at most"),
        (["filter", "huge.zarr", "out.zarr"], "blocks of 1024 × 1024, expected at most"),
        (["filter", "large.npy", "out.npy", "--tile", "16"], "blocks of 16 × 16, expected at most 65536"),
        (["filter", "in.zarr", "out.zarr", "--max-pixels", "9"], "--max-pixels 9: has no effect on tiles"),
        (["filter", "photo.png", "out.zarr"], "tiles can only be read from .zarr"),
        (["filter", "in.zarr", "in.zarr/out.zarr"], "in.zarr/out.zarr: is inside the input in.zarr"),
        (["filter", "link.zarr", "in.zarr/out.zarr"], "in.zarr/out.zarr: is inside the input link.zarr"),
        (
            ["filter", "group.zarr/first", "group.zarr", "-f"],
            "group.zarr: contains the input group.zarr/first",
        ),
        (["filter", "in.zarr", "group.zarr", "-f"], "group.zarr: is a group or another folder, not a zarr array"),
        (["filter", "in.zarr", "mine.zarr", "-f"], "mine.zarr: is a group or another folder, not a zarr array"),
    ],
)
def test_errors_are_one_line(pixels, arguments, words, capsys):
    np.lib.format.open_memmap("large.npy", "w+", np.uint8, (4112, 4112))  # 66049 tiles
    zarr.save("in.zarr", pixels)
    zarr.open_group("group.zarr", mode="w").create_array("first", data=pixels)
    zarr.open_array("wide.zarr", mode="w", shape=(2**16, 2**16), chunks=(2**16, 2**16), dtype=np.uint8)
    zarr.open_array("many.zarr", mode="w", shape=(10**9, 10**9), chunks=(1, 1), dtype=np.uint8)
    zarr.open_array("huge.zarr", mode="w", shape=(10**7, 10**7), chunks=(2**15, 2**15), dtype=np.uint8)
    Path("there.zarr").mkdir()
    Path("broken.zarr").mkdir()
    Path("mine.zarr").mkdir()
    Path("mine.zarr/notes.txt").write_text("not a zarr array")
    Path("link.zarr").symlink_to("in.zarr")
    images.write(Path("photo.png"), images.ImageData(pixels))
    before = sorted(Path().rglob("*"))
    assert run(arguments) == 1
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and "\n" not in error and words in error
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize("method", ["box", "tangent"])
def test_truncated_file_is_named_in_error(pixels, method, capsys):
    tifffile.imwrite("in.tif", pixels, tile=(32, 32), compression="zlib")
    Path("in.tif").write_bytes(Path("in.tif").read_bytes()[:-9000])
    zarr.save("in.zarr", pixels)
    chunk = next(path for path in Path("in.zarr").rglob("*") if path.is_file() and path.suffix != ".json")
    chunk.write_bytes(chunk.read_bytes()[:99])
    for source in ("in.tif", "in.zarr"):
        assert run(["filter", source, "out.npy", "-m", method, "-k", "3", "--tile", "32"]) == 1
        error = capsys.readouterr().err.strip()
        assert error.startswith(f"error: {source}: cannot be read in tiles (") and "\n" not in error
    assert not Path("out.npy").exists()


@pytest.mark.parametrize(
    ("shape", "words"), [((0, 5), "is empty"), ((5,), "shape (5,) is neither an image nor a volume")]
)
def test_arrays_of_wrong_shape_raise(shape, words, capsys):
    np.save("in.npy", np.zeros(shape))
    assert run(["filter", "in.npy", "out.npy", "-m", "box", "-k", "3", "--tile", "32"]) == 1
    assert capsys.readouterr().err.strip() == f"error: in.npy: {words}"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_pixels_raise(value, capsys):
    floats = np.zeros((70, 90), np.float32)
    floats[60, 80] = value
    np.save("in.npy", floats)
    for method in ("box", "tangent"):
        assert run(["filter", "in.npy", "out.npy", "-m", method, "-k", "3", "--tile", "32"]) == 1
        assert capsys.readouterr().err.strip() == "error: in.npy: contains NaN or infinite values"
    assert not Path("out.npy").exists()


def test_force_replaces_zarr_store(pixels):
    zarr.save("in.zarr", pixels)
    zarr.save("out.zarr", np.zeros((3, 3)))
    assert run(["filter", "in.zarr", "out.zarr", "-m", "box", "-k", "3", "--force"]) == 0
    assert zarr.load("out.zarr").shape == pixels.shape


@pytest.mark.parametrize("late", [False, True], ids=["before the move", "after it"])
@pytest.mark.parametrize("move", [0, 1, 2])
def test_interrupt_leaves_old_or_new_store(pixels, move, late, monkeypatch):
    zarr.save("a.zarr", pixels)
    command, moved, rename = ["filter", "a.zarr", "a.zarr", "-m", "box", "-k", "3", "--force"], [], Path.rename

    def interrupted(path, target):
        moved.append(path)
        if len(moved) - 1 == move and not late:
            raise KeyboardInterrupt
        rename(path, target)
        if len(moved) - 1 == move:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupted)
        assert run(command) != 0
    new = np.rint(65535 * filters.box_filter(pixels, 3))
    assert np.array_equal(zarr.load("a.zarr"), pixels if (move, late) < (1, True) else new)
    assert run(command) == 0
    assert [p.name for p in Path().iterdir()] == ["a.zarr"]


def test_store_of_interrupted_run_is_restored(pixels, capsys):
    zarr.save(".a.zarr.old", pixels)
    zarr.save(".a.zarr.part", np.zeros((3, 3)))
    zarr.save("in.zarr", pixels)
    assert run(["filter", "in.zarr", "a.zarr", "-m", "box", "-k", "3"]) == 1
    assert "a.zarr: already exists" in capsys.readouterr().err
    assert np.array_equal(zarr.load("a.zarr"), pixels)
    Path("a.zarr").rename(".a.zarr.old")
    assert run(["filter", "a.zarr", "b.zarr", "-m", "box", "-k", "1"]) == 0
    assert np.array_equal(zarr.load("b.zarr"), pixels)


def test_target_of_linked_store_is_replaced(pixels):
    zarr.save("there.zarr", pixels)
    Path("link.zarr").symlink_to("there.zarr")
    assert run(["filter", "link.zarr", "link.zarr", "-m", "box", "-k", "3", "--force"]) == 0
    assert Path("link.zarr").is_symlink() and sorted(p.name for p in Path().iterdir()) == ["link.zarr", "there.zarr"]
    assert np.array_equal(zarr.load("there.zarr"), np.rint(65535 * filters.box_filter(pixels, 3)))


@pytest.mark.parametrize("tile", [[], ["--tile", "16"]], ids=["whole", "tiled"])
@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_64_bit_maximum_is_preserved(dtype, tile):
    white = np.full((40, 40), np.iinfo(dtype).max)
    np.save("in.npy", white)
    assert run(["filter", "in.npy", "out.npy", "-m", "box", "-k", "1", *tile]) == 0
    assert np.load("out.npy").dtype == dtype and np.array_equal(np.load("out.npy"), white)


def test_tiles_of_a_tiff_are_not_larger_than_the_image(pixels):
    np.save("in.npy", pixels)
    assert run(["filter", "in.npy", "out.tif", "-m", "box", "-k", "3", "--tile", str(2**20)]) == 0
    with tifffile.TiffFile("out.tif") as file:
        assert file.pages[0].tile == (96, 96)
        assert file.asarray().shape == pixels.shape


@pytest.mark.parametrize(
    ("shape", "chunks", "block"),
    [
        ((90, 70), (1, 1), (32, 32)),
        ((90, 70), (10, 40), (20, 40)),
        ((90, 70), (1, 70), (14, 70)),  # strips: a block has at most as many pixels as a tile
        ((90, 70), (64, 64), (64, 64)),
        ((5, 6, 5000), (5, 6, 1), (5, 6, 32)),
    ],
)
def test_small_chunks_are_read_together(shape, chunks, block):
    values = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    zarr.create_array("in.zarr", shape=shape, chunks=chunks, dtype="u1")[:] = values
    with contextlib.ExitStack() as stack:
        found = tiled.open_image(Path("in.zarr"), None, stack, 32).pixels
        assert found.chunksize == block and np.array_equal(found.compute(), values)


@pytest.mark.filterwarnings("always")
def test_damaged_header_raises_one_error_without_warnings(capsys, recwarn):
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({2**62}, 2, 2, 2), }}\n".encode()
    Path("in.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    for options in ([], ["--tile", "16"]):
        assert run(["filter", "in.npy", "out.npy", "-m", "box", "-k", "3", *options]) == 1
        error = capsys.readouterr().err
        assert error.startswith("error: in.npy: ") and error.count("\n") == 1 and not recwarn.list
