"""Long titles and labels are wrapped, and panels have the aspect of their images."""

import itertools

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from torch import nn

import metricconv as mc
from metricconv.viz import canvas, plot_gradcam, plot_supports

LONG = ["the standard convolution of the paper", "unit_geodesic_balls_of_layer4.1.conv2", "tangent balls with a drift"]


def classifier():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def whole(figure, texts):
    """Tell whether texts lie within a figure, and apart from each other."""
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in texts]
    within = all(figure.bbox.padded(1).fully_containsx(x) for box in boxes for x in (box.x0, box.x1)) and all(
        figure.bbox.padded(1).fully_containsy(y) for box in boxes for y in (box.y0, box.y1)
    )
    return within and not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


@pytest.mark.parametrize("size", [(24, 24), (20, 60), (60, 24)])
@pytest.mark.parametrize("given", [False, True])
def test_gradcam_wraps_long_titles_and_labels(size, given):
    images, methods = torch.rand(2, 3, *size), {name: (classifier(), "0") for name in LONG}
    axes = plt.subplots(2, 4, figsize=(9, 5))[1] if given else None
    panels = plot_gradcam(
        images, methods, labels=["a row of many words, seen whole", "another_of_a_single_long_word"], axes=axes
    )
    assert whole(panels[0, 0].figure, [p.title for p in panels[0]] + [p.yaxis.label for p in panels[:, 0]])
    assert ["".join(p.get_title().split()) for p in panels[0, 1:]] == ["".join(name.split()) for name in LONG]


@pytest.mark.parametrize("size", [(24, 24), (20, 60), (60, 24)])
def test_gradcam_panels_have_no_gaps(size):
    panels = plot_gradcam(torch.rand(3, 3, *size), {"one": (classifier(), "0"), "two": (classifier(), "0")})
    panels[0, 0].figure.canvas.draw()
    first, right, below = (panel.get_window_extent() for panel in (panels[0, 0], panels[0, 1], panels[1, 0]))
    inch = panels[0, 0].figure.dpi
    assert first.width / first.height == pytest.approx(size[1] / size[0], rel=0.01)
    assert right.x0 - first.x1 < 0.15 * inch and first.y0 - below.y1 < 0.2 * inch


@pytest.mark.parametrize("given", [False, True])
def test_supports_wrap_long_titles(given):
    axes = plt.subplots(1, 3, figsize=(6, 3))[1] if given else None
    panels = plot_supports(np.zeros((16, 16)), (8, 8), {name: mc.Grid(3) for name in LONG}, axes=axes)
    assert whole(panels[0].figure, [panel.title for panel in panels])


def test_short_titles_are_not_wrapped():
    assert canvas.wrapped("unit geodesic ball", 1.6, 9) == "unit geodesic ball"
    assert canvas.wrapped("", 1.6, 9) == "" and canvas.most_lines(["", "a", "a\nb"]) == 2
    assert canvas.wrapped("abc", 0.0, 9) == "a\nb\nc"
