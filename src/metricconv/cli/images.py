"""Pictures from files and back: any format, at the depth they have, opened with care.

Nothing is unpickled, and the size that a file claims is checked before its pixels are decoded, so that a small file
cannot fill the memory. Files are written whole or not at all, and never over another unless that is asked for.
"""

import contextlib
import dataclasses
import struct
import tempfile
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import PIL.Image
import PIL.ImageOps
import tifffile
from numpy.typing import NDArray

from .._files import writing
from .errors import UserError

# What one file may hold, in pixels: about 2 GB as floats. ``--max-pixels`` says otherwise.
MAX_PIXELS = 100_000_000
# What is taken from a folder, and what can be written.
SUFFIXES = (".png", ".tif", ".tiff", ".jpg", ".jpeg", ".webp", ".bmp", ".ppm", ".pgm", ".npy")
# What a drawing can be.
DRAWINGS = (".png", ".pdf", ".svg")
_EIGHT_BITS = (".jpg", ".jpeg", ".webp", ".bmp", ".ppm", ".pgm")
_WITH_AXES = (".npy", ".tif", ".tiff", ".zarr")
_NO_OPACITY = (".jpg", ".jpeg", ".bmp", ".ppm", ".pgm")


@dataclasses.dataclass(frozen=True, eq=False)
class Picture:
    """An image or volume and what its file said about it.

    Args:
        pixels: (H, W) or (D, H, W), with channels along ``channel_axis`` if that is given; any real dtype.
        channel_axis: the axis of the channels.
        opacity: (H, W), kept aside: it is not filtered.
        profile: of its colours (ICC).
    """

    pixels: NDArray[Any]
    channel_axis: int | None = None
    opacity: NDArray[Any] | None = None
    profile: bytes | None = None

    @property
    def spatial(self) -> tuple[int, ...]:
        """The size without channels."""
        return spatial_size(self.pixels.shape, self.channel_axis)

    def floats(self) -> NDArray[np.float64]:
        """Return the pixels as floats, integers scaled to at most 1."""
        scale = np.iinfo(self.pixels.dtype).max if self.pixels.dtype.kind in "ui" else 1
        return self.pixels.astype(np.float64) / scale

    def with_values(self, values: NDArray[Any]) -> "Picture":
        """Return the picture with other values, floats in the range of ``floats``, at the depth it had."""
        return dataclasses.replace(self, pixels=to_depth(values, self.pixels.dtype))


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
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        raise UserError(f"{path}: holds numbers that are not finite")
    return dataclasses.replace(picture, pixels=pixels.astype(pixels.dtype.newbyteorder("="), copy=False))


def write(path: Path, picture: Picture, *, force: bool = False) -> None:
    """Write a picture in the format of the suffix, at its own depth."""
    check_output(path, force=force)
    check_format(path, picture)
    suffix = path.suffix.lower()
    pixels = picture.pixels
    if suffix != ".npy" and picture.channel_axis not in (None, -1, pixels.ndim - 1):
        pixels = np.moveaxis(pixels, picture.channel_axis or 0, -1)
    if picture.opacity is not None and suffix != ".npy":
        pixels = np.dstack([pixels, picture.opacity])
    with writing(path) as temporary:
        if suffix == ".npy":
            np.save(temporary, pixels, allow_pickle=False)
        elif suffix in (".tif", ".tiff"):
            _write_tiff(temporary, pixels, picture)
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
    if force or not path.exists():
        return
    if any(given.exists() and path.samefile(given) for given in inputs):
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


def check_format(path: Path, picture: Picture) -> None:
    """Refuse a format that cannot hold what the picture is."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"{path}: cannot write {suffix or 'a file without suffix'}; choose one of {' '.join(SUFFIXES)}")
    if suffix in (".npy", ".tif", ".tiff"):
        return
    if len(picture.spatial) != 2:
        raise UserError(f"{path}: a volume fits into .tif or .npy only")
    if suffix in _EIGHT_BITS and picture.pixels.dtype == np.uint16:
        raise UserError(f"{path}: {suffix} holds 8 bits and the picture has 16; choose .png, .tif or .npy")
    if picture.pixels.dtype.kind in "ui" and picture.pixels.dtype not in (np.uint8, np.uint16):
        raise UserError(f"{path}: {suffix} cannot hold {picture.pixels.dtype}; choose .tif or .npy")
    if suffix in _NO_OPACITY and picture.opacity is not None:
        raise UserError(f"{path}: {suffix} cannot hold the picture's opacity; choose .png, .webp or .tif")
    channels = picture.pixels.shape[picture.channel_axis] if picture.channel_axis is not None else 1
    if channels not in (1, 3):
        raise UserError(f"{path}: {suffix} cannot hold {channels} channels; choose .tif or .npy")


def to_depth(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Turn floats back into the type that they were read from: 0 to 1 (signed: −1 to 1) for integers."""
    if dtype.kind == "f":
        return values.astype(dtype)
    kind = np.dtype(np.uint8) if dtype.kind == "b" else dtype
    limits = np.iinfo(kind)
    return np.clip(np.rint(values * limits.max), limits.min, limits.max).astype(kind)


def channel_axis_of(shape: tuple[int, ...], axes: str | None, path: Path) -> int | None:
    """Return which axis of an array holds channels, as its axes say or as its shape suggests."""
    if axes is None:
        return -1 if len(shape) == 4 or (len(shape) == 3 and shape[-1] <= 4) else None
    letters = axes.lower()
    if sorted(letters) not in (["x", "y"], ["c", "x", "y"], ["x", "y", "z"], ["c", "x", "y", "z"]):
        raise UserError(f"--axes {axes}: must name y, x, and z or c if they are there, such as yxc or zyx")
    if "".join(a for a in letters if a != "c") not in ("yx", "zyx"):
        raise UserError(f"--axes {axes}: z, y and x must come in this order")
    if len(letters) != len(shape):
        raise UserError(f"--axes {axes}: {path} has {len(shape)} axes, of sizes {shape}")
    return letters.index("c") if "c" in letters else None


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


def spatial_size(shape: tuple[int, ...], channel_axis: int | None) -> tuple[int, ...]:
    """Return a shape without its channels."""
    return shape if channel_axis is None else tuple(np.delete(shape, channel_axis).tolist())


def _read_npy(path: Path, axes: str | None, max_pixels: int) -> Picture:
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    if mapped.ndim not in (2, 3, 4):
        raise UserError(f"{path}: an array of shape {mapped.shape} is neither an image nor a volume")
    channels = channel_axis_of(mapped.shape, axes, path)
    check_size(path, spatial_size(mapped.shape, channels), max_pixels)
    return Picture(np.array(mapped), channels)


def _read_tiff(path: Path, axes: str | None, max_pixels: int) -> Picture:
    with tifffile.TiffFile(path) as file:
        series = file.series[0]
        page = series.keyframe
        if page.photometric == tifffile.PHOTOMETRIC.PALETTE:
            return _read_image(path, max_pixels)
        shape = series.shape
        if axes is None:
            # S holds a pixel's samples and C channels; all other letters but X and Y are ways to go through pages.
            letters = "".join("c" if a in "SC" else a.lower() if a in "YX" else "z" for a in series.axes)
            axes = letters if sorted(letters) in (sorted(a) for a in ("yx", "yxc", "zyx", "zyxc")) else None
        if len(shape) not in (2, 3, 4):
            raise UserError(f"{path}: axes {series.axes} of sizes {shape} are neither an image nor a volume")
        channels = channel_axis_of(shape, axes, path)
        check_size(path, spatial_size(shape, channels), max_pixels)
        pixels = series.asarray()
        opaque = not page.extrasamples
        profile = page.iccprofile if "InterColorProfile" in page.tags else None
    if opaque or channels is None or channels % len(shape) != len(shape) - 1 or len(shape) != 3:
        return Picture(pixels, channels, None, profile)
    return _split_opacity(pixels, profile)


def _read_image(path: Path, max_pixels: int) -> Picture:
    with _pixel_limit(path, max_pixels), PIL.Image.open(path) as image:
        check_size(path, (image.height, image.width), max_pixels)
        frames = getattr(image, "n_frames", 1)
        if frames > 1:
            raise UserError(f"{path}: has {frames} frames; save the one that is meant")
        profile = image.info.get("icc_profile")
        if image.format == "PNG" and _png_depth(path) == (16, True):
            return _split_opacity(imagecodecs.png_decode(path.read_bytes()), profile)  # Pillow would cut it to 8 bits
        upright = PIL.ImageOps.exif_transpose(image)
        mode = upright.mode
        if mode == "P":
            upright = upright.convert("RGBA" if "transparency" in upright.info else "RGB")
        elif mode in ("1", "CMYK", "YCbCr", "LAB", "HSV", "PA", "La", "RGBa"):
            upright = upright.convert({"1": "L", "PA": "RGBA", "La": "LA", "RGBa": "RGBA"}.get(mode, "RGB"))
        return _split_opacity(np.asarray(upright), profile)


def _split_opacity(pixels: NDArray[Any], profile: bytes | None) -> Picture:
    """Set the second or fourth channel aside."""
    if pixels.ndim == 2:
        return Picture(pixels, None, None, profile)
    if pixels.shape[-1] in (2, 4):
        opacity, pixels = pixels[..., -1], pixels[..., :-1]
    else:
        opacity = None
    return (
        Picture(pixels[..., 0], None, opacity, profile)
        if pixels.shape[-1] == 1
        else Picture(pixels, -1, opacity, profile)
    )


def _png_depth(path: Path) -> tuple[int, bool]:
    """Return the bits a channel of a PNG, and whether it has more channels than one, from its header."""
    with path.open("rb") as file:
        header = file.read(26)
    return header[24], header[25] in (2, 4, 6)


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


def _write_tiff(path: Path, pixels: NDArray[Any], picture: Picture) -> None:
    options: dict[str, Any] = {"compression": "zlib", "photometric": "minisblack"}
    if picture.channel_axis is not None and pixels.shape[-1] >= 3 and len(picture.spatial) == 2:
        options["photometric"] = "rgb"
    if picture.opacity is not None:
        options["extrasamples"] = ["unassalpha"]
    if picture.channel_axis is not None:
        options["planarconfig"] = "contig"
    tifffile.imwrite(path, pixels, iccprofile=picture.profile, **options)


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
