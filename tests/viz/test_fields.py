"""Metrics over a whole image."""

import numpy as np
import pytest
import torch

import metricconv as mc
from metricconv.viz import plot_metric_field
from metricconv.viz.fields import QUANTITIES, ball_radius, orientation
from rendering import pixels


def halves(left, right, size=(16, 16)):
    """Return one metric on the left of an image and another on the right."""
    side = torch.arange(size[1]) < size[1] // 2
    fields = zip(left.tensors().items(), right.tensors().values(), strict=True)
    return type(left)(**{name: torch.where(side, a.expand(1, 1, -1, *size), b) for (name, a), b in fields})


def needle(y, x, length=6.0, width=2.0):
    return mc.Riemannian.needle(torch.tensor([y, x]).view(1, 1, 2, 1, 1), length, width)


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("shown", [False, True])
def test_every_quantity_is_drawn(quantity, shown):
    metric = mc.metrics.gradient_metric(torch.rand(1, 1, 24, 20), eps_omega=0.5)
    axes = plot_metric_field(metric, torch.rand(24, 20) if shown else None, quantity, count=5)
    assert pixels(axes.figure).std() > 0.05
    assert axes.get_xlim() == (-0.5, 19.5) and axes.get_ylim() == (23.5, -0.5)


def test_larger_balls_are_lighter():
    metric = halves(mc.Riemannian.isotropic(1.0), mc.Riemannian.isotropic(3.0))
    axes = plot_metric_field(metric, None, "size", bar=False)
    rendered = pixels(axes.figure).mean(-1)
    left, right = np.split(rendered[20:-20], 2, axis=1)
    assert np.median(right) > np.median(left) + 0.2


def test_sizes_are_radii_of_equal_area():
    assert ball_radius(needle(0.0, 1.0)).item() == pytest.approx(12**0.5)


@pytest.mark.parametrize(("y", "x", "degrees"), [(0.0, 1.0, 0), (1.0, 1.0, 45), (-1.0, 1.0, -45), (1.0, 0.0, 90)])
def test_orientation_is_the_long_axis_from_x_towards_y(y, x, degrees):
    assert abs(orientation(needle(y, x)).item()) == pytest.approx(abs(degrees), abs=1e-3)
    if abs(degrees) != 90:
        assert orientation(needle(y, x)).item() == pytest.approx(degrees, abs=1e-3)


def test_ellipses_fit_their_grid_cells():
    axes = plot_metric_field(halves(needle(0.0, 1.0), needle(1.0, 0.0, 200.0, 1.0)), None, count=4, bar=False)
    assert len(axes.patches) == 16
    for patch in axes.patches:
        low, high = patch.get_path().get_extents().get_points()
        assert (high - low).max() == pytest.approx(0.92 * 4, rel=0.01)


@pytest.mark.parametrize(("size", "counts"), [((1, 50), (1, 16)), ((150, 8), (16, 1)), ((5, 5), (5, 5))])
def test_ellipses_of_thin_or_small_fields_are_drawn(size, counts):
    metric = needle(0.0, 1.0).expand_to(size)
    axes = plot_metric_field(metric, bar=False)
    centers = np.array([patch.get_path().get_extents().get_points().mean(0) for patch in axes.patches]).round(3)
    assert len(np.unique(centers[:, 1])) == counts[0] and len(np.unique(centers[:, 0])) == counts[1]
    for patch in axes.patches:
        low, high = patch.get_path().get_extents().get_points()
        assert (high - low).max() == pytest.approx(0.92 * min(np.divide(size, counts)), rel=0.01)


def test_color_bar_of_constant_field_has_a_range():
    metric = needle(0.0, 1.0).expand_to((8, 8))
    bar = plot_metric_field(metric, None, "size").figure.axes[1]
    assert bar.get_ylim()[1] > 1.4 * bar.get_ylim()[0]


def test_unknown_quantity_raises():
    with pytest.raises(ValueError, match=r"`quantity`.*must be one of 'ellipses', 'size'"):
        plot_metric_field(needle(0.0, 1.0), None, "color")


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (torch.nan, {}, "`metric.M` must be finite, got nan"),
        (1.0, {"count": 2.5}, r"`count` \(=2.5\) must be an int"),
        (1.0, {"image_index": -4}, r"`image_index` \(=-4\)"),
    ],
)
def test_invalid_arguments_raise(change, options, message):
    with pytest.raises(ValueError, match=message):
        plot_metric_field(needle(0.0, 1.0).map(lambda t: change * t.expand(1, 1, 3, 8, 8)), **options)
