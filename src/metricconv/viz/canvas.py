"""Helpers of all plots: colors, images, axes, points."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib.axes
import numpy as np
from matplotlib.textpath import TextPath
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import _checks

__all__ = [
    "GREEN",
    "ImageLike",
    "ORANGE",
    "Points",
    "SKY",
    "VERMILLION",
    "check_length",
    "inches",
    "index",
    "most_lines",
    "named_layer",
    "new_axes",
    "one_axes",
    "pixel_grid",
    "pixel_positions",
    "show",
    "to_array",
    "wrapped",
]

# Okabe and Ito's colors, distinguishable with color vision deficiency.
ORANGE, SKY, GREEN, VERMILLION = "#E69F00", "#56B4E9", "#009E73", "#D55E00"
# Height of a line of text in inches.
_LINE_HEIGHT = 0.15

ImageLike = NDArray[Any] | Tensor
Points = int | Sequence[Sequence[float]] | Tensor


def new_axes(
    rows: int = 1,
    columns: int = 1,
    *,
    height: float = 3.4,
    aspect: float = 1.0,
    title_lines: int = 1,
    label_lines: int = 0,
) -> NDArray[Any]:
    """Create a figure; return its rows × columns axes, each ``height`` inches high and ``aspect`` times as wide.

    A column of a paper is about 3.4 inches wide. Space is reserved for titles above and labels at the left of the given
    numbers of lines.
    """
    from matplotlib import pyplot as plt  # imported here as it selects a GUI backend

    size = (columns * height * aspect + _LINE_HEIGHT * label_lines, rows * height + _LINE_HEIGHT * (1 + title_lines))
    return plt.subplots(rows, columns, squeeze=False, figsize=size, layout="constrained", dpi=150)[1]


def one_axes(axes: matplotlib.axes.Axes | None, image: ImageLike | None) -> matplotlib.axes.Axes:
    """Return the axes; by default new ones with the aspect of the image."""
    if axes is not None:
        _checks.instance_of(axes, matplotlib.axes.Axes, "axes")
        return axes
    height, width = (1, 1) if image is None else to_array(image).shape[:2]
    return new_axes(aspect=min(max(width / height, 0.5), 2.0))[0, 0]


def inches(axes: matplotlib.axes.Axes) -> tuple[float, float]:
    """Return the width and height of axes in inches."""
    box = axes.get_window_extent()
    return box.width / axes.figure.dpi, box.height / axes.figure.dpi


def wrapped(text: str, width: float, fontsize: float) -> str:
    """Break a text into lines of at most ``width`` inches, between words where possible."""

    def fits(line: str) -> bool:
        return len(line) < 2 or TextPath((0, 0), line, size=fontsize).get_extents().width <= 72 * width

    lines: list[str] = []
    for word in text.split():
        if lines and fits(f"{lines[-1]} {word}"):
            lines[-1] += f" {word}"
            continue
        lines.append(word)
        while not fits(lines[-1]):
            long = lines.pop()
            count = next(n for n in range(len(long) - 1, 0, -1) if fits(long[:n]))
            lines += [long[:count], long[count:]]
    return "\n".join(lines)


def most_lines(texts: Iterable[str]) -> int:
    """Return the maximum number of lines of the texts."""
    return max((text.count("\n") + 1 for text in texts if text), default=0)


def to_array(image: ImageLike) -> NDArray[np.float64]:
    """Return an image as floats (H, W) or (H, W, 3), integers divided by the maximum of their type.

    Tensors have channels first. Two channels, or more than three, are averaged; the fourth channel of an array is taken
    as opacity and ignored.
    """
    if isinstance(image, Tensor):
        tensor = _checks.with_values(_checks.dense(image, "image"), "image").detach().cpu()
        if tensor.is_quantized or (tensor.is_floating_point() and tensor.dtype.itemsize == 1):
            raise TypeError(f"`image` must hold integers or floats of 16 bits or more, got dtype {tensor.dtype}")
        array = (tensor.double() if tensor.is_floating_point() else tensor).numpy()
        array = array[0] if array.ndim == 4 and array.shape[0] == 1 else array
        array = np.moveaxis(array, 0, -1) if array.ndim == 3 else array
    else:
        array = np.asarray(image)
        array = array[..., :3] if array.ndim == 3 and array.shape[-1] == 4 else array
    if array.ndim not in (2, 3) or not array.size:
        raise ValueError(
            f"`image` must be an array (H, W[, C]) or a tensor ([[1, ]C, ]H, W) and not empty, got shape "
            f"{np.shape(image)}"
        )
    if array.dtype.kind not in "buif":
        raise TypeError(f"`image` must hold real numbers, got dtype {array.dtype}")
    if not np.isfinite(array).all():
        raise ValueError("`image` must be finite, got NaN or infinity")
    if array.dtype.kind in "ui":
        array = array / np.iinfo(array.dtype).max
    array = array.astype(np.float64)
    return array if array.ndim == 2 or array.shape[-1] == 3 else array.mean(-1)


def show(axes: matplotlib.axes.Axes, image: ImageLike | None, size: Sequence[int], alpha: float = 1.0) -> None:
    """Show an image, scaled to its own range if it exceeds [0, 1]; without an image, empty axes of that size."""
    if image is None:
        axes.set(xlim=(-0.5, size[1] - 0.5), ylim=(size[0] - 0.5, -0.5), aspect="equal")
    else:
        array = to_array(image)
        inside = array.min() >= 0 and array.max() <= 1
        low, high = (0.0, 1.0) if inside else (float(array.min()), float(array.max()))
        array = array if array.ndim == 2 else (array - low) / max(high - low, 1e-12)
        axes.imshow(array, "gray", vmin=low, vmax=high, interpolation="nearest", alpha=alpha)
    axes.set(xticks=[], yticks=[])
    axes.autoscale(False)  # overlays do not change the limits


def pixel_positions(points: Points, size: Sequence[int]) -> list[tuple[float, float]]:
    """Return points (y, x) in an image of that size; an integer n gives a grid of n × n distinct pixels.

    A size of 1, that of a constant field, accepts any point.
    """
    if isinstance(points, int | np.integer):
        if points < 1:
            raise ValueError(f"`points` (={points}) must be at least 1")
        return pixel_grid([int(points)] * 2, size)
    try:
        points = points if not isinstance(points, Tensor) else _checks.vectors(points, "points").tolist()
        found = [tuple(map(float, point)) for point in points]
    except (TypeError, ValueError):
        raise ValueError(f"`points` (={points!r}) must be an integer or a list of points (y, x)") from None
    for point in found:
        if len(point) != 2 or not all(n == 1 or -0.5 <= p <= n - 0.5 for p, n in zip(point, size, strict=False)):
            raise ValueError(f"`points` must be (y, x) inside the image of size {tuple(size)}, got {point}")
    if not found:
        raise ValueError("`points` must not be empty")
    return found  # type: ignore[return-value]


def pixel_grid(counts: Sequence[int], size: Sequence[int]) -> list[tuple[float, float]]:
    """Return a regular grid of distinct pixels (y, x), with the given counts along each side."""
    clipped = [min(count, extent) for count, extent in zip(counts, size, strict=True)]
    indices = [[math.floor((n + 0.5) / m * extent) for n in range(m)] for m, extent in zip(clipped, size, strict=True)]
    return [(float(y), float(x)) for y, x in itertools.product(*indices)]


def named_layer(model: nn.Module, name: str) -> nn.Module:
    """Return a layer by its name in ``model.named_modules()``."""
    found = dict(model.named_modules(remove_duplicate=False)).get(name) if isinstance(name, str) else None
    if found is None:
        raise ValueError(f"`layer` (={name!r}) is not the name of a layer of {type(model).__name__}")
    return found


def index(value: int, count: int, name: str) -> int:
    """Check an index; if ``count`` is 1 (broadcast), any index gives 0."""
    if not _checks.is_whole(value) or value < 0 or 1 < count <= value or not count:
        raise ValueError(f"`{name}` (={value!r}) must be at least 0 and less than {count}")
    return min(int(value), count - 1)


def check_length(values: object, length: int, name: str, expected: str) -> None:
    """Check that a sequence, array or tensor has a given length."""
    try:
        found = str(len(values))  # type: ignore[arg-type]
    except TypeError:  # also of a tensor without axes
        found = type(values).__name__
    if found != str(length):
        raise ValueError(f"`{name}` must have {length} entries, {expected}, got {found}")
