"""A picture and what its file said about it, whole in memory (NumPy) or in tiles (dask)."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._errors import UserError

# Of NumPy, or of dask.
Array = Any
# How a file's rows and columns are laid so that it comes upright, by EXIF's and TIFF's number of its orientation:
# whether to exchange them, and the steps to go through rows and columns then.
_TURNS = {
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
class Picture:
    """An image or volume and what its file said about it.

    Args:
        pixels: (H, W) or (D, H, W), with channels along ``channel_axis`` if that is given; any real dtype.
        channel_axis: the axis of the channels.
        opacity: of the size without channels, kept aside: colours are filtered by how much they are seen, it is not.
        profile: of its colours (ICC).
        extra: how many of the channels come after red, green and blue.
    """

    pixels: Array
    channel_axis: int | None = None
    opacity: Array | None = None
    profile: bytes | None = None
    extra: int = 0

    @property
    def spatial(self) -> tuple[int, ...]:
        """The size without channels."""
        return spatial_size(self.pixels.shape, self.channel_axis)

    @property
    def channels(self) -> int:
        """How many there are, the opacity aside."""
        return 1 if self.channel_axis is None else int(self.pixels.shape[self.channel_axis])

    def floats(self) -> NDArray[np.float64]:
        """Return the pixels as floats, integers scaled to at most 1."""
        return _floats(self.pixels)

    def weighed(self) -> "Picture":
        """Return the colours times their opacity, and the opacity as one more: in means of these, all that is seen
        counts, and as much as it is seen. A picture without opacity is returned as it is.
        """
        if self.opacity is None:
            return self
        weights = _floats(self.opacity)[..., None]
        both = np.concatenate([self._colours() * weights, weights], -1)
        return Picture(both.astype(np.float32 if self.pixels.dtype.itemsize <= 2 else np.float64), -1)

    def unweighed(self, means: Array) -> Array:
        """Return the colours of means over the weighed picture; where nothing is seen, those that are there."""
        if self.opacity is None:
            return means
        weights = means[..., -1:]
        seen = weights > 0
        colours = np.where(seen, means[..., :-1] / np.where(seen, weights, 1), self._colours())
        return colours[..., 0] if self.channel_axis is None else colours

    def _colours(self) -> Array:
        """Return the pixels as floats with channels last, of a picture with opacity, whose channels are last if any."""
        return _floats(self.pixels)[..., None] if self.channel_axis is None else _floats(self.pixels)

    def with_values(self, values: NDArray[Any]) -> "Picture":
        """Return the picture with other values, floats in the range of ``floats``, at the depth it had."""
        return dataclasses.replace(self, pixels=to_depth(values, self.pixels.dtype))

    def interleaved(self) -> Array:
        """Return the pixels with channels last, if there are several, the opacity the last of them."""
        pixels = self.pixels if self.channel_axis is None else np.moveaxis(self.pixels, self.channel_axis, -1)
        if self.channel_axis is not None and self.channels == 1:
            pixels = pixels[..., 0]
        if self.opacity is None:
            return pixels
        colours = pixels[..., None] if self.channels == 1 else pixels
        return np.concatenate([colours, self.opacity[..., None]], axis=-1)


def _floats(pixels: Array) -> Array:
    """Return numbers as floats, integers scaled to at most 1."""
    return pixels.astype(np.float64) / (np.iinfo(pixels.dtype).max if pixels.dtype.kind in "ui" else 1)


def to_depth(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Turn floats back into the type that they were read from: 0 to 1 (signed: −1 to 1) for integers."""
    if dtype.kind == "f":
        return values.astype(dtype)
    kind = np.dtype(np.uint8) if dtype.kind == "b" else dtype
    limits = np.iinfo(kind)
    most = values.dtype.type(limits.max)  # rounded up, where floats are coarser than these integers
    scaled = np.rint(values * most)
    found = np.clip(scaled, limits.min, np.nextafter(most, 0)).astype(kind)
    found[scaled >= most] = limits.max
    return found


def split_opacity(pixels: Array, profile: bytes | None) -> Picture:
    """Set the last channel aside, along the last axis."""
    colours, opacity = pixels[..., :-1], pixels[..., -1]
    if colours.shape[-1] == 1:
        return Picture(colours[..., 0], None, opacity, profile)
    return Picture(colours, -1, opacity, profile)


def upright(pixels: Array, channel_axis: int | None, orientation: int) -> Array:
    """Turn a picture as its file says; numbers that mean nothing are passed over, as viewers do."""
    exchange, rows, columns = _TURNS.get(orientation, _TURNS[1])
    y, x = [a for a in range(pixels.ndim) if channel_axis is None or a != channel_axis % pixels.ndim][-2:]
    steps = {y: rows, x: columns}
    pixels = np.swapaxes(pixels, y, x) if exchange else pixels
    return pixels[tuple(slice(None, None, steps.get(axis, 1)) for axis in range(pixels.ndim))]


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


def spatial_size(shape: tuple[int, ...], channel_axis: int | None) -> tuple[int, ...]:
    """Return a shape without its channels."""
    return shape if channel_axis is None else tuple(np.delete(shape, channel_axis).tolist())
