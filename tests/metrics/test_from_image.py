"""Metrics read off an image: thin across edges, finite everywhere."""

import numpy as np
import pytest
import torch
from scipy import ndimage
from skimage import filters as skimage_filters

import metricconv as mc
from metricconv.metrics import edge_metric, gradient_metric, structure_metric
from metricconv.metrics.from_image import structure_trace

METRICS = {
    "gradient": gradient_metric,
    "tangent drift": lambda image, **options: gradient_metric(image, eps_omega=0.3, **options),
    "edge": edge_metric,
    "structure": structure_metric,
}
every_metric = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())


def step(along_x: bool = True) -> torch.Tensor:
    """A step between columns 2 and 3, or rows."""
    image = torch.zeros(1, 1, 6, 6)
    image[..., 3:] = 1.0
    return image if along_x else image.mT


def relative_gradient(image: torch.Tensor, scale: float | None) -> torch.Tensor:
    """|∇f| / max |∇f|, read back from M = (1 + g)² I."""
    return edge_metric(image, iota=1.0, alpha=1.0, scale=scale).M[:, 0, 0].sqrt() - 1


def test_the_ball_is_thin_along_the_gradient_and_long_across_it():
    M = gradient_metric(step(), iota=0.1, alpha=9.0).M[0, 0]
    torch.testing.assert_close(M[:, 3, 2], torch.tensor([0.01, 0.0, 1.0]))  # (yy, yx, xx) on the edge, where g = 1
    torch.testing.assert_close(M[:, 3, 0], torch.tensor([0.1, 0.0, 0.1]))  # (yy, yx, xx) away from it
    M = gradient_metric(step(along_x=False), iota=0.1, alpha=9.0).M[0, 0]
    torch.testing.assert_close(M[:, 2, 3], torch.tensor([1.0, 0.0, 0.01]))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_gradient_is_an_eigenvector_in_any_dimension(dim):
    slope = torch.randn(dim, dtype=torch.float64)
    axes = torch.meshgrid(*(torch.arange(7.0, dtype=torch.float64),) * dim, indexing="ij")
    ramp = sum(a * s for a, s in zip(axes, slope, strict=True))
    metric = gradient_metric(ramp[None, None], iota=0.2, alpha=4.0, scale=0.6)[(..., *(3,) * dim)]
    normal = slope / slope.norm()
    along = mc.metrics._symmetric.quadratic(metric.M, normal.view(1, 1, dim, *(1,) * dim))
    assert along.item() == pytest.approx(0.2 * 5)  # a ramp's gradient is the largest everywhere inside
    spectrum = torch.linalg.eigvalsh(mc.metrics._symmetric.full(metric.M)).flatten()
    torch.testing.assert_close(spectrum, torch.tensor([0.2 / 5] * (dim - 1) + [0.2 * 5], dtype=torch.float64))


def test_sobel_gradients_are_scikit_images():
    image = torch.rand(9, 7)
    expected = np.hypot(skimage_filters.sobel_h(image.numpy()), skimage_filters.sobel_v(image.numpy()))
    # scikit-image leaves the border out.
    ours, inner = relative_gradient(image[None, None], None)[0].numpy()[1:-1, 1:-1], expected[1:-1, 1:-1]
    np.testing.assert_allclose(ours / ours.max(), inner / inner.max(), atol=1e-5)


def test_gaussian_gradients_are_scipys_with_the_border_repeated():
    image = torch.rand(9, 7, dtype=torch.float64)
    expected = ndimage.gaussian_gradient_magnitude(image.numpy(), 1.25, mode="nearest")
    ours = relative_gradient(image[None, None], 1.25)[0].numpy()
    np.testing.assert_allclose(ours, expected / expected.max(), atol=1e-12)


@pytest.mark.parametrize("drift", ["tangent", "normal"])
@pytest.mark.parametrize("eps_omega", [0.9, 0.5, 1e-3])
def test_the_drift_fills_its_bound_exactly(drift, eps_omega):
    image = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    metric = gradient_metric(image, eps_omega=eps_omega, drift=drift)
    torch.testing.assert_close(metric.asymmetry, torch.full((2, 1, 8, 8), 1 - eps_omega, dtype=torch.float64))
    assert metric.is_positive().all()


def test_the_drift_points_along_the_gradient_or_a_quarter_turn_from_it():
    normal = gradient_metric(step(), iota=1.0, alpha=0.0, eps_omega=0.25, drift="normal").omega[0, 0]
    torch.testing.assert_close(normal[:, 3, 2], torch.tensor([0.0, 0.75]))  # brighter to the right: (y, x)
    tangent = gradient_metric(step(), iota=1.0, alpha=0.0, eps_omega=0.25).omega[0, 0]
    torch.testing.assert_close(tangent[:, 3, 2], torch.tensor([0.75, 0.0]))  # θ grows from +x towards +y
    for omega in (normal, tangent):
        assert not omega[:, :, 0].any()  # no gradient, no drift


def test_no_drift_is_asked_for_at_eps_omega_one():
    assert isinstance(gradient_metric(step()), mc.Riemannian)
    assert isinstance(gradient_metric(step(), eps_omega=0.5), mc.Randers)


def test_a_volume_has_a_normal_drift_but_no_tangent_one():
    volume = torch.rand(1, 1, 4, 4, 4)
    torch.testing.assert_close(
        gradient_metric(volume, eps_omega=0.4, drift="normal").asymmetry, torch.full((1, 1, 4, 4, 4), 0.6)
    )
    with pytest.raises(ValueError, match=r"`drift` \(='tangent'\) needs an image with 2 spatial axes.*got 3"):
        gradient_metric(volume, eps_omega=0.4)


def test_edge_balls_shrink_by_the_relative_gradient_and_stay_round():
    metric = edge_metric(step(), iota=0.25, alpha=3.0, scale=None)
    torch.testing.assert_close(metric.bounding_radius[0, 0, 3], torch.tensor([2.0, 2.0, 0.5, 0.5, 2.0, 2.0]))
    torch.testing.assert_close(metric.anisotropy, torch.ones(1, 1, 6, 6))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_structure_balls_all_have_the_volume_of_the_round_one(dim):
    image = torch.rand(1, 2, *(6,) * dim, dtype=torch.float64)
    volume = structure_metric(image, iota=0.2, alpha=30.0).volume
    torch.testing.assert_close(volume, mc.Riemannian.isotropic(0.2**-0.5, dim).volume.to(volume).expand_as(volume))


def test_structure_balls_lie_along_stripes_and_are_round_where_no_direction_dominates():
    wave = torch.cos(2 * torch.pi * torch.arange(16.0, dtype=torch.float64) / 8)
    stripes, checks = wave.expand(1, 1, 16, 16), (wave + wave[:, None]).expand(1, 1, 16, 16)
    options = {"alpha": 10.0, "integration_scale": 4.0, "padding_mode": "circular"}
    yy, yx, xx = structure_metric(stripes, **options).M[0, 0, :, 8, 8]
    assert (xx / yy).item() == pytest.approx(101, rel=0.02) and yx.abs() < 1e-12
    assert structure_metric(checks, **options).anisotropy.max() < 1.02


@every_metric
def test_a_constant_image_gives_round_balls_and_finite_derivatives(metric):
    image = torch.full((1, 2, 5, 5), 0.3, requires_grad=True)
    field = metric(image, iota=0.1)
    expected = torch.tensor([0.1, 0.0, 0.1]).view(1, 1, 3, 1, 1).expand(1, 1, 3, 5, 5)
    torch.testing.assert_close(field.M, expected, atol=1e-8, rtol=1e-6)
    assert not field.asymmetry.any()
    sum(t.sum() for t in field.tensors().values()).backward()
    assert image.grad.isfinite().all()


@every_metric
@pytest.mark.parametrize("size", [(1, 1), (1, 4), (2, 3)])
def test_tiny_images_are_fine_in_every_padding_mode(metric, size):
    for padding_mode in ("border", "reflect", "circular", "zeros"):
        field = metric(torch.rand(1, 1, *size), padding_mode=padding_mode)
        assert field.spatial == size and field.is_positive().all()


@every_metric
def test_derivatives_are_right(metric):
    image = torch.rand(1, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: tuple(metric(x, alpha=3.0).tensors().values()), image)


@every_metric
def test_images_of_a_batch_do_not_see_each_other(metric):
    images = torch.rand(3, 2, 6, 5) * torch.tensor([1.0, 10.0, 0.1]).view(3, 1, 1, 1)
    together = metric(images)
    for b in range(3):
        for name, alone in metric(images[b : b + 1]).tensors().items():
            torch.testing.assert_close(together.tensors()[name][b : b + 1], alone)


@every_metric
def test_brightness_and_contrast_do_not_matter(metric):
    image = torch.rand(1, 1, 6, 6, dtype=torch.float64)
    for name, expected in metric(image).tensors().items():
        torch.testing.assert_close(metric(7 * image + 3).tensors()[name], expected)


@every_metric
def test_a_repeated_channel_changes_nothing(metric):
    image = torch.rand(1, 1, 6, 6, dtype=torch.float64)
    for name, expected in metric(image).tensors().items():
        torch.testing.assert_close(metric(image.expand(1, 3, 6, 6)).tensors()[name], expected)


def test_the_channel_with_the_longest_gradient_decides():
    faint, strong = 0.1 * step(along_x=False), step()
    torch.testing.assert_close(
        gradient_metric(torch.cat([faint, strong], 1)).M[..., 3, 2], gradient_metric(strong).M[..., 3, 2]
    )


@every_metric
def test_the_metric_moves_with_the_image(metric):
    image = torch.rand(1, 1, 8, 8, dtype=torch.float64)
    for name, field in metric(image, padding_mode="circular").tensors().items():
        moved = metric(image.roll((2, 3), (2, 3)), padding_mode="circular").tensors()[name]
        torch.testing.assert_close(moved, field.roll((2, 3), (3, 4)))


@every_metric
def test_the_metric_turns_with_the_image(metric):
    image = torch.rand(1, 1, 7, 7, dtype=torch.float64)
    field, turned = metric(image), metric(image.rot90(1, (2, 3)))
    yy, yx, xx = field.M.rot90(1, (3, 4)).unbind(2)
    torch.testing.assert_close(turned.M, torch.stack([xx, -yx, yy], 2))
    if isinstance(field, mc.Randers):
        y, x = field.omega.rot90(1, (3, 4)).unbind(2)
        torch.testing.assert_close(turned.omega, torch.stack([-x, y], 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_metric
def test_the_largest_numbers_there_are_give_finite_metrics(metric, dtype):
    image = torch.zeros(1, 2, 6, 7, dtype=dtype)
    image[..., 3:] = torch.finfo(dtype).max
    image[..., 0] = -torch.finfo(dtype).max
    assert all(t.isfinite().all() for t in metric(image).tensors().values())


@pytest.mark.parametrize("metric", [gradient_metric, edge_metric])
def test_a_large_gain_on_large_numbers_gives_finite_metrics_and_derivatives(metric):
    image = (torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 1e36).requires_grad_()
    M = metric(image, alpha=1e4).M
    M.sum().backward()
    assert M.isfinite().all() and image.grad.isfinite().all()


@pytest.mark.parametrize("alpha", [1e3, 1e12, 1e200])
def test_structure_balls_keep_their_volume_at_any_gain(alpha):
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    metric = structure_metric(torch.cos(0.7 * x + 0.4 * y)[None, None], alpha=alpha)
    assert metric.is_positive().all() and metric.anisotropy.max() > 300
    torch.testing.assert_close(metric.volume, torch.full_like(metric.volume, torch.pi / 0.2), rtol=0.03, atol=0)


def test_an_edge_is_found_as_far_along_a_signal_as_float32_cannot_count():
    size = 2**24 + 100
    signal = torch.zeros(1, 1, size)
    signal[..., size - 40 :] = 1
    M = edge_metric(signal, scale=None).M.flatten()
    assert M.topk(2).indices.sort().values.tolist() == [size - 41, size - 40] and M[-41] > 1.5 * M.min()


def test_half_precision_images_give_float32_metrics():
    assert gradient_metric(torch.rand(1, 1, 4, 4).half(), eps_omega=0.5).dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iota": 0.0}, r"`iota` \(=0.0\) must be positive"),
        ({"alpha": -1.0}, r"`alpha` \(=-1.0\) must be finite and at least 0"),
        ({"eps_omega": 0.0}, r"`eps_omega` \(=0.0\) must be in \(0, 1\]"),
        ({"eps_omega": 1.5}, r"`eps_omega` \(=1.5\)"),
        ({"drift": "up"}, r"`drift` \(='up'\) must be one of 'tangent', 'normal'"),
        ({"scale": 0.0}, r"`scale` \(=0.0\) must be positive"),
        ({"padding_mode": "wrap"}, r"`padding_mode` \(='wrap'\) must be one of"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        gradient_metric(torch.rand(1, 1, 4, 4), **options)


@pytest.mark.parametrize("metric", [gradient_metric, edge_metric, structure_metric])
def test_what_metrics_do_not_share_is_given_by_its_name(metric):
    image = torch.rand(1, 1, 4, 4)
    assert torch.equal(metric(image, 0.3, 2.0).M, metric(image, iota=0.3, alpha=2.0).M)
    with pytest.raises(TypeError, match="positional argument"):
        metric(image, 0.3, 2.0, 0.5)


def test_wrong_images_are_named():
    with pytest.raises(TypeError, match="`image` must hold floating-point numbers"):
        edge_metric(torch.zeros(1, 1, 4, 4, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"`image` must be \(B, C, \*spatial\) and not empty, got shape \(4, 4\)"):
        edge_metric(torch.rand(4, 4))
    with pytest.raises(ValueError, match=r"got shape \(1, 1, 0, 4\)"):
        structure_metric(torch.rand(1, 1, 0, 4))


@every_metric
def test_a_pixel_that_is_no_number_gives_no_metric(metric):
    image = torch.rand(2, 1, 9, 9)
    image[0, 0, 4, 4] = torch.nan
    M = metric(image).M
    assert M[0, 0, 0].isnan().all() and M[1].isfinite().all()
    with pytest.raises(ValueError, match="`metric` must be positive"):
        mc.metrics.geodesic_distance(metric(image[:1]), torch.zeros(1, 2))


@pytest.mark.parametrize("drift", ["tangent", "normal"])
@pytest.mark.parametrize(("alpha", "eps_omega"), [(1e4, 1.0), (1000, 0.01), (300, 1e-3), (100, 1e-4), (1e6, 1e-9)])
def test_a_metric_is_no_thinner_than_its_dtype_can_tell(alpha, eps_omega, drift):
    image = torch.rand(1, 1, 20, 20, generator=torch.Generator().manual_seed(0))
    metric = gradient_metric(image, alpha=alpha, eps_omega=eps_omega, drift=drift)
    assert metric.is_positive().all()
    assert metric.asymmetry.max() < 1


@pytest.mark.parametrize("unit", [1e-38, 1e-30, 1e-22, 1.0, 1e18, 1e30, 1e38])
def test_a_part_of_an_image_in_any_unit_has_the_metric_of_the_whole(unit):
    image = torch.rand(1, 2, 20, 24, generator=torch.Generator().manual_seed(0)) * unit
    largest = structure_trace(image, 1.0, 2.0).max().item()
    part = structure_metric(image[..., :20], largest=largest).M[..., :8]
    torch.testing.assert_close(part, structure_metric(image).M[..., :8], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("largest", [-1.0, float("inf"), float("nan")])
@every_metric
def test_a_largest_number_that_is_none_is_refused(metric, largest):
    with pytest.raises(ValueError, match=r"`largest` \(=.*\) must be finite and at least 0"):
        metric(torch.rand(1, 1, 4, 4), largest=largest)
