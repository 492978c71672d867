"""TIFFs: what their tags say of the pixels, whether these are read whole or in tiles."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from .._errors import UserError
from .image_data import Array, Picture, channel_axis_of, split_opacity, upright

_COLOURS = tifffile.PHOTOMETRIC
# What the numbers of a page mean where they are taken as they are; JPEG's luminance and chroma are decoded to RGB.
_PLAIN = (_COLOURS.MINISBLACK, _COLOURS.MINISWHITE, _COLOURS.RGB)
_JPEG = (tifffile.COMPRESSION.OJPEG, tifffile.COMPRESSION.JPEG)
# S holds a pixel's samples and C channels; all other letters but X and Y are ways to go through pages.
_LETTERS = {"S": "c", "C": "c", "Y": "y", "X": "x"}


def only_series(path: Path, file: tifffile.TiffFile) -> tifffile.TiffPageSeries:
    """Return the one picture or volume that a file holds, previews aside; refuse a file of several."""
    whole = [series for series in file.series if not series.keyframe.is_reduced] or file.series[:1]
    if len(whole) > 1:
        sizes = ", ".join(" × ".join(map(str, series.shape)) for series in whole)
        raise UserError(f"{path}: has {len(whole)} pictures, of sizes {sizes}; save the one that is meant")
    return whole[0]


def is_palette(series: tifffile.TiffPageSeries) -> bool:
    """Tell whether the numbers are those of colours in a table."""
    return bool(series.keyframe.photometric == _COLOURS.PALETTE)


def channel_axis(path: Path, series: tifffile.TiffPageSeries, axes: str | None) -> int | None:
    """Return which axis holds channels, as ``axes`` or the file says; refuse what cannot be read as it is."""
    page = series.keyframe
    jpeg = page.photometric == _COLOURS.YCBCR and page.compression in _JPEG
    if page.photometric not in _PLAIN and not jpeg:
        raise UserError(f"{path}: holds {_COLOURS(page.photometric).name} colours; save it as grey or RGB")
    if _white_is_zero(page) and series.dtype.kind not in "ub":
        raise UserError(f"{path}: holds {series.dtype} of which the least is white; save it with black as 0")
    if tifffile.EXTRASAMPLE.ASSOCALPHA in page.extrasamples:
        raise UserError(f"{path}: its colours are multiplied by its opacity; save it with unassociated alpha")
    if tifffile.EXTRASAMPLE.UNASSALPHA in page.extrasamples[:-1]:
        raise UserError(f"{path}: its opacity is not the last of its channels; save it so that it is")
    if axes is None:
        axes = "".join(_LETTERS.get(letter, "z") for letter in series.axes)
        if axes.replace("c", "", 1) not in ("yx", "zyx"):
            raise UserError(f"{path}: axes {series.axes} of sizes {series.shape} are neither an image nor a volume")
    return channel_axis_of(series.shape, axes, path)


def picture(series: tifffile.TiffPageSeries, pixels: Array, channels: int | None) -> Picture:
    """Return the picture that an array of the series' numbers is by its tags."""
    page = series.keyframe
    profile = page.iccprofile if "InterColorProfile" in page.tags else None
    if _white_is_zero(page):
        pixels = pixels ^ pixels.dtype.type(2**page.bitspersample - 1)  # the largest number less these
    pixels = upright(pixels, channels, page.tags.valueof("Orientation", 1))
    if channels is None or channels != series.axes.find("S"):
        return Picture(pixels, channels, None, profile)
    extra = len(page.extrasamples) if page.photometric == _COLOURS.RGB else 0
    if page.extrasamples[-1:] == (tifffile.EXTRASAMPLE.UNASSALPHA,):
        return dataclasses.replace(split_opacity(np.moveaxis(pixels, channels, -1), profile), extra=max(extra - 1, 0))
    return Picture(pixels, channels, None, profile, extra)


def options(picture: Picture) -> dict[str, Any]:
    """Return how ``tifffile.imwrite`` is told what an interleaved picture is."""
    return {
        "photometric": "rgb" if picture.channels - picture.extra == 3 else "minisblack",
        "planarconfig": "contig" if picture.channels > 1 or picture.opacity is not None else None,
        "extrasamples": ["unspecified"] * picture.extra + ["unassalpha"] * (picture.opacity is not None) or None,
        "iccprofile": picture.profile,
        "compression": "zlib",
    }


def _white_is_zero(page: tifffile.TiffPage) -> bool:
    """Tell whether the tag says so; tifffile takes it for said where there is none, and most readers do not."""
    return bool(page.tags.valueof("PhotometricInterpretation") == _COLOURS.MINISWHITE)
