"""Photographs that come with scikit-image, and unit balls drawn over a picture."""

import itertools

import numpy as np
import skimage
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.patches import Polygon

from ..metrics import Metric
from ..stencils import polar

# Two of Okabe and Ito's colours, which those who see fewer colours can tell apart too.
BALL, PIXEL = "#E69F00", "#56B4E9"


def photograph(name: str, size: int) -> np.ndarray:
    """Return one of scikit-image's pictures, grey, size × size and in [0, 1], as float32."""
    image = getattr(skimage.data, name)()
    image = skimage.color.rgb2gray(image) if image.ndim == 3 else image
    grey = skimage.transform.resize(image, (size, size), anti_aliasing=True).astype(np.float32)
    return grey if grey.max() <= 1 else grey / 255


def draw_balls(axes: Axes, metric: Metric, rows: slice, columns: slice, count: int = 8) -> None:
    """Outline the unit tangent balls of count × count pixels of a view, and mark the pixels."""
    outlines = metric.unit_vectors(polar(64).directions[:64])[0, 0]  # [64, (y, x), H, W]
    places = (np.arange(count) + 0.5) / count
    lattice = (part.start + places * (part.stop - part.start) for part in (rows, columns))
    for y, x in itertools.product(*(along.astype(int).tolist() for along in lattice)):
        outline = outlines[:, :, y, x].flip(1) + torch.tensor([x, y])
        axes.add_patch(Polygon(outline.tolist(), facecolor=to_rgba(BALL, 0.35), edgecolor=BALL, linewidth=1.3))
        axes.plot(x, y, ".", color=PIXEL, markersize=5)
