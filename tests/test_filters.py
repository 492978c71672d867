"""Learning-free filters: arguments and results, means over a support."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy import ndimage

import metricconv as mc
from metricconv.filters import (
    box_filter,
    dilated_filter,
    geodesic_filter,
    interpolated_filter,
    random_deformable_filter,
    tangent_filter,
)
from metricconv.metrics import edge_metric, gradient_metric

FILTERS = {
    "box": partial(box_filter, size=3),
    "dilated": partial(dilated_filter, samples=3, dilation=2),
    "interpolated": partial(interpolated_filter, samples=4, size=2.5),
    "deformable": partial(random_deformable_filter, samples=3),
    "tangent": partial(tangent_filter, samples=5),
    "tangent, even": partial(tangent_filter, samples=4, center=True),
    "tangent, edge": partial(tangent_filter, samples=5, metric="edge", stencil="onion"),
    "tangent, structure": partial(tangent_filter, samples=5, metric="structure", stencil="square_onion"),
    "geodesic": partial(geodesic_filter, samples=5),
    "geodesic, even": partial(geodesic_filter, samples=4, metric="gradient", center=True),
}
every_filter = pytest.mark.parametrize("filter", FILTERS.values(), ids=FILTERS.keys())


@every_filter
def test_arrays_and_tensors_are_filtered_alike(filter):
    image = np.random.default_rng(0).random((7, 9), dtype=np.float32)
    array, tensor = filter(image), filter(torch.from_numpy(image))
    assert isinstance(array, np.ndarray) and array.dtype == np.float32 and array.shape == (7, 9)
    assert isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32
    np.testing.assert_array_equal(array, tensor.numpy())
    assert not np.allclose(array, image)


@every_filter
def test_a_constant_image_stays_constant(filter):
    for padding_mode in ("reflect", "border", "circular"):
        image = torch.full((6, 5), 0.37, dtype=torch.float64)
        torch.testing.assert_close(filter(image, padding_mode=padding_mode), image)
    assert filter(image, padding_mode="zeros")[0, 0] < 0.37


@every_filter
def test_output_is_within_range_of_image(filter):
    image = torch.rand(8, 8, dtype=torch.float64)
    result = filter(image)
    assert (result >= image.min()).all() and (result <= image.max()).all()


@every_filter
def test_filters_commute_with_brightness_and_contrast(filter):
    image = torch.rand(8, 8, dtype=torch.float64)
    torch.testing.assert_close(filter(5 * image + 2), 5 * filter(image) + 2)


@every_filter
def test_volumes_are_filtered(filter):
    volume = torch.rand(5, 4, 6, dtype=torch.float64)
    result = filter(volume)
    assert result.shape == volume.shape
    assert result.var() < volume.var()


@pytest.mark.parametrize("name", [name for name in FILTERS if name != "deformable"])
def test_filters_are_shift_equivariant(name):
    image = torch.rand(8, 9, dtype=torch.float64)
    filter = partial(FILTERS[name], padding_mode="circular")
    torch.testing.assert_close(filter(image.roll((3, 2), (0, 1))), filter(image).roll((3, 2), (0, 1)))


@every_filter
@pytest.mark.parametrize("channel_axis", [0, 1, -1])
def test_channel_axis_may_be_any_axis(filter, channel_axis):
    color = torch.rand(3, 6, 7)
    expected = filter(color, channel_axis=0)
    image = color.movedim(0, channel_axis)
    result = filter(image.contiguous(), channel_axis=channel_axis)
    assert result.shape == image.shape
    torch.testing.assert_close(result.movedim(channel_axis, 0), expected)


@every_filter
def test_channels_share_sampling_locations(filter):
    gray = torch.rand(6, 7)
    color = torch.stack([gray, 0.5 * gray, 0 * gray])  # the first has the longest gradients: all follow it
    result = filter(color, channel_axis=0)
    torch.testing.assert_close(result[1], 0.5 * result[0])
    if filter.keywords.get("metric") != "structure":  # where the tensors of all channels are added
        torch.testing.assert_close(result[0], filter(gray))


def test_box_filter_equals_scipy():
    image = np.random.default_rng(0).random((9, 8))
    for size in (1, 3, 5):
        expected = ndimage.uniform_filter(image, size, mode="mirror")
        np.testing.assert_allclose(box_filter(image, size), expected, atol=1e-6)


def test_unit_dilation_and_unit_spacing_equal_box_filter():
    image = torch.rand(9, 8)
    torch.testing.assert_close(dilated_filter(image, 3, 1), box_filter(image, 3))
    torch.testing.assert_close(interpolated_filter(image, samples=5, size=5), box_filter(image, 5))


def test_interpolated_samples_reach_centers_of_outermost_pixels():
    impulse = torch.zeros(7, 7)
    impulse[3, 3] = 1.0
    reached = (
        interpolated_filter(impulse, samples=7, size=3) > 0
    )  # samples at most 1 px away, so weights less than 2 px
    assert reached[3].tolist() == [False, False, True, True, True, False, False]
    assert interpolated_filter(impulse, samples=2, size=3)[2, 2] == 0.25  # the corners alone


def test_zero_displacement_equals_box_filter():
    image = torch.rand(9, 8)
    torch.testing.assert_close(random_deformable_filter(image, 3, reach=0.0), box_filter(image, 3))


def test_seed_determines_displacements_without_global_generator():
    image, state = torch.rand(9, 8), torch.get_rng_state()
    first, again, other = (random_deformable_filter(image, 3, seed=seed) for seed in (4, 4, 5))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_isotropic_square_onion_equals_box_filter():
    image = torch.rand(9, 8)
    result = tangent_filter(image, 5, mc.Riemannian.isotropic(2.0), "square_onion")
    torch.testing.assert_close(result, box_filter(image, 5))


def test_center_is_one_more_sample():
    image = torch.rand(9, 8)
    plain, with_center = (tangent_filter(image, 3, center=center) for center in (False, True))
    torch.testing.assert_close(with_center, (9 * plain + image) / 10)


def test_metric_may_be_name_function_or_metric():
    image = torch.rand(9, 8)
    by_name = tangent_filter(image, 5, "gradient", padding_mode="border")
    by_function = tangent_filter(image, 5, gradient_metric, padding_mode="border")
    by_value = tangent_filter(image, 5, gradient_metric(image[None, None]), padding_mode="border")
    torch.testing.assert_close(by_function, by_name)
    torch.testing.assert_close(by_value, by_name)


@pytest.mark.parametrize("filter", [tangent_filter, geodesic_filter])
@pytest.mark.parametrize("name", mc.metrics.IMAGE_METRICS)
@pytest.mark.parametrize("padding_mode", ["reflect", "circular"])
def test_metric_name_and_its_function_mean_the_same(filter, name, padding_mode):
    image = torch.rand(9, 8)
    by_name = filter(image, 3, name, padding_mode=padding_mode)
    by_function = filter(image, 3, mc.metrics.IMAGE_METRICS[name], padding_mode=padding_mode)
    assert torch.equal(by_function, by_name)


def test_stencil_may_be_name_or_stencil():
    image = torch.rand(9, 8)
    torch.testing.assert_close(
        tangent_filter(image, 5, stencil="onion"), tangent_filter(image, stencil=mc.stencils.onion(5))
    )


def test_ball_with_even_kernel_size_is_centered():
    impulse = torch.zeros(9, 9)
    impulse[4, 4] = 1.0
    # samples 1, 2, 3 and 4 px to each of four sides
    result = tangent_filter(impulse, 4, mc.Riemannian.isotropic(4.0), padding_mode="zeros")
    torch.testing.assert_close(result[4], torch.tensor([1.0, 1, 1, 1, 0, 1, 1, 1, 1]) / 16)
    torch.testing.assert_close(result, result.flip(0, 1))


def test_metric_filter_preserves_edge_better_than_box():
    step = torch.zeros(16, 16)
    step[:, 8:] = 1.0
    kept, blurred = tangent_filter(step), box_filter(step, 5)
    assert (kept - step).abs()[:, 7:9].max() < 0.1
    assert (blurred - step).abs()[:, 7:9].min() > 0.3


def test_geodesic_and_tangent_filters_agree_on_a_constant_metric():
    image, metric = torch.rand(9, 8), mc.Riemannian.isotropic(2.5)
    torch.testing.assert_close(geodesic_filter(image, 5, metric), tangent_filter(image, 5, metric))


def test_geodesic_filter_stops_at_edge():
    step = torch.zeros(16, 16)
    step[:, 8:] = 1.0
    metric = partial(edge_metric, iota=0.03, alpha=20.0, scale=None)
    crossed, stopped = (filter(step, metric=metric)[:, 3:7].max() for filter in (tangent_filter, geodesic_filter))
    assert crossed > 0.1 and stopped < 0.02


@every_filter
def test_gradients_flow_to_image(filter):
    image = torch.rand(5, 5, requires_grad=True)
    filter(image).sum().backward()
    assert image.grad.isfinite().all() and image.grad.any()


def test_integers_are_scaled_as_in_scikit_image():
    image = np.random.default_rng(0).integers(0, 256, (6, 6), dtype=np.uint8)
    result = box_filter(image, 3)
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, box_filter(image / 255, 3), rtol=1e-6)
    np.testing.assert_allclose(box_filter(image.astype(np.uint16) * 257, 3), result, rtol=1e-6)
    assert box_filter(torch.from_numpy(image), 3).dtype == torch.float32
    np.testing.assert_allclose(box_filter(image > 128, 3), box_filter((image > 128).astype(float), 3), rtol=1e-6)
    wide = image.astype(np.int32)
    np.testing.assert_allclose(box_filter(wide, 3), box_filter(wide / (2**31 - 1), 3), rtol=1e-14)


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflect", "circular"])
@pytest.mark.parametrize(("shape", "stencil"), [((60, 21), "polar"), ((60, 21), "onion"), ((60, 4, 5), "onion")])
@pytest.mark.parametrize(
    "filter", [tangent_filter, partial(geodesic_filter, smooth=2), partial(geodesic_filter, steps=1)]
)
def test_strips_do_not_change_the_result(monkeypatch, filter, shape, stencil, padding_mode):
    monkeypatch.setattr("metricconv.filters._balls._STRIP_PIXELS", 90)
    image, reports = torch.rand(shape, dtype=torch.float64), []
    options = {"metric": partial(edge_metric, iota=0.3), "stencil": stencil, "padding_mode": padding_mode}
    whole = filter(image, 3, **options)
    strips = filter(image, 3, **options, progress=lambda done, rows: reports.append((done, rows)))
    torch.testing.assert_close(strips, whole, atol=1e-12, rtol=0)
    assert len(reports) > 3 and reports == sorted(reports) and reports[-1] == (shape[0], shape[0])


@pytest.mark.parametrize(("samples", "metric"), [(1, "edge"), (3, mc.Riemannian.isotropic(100.0))])
@pytest.mark.parametrize("filter", [tangent_filter, geodesic_filter])
def test_single_strip_without_margin_or_with_large_margin(filter, samples, metric):
    image, reports = torch.rand(12, 9), []
    strips = filter(image, samples, metric, "onion", progress=lambda done, rows: reports.append((done, rows)))
    assert torch.equal(strips, filter(image, samples, metric, "onion")) and reports == [(12, 12)]


@pytest.mark.parametrize("filter", [tangent_filter, geodesic_filter])
def test_gradients_flow_through_strips(monkeypatch, filter):
    monkeypatch.setattr("metricconv.filters._balls._STRIP_PIXELS", 20)
    image = torch.rand(40, 9, requires_grad=True)
    filter(image, 3, partial(edge_metric, iota=0.5), progress=lambda done, rows: None).sum().backward()
    assert image.grad.isfinite().all() and image.grad.any()


@pytest.mark.parametrize("filter", [tangent_filter, geodesic_filter])
def test_progress_must_be_callable(filter):
    with pytest.raises(TypeError, match="`progress` must be a function of two integers, got int"):
        filter(torch.rand(5, 5), 3, progress=3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floats_keep_their_dtype_and_half_precision_is_filtered_in_float32(dtype):
    image = torch.rand(6, 6).to(dtype)
    result = tangent_filter(image, 3)
    assert result.dtype == dtype
    wide = torch.promote_types(dtype, torch.float32)
    assert torch.equal(result, tangent_filter(image.to(wide), 3).to(dtype))


def test_any_memory_layout_is_accepted_and_input_is_unchanged():
    image = np.random.default_rng(0).random((6, 8))
    image.setflags(write=False)
    before = image.copy()
    assert np.array_equal(box_filter(image[::-1], 3), box_filter(image[::-1].copy(), 3))
    assert np.array_equal(box_filter(image.T, 3), box_filter(image.T.copy(), 3))
    assert np.array_equal(image, before)


def test_seed_may_be_numpy_integer():
    image = torch.rand(5, 5)
    drawn = random_deformable_filter(image, 3, seed=np.int64(4))
    assert torch.equal(drawn, random_deformable_filter(image, 3, seed=4))


@every_filter
def test_default_device_is_ignored(monkeypatch, filter):
    monkeypatch.setattr(
        "metricconv.filters._random._MAX_RANDOM_VALUES", 2000
    )  # so that displacements are drawn for some rows
    image = torch.rand(12, 11)
    expected = filter(image)
    with torch.device("meta"):
        torch.testing.assert_close(filter(image), expected)


def test_both_byte_orders_are_accepted():
    image = np.random.default_rng(0).random((6, 7)).astype(np.float32)
    assert np.array_equal(box_filter(image.astype(">f4"), 3), box_filter(image, 3))


@pytest.mark.parametrize("code", "bBhHiIlLqQ?")
def test_integers_of_every_type_of_numpy_are_filtered(code):
    """NumPy has two integer types of 64 bits, of which torch supports one."""
    image = np.eye(4).astype(code)
    largest = 1 if code == "?" else np.iinfo(image.dtype).max
    np.testing.assert_allclose(box_filter(image, 1), np.eye(4) / largest, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_displacements_have_dtype_of_image(monkeypatch, dtype):
    supports = []
    original = mc.support_conv

    def record(x, support, *arguments, **options):
        supports.append(support)
        return original(x, support, *arguments, **options)

    monkeypatch.setattr("metricconv.filters._average.support_conv", record)
    random_deformable_filter(torch.rand(6, 7, dtype=dtype), 3)
    assert supports[0].displacement.dtype == dtype


@pytest.mark.parametrize("padding_mode", ["reflect", "border", "circular", "zeros"])
@pytest.mark.parametrize("shape", [(40, 9), (12, 5, 6)])
def test_displacements_in_strips_equal_whole(monkeypatch, shape, padding_mode):
    image = torch.rand(shape, dtype=torch.float64)
    drawn = []

    def ones(*size, **options):
        drawn.append(size[4])
        return torch.full(size, 0.8)  # every sample moves by 0.6 · reach along each axis

    monkeypatch.setattr(torch, "rand", ones)
    whole = random_deformable_filter(image, 3, 4.5, padding_mode=padding_mode)
    monkeypatch.setattr(
        "metricconv.filters._random._MAX_RANDOM_VALUES", 7 * math.prod(shape[1:]) * len(shape) * 3 ** len(shape)
    )
    strips = random_deformable_filter(image, 3, 4.5, padding_mode=padding_mode)
    assert drawn == [shape[0], *[7] * (shape[0] // 7), shape[0] % 7]
    torch.testing.assert_close(strips, whole, atol=1e-5, rtol=0)
