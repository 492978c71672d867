"""An image with the metadata of its file, in memory (NumPy) or lazy (dask)."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._errors import UserError

__all__ = ["Array", "ImageData", "apply_orientation", "channel_axis_of", "spatial_shape", "split_opacity", "to_dtype"]

# A NumPy or dask array.
Array = Any
# By EXIF and TIFF orientation: whether to transpose rows and columns, then the step along rows and along columns.
_ORIENTATIONS = {
    1: (False, 1, 1),
    2: (False, 1, -1),
    3: (False, -1, -1),
    4: (False, -1, 1),
    5: (True, 1, 1),
    6: (True, 1, -1),
    7: (True, -1, -1),
    8: (True, -1, 1),
}


@dataclasses.dataclass(frozen=True, eq=False)
class ImageData:
    """An image or volume with the metadata of its file.

    Args:
        pixels: (H, W) or (D, H, W), with channels along ``channel_axis`` if given; any real dtype.
        channel_axis: axis of the channels, None for a gray image.
        opacity: alpha channel, of shape (H, W) or (D, H, W). Colors are filtered with it as weight; it is not filtered.
        profile: ICC color profile.
        extra: number of channels after red, green and blue.
        spacing: distance between voxels along each spatial axis, if the file states it.
        header: header of a NIfTI file.
    """

    pixels: Array
    channel_axis: int | None = None
    opacity: Array | None = None
    profile: bytes | None = None
    extra: int = 0
    spacing: tuple[float, ...] | None = None
    header: Any = None

    @property
    def spatial(self) -> tuple[int, ...]:
        """The shape without the channel axis."""
        return spatial_shape(self.pixels.shape, self.channel_axis)

    @property
    def channels(self) -> int:
        """The number of channels, not counting the opacity."""
        return 1 if self.channel_axis is None else int(self.pixels.shape[self.channel_axis])

    def to_float(self) -> NDArray[np.float64]:
        """Return the pixels as float64, integers divided by the maximum of their type."""
        return _to_float(self.pixels)

    def premultiplied(self) -> "ImageData":
        """Return the colors multiplied by the opacity, with the opacity as last channel.

        Averages of these are weighted by opacity. An image without opacity is returned unchanged.
        """
        if self.opacity is None:
            return self
        weights = _to_float(self.opacity)[..., None]
        both = np.concatenate([self._colors() * weights, weights], -1)
        return ImageData(both.astype(np.float32 if self.pixels.dtype.itemsize <= 2 else np.float64), -1)

    def unpremultiplied(self, means: Array) -> Array:
        """Divide averages of premultiplied colors by that of the opacity; keep the original colors where it is 0."""
        if self.opacity is None:
            return means
        weights = means[..., -1:]
        visible = weights > 0
        colors = np.where(visible, means[..., :-1] / np.where(visible, weights, 1), self._colors())
        return colors[..., 0] if self.channel_axis is None else colors

    def _colors(self) -> Array:
        """Return the pixels as float64 with channels last. Images with opacity have them last already."""
        return _to_float(self.pixels)[..., None] if self.channel_axis is None else _to_float(self.pixels)

    def with_values(self, values: NDArray[Any]) -> "ImageData":
        """Return the image with other values, floats in the range of ``to_float``, converted to its dtype."""
        return dataclasses.replace(self, pixels=to_dtype(values, self.pixels.dtype))

    def interleaved(self) -> Array:
        """Return the pixels with channels last and the opacity as last channel."""
        pixels = self.pixels if self.channel_axis is None else np.moveaxis(self.pixels, self.channel_axis, -1)
        if self.channel_axis is not None and self.channels == 1:
            pixels = pixels[..., 0]
        if self.opacity is None:
            return pixels
        colors = pixels[..., None] if self.channels == 1 else pixels
        return np.concatenate([colors, self.opacity[..., None]], axis=-1)


def _to_float(pixels: Array) -> Array:
    """Convert to float64, integers divided by the maximum of their type."""
    return pixels.astype(np.float64) / (np.iinfo(pixels.dtype).max if pixels.dtype.kind in "ui" else 1)


def to_dtype(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert floats to ``dtype``; for integers, 1 maps to the maximum of the type."""
    if dtype.kind == "f":
        return values.astype(dtype)
    dtype = np.dtype(np.uint8) if dtype.kind == "b" else dtype
    limits = np.iinfo(dtype)
    maximum = values.dtype.type(limits.max)  # rounded up where floats are coarser than these integers
    scaled = np.rint(values * maximum)
    converted = np.clip(scaled, limits.min, np.nextafter(maximum, 0)).astype(dtype)
    converted[scaled >= maximum] = limits.max
    return converted


def split_opacity(pixels: Array, profile: bytes | None) -> ImageData:
    """Return the image of interleaved pixels whose last channel is the opacity."""
    colors, opacity = pixels[..., :-1], pixels[..., -1]
    if colors.shape[-1] == 1:
        return ImageData(colors[..., 0], None, opacity, profile)
    return ImageData(colors, -1, opacity, profile)


def apply_orientation(pixels: Array, channel_axis: int | None, orientation: int) -> Array:
    """Rotate and flip an image by its EXIF orientation; invalid values are ignored, as viewers do."""
    transpose, rows, columns = _ORIENTATIONS.get(orientation, _ORIENTATIONS[1])
    y, x = [a for a in range(pixels.ndim) if channel_axis is None or a != channel_axis % pixels.ndim][-2:]
    steps = {y: rows, x: columns}
    pixels = np.swapaxes(pixels, y, x) if transpose else pixels
    return pixels[tuple(slice(None, None, steps.get(axis, 1)) for axis in range(pixels.ndim))]


def channel_axis_of(shape: tuple[int, ...], axes: str | None, path: Path) -> int | None:
    """Return the channel axis named by ``axes``; by default guessed from the shape."""
    if axes is None:
        return -1 if len(shape) == 4 or (len(shape) == 3 and shape[-1] <= 4) else None
    letters = axes.lower()
    if sorted(letters) not in (["x", "y"], ["c", "x", "y"], ["x", "y", "z"], ["c", "x", "y", "z"]):
        raise UserError(f"axes {axes!r}: expected y and x, optionally z and c, such as yxc or zyx")
    if "".join(a for a in letters if a != "c") not in ("yx", "zyx"):
        raise UserError(f"axes {axes!r}: z, y and x must be in this order")
    if len(letters) != len(shape):
        raise UserError(f"axes {axes!r}: {path} has {len(shape)} axes, shape {shape}")
    return letters.index("c") if "c" in letters else None


def spatial_shape(shape: tuple[int, ...], channel_axis: int | None) -> tuple[int, ...]:
    """Return a shape without the channel axis."""
    return shape if channel_axis is None else tuple(np.delete(shape, channel_axis).tolist())
