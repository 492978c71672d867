"""Pictures for the page: drawn with Pillow, which takes milliseconds where matplotlib takes a tenth of a second."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageDraw
import torch
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from numpy.typing import NDArray
from torch import Tensor

from ..metrics import Randers, Riemannian
from ..viz import canvas
from ..viz.balls import COLOURS, Ball
from ..viz.fields import MAPS, ball_radius, orientation

# An image is shown at least twice as large, and about so many pixels a side, so that lines on it are fine; and drawn
# larger still, so that they are smooth.
_SHOWN = 512
_FINER = 2
# The side of a close-up, in pixels.
_CLOSE_UP = 640
OVERLAYS = ("nothing", *MAPS)


def to_rgb8(image: NDArray[Any]) -> NDArray[np.uint8]:
    """Return an image (H, W[, 3]) in [0, 1] as 8-bit colours."""
    eight = np.rint(255 * np.clip(image, 0, 1)).astype(np.uint8)
    return eight if eight.ndim == 3 else np.repeat(eight[..., None], 3, -1)


def overlaid(image: NDArray[np.uint8], metric: Riemannian | Randers, overlay: str) -> NDArray[np.uint8]:
    """Lay one of a metric's qualities over an image, as colours."""
    if overlay == "nothing":
        return image
    if overlay == "orientation":
        values = orientation(metric)[0, 0] / 180 + 0.5
        opacity = 1 - 1 / metric.anisotropy[0, 0].numpy()
    else:
        field = (ball_radius(metric) if overlay == "size" else getattr(metric, overlay))[0, 0]
        values = field if overlay == "asymmetry" else _unit(field.log())
        opacity = np.full(image.shape[:2], 0.7)
    painted = colormaps[MAPS[overlay]](values.numpy())[..., :3] * 255
    opacity = np.broadcast_to(opacity, image.shape[:2])[..., None]
    return np.rint(image * (1 - opacity) + painted * opacity).astype(np.uint8)


def enlargement(size: Sequence[int]) -> int:
    """Return how many times as large an image of that height and width is shown."""
    return max(2, round(_SHOWN / max(size[:2])))


def enlarged(image: NDArray[np.uint8]) -> PIL.Image.Image:
    """Return an image at the size at which it is shown."""
    times = enlargement(image.shape)
    size = (times * image.shape[1], times * image.shape[0])
    # Of a small image the pixels are seen.
    smooth = PIL.Image.Resampling.BILINEAR if times == 2 else PIL.Image.Resampling.NEAREST
    return PIL.Image.fromarray(image).resize(size, smooth)


def with_balls(image: PIL.Image.Image, size: Sequence[int], balls: list[tuple[str, Ball]]) -> PIL.Image.Image:
    """Draw the outlines of balls over an enlarged image, and a frame around what their close-up shows.

    Args:
        image: as ``enlarged`` returns it, of an image of this height and width.
        size: in pixels of the balls.
        balls: by kind.
    """
    painted, times = image.copy(), enlargement(size)
    _paint(painted, balls, (0.0, 0.0), times, samples=False)
    (y, x), reach = balls[0][1].pixel, _reach(size[:2], balls)
    box = [times * (round(c) + side) for side in (-reach, reach + 1) for c in (x, y)]
    pen = PIL.ImageDraw.Draw(painted)
    pen.rectangle(box, outline=(0, 0, 0), width=2)
    pen.rectangle([box[0] - 1, box[1] - 1, box[2] + 1, box[3] + 1], outline=(255, 255, 255), width=1)
    return painted


def close_up(image: NDArray[np.uint8], balls: list[tuple[str, Ball]]) -> PIL.Image.Image:
    """Draw balls large, with their samples and drift, on the pixels around them."""
    (y, x), reach = balls[0][1].pixel, _reach(image.shape[:2], balls)
    rows, columns = (np.arange(round(c) - reach, round(c) + reach + 1) for c in (y, x))
    inside = ((rows >= 0) & (rows < image.shape[0]))[:, None] & ((columns >= 0) & (columns < image.shape[1]))
    part = image[np.clip(rows, 0, image.shape[0] - 1)][:, np.clip(columns, 0, image.shape[1] - 1)]
    part = np.where(inside[..., None], part, 216).astype(np.uint8)  # light grey past the border
    zoom = _CLOSE_UP / len(part)
    large = PIL.Image.fromarray(part).resize((_CLOSE_UP, _CLOSE_UP), PIL.Image.Resampling.NEAREST)
    _paint(large, balls, (float(rows[0]), float(columns[0])), zoom, samples=True)
    return large


def _reach(size: Sequence[int], balls: list[tuple[str, Ball]]) -> int:
    """Return how many pixels around the ball's own are shown in its close-up."""
    far = max(float((ball.outline - ball.outline.new_tensor(ball.pixel)).abs().max()) for _, ball in balls)
    return int(min(max(math.ceil(1.25 * far), 8), max(size)))


def _paint(
    image: PIL.Image.Image,
    balls: list[tuple[str, Ball]],
    corner: tuple[float, float],
    zoom: float,
    *,
    samples: bool,
) -> None:
    """Draw balls onto an image whose first pixel is ``corner``, each pixel ``zoom`` wide."""
    left, top, width, height = _box(image.size, balls, corner, zoom)
    corner = (corner[0] + top / zoom, corner[1] + left / zoom)
    layer = PIL.Image.new("RGBA", (width * _FINER, height * _FINER))
    pen = PIL.ImageDraw.Draw(layer)
    thick = round((2.4 if samples else 2.0) * _FINER)

    def xy(where: Tensor) -> list[tuple[float, float]]:
        return [
            ((x - corner[1] + 0.5) * zoom * _FINER, (y - corner[0] + 0.5) * zoom * _FINER) for y, x in where.tolist()
        ]

    def dot(where: tuple[float, float], radius: float, colour: tuple[int, ...]) -> None:
        r = radius * _FINER
        pen.ellipse([where[0] - r, where[1] - r, where[0] + r, where[1] + r], fill=colour, outline=(0, 0, 0, 255))

    for kind, ball in balls:
        colour = _colour(COLOURS[kind])
        outline = xy(ball.outline)
        pen.polygon(outline, fill=(*colour, 70))
        pen.line([*outline, outline[0], outline[1]], fill=(*colour, 255), width=thick, joint="curve")
    for kind, ball in balls:
        if samples and ball.samples is not None:
            for where in xy(ball.samples):
                dot(where, 4.0, (*_colour(COLOURS[kind]), 255))
    ball = balls[0][1]
    pixel, centre = xy(ball.outline.new_tensor([ball.pixel, ball.centre.tolist()]))
    if samples and abs(pixel[0] - centre[0]) + abs(pixel[1] - centre[1]) > 4 * _FINER:
        _arrow(pen, pixel, centre)
    dot(pixel, 6.5 if samples else 3.5, (255, 255, 255, 255))
    fine = layer.reduce(_FINER)
    image.paste(fine, (left, top), fine)


def _box(
    size: tuple[int, int], balls: list[tuple[str, Ball]], corner: tuple[float, float], zoom: float
) -> tuple[int, int, int, int]:
    """Return the part of an image that balls take, as left, top, width and height: nothing else need be drawn."""
    points = torch.cat(
        [ball.outline for _, ball in balls] + [ball.samples for _, ball in balls if ball.samples is not None]
    )
    places = (points - points.new_tensor(corner) + 0.5) * zoom
    (top, left), (bottom, right) = (places.amin(0) - 12).tolist(), (places.amax(0) + 12).tolist()
    left, top = max(math.floor(left), 0), max(math.floor(top), 0)
    return left, top, max(min(math.ceil(right), size[0]) - left, 1), max(min(math.ceil(bottom), size[1]) - top, 1)


def _arrow(pen: PIL.ImageDraw.ImageDraw, start: tuple[float, float], end: tuple[float, float]) -> None:
    colour = (*_colour(canvas.VERMILLION), 255)
    along = np.subtract(end, start)
    unit = along / np.linalg.norm(along)
    side = np.array([-unit[1], unit[0]])
    head = 12 * _FINER
    base = np.subtract(end, head * unit)
    pen.line([start, tuple(base)], fill=colour, width=4 * _FINER)
    pen.polygon([end, tuple(base + 0.5 * head * side), tuple(base - 0.5 * head * side)], fill=colour)


def _colour(name: str) -> tuple[int, int, int]:
    red, green, blue = (round(255 * c) for c in to_rgb(name))
    return red, green, blue


def _unit(values: Tensor) -> Tensor:
    low, high = values.min(), values.max()
    return (values - low) / (high - low).clamp_min(0.05)
