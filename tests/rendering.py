"""Rendered figures as arrays, for tests of plots."""

import numpy as np
from matplotlib.colors import to_rgb


def pixels(figure, dpi=100):
    """Return the rendered figure: (H, W, 3) in [0, 1]."""
    figure.set_dpi(dpi)
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3] / 255.0


def near(image, color, tolerance=0.08):
    """Return which pixels of a rendered figure have about the given color: bool (H, W)."""
    return np.abs(image - np.array(to_rgb(color))).max(-1) < tolerance
