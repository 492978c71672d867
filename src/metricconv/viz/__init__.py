"""Plots of unit balls, metric fields, supports, receptive fields and GradCAM.

Requires matplotlib (the extra ``images``). Each ``plot_…`` function draws on the given axes, or creates new ones with
pyplot, and returns them: ``plot_unit_balls(…).figure.savefig("balls.pdf")``. Images are NumPy arrays (H, W) or
(H, W, C), or tensors (H, W), (C, H, W) or (1, C, H, W). Points are (y, x) in pixels.
"""

from .balls import Ball, plot_unit_balls, unit_balls
from .fields import plot_metric_field
from .gradcam import GradCAM, plot_gradcam
from .receptive import plot_receptive_field, receptive_field
from .supports import example_supports, plot_supports

__all__ = [
    "Ball",
    "GradCAM",
    "example_supports",
    "plot_gradcam",
    "plot_metric_field",
    "plot_receptive_field",
    "plot_supports",
    "plot_unit_balls",
    "receptive_field",
    "unit_balls",
]
