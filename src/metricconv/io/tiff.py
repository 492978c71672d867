"""Interpretation of TIFF tags, for images read whole or in tiles."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from .._errors import UserError
from .image_data import Array, ImageData, apply_orientation, channel_axis_of, split_opacity

__all__ = ["channel_axis", "is_palette", "only_series", "to_image_data", "write_options"]

_PHOTOMETRIC = tifffile.PHOTOMETRIC
# Supported photometric interpretations; YCbCr is decoded to RGB where the compression is JPEG.
_PLAIN = (_PHOTOMETRIC.MINISBLACK, _PHOTOMETRIC.MINISWHITE, _PHOTOMETRIC.RGB)
_JPEG = (tifffile.COMPRESSION.OJPEG, tifffile.COMPRESSION.JPEG)
# tifffile's axis letters: S (samples) and C are channels, all others but Y and X count pages.
_LETTERS = {"S": "c", "C": "c", "Y": "y", "X": "x"}


def only_series(path: Path, file: tifffile.TiffFile) -> tifffile.TiffPageSeries:
    """Return the only image or volume of a file, ignoring previews; raise if there are several."""
    whole = [series for series in file.series if not series.keyframe.is_reduced] or file.series[:1]
    if len(whole) > 1:
        sizes = ", ".join(" × ".join(map(str, series.shape)) for series in whole)
        raise UserError(f"{path}: has {len(whole)} images of sizes {sizes}, expected 1")
    return whole[0]


def is_palette(series: tifffile.TiffPageSeries) -> bool:
    """Return whether pixels are indices of a color palette."""
    return bool(series.keyframe.photometric == _PHOTOMETRIC.PALETTE)


def channel_axis(path: Path, series: tifffile.TiffPageSeries, axes: str | None) -> int | None:
    """Return the channel axis, by ``axes`` or the file's metadata; raise if the color format is not supported."""
    page = series.keyframe
    jpeg = page.photometric == _PHOTOMETRIC.YCBCR and page.compression in _JPEG
    if page.photometric not in _PLAIN and not jpeg:
        raise UserError(f"{path}: {_PHOTOMETRIC(page.photometric).name} colors are not supported, expected gray or RGB")
    if _white_is_zero(page) and series.dtype.kind not in "ub":
        raise UserError(f"{path}: {series.dtype} with white as minimum is not supported, expected black")
    if tifffile.EXTRASAMPLE.ASSOCALPHA in page.extrasamples:
        raise UserError(f"{path}: premultiplied (associated) alpha is not supported, expected unassociated alpha")
    if tifffile.EXTRASAMPLE.UNASSALPHA in page.extrasamples[:-1]:
        raise UserError(f"{path}: the alpha channel must be the last channel")
    if axes is None:
        axes = "".join(_LETTERS.get(letter, "z") for letter in series.axes)
        if axes.replace("c", "", 1) not in ("yx", "zyx"):
            raise UserError(f"{path}: axes {series.axes} of shape {series.shape} are neither an image nor a volume")
    return channel_axis_of(series.shape, axes, path)


def to_image_data(series: tifffile.TiffPageSeries, pixels: Array, channels: int | None) -> ImageData:
    """Return the pixels of a series as an image, converted by its tags."""
    page = series.keyframe
    profile = page.iccprofile if "InterColorProfile" in page.tags else None
    if _white_is_zero(page):
        pixels = pixels ^ pixels.dtype.type(2**page.bitspersample - 1)  # maximum − pixels
    pixels = apply_orientation(pixels, channels, page.tags.valueof("Orientation", 1))
    if channels is None or channels != series.axes.find("S"):
        return ImageData(pixels, channels, None, profile)
    extra = len(page.extrasamples) if page.photometric == _PHOTOMETRIC.RGB else 0
    if page.extrasamples[-1:] == (tifffile.EXTRASAMPLE.UNASSALPHA,):
        return dataclasses.replace(split_opacity(np.moveaxis(pixels, channels, -1), profile), extra=max(extra - 1, 0))
    return ImageData(pixels, channels, None, profile, extra)


def write_options(image: ImageData) -> dict[str, Any]:
    """Return the keyword arguments of ``tifffile.imwrite`` for an interleaved image."""
    return {
        "photometric": "rgb" if image.channels - image.extra == 3 else "minisblack",
        "planarconfig": "contig" if image.channels > 1 or image.opacity is not None else None,
        "extrasamples": ["unspecified"] * image.extra + ["unassalpha"] * (image.opacity is not None) or None,
        "iccprofile": image.profile,
        "compression": "zlib",
    }


def _white_is_zero(page: tifffile.TiffPage) -> bool:
    """Return whether the tag states that 0 is white. Without the tag tifffile assumes it, but most readers do not."""
    return bool(page.tags.valueof("PhotometricInterpretation") == _PHOTOMETRIC.MINISWHITE)
