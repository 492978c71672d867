"""Image files: round trips at their own bit depth, and malicious files."""

import struct
import zlib

import imagecodecs
import numpy as np
import PIL.Image
import pytest
import tifffile
from PIL import ImageCms

from metricconv._errors import UserError
from metricconv.io import images
from metricconv.io.image_data import to_dtype


def random(shape, dtype):
    generator = np.random.default_rng(0)
    if np.dtype(dtype).kind == "f":
        return generator.random(shape).astype(dtype)
    return generator.integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)


@pytest.mark.parametrize("suffix", [".png", ".tif", ".npy", ".webp", ".bmp"])
@pytest.mark.parametrize("shape", [(9, 7), (9, 7, 3)])
def test_uint8_images_round_trip(tmp_path, suffix, shape):
    image = images.ImageData(random(shape, np.uint8), None if len(shape) == 2 else -1)
    images.write(tmp_path / f"a{suffix}", image)
    back = images.read(tmp_path / f"a{suffix}")
    expected = image.pixels if not (suffix == ".webp" and len(shape) == 2) else np.dstack([image.pixels] * 3)
    assert back.pixels.dtype == np.uint8 and np.array_equal(back.pixels, expected)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("shape", [(9, 7), (9, 7, 3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_dtype_and_opacity_round_trip(tmp_path, suffix, shape, dtype):
    channels = None if len(shape) == 2 else -1
    image = images.ImageData(random(shape, dtype), channels, random((9, 7), dtype))
    images.write(tmp_path / f"a{suffix}", image)
    back = images.read(tmp_path / f"a{suffix}")
    assert back.pixels.dtype == dtype and back.channel_axis in (channels, None if channels is None else 2)
    assert np.array_equal(back.pixels, image.pixels) and np.array_equal(back.opacity, image.opacity)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.uint32])
def test_npy_and_tiff_support_all_real_dtypes(tmp_path, dtype):
    for name in ("a.npy", "a.tif"):
        images.write(tmp_path / name, images.ImageData(random((9, 7), dtype)))
        assert np.array_equal(images.read(tmp_path / name).pixels, random((9, 7), dtype))


@pytest.mark.parametrize("floats", [np.float32, np.float64])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_conversion_to_integers_saturates(dtype, floats):
    most, least = np.iinfo(dtype).max, np.iinfo(dtype).min
    found = to_dtype(np.array([-9.0, 0.0, 0.25, 1.0, 9.0], floats), np.dtype(dtype))
    assert found.dtype == dtype and found[[0, 1, 3, 4]].tolist() == [least, 0, most, most]
    assert float(found[2]) == pytest.approx(most / 4, abs=0.5, rel=1e-6)


def test_both_byte_orders_are_read(tmp_path):
    pixels = np.arange(30, dtype=np.uint16).reshape(5, 6)
    np.save(tmp_path / "a.npy", pixels.astype(">u2"))
    found = images.read(tmp_path / "a.npy").pixels
    assert found.dtype == np.uint16 and np.array_equal(found, pixels)


def test_volumes_round_trip_through_tiff(tmp_path):
    volume = random((5, 9, 7), np.uint16)
    images.write(tmp_path / "a.tif", images.ImageData(volume))
    back = images.read(tmp_path / "a.tif")
    assert back.channel_axis is None and np.array_equal(back.pixels, volume)


@pytest.mark.parametrize("shape", [(9, 7), (9, 7, 3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_color_profile_is_kept(tmp_path, suffix, dtype, shape):
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for opacity in (None, random((9, 7), dtype)):
        image = images.ImageData(random(shape, dtype), None if len(shape) == 2 else -1, opacity, profile)
        images.write(tmp_path / f"a{suffix}", image, force=True)
        back = images.read(tmp_path / f"a{suffix}")
        assert back.profile == profile and np.array_equal(back.pixels, image.pixels)


def test_exif_orientation_of_jpeg_is_applied(tmp_path):
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # turn right to see it upright
    PIL.Image.new("L", (8, 4)).save(tmp_path / "a.jpg", exif=exif)
    assert images.read(tmp_path / "a.jpg").pixels.shape == (8, 4)


@pytest.mark.parametrize("shape", [(4, 8), (4, 8, 3)])
def test_exif_orientation_of_16_bit_png_is_applied(tmp_path, shape):
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    pixels = random(shape, np.uint16)
    data = b"eXIf" + exif.tobytes()[6:]  # past the marker of a JPEG
    chunk = struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    encoded = imagecodecs.png_encode(pixels)
    (tmp_path / "a.png").write_bytes(encoded[:33] + chunk + encoded[33:])
    assert np.array_equal(images.read(tmp_path / "a.png").pixels, np.rot90(pixels, -1))


@pytest.mark.parametrize("shape", [(6, 6), (6, 6, 3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_transparent_color_of_png_becomes_opacity(tmp_path, shape, dtype):
    pixels = random(shape, dtype)
    data = b"tRNS" + np.array(pixels[2, 3], ">u2").tobytes()
    chunk = struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    encoded = imagecodecs.png_encode(pixels)
    (tmp_path / "a.png").write_bytes(encoded[:33] + chunk + encoded[33:])
    found = images.read(tmp_path / "a.png")
    same = pixels == pixels[2, 3] if len(shape) == 2 else (pixels == pixels[2, 3]).all(-1)
    assert np.array_equal(found.pixels, pixels)
    assert np.array_equal(found.opacity, np.where(same, 0, np.iinfo(dtype).max))


def test_transparent_color_of_gif_becomes_opacity(tmp_path):
    pixels = random((6, 6), np.uint8)
    PIL.Image.fromarray(pixels).save(tmp_path / "a.gif", transparency=int(pixels[2, 3]))
    assert images.read(tmp_path / "a.gif").opacity[2, 3] == 0


def test_cmyk_profile_is_dropped_on_conversion_to_rgb(tmp_path):
    PIL.Image.new("CMYK", (8, 8)).save(tmp_path / "a.jpg", icc_profile=b"of inks")
    found = images.read(tmp_path / "a.jpg")
    assert found.pixels.shape == (8, 8, 3) and found.profile is None


def test_pgm_supports_16_bits(tmp_path):
    pixels = random((6, 7), np.uint16)
    (tmp_path / "a.pgm").write_bytes(b"P5 7 6 65535\n" + pixels.astype(">u2").tobytes())
    found = images.read(tmp_path / "a.pgm")
    assert found.pixels.dtype == np.uint16 and np.array_equal(found.pixels, pixels)
    images.write(tmp_path / "b.pgm", found)
    assert (tmp_path / "b.pgm").read_bytes().split()[:4] == [b"P5", b"7", b"6", b"65535"]
    assert np.array_equal(images.read(tmp_path / "b.pgm").pixels, pixels)


@pytest.mark.parametrize(("suffix", "shape", "magic"), [(".pgm", (6, 7), b"P5"), (".ppm", (6, 7, 3), b"P6")])
def test_uint8_images_round_trip_through_netpbm(tmp_path, suffix, shape, magic):
    images.write(tmp_path / f"a{suffix}", images.ImageData(random(shape, np.uint8), None if len(shape) == 2 else -1))
    assert (tmp_path / f"a{suffix}").read_bytes()[:2] == magic
    assert np.array_equal(images.read(tmp_path / f"a{suffix}").pixels, random(shape, np.uint8))


def test_16_bit_ppm_raises(tmp_path):
    (tmp_path / "a.ppm").write_bytes(b"P6 7 6 65535\n" + bytes(7 * 6 * 6))
    with pytest.raises(UserError, match=r"a\.ppm: 16-bit"):
        images.read(tmp_path / "a.ppm")


def test_palette_png_is_read_as_rgb(tmp_path):
    image = PIL.Image.fromarray(random((6, 6, 3), np.uint8)).quantize(8)
    image.save(tmp_path / "a.png")
    assert images.read(tmp_path / "a.png").pixels.shape == (6, 6, 3)


@pytest.mark.parametrize(("axes", "channels"), [(None, -1), ("yxc", 2), ("zyx", None), ("cyx", 0)])
def test_axes_argument_determines_channel_axis(tmp_path, axes, channels):
    np.save(tmp_path / "a.npy", random((5, 6, 4), np.uint8))
    assert images.read(tmp_path / "a.npy", axes).channel_axis == channels


@pytest.mark.parametrize("axes", ["xy", "yxq", "yxcz", "yx"])
def test_invalid_axes_raise(tmp_path, axes):
    np.save(tmp_path / "a.npy", random((5, 6, 4), np.uint8))
    with pytest.raises(UserError, match=f"axes '{axes}'"):
        images.read(tmp_path / "a.npy", axes)


def bomb_png(width, height):
    """Return a PNG whose header claims a size, with next to no data."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("size", [(60_000, 60_000), (15_000, 10_000)])
def test_oversized_images_raise_before_decoding(tmp_path, size):
    (tmp_path / "bomb.png").write_bytes(bomb_png(*size))
    with pytest.raises(UserError, match="--max-pixels"):
        images.read(tmp_path / "bomb.png")


def test_pixel_limit_applies_to_every_format(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((20, 20), np.uint8))
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((20, 20), np.uint8))
    (tmp_path / "a.png").write_bytes(imagecodecs.png_encode(np.zeros((20, 20, 3), np.uint16)))
    for name in ("a.npy", "a.tif", "a.png"):
        with pytest.raises(UserError, match="the limit of 399"):
            images.read(tmp_path / name, max_pixels=399)
        assert images.read(tmp_path / name, max_pixels=400).spatial == (20, 20)


def test_pickled_npy_is_not_loaded(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[print, print]], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="cannot be read as an image"):
        images.read(tmp_path / "a.npy")


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.npy", "a.jpg", "a.webp", "a.txt"])
def test_files_that_are_not_images_raise(tmp_path, name):
    (tmp_path / name).write_bytes(b"not at all an image, but some text\n" * 3)
    with pytest.raises(UserError, match=name):
        images.read(tmp_path / name)


def test_truncated_png_raises(tmp_path):
    images.write(tmp_path / "a.png", images.ImageData(random((40, 40), np.uint8)))
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"a\.png: cannot be read"):
        images.read(tmp_path / "a.png")


def test_animation_raises(tmp_path):
    frames = [PIL.Image.fromarray(random((6, 6), np.uint8) // (n + 1)) for n in range(3)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    with pytest.raises(UserError, match="has 3 frames"):
        images.read(tmp_path / "a.gif")


def test_first_image_of_mpo_is_read(tmp_path):
    first, second = (PIL.Image.new("RGB", (8, 6), color) for color in ("red", "blue"))
    first.save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=[second])
    assert np.abs(images.read(tmp_path / "a.jpg").pixels.astype(int) - (255, 0, 0)).max() <= 2


@pytest.mark.parametrize(
    ("name", "image", "message"),
    [
        ("a.jpg", images.ImageData(np.zeros((4, 4), np.uint16)), "does not support uint16, expected one of .png"),
        ("a.jpg", images.ImageData(np.zeros((4, 4), np.uint8), None, np.zeros((4, 4), np.uint8)), "opacity"),
        ("a.png", images.ImageData(np.zeros((4, 4, 4), np.uint8)), "does not support volumes"),
        ("a.png", images.ImageData(np.zeros((4, 4, 5), np.uint8), -1), "5 channels"),
        ("a.png", images.ImageData(np.zeros((4, 4), np.int32)), "does not support int32"),
        ("a.npy", images.ImageData(np.zeros((4, 4), np.uint8), None, np.zeros((4, 4), np.uint8)), "opacity"),
        ("a.pgm", images.ImageData(np.zeros((4, 4, 3), np.uint8), -1), "3 channels, expected one of .png"),
        ("a.ppm", images.ImageData(np.zeros((4, 4), np.uint8)), "1 channel, expected one of .png"),
        ("a.png", images.ImageData(np.full((4, 4), 1.01)), "floats from 1.01 to 1.01, .* expected one of .tif"),
        ("a.jpg", images.ImageData(np.linspace(-1, 1, 16).reshape(4, 4)), "floats from -1 to 1, outside"),
        ("a.gif", images.ImageData(np.zeros((4, 4), np.uint8)), "cannot write .gif"),
    ],
)
def test_unsupported_content_of_a_format_raises(tmp_path, name, image, message):
    with pytest.raises(UserError, match=message):
        images.write(tmp_path / name, image)
    assert not list(tmp_path.iterdir())


def test_floats_that_round_into_range_are_written(tmp_path):
    images.write(tmp_path / "a.png", images.ImageData(np.array([[-0.001, 0.5], [1.0, 1.001]])))
    assert images.read(tmp_path / "a.png").pixels.tolist() == [[0, 128], [255, 255]]


def test_to_dtype_scales_and_clips():
    values = np.array([-0.1, 0.0, 0.5, 1.0, 1.2])
    assert images.to_dtype(values, np.dtype(np.uint8)).tolist() == [0, 0, 128, 255, 255]
    assert images.to_dtype(values, np.dtype(np.int16)).tolist() == [-3277, 0, 16384, 32767, 32767]
    assert images.to_dtype(values, np.dtype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("format", ["EPS", "TIFF"])
def test_files_of_other_formats_are_not_decoded(format, tmp_path):
    PIL.Image.new("RGB", (4, 4)).save(tmp_path / "a.png", format)
    with pytest.raises(UserError, match=r"a\.png: not a supported image file"):
        images.read(tmp_path / "a.png")
