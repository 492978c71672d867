"""Supports side by side."""

import dataclasses

import numpy as np
import pytest
import torch

import metricconv as mc
from metricconv.viz import canvas, example_supports, plot_supports, unit_balls


@pytest.fixture
def image():
    step = np.zeros((32, 32))
    step[:, 16:] = 1.0
    return step


def test_overview_has_six_panels_of_same_region(image):
    panels = plot_supports(image, (16, 14))
    assert [p.get_title() for p in panels] == list(example_supports(image))
    assert len({(p.get_xlim(), p.get_ylim()) for p in panels}) == 1
    low, high = panels[0].get_xlim()
    for panel in panels:
        drawn = np.concatenate([line.get_xydata() for line in panel.lines])
        assert drawn[:, 0].min() > low and drawn[:, 0].max() < high


def test_samples_of_support_are_drawn(image):
    (panel,) = plot_supports(image, (16, 14), {"dilated": mc.Grid(3, dilation=2)})
    samples = panel.lines[0].get_xydata()
    assert {tuple(s) for s in samples} == {(x, y) for x in (12, 14, 16) for y in (14, 16, 18)}


def test_strided_support_is_stretched_to_image_size(image):
    layer = mc.nn.MetricConv2d(1, 1, 3, stride=2, padding=1)
    with mc.nn.record_supports(layer) as supports:
        layer(torch.from_numpy(image)[None, None].float())
    (panel,) = plot_supports(image, (16, 14), {"layer": supports[""]})
    assert np.allclose(np.sort(panel.lines[0].get_xydata(), 0)[[0, -1]], [[13, 15], [15, 17]], atol=1e-4)
    assert np.allclose(panel.lines[1].get_xydata(), [[14, 16]])


def test_fitted_ball_does_not_change_window(image, monkeypatch):
    from metricconv.viz import supports

    def blown_up(*args):
        (ball,) = unit_balls(*args)
        return [dataclasses.replace(ball, outline=1e4 * ball.outline)]

    monkeypatch.setattr(supports, "unit_balls", blown_up)
    (panel,) = plot_supports(image, (16, 14), {"grid": mc.Grid(3)}, margin=2.0)
    assert panel.get_xlim() == (14 - 3.5, 14 + 3.5) and panel.get_ylim() == (16 + 3.5, 16 - 3.5)


def test_window_contains_ball_larger_than_samples(image):
    metric = mc.Riemannian.isotropic(6.0).expand_to((32, 32))
    (panel,) = plot_supports(image, (16, 14), {"ball": mc.TangentBall(metric, mc.stencils.polar(2))}, margin=0.0)
    assert panel.get_xlim() == pytest.approx((14 - 6.5, 14 + 6.5), abs=0.01)


def test_color_images_have_supports():
    assert len(example_supports(torch.rand(3, 16, 20))) == 6


def test_number_of_axes_must_match_supports(image):
    with pytest.raises(ValueError, match="1 entries, one per support, got 2"):
        plot_supports(image, (16, 14), {"grid": mc.Grid(3)}, axes=canvas.new_axes(1, 2)[0])


def test_invalid_arguments_raise(image):
    with pytest.raises(ValueError, match=r"`margin` \(=nan\) must be finite and at least 0"):
        plot_supports(image, (16, 14), margin=float("nan"))
    with pytest.raises(TypeError, match="`metric` must be a Metric, got int"):
        example_supports(image, metric=3)


def test_example_supports_limit_the_kernel_size():
    with pytest.raises(ValueError, match=r"`kernel_size` \(=1001\) gives .* samples for this image"):
        example_supports(np.eye(9), kernel_size=1001)
