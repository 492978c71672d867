"""Unit balls as curves and plots."""

import matplotlib.patches
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

import metricconv as mc
from helpers import sphere
from layers import randomize_predictors
from metricconv.viz import canvas, plot_unit_balls, unit_balls
from metricconv.viz.balls import COLORS
from rendering import near, pixels
from shapes import make_shape


def field(metric, size=(20, 24)):
    return metric.map(lambda t: t.expand(*t.shape[:3], *size).contiguous())


def off_center():
    return mc.Randers.from_zermelo(
        mc.Riemannian.needle(torch.tensor([0.0, 1.0]).view(1, 1, 2, 1, 1), 4.0, 2.0),
        torch.tensor([1.0, 0.5]).view(1, 1, 2, 1, 1),
    )


def test_outlines_have_unit_norm():
    metric = off_center().to(torch.float64)
    (ball,) = unit_balls(field(metric), [(9, 12)])
    u = (ball.outline - torch.tensor(ball.pixel)).t()[None, None, :, :, None]
    assert torch.allclose(metric.norm(u), torch.ones(()).double(), atol=1e-6)
    assert torch.allclose(ball.center, torch.tensor([10.0, 12.5]).double(), atol=1e-5)
    assert torch.allclose(ball.outline.mean(0), ball.center, atol=1e-5)


def test_tangent_and_geodesic_balls_agree_for_constant_metric():
    straight, bent = (unit_balls(field(off_center()), [(9, 12)], kind)[0] for kind in ("tangent", "geodesic"))
    assert torch.allclose(straight.outline, bent.outline, atol=1e-4)


def test_geodesic_ball_shrinks_where_metric_grows():
    radius = torch.full((1, 1, 20, 24), 5.0)
    radius[..., 14:] = 0.5
    metric = mc.Riemannian.isotropic(radius)
    straight, bent = (unit_balls(metric, [(10, 10)], kind)[0].outline for kind in ("tangent", "geodesic"))
    assert straight[:, 1].max() == pytest.approx(15.0, abs=0.01)
    assert 12.5 < bent[:, 1].max() < 14.5


@pytest.mark.parametrize("kind", ["tangent", "geodesic"])
def test_samples_equal_offsets_of_support(kind):
    metric = mc.metrics.gradient_metric(torch.rand(1, 1, 20, 24), iota=0.1, alpha=4.0, eps_omega=0.5)
    make = mc.TangentBall if kind == "tangent" else mc.GeodesicBall
    support = make(metric, mc.stencils.onion(5))
    (ball,) = unit_balls(support, [(7, 9)])
    assert torch.allclose(ball.samples, torch.tensor([7.0, 9.0]) + support.offsets()[0, 0, :, :, 7, 9].double())


def test_samples_of_metric_follow_stencil():
    metric = mc.metrics.gradient_metric(torch.rand(1, 1, 20, 24, dtype=torch.float64), alpha=3.0, scale=2.0)
    stencil = mc.stencils.onion(3)
    for kind, support in (("tangent", mc.TangentBall), ("geodesic", mc.GeodesicBall)):
        options = {"steps": 24} if kind == "geodesic" else {}
        (ball,) = unit_balls(metric, [(7, 9)], kind, stencil)
        expected = support(metric, stencil, **options).offsets()[0, 0, :, :, 7, 9]
        assert torch.allclose(ball.samples - torch.tensor([7.0, 9.0]), expected, atol=1e-6)


def test_fitted_ball_of_shifted_grid_is_centered_on_samples():
    shift = torch.tensor([1.0, -0.5]).view(1, 1, 2, 1, 1)
    (ball,) = unit_balls(mc.Shifted(shift, 5), [(10, 10)])
    assert torch.allclose(ball.center, torch.tensor([11.0, 9.5]).double(), atol=0.05)
    assert ball.samples.shape == (25, 2)


def test_geodesic_balls_require_a_metric():
    with pytest.raises(ValueError, match="requires a metric field, which Grid does not have"):
        unit_balls(mc.Grid(3), [(1, 1)], "geodesic")


FIELD = mc.Riemannian(torch.tensor([0.1, 0.0, 0.1]).view(1, 1, 3, 1, 1).expand(3, 2, 3, 8, 8))


def test_number_of_points_may_be_numpy_integer():
    assert len(unit_balls(FIELD, np.int64(2))) == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: unit_balls(FIELD, (3, 4)), r"`points` \(=\(3, 4\)\) must be an integer or a list of points \(y, x\)"),
        (lambda: unit_balls(FIELD, 2.5), r"`points` \(=2.5\)"),
        (lambda: unit_balls(FIELD, 2, image_index=3), r"`image_index` \(=3\) must be at least 0 and less than 3"),
        (lambda: unit_balls(FIELD, 2, group=-1), r"`group` \(=-1\)"),
        (lambda: unit_balls(FIELD, 2, stencil="onion"), "`stencil` must be a Stencil, got str"),
        (lambda: unit_balls(FIELD, 2, stencil=mc.stencils.onion(3, 3)), "`stencil` must have 2 axes"),
        (lambda: unit_balls(FIELD.map(lambda t: t * torch.nan), 2), "`metric` must be positive"),
        (lambda: plot_unit_balls(FIELD, ball=[]), r"`ball` \(=\[\]\) must not be empty"),
        (lambda: plot_unit_balls(FIELD, 3), r"`image` must be an array .* got shape \(\)"),
        (lambda: plot_unit_balls(FIELD, np.full((8, 8), np.nan)), "`image` must be finite"),
        (lambda: plot_unit_balls(FIELD, np.full((8, 8), "a")), "`image` must hold real numbers, got dtype <U1"),
    ],
)
def test_invalid_arguments_raise_and_leave_no_figure(call, message):
    before = plt.get_fignums()
    with pytest.raises((ValueError, TypeError), match=message):
        call()
    assert plt.get_fignums() == before


def test_points_outside_image_raise():
    with pytest.raises(ValueError, match=r"inside the image of size \(20, 24\), got \(20.0, 3.0\)"):
        unit_balls(field(off_center()), [(20, 3)])


def test_balls_are_drawn_at_their_points():
    image = np.full((20, 24), 0.5)
    axes = plot_unit_balls(field(off_center()), image, [(9, 12)])
    (patch,) = (p for p in axes.patches if isinstance(p, matplotlib.patches.Polygon))
    low, high = patch.get_path().get_extents().get_points()
    assert np.allclose(low, [12.5 - 4, 10 - 2], atol=0.05)
    assert np.allclose(high, [12.5 + 4, 10 + 2], atol=0.05)
    rendered = pixels(axes.figure)
    blue = np.argwhere(near(rendered, COLORS["tangent"]))
    middle = axes.transData.transform([(12.5, 10)])[0]
    assert np.allclose(blue.mean(0), [len(rendered) - middle[1], middle[0]], atol=4)


@pytest.mark.parametrize("ball", ["tangent", "geodesic"])
@pytest.mark.parametrize("stride", [1, 2, 4])
def test_strided_field_is_stretched_to_image_size(ball, stride):
    layer = mc.nn.MetricConv2d(1, 2, 3, stride=stride, padding=1, ball=ball)
    axes = plot_unit_balls(layer, torch.rand(1, 1, 16, 16), [(8, 8)])
    (patch,) = axes.patches
    low, high = patch.get_path().get_extents().get_points()
    assert np.allclose(high - low, 2.0, atol=0.05)  # the layer's samples are one image pixel away
    assert np.allclose((high + low) / 2, 8.0, atol=0.05)


def test_ball_size_is_independent_of_stride():
    layer = mc.nn.MetricConv2d(1, 2, 3, stride=2, padding=1, metric=mc.Riemannian.isotropic(1.5))
    (patch,) = plot_unit_balls(layer, torch.rand(1, 1, 16, 16), [(8, 9)]).patches
    low, high = patch.get_path().get_extents().get_points()
    assert np.allclose([low, high], [[7.5, 6.5], [10.5, 9.5]], atol=0.05)


@pytest.mark.parametrize("to", [mc.nn.MetricConv2d, mc.nn.DeformableConv2d])
@pytest.mark.parametrize("stride", [1, 2, (1, 3)])
def test_recorded_support_and_layer_are_drawn_alike(to, stride):
    layer, image = randomize_predictors(to(1, 2, 3, stride=stride, padding=1)), torch.rand(1, 1, 18, 18)
    with mc.nn.record_supports(layer) as supports:
        layer(image)
    whole, kept = (plot_unit_balls(source, image, 2).patches for source in (layer, supports[""]))
    assert len(whole) == 4 and all(np.allclose(a.get_xy(), b.get_xy()) for a, b in zip(whole, kept, strict=True))


def test_stride_scales_balls_of_supports_and_metrics():
    support = mc.TangentBall(field(mc.Riemannian.isotropic(2.0)), mc.stencils.onion(3), stride=(2, 4))
    for ball in (*unit_balls(support, [(9, 12)]), *unit_balls(support.metric, [(9, 12)], stride=(2, 4))):
        reach = (ball.outline - torch.tensor(ball.pixel)).abs().amax(0)
        assert torch.allclose(reach, torch.tensor([1.0, 0.5]).double(), atol=1e-3)
    (bare,) = unit_balls(support.metric, [(9, 12)])
    assert (bare.outline - torch.tensor(bare.pixel)).abs().max() == pytest.approx(2.0, abs=1e-3)


def test_both_ball_types_are_drawn_in_their_colors():
    image = np.zeros((20, 24))
    axes = plot_unit_balls(field(off_center()), image, [(6, 6), (14, 16)], ["tangent", "geodesic"])
    rendered = pixels(axes.figure)
    assert near(rendered, COLORS["geodesic"]).sum() > 50
    assert len(axes.patches) == 4 and axes.get_legend() is not None


def test_legend_has_given_color_and_each_type_once():
    axes = plot_unit_balls(field(off_center()), None, 2, ["tangent", "geodesic", "tangent"], color="red")
    handles = axes.get_legend().get_patches()
    assert [handle.get_label() for handle in handles] == ["tangent", "geodesic"] and len(axes.patches) == 8
    assert all(handle.get_facecolor()[:3] == (1, 0, 0) for handle in handles)
    assert plot_unit_balls(field(off_center()), None, 2, ["tangent", "tangent"]).get_legend() is None


def test_pixels_of_small_images_are_drawn_once():
    balls = unit_balls(field(off_center(), (5, 6)), 8)
    assert sorted(ball.pixel for ball in balls) == [(y, x) for y in range(5) for x in range(6)]


def test_given_axes_are_returned():
    axes = canvas.new_axes()[0, 0]
    assert plot_unit_balls(field(off_center()), None, 2, axes=axes) is axes
    assert len(axes.patches) == 4


def test_recorded_supports_of_network_are_drawn():
    net = randomize_predictors(
        torch.nn.Sequential(mc.nn.MetricConv2d(3, 4, 3, padding=1), mc.nn.DeformableConv2d(4, 4, 3, padding=1))
    )
    with mc.nn.record_supports(net) as supports:
        net(torch.rand(1, 3, 12, 12))
    for support in supports.values():
        assert len(plot_unit_balls(support, torch.rand(3, 12, 12), 3).patches) == 9


def test_image_with_wrong_channels_raises():
    with pytest.raises(ValueError, match=r"`input` must be \(B, 3, \*spatial\) .*, got \(1, 1, 8, 8\)"):
        plot_unit_balls(mc.nn.MetricConv2d(3, 4, 3, padding=1), torch.zeros(1, 1, 8, 8))


def test_image_index_selects_image_of_batch():
    radii = torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1, 1).expand(3, 1, 9, 9)
    axes = plot_unit_balls(mc.Riemannian.isotropic(radii), torch.rand(1, 1, 9, 9), [(4, 4)], image_index=2)
    assert np.ptp(axes.patches[0].get_path().vertices[:, 0]) == pytest.approx(6.0, abs=0.1)
    plt.close("all")
    with pytest.raises(ValueError, match="`image_index` \\(=3\\)"):
        plot_unit_balls(mc.Riemannian.isotropic(radii), points=[(4, 4)], image_index=3)


def test_colour_is_accepted_with_a_warning():
    with pytest.warns(DeprecationWarning, match="`colour` of plot_unit_balls is deprecated: use `color`"):
        axes = plot_unit_balls(FIELD, None, 1, colour="red")
    assert axes.patches[0].get_edgecolor() == (1.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize("kind", ["asymmetric", "box", "polytope", "intersection"])
def test_outlines_of_convex_balls_have_norm_one_and_reach_their_corners(kind):
    metric = make_shape(kind, 2, spatial=(5, 5))
    (ball,) = unit_balls(metric, [(2, 2)])
    u = (ball.outline - ball.center).double()
    length = metric.at(torch.tensor([2.0, 2.0]).double().view(1, 2, 1, 1)).norm(u.view(1, 1, -1, 2, 1, 1))
    torch.testing.assert_close(length, torch.ones_like(length))
    longest = metric[0, 0, 2, 2].unit_vectors(sphere(2, 20_000)).norm(dim=3).max()
    assert u.norm(dim=1).max() > 0.995 * longest
