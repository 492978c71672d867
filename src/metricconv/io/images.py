"""Pictures from files and back: any format, at the depth they have, opened with care.

Nothing is unpickled, and the size that a file claims is checked before its pixels are decoded, so that a small file
cannot fill the memory. Files are written whole or not at all, and never over another unless that is asked for.
"""

import contextlib
import dataclasses
import logging
import os
import struct
import tempfile
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import imagecodecs
import numpy as np
import PIL.ExifTags
import PIL.Image
import tifffile
from numpy.typing import NDArray

from .._errors import UserError
from .._files import writing
from . import tiff
from .image_data import Picture, channel_axis_of, spatial_size, split_opacity, to_depth, upright

# What one file may hold, in pixels: about 2 GB as floats. ``--max-pixels`` says otherwise.
MAX_PIXELS = 100_000_000
# What a drawing can be.
DRAWINGS = (".png", ".pdf", ".svg")


class Format(NamedTuple):
    """What files of a kind can hold.

    Args:
        depths: of images of unsigned numbers, in bits; none where images and volumes of any numbers fit.
        channels: how many, the opacity aside; none where any number fits.
        opacity: whether it fits.
    """

    depths: tuple[int, ...] = (8,)
    channels: tuple[int, ...] = (1, 3)
    opacity: bool = False


FORMATS = {
    ".png": Format((8, 16), opacity=True),
    ".tif": Format((), (), opacity=True),
    ".tiff": Format((), (), opacity=True),
    ".jpg": Format(),
    ".jpeg": Format(),
    ".webp": Format(opacity=True),
    ".bmp": Format(),
    ".ppm": Format(channels=(3,)),
    ".pgm": Format((8, 16), channels=(1,)),
    ".npy": Format((), ()),
    ".zarr": Format((), ()),
}
# What is taken from a folder, and what can be written whole.
SUFFIXES = tuple(suffix for suffix in FORMATS if suffix != ".zarr")
_WITH_AXES = (".npy", ".tif", ".tiff", ".zarr")
# libpng's remarks on odd chunks are not for the user, unless logging is asked for.
logging.getLogger("imagecodecs").addHandler(logging.NullHandler())
# What becomes RGB, for which a profile of these colours means nothing.
_OTHER_COLOURS = ("CMYK", "YCbCr", "LAB", "HSV")


def read(path: Path, axes: str | None = None, max_pixels: int = MAX_PIXELS) -> Picture:
    """Read a picture.

    Args:
        path: its file; the format is told by the suffix.
        axes: of what the file holds, one letter each: "yx", "yxc", "cyx", "zyx", "zyxc" or "czyx". Told by the file if
            not given; the last axis of an array (.npy) of three axes holds channels when it is 4 long or less.
        max_pixels: a file that claims more is refused before it is decoded.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file" if not path.exists() else f"{path}: not a file")
    suffix = path.suffix.lower()
    try:
        if suffix == ".npy":
            picture = _read_npy(path, axes, max_pixels)
        elif suffix in (".tif", ".tiff"):
            picture = _read_tiff(path, axes, max_pixels)
        else:
            if axes is not None:
                raise UserError(f"--axes {axes}: is for {', '.join(_WITH_AXES)}; {path} says itself what its axes are")
            picture = _read_image(path, max_pixels)
    except UserError:
        raise
    except PIL.UnidentifiedImageError:
        raise UserError(f"{path}: not an image that can be read") from None
    except Exception as error:  # decoders fail in as many ways as files can be broken
        raise UserError(f"{path}: cannot be read as an image ({error or type(error).__name__})") from error
    pixels = picture.pixels
    check_numbers(path, pixels.dtype)
    if not pixels.size:
        raise UserError(f"{path}: is empty")
    check_finite(path, pixels)
    if picture.opacity is not None:
        check_opacity(path, picture.opacity)
    return dataclasses.replace(picture, pixels=pixels.astype(pixels.dtype.newbyteorder("="), copy=False))


def write(path: Path, picture: Picture, *, force: bool = False) -> None:
    """Write a picture in the format of the suffix, at its own depth."""
    check_output(path, force=force)
    check_format(path, picture)
    suffix = path.suffix.lower()
    pixels = picture.interleaved()
    with writing(path) as temporary:
        if suffix == ".npy":
            np.save(temporary, picture.pixels, allow_pickle=False)
        elif suffix == ".pgm":
            PIL.Image.fromarray(pixels if pixels.dtype == np.uint16 else _eight_bits(pixels)).save(temporary)
        elif suffix in (".tif", ".tiff"):
            tifffile.imwrite(temporary, pixels, **tiff.options(picture))
        elif pixels.dtype == np.uint16:
            temporary.write_bytes(_sixteen_bit_png(pixels, picture.profile))
        else:
            options: dict[str, Any] = {}
            if suffix in (".jpg", ".jpeg"):
                options["quality"] = 95
            elif suffix == ".webp":
                options["lossless"] = True
            if picture.profile and suffix in (".png", ".jpg", ".jpeg", ".webp"):
                options["icc_profile"] = picture.profile
            PIL.Image.fromarray(_eight_bits(pixels)).save(temporary, **options)


def check_output(path: Path, *, force: bool, inputs: tuple[Path, ...] = ()) -> None:
    """Refuse to write where nothing can be, over an input, or over anything unless forced."""
    place = next(folder for folder in path.absolute().parents if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError:
        raise UserError(f"{path}: {place} is not a folder that can be written to") from None
    if path.is_dir() and not is_zarr(path):
        raise UserError(f"{path}: is a folder; a file is to be written")
    if path.is_file() and is_zarr(path):
        raise UserError(f"{path}: is a file; a .zarr is a folder")
    if force or not os.path.lexists(path):
        return
    if any(given.exists() and path.exists() and path.samefile(given) for given in inputs):
        raise UserError(f"{path}: is the input itself; --force to replace it")
    raise UserError(f"{path}: exists; --force to replace it")


def check_drawing(path: Path, *, force: bool, inputs: tuple[Path, ...]) -> None:
    """Refuse what no drawing can be written to."""
    if path.suffix.lower() not in DRAWINGS:
        raise UserError(f"{path}: the picture must be {', '.join(DRAWINGS[:-1])} or {DRAWINGS[-1]}")
    check_output(path, force=force, inputs=inputs)


def check_numbers(path: Path, dtype: np.dtype[Any]) -> None:
    """Refuse what a file may hold beside real numbers, and numbers wider than torch's."""
    if dtype.kind not in "buif" or dtype.itemsize > 8:
        raise UserError(f"{path}: holds {dtype}, not real numbers of at most 64 bits")


def check_finite(path: Path, pixels: NDArray[Any]) -> None:
    """Refuse NaN and infinity."""
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        raise UserError(f"{path}: holds numbers that are not finite")


def check_opacity(path: Path, opacity: NDArray[Any]) -> None:
    """Refuse an opacity that is negative or no number."""
    if not (opacity >= 0).all():
        raise UserError(f"{path}: its opacity is negative, or no number, at some pixels")
    check_finite(path, opacity)


def check_result(path: Path, values: NDArray[Any]) -> None:
    """Refuse what a filter has made of a picture where it is NaN or infinite."""
    if not np.isfinite(values).all():
        raise UserError(f"{path}: the result is not finite, and is not written; numbers or options are too large")


def check_format(path: Path, picture: Picture, choices: tuple[str, ...] = SUFFIXES) -> None:
    """Refuse a format that is none of the choices, or cannot hold what the picture is."""
    suffix = ".zarr" if is_zarr(path) else path.suffix.lower()
    if suffix not in choices:
        raise UserError(f"{path}: cannot write {suffix or 'a file without suffix'}; choose one of {' '.join(choices)}")
    unheld = _unheld(FORMATS[suffix], picture)
    if unheld:
        others = " ".join(name for name in choices if not _unheld(FORMATS[name], picture))
        raise UserError(f"{path}: {suffix} cannot hold {unheld}; choose one of {others}")


def _unheld(form: Format, picture: Picture) -> str:
    """Say what of a picture a format cannot hold."""
    kind, channels = picture.pixels.dtype, picture.channels
    if picture.opacity is not None and not form.opacity:
        return "the picture's opacity"
    if form.channels and channels not in form.channels:
        return f"{channels} channel{'s' if channels > 1 else ''}"
    if not form.depths:
        return ""
    if len(picture.spatial) != 2:
        return "a volume"
    if kind.kind in "ui" and kind not in [np.dtype(f"u{bits // 8}") for bits in form.depths]:
        return f"{kind}"
    return past_range(picture.pixels)


def past_range(pixels: NDArray[Any]) -> str:
    """Say how far floats go past 0 to 1, if they do."""
    low, high = (float(pixels.min()), float(pixels.max())) if pixels.dtype.kind == "f" else (0.0, 1.0)
    # Floats are written as 8 bits; past a half of their step, they would be cut off.
    return "" if max(-low, high - 1) <= 0.5 / 255 else f"floats from {low:g} to {high:g} (of 0 to 1)"


def check_size(path: Path, spatial: tuple[int, ...], max_pixels: int) -> None:
    """Refuse a picture of too many pixels."""
    count = int(np.prod(spatial, dtype=object))
    if count > max_pixels:
        raise UserError(
            f"{path}: {' × '.join(map(str, spatial))} pixels, more than --max-pixels {max_pixels}; a .zarr of any size "
            "is filtered in parts"
        )


def is_zarr(path: Path) -> bool:
    """Tell whether a path is a zarr store, or an array inside of one."""
    return any(part.lower().endswith(".zarr") for part in path.parts)


def _read_npy(path: Path, axes: str | None, max_pixels: int) -> Picture:
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    if mapped.ndim not in (2, 3, 4):
        raise UserError(f"{path}: an array of shape {mapped.shape} is neither an image nor a volume")
    channels = channel_axis_of(mapped.shape, axes, path)
    check_size(path, spatial_size(mapped.shape, channels), max_pixels)
    return Picture(np.array(mapped), channels)


def _read_tiff(path: Path, axes: str | None, max_pixels: int) -> Picture:
    with tifffile.TiffFile(path) as file:
        series = tiff.only_series(path, file)
        if tiff.is_palette(series):
            return _read_image(path, max_pixels)
        channels = tiff.channel_axis(path, series, axes)
        check_size(path, spatial_size(series.shape, channels), max_pixels)
        return tiff.picture(series, series.asarray(), channels)


def _read_image(path: Path, max_pixels: int) -> Picture:
    with _pixel_limit(path, max_pixels), PIL.Image.open(path) as image:
        check_size(path, (image.height, image.width), max_pixels)
        frames = getattr(image, "n_frames", 1)
        if frames > 1 and image.format != "MPO":  # a photograph first, as phones write it, then what belongs to it
            raise UserError(f"{path}: has {frames} frames; save the one that is meant")
        stored = image.tile[0].args if image.format == "PPM" and image.mode == "RGB" else None
        if isinstance(stored, tuple) and stored[1] > 255:
            raise UserError(f"{path}: 16 bits a colour are not read from a .ppm; save it as .png or .tif")
        image.load()
        profile = image.info.get("icc_profile") if image.mode not in _OTHER_COLOURS else None
        # Pillow would cut a PNG of 16 bits to 8, and pass over what one colour says of opacity.
        pixels = imagecodecs.png_decode(path.read_bytes()) if image.format == "PNG" else _decoded(image)
        orientation = image.getexif().get(PIL.ExifTags.Base.Orientation, 1)
    pixels = upright(pixels, None if pixels.ndim == 2 else -1, orientation)
    if pixels.ndim == 2 or pixels.shape[-1] == 3:
        return Picture(pixels, None if pixels.ndim == 2 else -1, None, profile)
    return split_opacity(pixels, profile)


def _decoded(image: PIL.Image.Image) -> NDArray[Any]:
    """Return the numbers that Pillow reads, as grey or RGB, with opacity if there is one."""
    if image.mode == "I" and image.format == "PPM":  # of at most 16 bits, scaled to 16
        return np.asarray(image).astype(np.uint16)
    modes = dict.fromkeys((*_OTHER_COLOURS, "P"), "RGB") | {"1": "L", "PA": "RGBA", "La": "LA", "RGBa": "RGBA"}
    mode = modes.get(image.mode, image.mode)
    return np.asarray(image.convert(mode + "A" if "transparency" in image.info and mode in ("L", "RGB") else mode))


@contextlib.contextmanager
def _pixel_limit(path: Path, max_pixels: int) -> Iterator[None]:
    """Let Pillow open pictures of so many pixels and no more."""
    usual, PIL.Image.MAX_IMAGE_PIXELS = PIL.Image.MAX_IMAGE_PIXELS, max_pixels
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", PIL.Image.DecompressionBombWarning)
            yield
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning):
        raise UserError(f"{path}: more pixels than --max-pixels {max_pixels}") from None
    finally:
        PIL.Image.MAX_IMAGE_PIXELS = usual


def _sixteen_bit_png(pixels: NDArray[Any], profile: bytes | None) -> bytes:
    """Encode 16-bit pixels, which Pillow would cut to 8; the profile's chunk stands right behind the header's."""
    png = bytes(imagecodecs.png_encode(np.ascontiguousarray(pixels)))
    if not profile:
        return png
    body = b"iCCP" + b"ICC Profile\0\0" + zlib.compress(profile)
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    header = 8 + 25  # the signature, and a header of 13 bytes in its chunk
    return png[:header] + chunk + png[header:]


def _eight_bits(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    return pixels if pixels.dtype == np.uint8 else to_depth(pixels, np.dtype(np.uint8))
