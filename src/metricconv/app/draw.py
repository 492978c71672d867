"""Images of the page, drawn with Pillow, which takes milliseconds where matplotlib takes 0.1 s."""

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
from ..viz.balls import COLORS, Ball
from ..viz.fields import MAPS, ball_radius, orientation

__all__ = ["OVERLAYS", "close_up", "enlarged", "enlargement", "overlaid", "to_rgb8", "with_balls"]

# Images are enlarged at least twice, to about this size in pixels; lines are drawn with supersampling.
_DISPLAY_SIZE = 512
_SUPERSAMPLING = 2
# Side length of the close-up in pixels.
_CLOSE_UP = 640
OVERLAYS = ("none", *MAPS)


def to_rgb8(image: NDArray[Any]) -> NDArray[np.uint8]:
    """Convert an image (H, W[, 3]) in [0, 1] to 8-bit RGB."""
    eight = np.rint(255 * np.clip(image, 0, 1)).astype(np.uint8)
    return eight if eight.ndim == 3 else np.repeat(eight[..., None], 3, -1)


def overlaid(image: NDArray[np.uint8], metric: Riemannian | Randers, overlay: str) -> NDArray[np.uint8]:
    """Draw one of the metric's properties over an image, as colors."""
    if overlay == "none":
        return image
    if overlay == "orientation":
        values = orientation(metric)[0, 0] / 180 + 0.5
        opacity = 1 - 1 / metric.anisotropy[0, 0].numpy()
    else:
        field = (ball_radius(metric) if overlay == "size" else getattr(metric, overlay))[0, 0]
        values = field if overlay == "asymmetry" else _rescale(field.log())
        opacity = np.full(image.shape[:2], 0.7)
    painted = colormaps[MAPS[overlay]](values.numpy())[..., :3] * 255
    opacity = np.broadcast_to(opacity, image.shape[:2])[..., None]
    return np.rint(image * (1 - opacity) + painted * opacity).astype(np.uint8)


def enlargement(size: Sequence[int]) -> int:
    """Return the factor by which an image of that height and width is enlarged."""
    return max(2, round(_DISPLAY_SIZE / max(size[:2])))


def enlarged(image: NDArray[np.uint8]) -> PIL.Image.Image:
    """Return an image at display size."""
    factor = enlargement(image.shape)
    size = (factor * image.shape[1], factor * image.shape[0])
    # Pixels of small images stay visible.
    resampling = PIL.Image.Resampling.BILINEAR if factor == 2 else PIL.Image.Resampling.NEAREST
    return PIL.Image.fromarray(image).resize(size, resampling)


def with_balls(image: PIL.Image.Image, size: Sequence[int], balls: list[tuple[str, Ball]]) -> PIL.Image.Image:
    """Draw the outlines of balls over an enlarged image, and the frame of the close-up.

    Args:
        image: result of ``enlarged``.
        size: height and width of the original image.
        balls: type and ball.
    """
    painted, factor = image.copy(), enlargement(size)
    _paint(painted, balls, (0.0, 0.0), factor, samples=False)
    (y, x), reach = balls[0][1].pixel, _reach(size[:2], balls)
    box = [factor * (round(c) + side) for side in (-reach, reach + 1) for c in (x, y)]
    pen = PIL.ImageDraw.Draw(painted)
    pen.rectangle(box, outline=(0, 0, 0), width=2)
    pen.rectangle([box[0] - 1, box[1] - 1, box[2] + 1, box[3] + 1], outline=(255, 255, 255), width=1)
    return painted


def close_up(image: NDArray[np.uint8], balls: list[tuple[str, Ball]]) -> PIL.Image.Image:
    """Draw a close-up of balls with samples and the offset of their center."""
    (y, x), reach = balls[0][1].pixel, _reach(image.shape[:2], balls)
    rows, columns = (np.arange(round(c) - reach, round(c) + reach + 1) for c in (y, x))
    inside = ((rows >= 0) & (rows < image.shape[0]))[:, None] & ((columns >= 0) & (columns < image.shape[1]))
    part = image[np.clip(rows, 0, image.shape[0] - 1)][:, np.clip(columns, 0, image.shape[1] - 1)]
    part = np.where(inside[..., None], part, 216).astype(np.uint8)  # light gray outside the image
    zoom = _CLOSE_UP / len(part)
    large = PIL.Image.fromarray(part).resize((_CLOSE_UP, _CLOSE_UP), PIL.Image.Resampling.NEAREST)
    _paint(large, balls, (float(rows[0]), float(columns[0])), zoom, samples=True)
    return large


def _reach(size: Sequence[int], balls: list[tuple[str, Ball]]) -> int:
    """Return the number of pixels shown on each side of the pixel in the close-up."""
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
    """Draw balls onto an image whose first pixel is ``corner``, with pixels of size ``zoom``."""
    left, top, width, height = _box(image.size, balls, corner, zoom)
    corner = (corner[0] + top / zoom, corner[1] + left / zoom)
    layer = PIL.Image.new("RGBA", (width * _SUPERSAMPLING, height * _SUPERSAMPLING))
    pen = PIL.ImageDraw.Draw(layer)
    thick = round((2.4 if samples else 2.0) * _SUPERSAMPLING)

    def xy(positions: Tensor) -> list[tuple[float, float]]:
        return [
            ((x - corner[1] + 0.5) * zoom * _SUPERSAMPLING, (y - corner[0] + 0.5) * zoom * _SUPERSAMPLING)
            for y, x in positions.tolist()
        ]

    def dot(position: tuple[float, float], radius: float, color: tuple[int, ...]) -> None:
        r = radius * _SUPERSAMPLING
        pen.ellipse(
            [position[0] - r, position[1] - r, position[0] + r, position[1] + r], fill=color, outline=(0, 0, 0, 255)
        )

    for kind, ball in balls:
        color = _rgb(COLORS[kind])
        outline = xy(ball.outline)
        pen.polygon(outline, fill=(*color, 70))
        pen.line([*outline, outline[0], outline[1]], fill=(*color, 255), width=thick, joint="curve")
    for kind, ball in balls:
        if samples and ball.samples is not None:
            for position in xy(ball.samples):
                dot(position, 4.0, (*_rgb(COLORS[kind]), 255))
    ball = balls[0][1]
    pixel, center = xy(ball.outline.new_tensor([ball.pixel, ball.center.tolist()]))
    if samples and abs(pixel[0] - center[0]) + abs(pixel[1] - center[1]) > 4 * _SUPERSAMPLING:
        _arrow(pen, pixel, center)
    dot(pixel, 6.5 if samples else 3.5, (255, 255, 255, 255))
    reduced = layer.reduce(_SUPERSAMPLING)
    image.paste(reduced, (left, top), reduced)


def _box(
    size: tuple[int, int], balls: list[tuple[str, Ball]], corner: tuple[float, float], zoom: float
) -> tuple[int, int, int, int]:
    """Return the bounding box of balls in an image: left, top, width and height."""
    points = torch.cat(
        [ball.outline for _, ball in balls] + [ball.samples for _, ball in balls if ball.samples is not None]
    )
    positions = (points - points.new_tensor(corner) + 0.5) * zoom
    (top, left), (bottom, right) = (positions.amin(0) - 12).tolist(), (positions.amax(0) + 12).tolist()
    left, top = max(math.floor(left), 0), max(math.floor(top), 0)
    return left, top, max(min(math.ceil(right), size[0]) - left, 1), max(min(math.ceil(bottom), size[1]) - top, 1)


def _arrow(pen: PIL.ImageDraw.ImageDraw, start: tuple[float, float], end: tuple[float, float]) -> None:
    color = (*_rgb(canvas.VERMILLION), 255)
    along = np.subtract(end, start)
    unit = along / np.linalg.norm(along)
    side = np.array([-unit[1], unit[0]])
    head = 12 * _SUPERSAMPLING
    base = np.subtract(end, head * unit)
    pen.line([start, tuple(base)], fill=color, width=4 * _SUPERSAMPLING)
    pen.polygon([end, tuple(base + 0.5 * head * side), tuple(base - 0.5 * head * side)], fill=color)


def _rgb(name: str) -> tuple[int, int, int]:
    red, green, blue = (round(255 * c) for c in to_rgb(name))
    return red, green, blue


def _rescale(values: Tensor) -> Tensor:
    low, high = values.min(), values.max()
    return (values - low) / (high - low).clamp_min(0.05)
