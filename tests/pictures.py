"""What the tests of pictures share: a figure as an array of pixels."""

import numpy as np
from matplotlib.colors import to_rgb


def pixels(figure, dpi=100):
    """Render a figure: (H, W, 3) in [0, 1]."""
    figure.set_dpi(dpi)
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3] / 255.0


def near(picture, colour, tolerance=0.08):
    """Tell which pixels have about that colour: bool (H, W)."""
    return np.abs(picture - np.array(to_rgb(colour))).max(-1) < tolerance
