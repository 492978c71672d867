"""Reading and writing of image files at their own bit depth.

Safe for untrusted files: nothing is unpickled, and the image size in the header is checked before pixels are decoded.
Files are written atomically and never replaced unless forced.
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
from .._files import check_replaceable, writing
from . import nifti, tiff
from .image_data import ImageData, apply_orientation, channel_axis_of, spatial_shape, split_opacity, to_dtype

__all__ = [
    "FORMATS",
    "Format",
    "MAX_PIXELS",
    "SUFFIXES",
    "check_dtype",
    "check_finite_pixels",
    "check_format",
    "check_input",
    "check_opacity",
    "check_output",
    "check_result",
    "check_size",
    "hidden_warnings",
    "is_zarr",
    "out_of_range",
    "read",
    "suffix_of",
    "write",
]

# Default limit of pixels per file: about 2 GB as floats.
MAX_PIXELS = 100_000_000


class Format(NamedTuple):
    """Capabilities of a file format.

    Args:
        depths: supported bits per unsigned sample; empty if images and volumes of any dtype are supported.
        channels: supported numbers of channels, not counting opacity; empty if any number is.
        opacity: whether an alpha channel is supported.
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
    ".nii": Format((), (1,)),
    ".nii.gz": Format((), (1,)),
    ".zarr": Format((), ()),
}
# Formats read from folders, and written from memory.
SUFFIXES = tuple(suffix for suffix in FORMATS if suffix != ".zarr")
_WITH_AXES = (".npy", ".tif", ".tiff", ".zarr")
# Hide warnings about damaged files and unusual chunks unless logging is configured: errors are raised.
for _name in ("imagecodecs", "tifffile"):
    logging.getLogger(_name).addHandler(logging.NullHandler())
# Pillow's readers of these files. Its others are not used, whatever a file contains: that of EPS starts Ghostscript.
_PILLOW_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "WEBP")
# Color modes converted to RGB, for which their ICC profile is not valid.
_CONVERTED_MODES = ("CMYK", "YCbCr", "LAB", "HSV")


def read(path: Path, axes: str | None = None, max_pixels: int = MAX_PIXELS) -> ImageData:
    """Read an image or volume.

    Args:
        path: image file; its suffix determines the format.
        axes: axis order of arrays and TIFFs, one letter per axis: "yx", "yxc", "cyx", "zyx", "zyxc" or "czyx". By
            default that of the file; a .npy of three axes has channels if its last axis has at most 4 entries.
        max_pixels: maximum number of pixels, checked before decoding.
    """
    check_input(path)
    try:
        with hidden_warnings():
            image = _read(path, axes, max_pixels)
    except UserError:
        raise
    except PIL.UnidentifiedImageError:
        raise UserError(f"{path}: not a supported image file") from None
    except Exception as error:  # decoders raise many kinds of errors on broken files
        raise UserError(f"{path}: cannot be read as an image ({error or type(error).__name__})") from error
    pixels = image.pixels
    check_dtype(path, pixels.dtype)
    if not pixels.size:
        raise UserError(f"{path}: is empty")
    check_finite_pixels(path, pixels)
    if image.opacity is not None:
        check_opacity(path, image.opacity)
    return dataclasses.replace(image, pixels=pixels.astype(pixels.dtype.newbyteorder("="), copy=False))


def _read(path: Path, axes: str | None, max_pixels: int) -> ImageData:
    suffix = suffix_of(path)
    if suffix == ".npy":
        return _read_npy(path, axes, max_pixels)
    if suffix in (".tif", ".tiff"):
        return _read_tiff(path, axes, max_pixels)
    if axes is not None:
        raise UserError(f"axes {axes!r}: supported only for {', '.join(_WITH_AXES)}, got {path}")
    if suffix in nifti.SUFFIXES:
        volume = nifti.read_header(path)
        check_size(path, volume.shape[:3], max_pixels)
        return nifti.read_voxels(volume)
    return _read_image(path, max_pixels, _PILLOW_FORMATS)


@contextlib.contextmanager
def hidden_warnings() -> Iterator[None]:
    """Hide warnings about damaged files, which raise an error anyway."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def write(path: Path, image: ImageData, *, force: bool = False) -> None:
    """Write an image in the format of the suffix, at its own bit depth."""
    check_output(path, force=force)
    check_format(path, image)
    suffix = suffix_of(path)
    pixels = image.interleaved()
    with writing(path) as temporary:
        if suffix in nifti.SUFFIXES:
            temporary.write_bytes(nifti.to_bytes(path, image))
        elif suffix == ".npy":
            np.save(temporary, image.pixels, allow_pickle=False)
        elif suffix == ".pgm":
            PIL.Image.fromarray(pixels if pixels.dtype == np.uint16 else _to_uint8(pixels)).save(temporary)
        elif suffix in (".tif", ".tiff"):
            tifffile.imwrite(temporary, pixels, **tiff.write_options(image))
        elif pixels.dtype == np.uint16:
            temporary.write_bytes(_encode_png16(pixels, image.profile))
        else:
            options: dict[str, Any] = {}
            if suffix in (".jpg", ".jpeg"):
                options["quality"] = 95
            elif suffix == ".webp":
                options["lossless"] = True
            if image.profile and suffix in (".png", ".jpg", ".jpeg", ".webp"):
                options["icc_profile"] = image.profile
            PIL.Image.fromarray(_to_uint8(pixels)).save(temporary, **options)


def check_input(path: Path) -> None:
    """Check that ``path`` is a regular file or a zarr folder, not a pipe or device, whose reading may never end."""
    if not path.exists():
        raise UserError(f"{path}: no such file")
    if is_zarr(path) and not path.is_dir():
        raise UserError(f"{path}: is a file, expected a .zarr folder")
    if not is_zarr(path) and not path.is_file():
        raise UserError(f"{path}: not a file")


def check_output(path: Path, *, force: bool, inputs: tuple[Path, ...] = ()) -> None:
    """Check that a file can be written to ``path``, and that it does not exist unless ``force``."""
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError:
        raise UserError(f"{path}: {parent} is not a writable folder") from None
    if path.is_dir() and not is_zarr(path):
        raise UserError(f"{path}: is a folder, expected a file")
    if path.is_file() and is_zarr(path):
        raise UserError(f"{path}: is a file, expected a .zarr folder")
    if not is_zarr(path):
        check_replaceable(path)
    if force or not os.path.lexists(path):
        return
    if any(given.exists() and path.exists() and path.samefile(given) for given in inputs):
        raise UserError(f"{path}: is the input file; use --force to overwrite it")
    raise UserError(f"{path}: already exists; use --force to overwrite it")


def check_dtype(path: Path, dtype: np.dtype[Any]) -> None:
    """Check that pixels are real numbers of at most 64 bits, the widest that torch supports."""
    if dtype.kind not in "buif" or dtype.itemsize > 8:
        raise UserError(f"{path}: dtype {dtype} is not supported, expected real numbers of at most 64 bits")


def check_finite_pixels(path: Path, pixels: NDArray[Any]) -> None:
    """Check that pixels are finite."""
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        raise UserError(f"{path}: contains NaN or infinite values")


def check_opacity(path: Path, opacity: NDArray[Any]) -> None:
    """Check that the opacity is finite and not negative."""
    if not (opacity >= 0).all():
        raise UserError(f"{path}: opacity must be finite and at least 0")
    check_finite_pixels(path, opacity)


def check_result(path: Path, values: NDArray[Any]) -> None:
    """Check that a filtered image is finite."""
    if not np.isfinite(values).all():
        raise UserError(f"{path}: the result contains NaN or infinite values; pixels or options are too large")


def check_format(path: Path, image: ImageData, choices: tuple[str, ...] = SUFFIXES) -> None:
    """Check that the suffix is one of the choices, and that its format supports the image."""
    suffix = ".zarr" if is_zarr(path) else suffix_of(path)
    if suffix not in choices:
        raise UserError(
            f"{path}: cannot write {suffix or 'a file without suffix'}, expected one of {' '.join(choices)}"
        )
    unsupported = _unsupported_content(FORMATS[suffix], image)
    if unsupported:
        others = " ".join(name for name in choices if not _unsupported_content(FORMATS[name], image))
        raise UserError(f"{path}: {suffix} does not support {unsupported}, expected one of {others}")


def _unsupported_content(target: Format, image: ImageData) -> str:
    """Return what prevents an image from being written in a format, empty if nothing does."""
    dtype, channels = image.pixels.dtype, image.channels
    if image.opacity is not None and not target.opacity:
        return "an alpha channel (opacity)"
    if target.channels and channels not in target.channels:
        return f"{channels} channel{'s' if channels > 1 else ''}"
    if target.channels == (1,) and not target.depths and len(image.spatial) != 3:
        return "images"
    if not target.depths:
        return ""
    if len(image.spatial) != 2:
        return "volumes"
    if dtype.kind in "ui" and dtype not in [np.dtype(f"u{bits // 8}") for bits in target.depths]:
        return f"{dtype}"
    return out_of_range(image.pixels)


def out_of_range(pixels: NDArray[Any]) -> str:
    """Describe the range of floats that exceed [0, 1], empty if none does."""
    low, high = (float(pixels.min()), float(pixels.max())) if pixels.dtype.kind == "f" else (0.0, 1.0)
    # Floats are written as 8 bits: an excess below half a step is rounded away.
    return "" if max(-low, high - 1) <= 0.5 / 255 else f"floats from {low:g} to {high:g}, outside [0, 1]"


def check_size(path: Path, spatial: tuple[int, ...], max_pixels: int) -> None:
    """Check that an image has at most ``max_pixels`` pixels."""
    count = int(np.prod(spatial, dtype=object))
    if count > max_pixels:
        raise UserError(
            f"{path}: {' × '.join(map(str, spatial))} pixels exceed the limit of {max_pixels}",
            "raise it by --max-pixels or filter in tiles by --tile",
        )


def suffix_of(path: Path) -> str:
    """Return the suffix that determines the format, in lower case."""
    name = path.name.lower()
    return ".nii.gz" if name.endswith(".nii.gz") else path.suffix.lower()


def is_zarr(path: Path) -> bool:
    """Return whether a path is a zarr store or an array inside one."""
    return any(part.lower().endswith(".zarr") for part in path.parts)


def _read_npy(path: Path, axes: str | None, max_pixels: int) -> ImageData:
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    if mapped.ndim not in (2, 3, 4):
        raise UserError(f"{path}: shape {mapped.shape} is neither an image nor a volume")
    channels = channel_axis_of(mapped.shape, axes, path)
    check_size(path, spatial_shape(mapped.shape, channels), max_pixels)
    return ImageData(np.array(mapped), channels)


def _read_tiff(path: Path, axes: str | None, max_pixels: int) -> ImageData:
    with tifffile.TiffFile(path) as file:
        series = tiff.only_series(path, file)
        if tiff.is_palette(series):
            return _read_image(path, max_pixels, ("TIFF",))
        channels = tiff.channel_axis(path, series, axes)
        check_size(path, spatial_shape(series.shape, channels), max_pixels)
        return tiff.to_image_data(series, series.asarray(), channels)


def _read_image(path: Path, max_pixels: int, formats: tuple[str, ...]) -> ImageData:
    with _pixel_limit(path, max_pixels), PIL.Image.open(path, formats=formats) as image:
        check_size(path, (image.height, image.width), max_pixels)
        frames = getattr(image, "n_frames", 1)
        if frames > 1 and image.format != "MPO":  # phones store the photograph first, then auxiliary images
            raise UserError(f"{path}: has {frames} frames, expected 1")
        stored = image.tile[0].args if image.format == "PPM" and image.mode == "RGB" else None
        if isinstance(stored, tuple) and stored[1] > 255:
            raise UserError(f"{path}: 16-bit .ppm is not supported; convert it to .png or .tif")
        image.load()
        profile = image.info.get("icc_profile") if image.mode not in _CONVERTED_MODES else None
        # Pillow would reduce 16-bit PNGs to 8 bits and ignore transparent colors (tRNS).
        pixels = imagecodecs.png_decode(path.read_bytes()) if image.format == "PNG" else _decode(image)
        orientation = image.getexif().get(PIL.ExifTags.Base.Orientation, 1)
    pixels = apply_orientation(pixels, None if pixels.ndim == 2 else -1, orientation)
    if pixels.ndim == 2 or pixels.shape[-1] == 3:
        return ImageData(pixels, None if pixels.ndim == 2 else -1, None, profile)
    return split_opacity(pixels, profile)


def _decode(image: PIL.Image.Image) -> NDArray[Any]:
    """Return the pixels read by Pillow as gray or RGB, with opacity if present."""
    if image.mode == "I" and image.format == "PPM":  # at most 16 bits, scaled to 16
        return np.asarray(image).astype(np.uint16)
    modes = dict.fromkeys((*_CONVERTED_MODES, "P"), "RGB") | {"1": "L", "PA": "RGBA", "La": "LA", "RGBa": "RGBA"}
    mode = modes.get(image.mode, image.mode)
    return np.asarray(image.convert(mode + "A" if "transparency" in image.info and mode in ("L", "RGB") else mode))


@contextlib.contextmanager
def _pixel_limit(path: Path, max_pixels: int) -> Iterator[None]:
    """Set Pillow's limit of pixels per image."""
    previous, PIL.Image.MAX_IMAGE_PIXELS = PIL.Image.MAX_IMAGE_PIXELS, max_pixels
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", PIL.Image.DecompressionBombWarning)
            yield
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning):
        raise UserError(f"{path}: exceeds the limit of {max_pixels} pixels", "raise it by --max-pixels") from None
    finally:
        PIL.Image.MAX_IMAGE_PIXELS = previous


def _encode_png16(pixels: NDArray[Any], profile: bytes | None) -> bytes:
    """Encode 16-bit pixels, which Pillow would reduce to 8; the profile chunk follows the header chunk."""
    png = bytes(imagecodecs.png_encode(np.ascontiguousarray(pixels)))
    if not profile:
        return png
    body = b"iCCP" + b"ICC Profile\0\0" + zlib.compress(profile)
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    header = 8 + 25  # signature, and a chunk with 13 bytes of header
    return png[:header] + chunk + png[header:]


def _to_uint8(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    return pixels if pixels.dtype == np.uint8 else to_dtype(pixels, np.dtype(np.uint8))
