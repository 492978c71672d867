"""Tiled filters are the filters of the whole image."""

import math
from functools import partial

import dask
import dask.array as da
import numpy as np
import pytest
import torch

from metricconv import Riemannian, filters, large, stencils
from metricconv.metrics import edge_metric, gradient_metric, structure_metric

MODES = ("reflect", "border", "circular", "zeros")
# Its balls reach 8 pixels; those of the default, with α = 100, reach 32.
GRADIENT = partial(gradient_metric, alpha=5.0)


@pytest.fixture
def image():
    """An image whose strongest edge is in one tile alone."""
    y, x = np.mgrid[:61, :74] / 20.0
    smooth = 0.4 + 0.1 * np.sin(2 * y) * np.cos(3 * x) + 0.02 * np.random.default_rng(0).random((61, 74))
    smooth[40:, 50:] += 0.4
    return smooth


class Watched:
    """An image that counts how often each of its pixels is read."""

    def __init__(self, image):
        self.image, self.shape, self.dtype, self.ndim = image, image.shape, image.dtype, image.ndim
        self.reads = np.zeros(image.shape, int)

    def __getitem__(self, index):
        self.reads[index] += 1
        return self.image[index]


def agree(name, image, chunks=24, tolerance=1e-6, **options):
    whole = getattr(filters, name)(image, **options)
    tiled = getattr(large, name)(da.from_array(image, chunks=chunks), **options)
    assert tiled.dtype == whole.dtype and tiled.shape == whole.shape
    assert max(tiled.numblocks) > 1
    assert np.abs(tiled.compute(scheduler="synchronous").astype(float) - whole).max() <= tolerance


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["box_filter", "dilated_filter", "interpolated_filter"])
def test_tiled_grid_filters_equal_whole_image(image, name, mode):
    agree(name, image, padding_mode=mode)


@pytest.mark.parametrize(
    ("shape", "chunks", "options"),
    [
        ((400, 30), (200, 30), {"sigma": 0.05}),
        ((20, 400, 3), (20, 200, 3), {"channel_axis": -1}),
        ((4, 5, 300), (4, 5, 150), {"sigma": 0.05, "spacing": (4, 2, 2)}),
        ((60, 6, 8), (30, 6, 8), {"spacing": (50, 1, 1)}),
    ],
)
def test_tiled_denoise_equals_whole_image(shape, chunks, options):
    y = np.arange(math.prod(shape)).reshape(shape)
    image = np.sin(y / 9.0) + 0.05 * np.random.default_rng(0).standard_normal(shape)
    agree("denoise", image.astype(np.float32), chunks, 1e-5, **options)
    options = {name: value for name, value in options.items() if name != "sigma"}
    agree("denoise", np.rint(30000 + 5000 * image).astype(np.uint16), chunks, 1, **options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("metric", [GRADIENT, "edge", "structure"])
def test_tiled_tangent_filter_equals_whole_image(image, metric, mode):
    metric = metric if isinstance(metric, str) else partial(metric, padding_mode=mode)
    agree("tangent_filter", image, samples=5, metric=metric, padding_mode=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "metric",
    [
        partial(gradient_metric, iota=0.15, alpha=5.0, eps_omega=0.6, scale=1.0),
        partial(edge_metric, iota=0.1, scale=1.0),
    ],
)
def test_tiled_geodesic_filter_equals_whole_image(image, metric, mode):
    metric = partial(metric, padding_mode=mode)
    agree("geodesic_filter", image, samples=4, metric=metric, padding_mode=mode, smooth=2)


def test_halo_includes_smoothing_of_metric():
    noise = np.random.default_rng(0).random((40, 40))
    metric = partial(edge_metric, iota=0.5, scale=0.5)  # balls of less than 2 pixels: the halo is mostly for smoothing
    agree("geodesic_filter", noise, chunks=20, tolerance=1e-12, samples=3, metric=metric, smooth=6)


def test_halo_covers_overshoot_of_single_step(image):
    metric = partial(gradient_metric, iota=0.1, alpha=5.0, scale=1.0)
    agree("geodesic_filter", image, samples=3, metric=metric, steps=1)


def test_halo_covers_corners_of_square_onion(image):
    agree("tangent_filter", image, stencil="square_onion", samples=3, metric=partial(edge_metric, iota=0.02))


def test_metric_uses_all_channels(image):
    color = np.stack([image, image[::-1], image.T[:61, :61].repeat(2, 1)[:, :74]])
    agree("tangent_filter", color, chunks=(1, 24, 30), samples=4, channel_axis=0, metric=GRADIENT)
    agree("box_filter", np.moveaxis(color, 0, -1), chunks=(24, 30, 3), channel_axis=-1)


@pytest.mark.parametrize("name", ["tangent_filter", "geodesic_filter"])
def test_largest_ball_is_maximum_over_metric_groups(name):
    def metric(x):
        return Riemannian.isotropic(torch.tensor([1.0, 9.0]).view(1, 2, 1, 1).to(x))

    color = np.random.default_rng(0).random((2, 40, 40))
    options = {"samples": 4, "metric": metric, "channel_axis": 0}
    whole = getattr(filters, name)(color, **options)
    tiled = getattr(large, name)(da.from_array(color, chunks=(1, 4, 4)), **options, metric_reach=0)
    assert np.abs(tiled.compute(scheduler="synchronous") - whole).max() < 1e-6


def test_volumes_are_tiled():
    volume = np.random.default_rng(1).random((14, 15, 16))
    metric = partial(edge_metric, iota=0.5, scale=0.5)
    agree("tangent_filter", volume, chunks=8, samples=3, metric=metric)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, ">f4"])
def test_every_dtype_is_scaled_as_without_tiles(image, dtype):
    values = image.astype(dtype) if np.dtype(dtype).kind == "f" else (image * np.iinfo(dtype).max).astype(dtype)
    agree("tangent_filter", values, samples=4, metric="edge")


@pytest.mark.parametrize("metric", ["gradient", "edge", "structure"])
@pytest.mark.parametrize("unit", [1e-36, 1e-30, 1e-22, 1e-20, 1e18, 1e30, 1e36])
def test_result_is_independent_of_intensity_unit(image, metric, unit):
    whole = (image * unit).astype(np.float32)
    tiled = large.tangent_filter(da.from_array(whole, chunks=24), 4, metric).compute(scheduler="synchronous")
    np.testing.assert_allclose(tiled, filters.tangent_filter(whole, 4, metric), rtol=2e-5)


def test_tiles_smaller_than_halo_are_merged(image):
    agree("tangent_filter", image, chunks=5, samples=4, metric=partial(edge_metric, iota=0.02))


def test_balls_as_large_as_image_use_whole_image():
    small = np.random.default_rng(0).random((12, 40))
    options = {"samples": 4, "metric": partial(edge_metric, iota=0.004)}  # balls of 16 pixels
    whole = filters.tangent_filter(small, **options)
    tiled = large.tangent_filter(da.from_array(small, chunks=6), **options)
    assert tiled.numblocks[0] == 1
    assert np.abs(tiled.compute() - whole).max() < 1e-6


def test_maximum_is_over_whole_image(image):
    """One tile's own maximum would give other balls: the two passes are needed."""
    corner = image[:24, :24]
    whole = filters.tangent_filter(image, 4)[:8, :8]
    assert np.abs(filters.tangent_filter(corner, 4)[:8, :8] - whole).max() > 1e-3


def test_custom_metric_requires_metric_reach(image):
    def metric(x):
        return Riemannian.isotropic(1.0 + 3.0 * x[:, :1])  # depends on its pixel only

    with pytest.raises(ValueError, match=r"`metric_reach` .*must be an integer of at least 0"):
        large.tangent_filter(da.from_array(image), 4, metric)
    whole = filters.tangent_filter(image, 4, metric)
    for reach in (0, np.int64(0)):
        tiled = large.tangent_filter(da.from_array(image, chunks=24), 4, metric, metric_reach=reach)
        assert np.abs(tiled.compute() - whole).max() < 1e-6


@pytest.mark.parametrize(("metric", "times"), [(gradient_metric, 2), (partial(gradient_metric, largest=0.2), 1)])
def test_known_maximum_saves_a_pass(image, metric, times):
    watched = Watched(image)
    tiled = large.tangent_filter(da.from_array(watched, chunks=24), 3, metric)
    assert (watched.reads == times).all()
    tiled.compute(scheduler="synchronous")
    assert (watched.reads == times + 1).all()


def test_result_is_lazy(image, monkeypatch):
    monkeypatch.setattr(filters, "tangent_filter", lambda *args, **options: pytest.fail("computed already"))
    assert large.tangent_filter(da.from_array(image, chunks=24), 3, stencil=stencils.onion(3)).shape == image.shape


def test_constant_image_has_no_division_by_zero():
    flat = da.full((30, 30), 0.5, chunks=10)
    assert np.allclose(large.tangent_filter(flat, 3, structure_metric).compute(), 0.5)


@pytest.mark.parametrize(
    ("image", "options", "error", "message"),
    [
        (np.zeros((4, 4)), {}, TypeError, "must be a dask array, got ndarray"),
        (da.zeros((4, 4, 4, 4)), {}, ValueError, "2 or 3 spatial axes"),
        (da.zeros((4, 4)), {"channel_axis": 5}, ValueError, "`channel_axis`"),
        (da.zeros((4, 4)), {"metric": "color"}, ValueError, "`metric`"),
        (da.zeros((4, 4)), {"metric": Riemannian.isotropic(1.0)}, TypeError, "a name or a function"),
        (da.zeros((4, 4)), {"stencil": "star"}, ValueError, "`stencil`"),
        (da.zeros((4, 4)), {"stencil": None}, TypeError, "`stencil` must be a name or a Stencil, got NoneType"),
        (da.zeros((4, 4)), {"padding_mode": "wrap"}, ValueError, r"`padding_mode` \(='wrap'\)"),
    ],
)
def test_invalid_arguments_raise(image, options, error, message):
    with dask.config.set(scheduler="synchronous"), pytest.raises(error, match=message):
        large.tangent_filter(image, 3, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: large.box_filter(x, 3, padding_mode="wrap"), r"`padding_mode` \(='wrap'\)"),
        (lambda x: large.dilated_filter(x, 3, 0), r"`dilation` \(=0\)"),
        (lambda x: large.interpolated_filter(x, 3, math.inf), r"`size` \(=inf\)"),
        (lambda x: large.tangent_filter(x, 1), r"`samples` \(=1\) must be at least 2"),
        (lambda x: large.geodesic_filter(x, 4, stencil="onion"), r"`samples` \(=4\) must be a positive odd number"),
        (lambda x: large.geodesic_filter(x, 3, steps=0), r"`steps` \(=0\)"),
        (lambda x: large.geodesic_filter(x, 3, smooth=-1), r"`smooth` \(=-1\)"),
    ],
)
def test_invalid_arguments_raise_before_computation(call, message):
    with pytest.raises(ValueError, match=message):
        call(da.zeros((20, 20), chunks=10))


@pytest.mark.parametrize(
    ("name", "margin"),
    [
        ("tangent_filter", 8),  # balls of 1/√0.02 = 7.07 pixels, read between pixels
        ("geodesic_filter", 8 + 1 + 1 + 4),  # and a metric that is differentiated, smoothed, and read off gradients
    ],
)
def test_halo_is_exactly_the_receptive_field(name, margin):
    noise = np.random.default_rng(0).random((4 * margin, 4 * margin))
    options = {"samples": 3, "metric": partial(edge_metric, iota=0.02, scale=1.0, largest=10.0)}
    watched = Watched(noise)
    tiled = getattr(large, name)(da.from_array(watched, chunks=margin), **options)
    watched.reads[:] = 0
    tiled.blocks[0, 0].compute(scheduler="synchronous")
    expected = np.zeros(noise.shape, bool)
    expected[: 2 * margin, : 2 * margin] = True
    assert ((watched.reads > 0) == expected).all()
    whole = getattr(filters, name)(noise, **options)
    assert np.abs(tiled.compute(scheduler="synchronous") - whole).max() < 1e-12


def test_tiles_are_computed_in_other_processes():
    image = np.random.default_rng(0).random((30, 40)).astype(np.float32)
    tiled = large.tangent_filter(da.from_array(image, chunks=20), samples=3)
    found = tiled.compute(scheduler="processes", num_workers=2)
    assert np.abs(found - filters.tangent_filter(image, samples=3)).max() < 1e-6


@pytest.mark.parametrize("padding_mode", ["reflect", "circular"])
def test_metric_name_and_its_function_mean_the_same(image, padding_mode):
    results = [
        large.tangent_filter(da.from_array(image, chunks=16), 3, metric, padding_mode=padding_mode).compute()
        for metric in ("gradient", gradient_metric)
    ]
    assert np.array_equal(*results)


@pytest.mark.parametrize(("mode", "own"), [("circular", "border"), ("reflect", "circular")])
def test_filter_and_metric_must_both_be_circular(image, mode, own):
    with pytest.raises(
        ValueError, match=rf"`padding_mode` \(='{mode}'\) and that of `metric` .* must both be 'circular'"
    ):
        large.tangent_filter(
            da.from_array(image, chunks=16), metric=partial(gradient_metric, padding_mode=own), padding_mode=mode
        )


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("size", lambda x: large.box_filter(x, 2**70 + 1)),
        ("dilation", lambda x: large.dilated_filter(x, 3, 2**70)),
        ("size", lambda x: large.interpolated_filter(x, 3, 1e300)),
        ("samples", lambda x: large.tangent_filter(x, 2**70)),
        ("steps", lambda x: large.geodesic_filter(x, 3, steps=2**70)),
    ],
)
def test_arguments_out_of_range_raise_at_once(image, name, call):
    with pytest.raises(ValueError, match=rf"`{name}` \(=.*\) must be at most \d+$"):
        call(da.from_array(image, chunks=16))


def test_replicate_equals_border(image):
    replicate, border = (
        large.tangent_filter(da.from_array(image, chunks=16), 3, padding_mode=mode).compute()
        for mode in ("replicate", "border")
    )
    assert np.array_equal(replicate, border)


def test_centre_is_accepted_with_a_warning(image):
    tiled = da.from_array(image, chunks=16)
    with pytest.warns(DeprecationWarning, match="`centre` of tangent_filter is deprecated: use `center`"):
        result = large.tangent_filter(tiled, 3, centre=True)
    assert np.array_equal(result.compute(), large.tangent_filter(tiled, 3, center=True).compute())


@pytest.mark.parametrize(
    ("name", "options", "halo", "passes"),
    [
        ("box_filter", {"size": 11}, 5, 1),
        ("tangent_filter", {"samples": 3, "metric": "edge"}, 6, 3),
        ("geodesic_filter", {"samples": 3, "metric": "edge"}, 13, 3),
    ],
)
def test_tiles_read_each_pixel_once_per_pass_and_compute_their_halo(name, options, halo, passes, monkeypatch):
    """What the guide on clusters states; tiles have no halo at the border of the image."""
    watched, tiles, side = Watched(np.random.default_rng(0).random((120, 120), np.float32)), 2, 60
    computed, apply = [], getattr(filters, name)

    def filtered(pixels, *arguments, **keywords):
        computed.append(pixels.size)
        return apply(pixels, *arguments, **keywords)

    monkeypatch.setattr(filters, name, filtered)
    with dask.config.set(scheduler="synchronous"):
        getattr(large, name)(
            da.from_array(watched, chunks=side, meta=np.empty((0, 0), np.float32)), **options
        ).compute()
    assert (watched.reads == passes).all()
    assert sum(computed) == (tiles * side + 2 * halo * (tiles - 1)) ** 2
