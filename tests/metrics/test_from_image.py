"""Metrics computed from an image: narrow across edges, finite everywhere."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import ndimage
from skimage import filters as skimage_filters

import metricconv as mc
from metricconv import _checks
from metricconv.metrics import IMAGE_METRICS, edge_metric, gradient_metric, image_metric, structure_metric
from metricconv.metrics.from_image import structure_trace

METRICS = {
    "gradient": gradient_metric,
    "tangent drift": lambda image, **options: gradient_metric(image, eps_omega=0.3, **options),
    "edge": edge_metric,
    "structure": structure_metric,
}
every_metric = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())


def step(along_x: bool = True) -> torch.Tensor:
    """Return an image with a step between columns 2 and 3, or rows."""
    image = torch.zeros(1, 1, 6, 6)
    image[..., 3:] = 1.0
    return image if along_x else image.mT


def relative_gradient(image: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Return |∇f| / max |∇f|, computed from M = (1 + g)² I."""
    return edge_metric(image, iota=1.0, alpha=1.0, scale=scale).M[:, 0, 0].sqrt() - 1


def test_gradient_metric_of_a_step():
    M = gradient_metric(step(), iota=0.1, alpha=9.0).M[0, 0]
    torch.testing.assert_close(M[:, 3, 2], torch.tensor([0.01, 0.0, 1.0]))  # (yy, yx, xx) on the edge, where g = 1
    torch.testing.assert_close(M[:, 3, 0], torch.tensor([0.1, 0.0, 0.1]))  # (yy, yx, xx) away from it
    M = gradient_metric(step(along_x=False), iota=0.1, alpha=9.0).M[0, 0]
    torch.testing.assert_close(M[:, 2, 3], torch.tensor([1.0, 0.0, 0.01]))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_gradient_is_an_eigenvector_in_any_dimension(dim):
    slope = torch.randn(dim, dtype=torch.float64)
    axes = torch.meshgrid(*(torch.arange(7.0, dtype=torch.float64),) * dim, indexing="ij")
    ramp = sum(a * s for a, s in zip(axes, slope, strict=True))
    metric = gradient_metric(ramp[None, None], iota=0.2, alpha=4.0, scale=0.6)[(..., *(3,) * dim)]
    normal = slope / slope.norm()
    along = mc.metrics._symmetric.quadratic(metric.M, normal.view(1, 1, dim, *(1,) * dim))
    assert along.item() == pytest.approx(0.2 * 5)  # the gradient of a ramp is maximal at all interior pixels
    spectrum = torch.linalg.eigvalsh(mc.metrics._symmetric.full(metric.M)).flatten()
    torch.testing.assert_close(spectrum, torch.tensor([0.2 / 5] * (dim - 1) + [0.2 * 5], dtype=torch.float64))


def test_sobel_gradients_agree_with_scikit_image():
    image = torch.rand(9, 7)
    expected = np.hypot(skimage_filters.sobel_h(image.numpy()), skimage_filters.sobel_v(image.numpy()))
    # scikit-image sets the border to 0.
    result, inner = relative_gradient(image[None, None], None)[0].numpy()[1:-1, 1:-1], expected[1:-1, 1:-1]
    np.testing.assert_allclose(result / result.max(), inner / inner.max(), atol=1e-5)


def test_gaussian_gradients_agree_with_scipy():
    image = torch.rand(9, 7, dtype=torch.float64)
    expected = ndimage.gaussian_gradient_magnitude(image.numpy(), 1.25, mode="nearest")
    result = relative_gradient(image[None, None], 1.25)[0].numpy()
    np.testing.assert_allclose(result, expected / expected.max(), atol=1e-12)


@pytest.mark.parametrize("drift", ["tangent", "normal"])
@pytest.mark.parametrize("eps_omega", [0.9, 0.5, 1e-3])
def test_asymmetry_equals_its_bound(drift, eps_omega):
    image = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    metric = gradient_metric(image, eps_omega=eps_omega, drift=drift)
    torch.testing.assert_close(metric.asymmetry, torch.full((2, 1, 8, 8), 1 - eps_omega, dtype=torch.float64))
    assert metric.is_positive().all()


def test_direction_of_normal_and_tangent_drift():
    normal = gradient_metric(step(), iota=1.0, alpha=0.0, eps_omega=0.25, drift="normal").omega[0, 0]
    torch.testing.assert_close(normal[:, 3, 2], torch.tensor([0.0, 0.75]))  # brighter to the right: (y, x)
    tangent = gradient_metric(step(), iota=1.0, alpha=0.0, eps_omega=0.25).omega[0, 0]
    torch.testing.assert_close(tangent[:, 3, 2], torch.tensor([0.75, 0.0]))  # rotated from +x towards +y
    for omega in (normal, tangent):
        assert not omega[:, :, 0].any()  # where the gradient is 0


def test_eps_omega_one_gives_riemannian():
    assert isinstance(gradient_metric(step()), mc.Riemannian)
    assert isinstance(gradient_metric(step(), eps_omega=0.5), mc.Randers)


def test_volumes_have_normal_drift_only():
    volume = torch.rand(1, 1, 4, 4, 4)
    torch.testing.assert_close(
        gradient_metric(volume, eps_omega=0.4, drift="normal").asymmetry, torch.full((1, 1, 4, 4, 4), 0.6)
    )
    with pytest.raises(ValueError, match=r"`drift` \(='tangent'\) requires an image with 2 spatial axes, got 3"):
        gradient_metric(volume, eps_omega=0.4)


def test_edge_metric_of_a_step():
    metric = edge_metric(step(), iota=0.25, alpha=3.0, scale=None)
    torch.testing.assert_close(metric.bounding_radius[0, 0, 3], torch.tensor([2.0, 2.0, 0.5, 0.5, 2.0, 2.0]))
    torch.testing.assert_close(metric.anisotropy, torch.ones(1, 1, 6, 6))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_structure_metric_has_constant_volume(dim):
    image = torch.rand(1, 2, *(6,) * dim, dtype=torch.float64)
    volume = structure_metric(image, iota=0.2, alpha=30.0).volume
    torch.testing.assert_close(volume, mc.Riemannian.isotropic(0.2**-0.5, dim).volume.to(volume).expand_as(volume))


def test_structure_metric_of_stripes_and_of_a_checkerboard():
    wave = torch.cos(2 * torch.pi * torch.arange(16.0, dtype=torch.float64) / 8)
    stripes, checks = wave.expand(1, 1, 16, 16), (wave + wave[:, None]).expand(1, 1, 16, 16)
    options = {"alpha": 10.0, "integration_scale": 4.0, "padding_mode": "circular"}
    yy, yx, xx = structure_metric(stripes, **options).M[0, 0, :, 8, 8]
    assert (xx / yy).item() == pytest.approx(101, rel=0.02) and yx.abs() < 1e-12
    assert structure_metric(checks, **options).anisotropy.max() < 1.02


@every_metric
def test_constant_image_gives_round_balls_and_finite_gradients(metric):
    image = torch.full((1, 2, 5, 5), 0.3, requires_grad=True)
    field = metric(image, iota=0.1)
    expected = torch.tensor([0.1, 0.0, 0.1]).view(1, 1, 3, 1, 1).expand(1, 1, 3, 5, 5)
    torch.testing.assert_close(field.M, expected, atol=1e-8, rtol=1e-6)
    assert not field.asymmetry.any()
    sum(t.sum() for t in field.tensors().values()).backward()
    assert image.grad.isfinite().all()


@every_metric
@pytest.mark.parametrize("size", [(1, 1), (1, 4), (2, 3)])
def test_tiny_images_in_all_padding_modes(metric, size):
    for padding_mode in ("border", "reflect", "circular", "zeros"):
        field = metric(torch.rand(1, 1, *size), padding_mode=padding_mode)
        assert field.spatial == size and field.is_positive().all()


@every_metric
def test_gradcheck(metric):
    image = torch.rand(1, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: tuple(metric(x, alpha=3.0).tensors().values()), image)


@every_metric
def test_images_of_a_batch_are_independent(metric):
    images = torch.rand(3, 2, 6, 5) * torch.tensor([1.0, 10.0, 0.1]).view(3, 1, 1, 1)
    together = metric(images)
    for b in range(3):
        for name, alone in metric(images[b : b + 1]).tensors().items():
            torch.testing.assert_close(together.tensors()[name][b : b + 1], alone)


@every_metric
def test_metric_is_invariant_to_brightness_and_contrast(metric):
    image = torch.rand(1, 1, 6, 6, dtype=torch.float64)
    for name, expected in metric(image).tensors().items():
        torch.testing.assert_close(metric(7 * image + 3).tensors()[name], expected)


@every_metric
def test_repeated_channels_have_no_effect(metric):
    image = torch.rand(1, 1, 6, 6, dtype=torch.float64)
    for name, expected in metric(image).tensors().items():
        torch.testing.assert_close(metric(image.expand(1, 3, 6, 6)).tensors()[name], expected)


def test_channel_with_longest_gradient_determines_metric():
    faint, strong = 0.1 * step(along_x=False), step()
    torch.testing.assert_close(
        gradient_metric(torch.cat([faint, strong], 1)).M[..., 3, 2], gradient_metric(strong).M[..., 3, 2]
    )


@every_metric
def test_metric_is_shift_equivariant(metric):
    image = torch.rand(1, 1, 8, 8, dtype=torch.float64)
    for name, field in metric(image, padding_mode="circular").tensors().items():
        result = metric(image.roll((2, 3), (2, 3)), padding_mode="circular").tensors()[name]
        torch.testing.assert_close(result, field.roll((2, 3), (3, 4)))


@every_metric
def test_metric_is_equivariant_to_90_degree_rotations(metric):
    image = torch.rand(1, 1, 7, 7, dtype=torch.float64)
    field, rotated = metric(image), metric(image.rot90(1, (2, 3)))
    yy, yx, xx = field.M.rot90(1, (3, 4)).unbind(2)
    torch.testing.assert_close(rotated.M, torch.stack([xx, -yx, yy], 2))
    if isinstance(field, mc.Randers):
        y, x = field.omega.rot90(1, (3, 4)).unbind(2)
        torch.testing.assert_close(rotated.omega, torch.stack([-x, y], 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_metric
def test_largest_floats_give_finite_metrics(metric, dtype):
    image = torch.zeros(1, 2, 6, 7, dtype=dtype)
    image[..., 3:] = torch.finfo(dtype).max
    image[..., 0] = -torch.finfo(dtype).max
    assert all(t.isfinite().all() for t in metric(image).tensors().values())


@pytest.mark.parametrize("metric", [gradient_metric, edge_metric])
def test_large_gain_and_large_values_give_finite_metrics_and_gradients(metric):
    image = (torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 1e36).requires_grad_()
    M = metric(image, alpha=1e4).M
    M.sum().backward()
    assert M.isfinite().all() and image.grad.isfinite().all()


@pytest.mark.parametrize("alpha", [1e3, 1e12, 1e200])
def test_structure_metric_has_constant_volume_for_large_gain(alpha):
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    metric = structure_metric(torch.cos(0.7 * x + 0.4 * y)[None, None], alpha=alpha)
    assert metric.is_positive().all() and metric.anisotropy.max() > 300
    torch.testing.assert_close(metric.volume, torch.full_like(metric.volume, torch.pi / 0.2), rtol=0.03, atol=0)


def test_edges_in_signals_longer_than_float32_integers():
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
def test_invalid_arguments_raise(options, message):
    with pytest.raises(ValueError, match=message):
        gradient_metric(torch.rand(1, 1, 4, 4), **options)


@pytest.mark.parametrize("metric", [gradient_metric, edge_metric, structure_metric])
def test_specific_arguments_are_keyword_only(metric):
    image = torch.rand(1, 1, 4, 4)
    assert torch.equal(metric(image, 0.3, 2.0).M, metric(image, iota=0.3, alpha=2.0).M)
    with pytest.raises(TypeError, match="positional argument"):
        metric(image, 0.3, 2.0, 0.5)


def test_invalid_images_raise():
    with pytest.raises(TypeError, match="`image` must hold floating-point numbers"):
        edge_metric(torch.zeros(1, 1, 4, 4, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"`image` must be \(B, C, \*spatial\) and not empty, got shape \(4, 4\)"):
        edge_metric(torch.rand(4, 4))
    with pytest.raises(ValueError, match=r"got shape \(1, 1, 0, 4\)"):
        structure_metric(torch.rand(1, 1, 0, 4))


@every_metric
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_image_that_is_not_finite_raises(metric, value):
    image = torch.rand(2, 1, 9, 9)
    image[1, 0, 4, 5:7] = value
    for dtype in (torch.float32, torch.float16):
        expected = rf"`image` must be finite, got {value} at index \(1, 0, 4, 5\) \(2 such of 162 values\)"
        with pytest.raises(ValueError, match=expected):
            metric(image.to(dtype))


@every_metric
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_compiled_metric_of_an_image_that_is_not_finite_is_nan(metric, value):
    image = torch.rand(2, 1, 9, 9)
    image[0, 0, 4, 4] = value
    torch._dynamo.reset()
    M = torch.compile(lambda image: metric(image).M, backend="eager", fullgraph=True)(image)
    assert M[0, 0, 0].isnan().all()
    torch.testing.assert_close(M[1:], metric(image[1:]).M)
    with pytest.raises(ValueError, match="`metric` must be positive"):
        mc.metrics.eikonal.hopf_lax_distance(mc.Riemannian(M[:1]), torch.zeros(1, 2))


def test_images_on_gpus_are_checked_only_on_request(monkeypatch):
    checked = []
    monkeypatch.setattr(_checks, "finite", lambda tensor, name: checked.append(name))
    image = SimpleNamespace(device=torch.device("cuda"), is_meta=False)
    monkeypatch.setattr(_checks, "Tensor", SimpleNamespace)
    _checks.finite_where_cheap(image, "image")
    assert not checked
    with mc.check_finite():
        _checks.finite_where_cheap(image, "image")
    assert checked == ["image"]


@every_metric
def test_metric_exports_with_dynamic_size(metric):
    class Matrix(torch.nn.Module):
        def forward(self, image):
            return metric(image).M

    sizes = ({0: torch.export.Dim("b"), 2: torch.export.Dim("h", min=3)},)
    program = torch.export.export(Matrix(), (torch.rand(2, 1, 9, 9),), dynamic_shapes=sizes)
    image = torch.rand(3, 1, 7, 9)
    torch.testing.assert_close(program.module()(image), metric(image).M)


@pytest.mark.parametrize("drift", ["tangent", "normal"])
@pytest.mark.parametrize(("alpha", "eps_omega"), [(1e4, 1.0), (1000, 0.01), (300, 1e-3), (100, 1e-4), (1e6, 1e-9)])
def test_metric_is_positive_for_extreme_arguments(alpha, eps_omega, drift):
    image = torch.rand(1, 1, 20, 20, generator=torch.Generator().manual_seed(0))
    metric = gradient_metric(image, alpha=alpha, eps_omega=eps_omega, drift=drift)
    assert metric.is_positive().all()
    assert metric.asymmetry.max() < 1


@pytest.mark.parametrize("unit", [1e-38, 1e-30, 1e-22, 1.0, 1e18, 1e30, 1e38])
def test_largest_gives_metric_of_whole_image_in_any_unit(unit):
    image = torch.rand(1, 2, 20, 24, generator=torch.Generator().manual_seed(0)) * unit
    largest = structure_trace(image, 1.0, 2.0).max().item()
    part = structure_metric(image[..., :20], largest=largest).M[..., :8]
    torch.testing.assert_close(part, structure_metric(image).M[..., :8], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("largest", [-1.0, float("inf"), float("nan")])
@every_metric
def test_invalid_largest_raises(metric, largest):
    with pytest.raises(ValueError, match=r"`largest` \(=.*\) must be finite and at least 0"):
        metric(torch.rand(1, 1, 4, 4), largest=largest)


@pytest.mark.parametrize("name", IMAGE_METRICS)
@pytest.mark.parametrize("padding_mode", [None, "circular"])
def test_image_metric_by_name_equals_its_function(name, padding_mode):
    image, function = torch.rand(1, 1, 6, 5), IMAGE_METRICS[name]
    expected = function(image) if padding_mode is None else function(image, padding_mode=padding_mode)
    for metric in (name, function):
        assert torch.equal(image_metric(metric, padding_mode=padding_mode)(image).M, expected.M)


def test_image_metric_returns_other_functions_unchanged():
    function = partial(edge_metric, alpha=3.0)
    assert image_metric(function, padding_mode="circular") is function


def test_invalid_image_metrics_raise():
    with pytest.raises(ValueError, match=r"`metric` \(='three'\) must be one of 'gradient', 'edge', 'structure'"):
        image_metric("three")
    with pytest.raises(TypeError, match="`metric` must be a name or a function of the image, got int"):
        image_metric(3)


@every_metric
def test_replicate_is_border(metric):
    image = torch.rand(1, 1, 6, 5)
    assert torch.equal(metric(image, padding_mode="replicate").M, metric(image, padding_mode="border").M)
