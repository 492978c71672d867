"""TIFF tags, for files read whole and in tiles."""

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
    """Return the box-filtered pixels, in their dtype."""
    kind = np.uint8 if pixels.dtype == bool else pixels.dtype
    return np.rint(np.iinfo(kind).max * filters.box_filter(pixels, 3, channel_axis=channel_axis)).astype(kind)


def weighted_box(pixels):
    """Return the box-filtered colors, weighted by opacity, the last channel."""
    weights = pixels[..., -1:] / 255
    means = filters.box_filter(np.concatenate([pixels[..., :-1] / 255 * weights, weights], -1), 3, channel_axis=-1)
    return np.rint(255 * means[..., :-1] / means[..., -1:]).astype(np.uint8)


@pytest.mark.parametrize("pixels", [random(20, 30), random(20, 30, dtype=np.uint16), random(20, 30) > 99])
def test_miniswhite_is_inverted(tile, pixels):
    tifffile.imwrite("in.tif", pixels, photometric="miniswhite")
    assert run(["filter", "in.tif", "out.tif", *BOX, *tile]) == 0
    black_is_zero = ~pixels
    assert np.array_equal(images.read(Path("in.tif")).pixels, black_is_zero)
    assert np.array_equal(images.read(Path("out.tif")).pixels, box(black_is_zero))


def test_missing_photometric_tag_means_black_is_zero(tile):
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
        (random(20, 20, 4), {"photometric": "separated"}, "in.tif: SEPARATED colors are not supported"),
        (random(20, 20, 3), {"photometric": "cielab"}, "in.tif: CIELAB colors are not supported"),
        (random(20, 20, 3), {"photometric": "ycbcr"}, "in.tif: YCBCR colors are not supported"),
        (np.zeros((20, 20), np.float32), {"photometric": "miniswhite"}, "in.tif: float32 with white as minimum"),
        (random(20, 20, 4), {"photometric": "rgb", "extrasamples": ["assocalpha"]}, "premultiplied (associated) alpha"),
        (random(2, 3, 20, 20), {"imagej": True, "metadata": {"axes": "TZYX"}}, "axes TZYX of shape (2, 3, 20, 20)"),
    ],
)
def test_unsupported_tiffs_raise(tile, pixels, options, words, capsys):
    tifffile.imwrite("in.tif", pixels, **options)
    assert run(["filter", "in.tif", "out.npy", *BOX, *tile]) == 1
    error = capsys.readouterr().err.strip()
    assert words in error and "\n" not in error and not Path("out.npy").exists()


def test_tiff_with_several_images_raises(tile, capsys):
    with tifffile.TiffWriter("in.tif") as file:
        file.write(random(20, 30), photometric="minisblack")
        file.write(random(24, 24, 3), photometric="rgb")
    assert run(["filter", "in.tif", "out.tif", *BOX, *tile]) == 1
    error = capsys.readouterr().err.strip()
    assert error == "error: in.tif: has 2 images of sizes 20 × 30, 24 × 24 × 3, expected 1"
    assert not Path("out.tif").exists()


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "behind"])
def test_tiff_pyramid_levels_and_previews_are_ignored(tile, inside):
    with tifffile.TiffWriter("in.tif") as file:
        file.write(random(32, 64), photometric="minisblack", subifds=1 if inside else None, metadata=None)
        file.write(random(16, 32), photometric="minisblack", subfiletype=1, metadata=None)
        file.write(random(5, 9), photometric="minisblack", subfiletype=1, metadata=None)  # a preview
    assert run(["filter", "in.tif", "out.tif", *BOX, *tile]) == 0
    assert np.array_equal(images.read(Path("out.tif")).pixels, box(random(32, 64)))


def test_palette_tiff_is_read_as_rgb(capsys):
    image = PIL.Image.fromarray(random(20, 20, 3)).quantize(8)
    image.save("in.tif")
    assert np.array_equal(images.read(Path("in.tif")).pixels, np.asarray(image.convert("RGB")))
    assert run(["filter", "in.tif", "out.tif", *BOX, "--tile", "16"]) == 1
    assert "in.tif: PALETTE colors are not supported" in capsys.readouterr().err


def test_jpeg_compressed_tiff_is_read_as_rgb(tile):
    tifffile.imwrite("in.tif", np.full((32, 32, 3), (200, 30, 90), np.uint8), photometric="rgb", compression="jpeg")
    assert run(["filter", "in.tif", "out.tif", *BOX, *tile]) == 0
    assert np.abs(images.read(Path("out.tif")).pixels.astype(int) - (200, 30, 90)).max() <= 2


@pytest.mark.parametrize(("axes", "channels"), [("ZCYX", 1), ("CZYX", 0), ("CYX", 0), ("ZYX", None)])
def test_tiff_axes_metadata_is_used(tile, axes, channels):
    pixels = random(*({"Z": 5, "C": 2, "Y": 20, "X": 30}[axis] for axis in axes))
    tifffile.imwrite("in.tif", pixels, metadata={"axes": axes}, photometric="minisblack", ome=True)
    assert run(["filter", "in.tif", "out.npy", *BOX, *tile]) == 0
    assert np.array_equal(np.load("out.npy"), box(pixels, channels))


@pytest.mark.parametrize("colors", [1, 3])
@pytest.mark.parametrize("planar", [False, True])
def test_tiff_opacity_and_profile_are_kept(tile, colors, planar):
    pixels = random(20, 30, colors + 1)
    tifffile.imwrite(
        "in.tif",
        np.ascontiguousarray(np.moveaxis(pixels, -1, 0)) if planar else pixels,
        photometric="rgb" if colors == 3 else "minisblack",
        planarconfig="separate" if planar else "contig",
        extrasamples=["unassalpha"],
        iccprofile=PROFILE,
    )
    assert run(["filter", "in.tif", "out.tif", *BOX, *tile]) == 0
    found = images.read(Path("out.tif"))
    assert np.array_equal(found.opacity, pixels[..., -1]) and found.profile == PROFILE
    assert np.array_equal(found.pixels, weighted_box(pixels) if colors == 3 else weighted_box(pixels)[..., 0])


def test_tiff_opacity_of_volume_is_kept():
    pixels = random(4, 20, 30, 4)
    tifffile.imwrite("in.tif", pixels, photometric="rgb", extrasamples=["unassalpha"])
    assert run(["filter", "in.tif", "out.tif", *BOX]) == 0
    found = images.read(Path("out.tif"))
    assert np.array_equal(found.opacity, pixels[..., -1]) and np.array_equal(found.pixels, weighted_box(pixels))


def test_unspecified_fourth_channel_is_filtered(tile):
    pixels = random(20, 30, 4)
    tifffile.imwrite("in.tif", pixels, photometric="rgb", extrasamples=["unspecified"])
    assert run(["filter", "in.tif", "out.tif", *BOX, *tile]) == 0
    found = images.read(Path("out.tif"))
    assert found.opacity is None and np.array_equal(found.pixels, box(pixels, -1))
    with tifffile.TiffFile("out.tif") as file:
        assert file.pages[0].photometric == tifffile.PHOTOMETRIC.RGB
        assert file.pages[0].extrasamples == (tifffile.EXTRASAMPLE.UNSPECIFIED,)


def test_extra_channels_before_opacity_are_kept(tile):
    pixels = random(20, 30, 5)
    tifffile.imwrite("in.tif", pixels, photometric="rgb", extrasamples=["unspecified", "unassalpha"])
    assert run(["filter", "in.tif", "out.tif", *BOX, *tile]) == 0
    found = images.read(Path("out.tif"))
    assert np.array_equal(found.opacity, pixels[..., -1]) and np.array_equal(found.pixels, weighted_box(pixels))
    assert found.extra == 1


def test_opacity_must_be_the_last_channel(tile, capsys):
    tifffile.imwrite("in.tif", random(20, 30, 5), photometric="rgb", extrasamples=["unassalpha", "unspecified"])
    assert run(["filter", "in.tif", "out.tif", *BOX, *tile]) == 1
    assert "in.tif: the alpha channel must be the last channel" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [np.nan, -0.5, np.inf])
def test_invalid_opacity_raises(tile, wrong, capsys):
    pixels = np.random.default_rng(0).random((20, 30, 4), dtype=np.float32)
    pixels[3, 4, 3] = wrong
    tifffile.imwrite("in.tif", pixels, photometric="rgb", extrasamples=["unassalpha"])
    assert run(["filter", "in.tif", "out.tif", *BOX, *tile]) == 1
    assert capsys.readouterr().err.startswith("error: in.tif: ") and not Path("out.tif").exists()


def test_single_channel_is_written_as_gray(tile):
    np.save("in.npy", random(20, 30, 1))
    assert run(["filter", "in.npy", "out.tif", *BOX, *tile]) == 0
    assert np.array_equal(images.read(Path("out.tif")).pixels, box(random(20, 30, 1)[..., 0]))


def test_npy_output_with_opacity_raises(tile, capsys):
    tifffile.imwrite("in.tif", random(20, 30, 4), photometric="rgb", extrasamples=["unassalpha"])
    assert run(["filter", "in.tif", "out.npy", *BOX, *tile]) == 1
    assert "out.npy: .npy does not support an alpha channel (opacity), expected one of" in capsys.readouterr().err


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("channels", [None, -1, 0])
def test_tiff_orientation_is_applied(tile, orientation, channels):
    pixels = random(20, 30) if channels is None else random(20, 30, 3)
    stored = pixels if channels != 0 else np.ascontiguousarray(np.moveaxis(pixels, -1, 0))
    options = {} if channels is None else {"planarconfig": "contig" if channels else "separate"}
    colors = "minisblack" if channels is None else "rgb"
    tifffile.imwrite("in.tif", stored, photometric=colors, extratags=[(274, "H", 1, orientation, False)], **options)
    image = PIL.Image.fromarray(pixels)
    image.getexif()[274] = orientation
    expected = np.asarray(PIL.ImageOps.exif_transpose(image))
    assert run(["filter", "in.tif", "out.tif", "-m", "box", "-k", "1", *tile]) == 0
    found = images.read(Path("out.tif"))
    assert np.array_equal(found.pixels, expected)
