"""TIFFs as their tags mean them, read whole and in tiles: every test goes both ways."""

from pathlib import Path

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import tifffile
from PIL import ImageCms

from metricconv import filters
from metricconv.cli.app import run
from metricconv.io import images

BOX = ["-m", "box", "-k", "3"]
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=[[], ["--tile", "16"]], ids=["whole", "tiles"])
def tile(request):
    return request.param


def random(*shape, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)


def box(pixels, channel_axis=None):
    """Return what the box filter makes of pixels, at their depth."""
    kind = np.uint8 if pixels.dtype == bool else pixels.dtype
    return np.rint(np.iinfo(kind).max * filters.box_filter(pixels, 3, channel_axis=channel_axis)).astype(kind)


def seen(pixels):
    """Return the mean of what is seen in a box, by opacity, the last channel."""
    weights = pixels[..., -1:] / 255
    means = filters.box_filter(np.concatenate([pixels[..., :-1] / 255 * weights, weights], -1), 3, channel_axis=-1)
    return np.rint(255 * means[..., :-1] / means[..., -1:]).astype(np.uint8)


@pytest.mark.parametrize("pixels", [random(20, 30), random(20, 30, dtype=np.uint16), random(20, 30) > 99])
def test_a_picture_whose_zero_is_white_is_no_negative(tile, pixels):
    tifffile.imwrite("in.tif", pixels, photometric="miniswhite")
    assert run(["filter", "in.tif", "out.tif", *BOX, *tile]) == 0
    black_is_zero = ~pixels
    assert np.array_equal(images.read(Path("in.tif")).pixels, black_is_zero)
    assert np.array_equal(images.read(Path("out.tif")).pixels, box(black_is_zero))


def test_where_no_tag_says_what_zero_is_it_is_black(tile):
    tifffile.imwrite("in.tif", random(20, 30), photometric="minisblack", metadata=None)
    with tifffile.TiffFile("in.tif", mode="r+b") as file:
        entry = file.pages[0].tags["PhotometricInterpretation"].offset
    whole = bytearray(Path("in.tif").read_bytes())
    whole[entry : entry + 2] = (65000).to_bytes(2, "little")
    Path("in.tif").write_bytes(whole)
    assert run(["filter", "in.tif", "out.tif", *BOX, *tile]) == 0
    assert np.array_equal(images.read(Path("out.tif")).pixels, box(random(20, 30)))


@pytest.mark.parametrize(
    ("pixels", "options", "words"),
    [
        (random(20, 20, 4), {"photometric": "separated"}, "in.tif: holds SEPARATED colours"),
        (random(20, 20, 3), {"photometric": "cielab"}, "in.tif: holds CIELAB colours"),
        (random(20, 20, 3), {"photometric": "ycbcr"}, "in.tif: holds YCBCR colours"),
        (np.zeros((20, 20), np.float32), {"photometric": "miniswhite"}, "in.tif: holds float32 of which the least"),
        (random(20, 20, 4), {"photometric": "rgb", "extrasamples": ["assocalpha"]}, "multiplied by its opacity"),
        (random(2, 3, 20, 20), {"imagej": True, "metadata": {"axes": "TZYX"}}, "axes TZYX of sizes (2, 3, 20, 20)"),
    ],
)
def test_what_would_come_out_wrong_is_refused(tile, pixels, options, words, capsys):
    tifffile.imwrite("in.tif", pixels, **options)
    assert run(["filter", "in.tif", "out.npy", *BOX, *tile]) == 1
    error = capsys.readouterr().err.strip()
    assert words in error and "\n" not in error and not Path("out.npy").exists()


def test_pages_of_different_kinds_are_refused(tile, capsys):
    with tifffile.TiffWriter("in.tif") as file:
        file.write(random(20, 30), photometric="minisblack")
        file.write(random(24, 24, 3), photometric="rgb")
    assert run(["filter", "in.tif", "out.tif", *BOX, *tile]) == 1
    error = capsys.readouterr().err.strip()
    assert error == "error: in.tif: has 2 pictures, of sizes 20 × 30, 24 × 24 × 3; save the one that is meant"
    assert not Path("out.tif").exists()


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "behind"])
def test_smaller_copies_of_a_picture_are_no_other_pictures(tile, inside):
    with tifffile.TiffWriter("in.tif") as file:
        file.write(random(32, 64), photometric="minisblack", subifds=1 if inside else None, metadata=None)
        file.write(random(16, 32), photometric="minisblack", subfiletype=1, metadata=None)
        file.write(random(5, 9), photometric="minisblack", subfiletype=1, metadata=None)  # a preview
    assert run(["filter", "in.tif", "out.tif", *BOX, *tile]) == 0
    assert np.array_equal(images.read(Path("out.tif")).pixels, box(random(32, 64)))


def test_a_palette_is_colours_and_not_their_numbers(capsys):
    image = PIL.Image.fromarray(random(20, 20, 3)).quantize(8)
    image.save("in.tif")
    assert np.array_equal(images.read(Path("in.tif")).pixels, np.asarray(image.convert("RGB")))
    assert run(["filter", "in.tif", "out.tif", *BOX, "--tile", "16"]) == 1
    assert "in.tif: holds PALETTE colours" in capsys.readouterr().err


def test_jpeg_in_a_tiff_is_colours(tile):
    tifffile.imwrite("in.tif", np.full((32, 32, 3), (200, 30, 90), np.uint8), photometric="rgb", compression="jpeg")
    assert run(["filter", "in.tif", "out.tif", *BOX, *tile]) == 0
    assert np.abs(images.read(Path("out.tif")).pixels.astype(int) - (200, 30, 90)).max() <= 2


@pytest.mark.parametrize(("axes", "channels"), [("ZCYX", 1), ("CZYX", 0), ("CYX", 0), ("ZYX", None)])
def test_axes_are_those_that_the_file_names(tile, axes, channels):
    pixels = random(*({"Z": 5, "C": 2, "Y": 20, "X": 30}[axis] for axis in axes))
    tifffile.imwrite("in.tif", pixels, metadata={"axes": axes}, photometric="minisblack", ome=True)
    assert run(["filter", "in.tif", "out.npy", *BOX, *tile]) == 0
    assert np.array_equal(np.load("out.npy"), box(pixels, channels))


@pytest.mark.parametrize("colours", [1, 3])
@pytest.mark.parametrize("planar", [False, True])
def test_opacity_and_profile_are_kept(tile, colours, planar):
    pixels = random(20, 30, colours + 1)
    tifffile.imwrite(
        "in.tif",
        np.ascontiguousarray(np.moveaxis(pixels, -1, 0)) if planar else pixels,
        photometric="rgb" if colours == 3 else "minisblack",
        planarconfig="separate" if planar else "contig",
        extrasamples=["unassalpha"],
        iccprofile=PROFILE,
    )
    assert run(["filter", "in.tif", "out.tif", *BOX, *tile]) == 0
    found = images.read(Path("out.tif"))
    assert np.array_equal(found.opacity, pixels[..., -1]) and found.profile == PROFILE
    assert np.array_equal(found.pixels, seen(pixels) if colours == 3 else seen(pixels)[..., 0])


def test_opacity_of_a_volume_is_kept():
    pixels = random(4, 20, 30, 4)
    tifffile.imwrite("in.tif", pixels, photometric="rgb", extrasamples=["unassalpha"])
    assert run(["filter", "in.tif", "out.tif", *BOX]) == 0
    found = images.read(Path("out.tif"))
    assert np.array_equal(found.opacity, pixels[..., -1]) and np.array_equal(found.pixels, seen(pixels))


def test_a_fourth_channel_that_is_no_opacity_is_filtered(tile):
    pixels = random(20, 30, 4)
    tifffile.imwrite("in.tif", pixels, photometric="rgb", extrasamples=["unspecified"])
    assert run(["filter", "in.tif", "out.tif", *BOX, *tile]) == 0
    found = images.read(Path("out.tif"))
    assert found.opacity is None and np.array_equal(found.pixels, box(pixels, -1))
    with tifffile.TiffFile("out.tif") as file:
        assert file.pages[0].photometric == tifffile.PHOTOMETRIC.RGB
        assert file.pages[0].extrasamples == (tifffile.EXTRASAMPLE.UNSPECIFIED,)


def test_channels_between_colours_and_opacity_are_kept(tile):
    pixels = random(20, 30, 5)
    tifffile.imwrite("in.tif", pixels, photometric="rgb", extrasamples=["unspecified", "unassalpha"])
    assert run(["filter", "in.tif", "out.tif", *BOX, *tile]) == 0
    found = images.read(Path("out.tif"))
    assert np.array_equal(found.opacity, pixels[..., -1]) and np.array_equal(found.pixels, seen(pixels))
    assert found.extra == 1


def test_opacity_that_is_not_the_last_channel_is_refused(tile, capsys):
    tifffile.imwrite("in.tif", random(20, 30, 5), photometric="rgb", extrasamples=["unassalpha", "unspecified"])
    assert run(["filter", "in.tif", "out.tif", *BOX, *tile]) == 1
    assert "in.tif: its opacity is not the last of its channels" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [np.nan, -0.5, np.inf])
def test_opacity_that_is_none_is_refused(tile, wrong, capsys):
    pixels = np.random.default_rng(0).random((20, 30, 4), dtype=np.float32)
    pixels[3, 4, 3] = wrong
    tifffile.imwrite("in.tif", pixels, photometric="rgb", extrasamples=["unassalpha"])
    assert run(["filter", "in.tif", "out.tif", *BOX, *tile]) == 1
    assert capsys.readouterr().err.startswith("error: in.tif: ") and not Path("out.tif").exists()


def test_a_single_channel_is_written_as_grey(tile):
    np.save("in.npy", random(20, 30, 1))
    assert run(["filter", "in.npy", "out.tif", *BOX, *tile]) == 0
    assert np.array_equal(images.read(Path("out.tif")).pixels, box(random(20, 30, 1)[..., 0]))


def test_opacity_does_not_vanish_into_an_array(tile, capsys):
    tifffile.imwrite("in.tif", random(20, 30, 4), photometric="rgb", extrasamples=["unassalpha"])
    assert run(["filter", "in.tif", "out.npy", *BOX, *tile]) == 1
    assert "out.npy: .npy cannot hold the picture's opacity; choose one of" in capsys.readouterr().err


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("channels", [None, -1, 0])
def test_a_turned_tiff_comes_upright(tile, orientation, channels):
    pixels = random(20, 30) if channels is None else random(20, 30, 3)
    stored = pixels if channels != 0 else np.ascontiguousarray(np.moveaxis(pixels, -1, 0))
    options = {} if channels is None else {"planarconfig": "contig" if channels else "separate"}
    colours = "minisblack" if channels is None else "rgb"
    tifffile.imwrite("in.tif", stored, photometric=colours, extratags=[(274, "H", 1, orientation, False)], **options)
    image = PIL.Image.fromarray(pixels)
    image.getexif()[274] = orientation
    expected = np.asarray(PIL.ImageOps.exif_transpose(image))
    assert run(["filter", "in.tif", "out.tif", "-m", "box", "-k", "1", *tile]) == 0
    found = images.read(Path("out.tif"))
    assert np.array_equal(found.pixels, expected)
