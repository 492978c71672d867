"""Segmentation, superpixels and interpolation."""

import numpy as np
import pytest
import torch

from metricconv.geodesic import interpolate, segment, superpixels

pytest.importorskip("numba")
skimage = pytest.importorskip("skimage")
NAN = float("nan")


def two_halves(height=20, width=31, at=18):
    image = torch.zeros(height, width)
    image[:, at:] = 1.0
    return image


def disc(size=41):
    y, x = np.mgrid[:size, :size] - size // 2
    return (y**2 + x**2 < (size / 3.5) ** 2).astype(np.float64)


def test_segments_end_at_edges():
    image = disc()
    noisy = image + 0.02 * np.random.default_rng(0).normal(size=image.shape)
    scribbles = np.zeros(image.shape, np.int64)
    scribbles[20, 18:23], scribbles[2, 3:38] = 7, 3
    labels = segment(noisy, scribbles)
    assert isinstance(labels, np.ndarray) and labels.dtype == np.int64 and set(np.unique(labels)) == {3, 7}
    y, x = np.mgrid[:41, :41] - 20
    clear = np.abs(np.hypot(y, x) - 41 / 3.5) > 2.5  # away from the smoothed edge
    assert ((labels == 7) == (image > 0))[clear].all()


def test_scribbles_keep_their_labels():
    scribbles = torch.randint(-1, 4, (17, 13), generator=torch.Generator().manual_seed(0))
    labels = segment(torch.rand(17, 13), scribbles)
    assert torch.equal(labels[scribbles != 0], scribbles[scribbles != 0])
    filled = torch.zeros(17, 13, dtype=torch.int64)
    filled[4:9, 2:9] = 2  # of which only the outline is a source
    assert bool((segment(torch.rand(17, 13), filled) == 2).all())


def test_negative_scribbles_are_walls():
    scribbles = torch.zeros(9, 11, dtype=torch.int64)
    scribbles[4, 1], scribbles[:, 5] = 1, -2
    labels = segment(torch.zeros(9, 11), scribbles)
    assert bool((labels[:, :5] == 1).all() and (labels[:, 5] == -2).all() and (labels[:, 6:] == 0).all())


def test_colors_and_volumes_are_segmented():
    image = torch.stack([two_halves(), 0.5 * torch.ones(20, 31), 1 - two_halves()], -1)
    scribbles = torch.zeros(20, 31, dtype=torch.uint8)
    scribbles[3, 2], scribbles[15, 29] = 1, 2
    labels = segment(image, scribbles, channel_axis=-1, scale=None)
    assert bool((labels == 1 + two_halves()).all())
    volume, strokes = two_halves().expand(4, 20, 31), scribbles.expand(4, 20, 31)
    assert bool((segment(volume, strokes, scale=None) == 1 + two_halves()).all())


@pytest.mark.parametrize("contrast", [0.0, 100.0])
def test_superpixels_are_as_many_as_asked_for_and_numbered_from_1(contrast):
    image = np.random.default_rng(0).random((45, 60, 3))
    for count in (1, 7, 48):
        labels = superpixels(image, count, contrast=contrast, channel_axis=-1)
        assert np.array_equal(np.unique(labels), np.arange(1, labels.max() + 1))
        assert 0.7 * count <= labels.max() <= 1.3 * count


def test_superpixels_of_constant_images_are_compact():
    labels = superpixels(torch.full((40, 60), 0.3), 24)
    assert labels.unique().numel() == 24
    assert labels.flatten().bincount()[1:].min() > 75  # 100 each on average


def test_superpixels_do_not_cross_strong_edges():
    image = disc(61)
    labels = superpixels(image, 40)
    inside = np.bincount(labels.flatten(), image.flatten()) / np.maximum(np.bincount(labels.flatten()), 1)
    mixed = np.minimum(inside, 1 - inside)[labels]
    assert mixed.mean() < 0.03


@pytest.mark.parametrize("shape", [(30, 41), (1, 50), (9, 11, 12)])
def test_superpixels_are_connected(shape):
    labels = superpixels(np.random.default_rng(0).random(shape), 12)
    components = skimage.measure.label(labels, connectivity=1, background=0)
    assert components.max() == labels.max()


def test_borders_of_superpixels_follow_the_colors_of_cells():
    y, x = np.mgrid[:40, :60]
    image = np.where((x + 3 * np.sin(y)) % 20 < 10, 0.2, 0.8)  # jagged edges, which derivative filters smooth
    labels = superpixels(image, 54)
    means = np.bincount(labels.ravel(), image.ravel()) / np.maximum(np.bincount(labels.ravel()), 1)
    assert np.abs(means[labels] - image).mean() < 0.03  # 0.14 of Voronoi cells alone


def test_one_pixel_is_one_superpixel():
    assert superpixels(torch.zeros(1, 1), 1).tolist() == [[1]]


def test_interpolation_keeps_samples_and_does_not_cross_edges():
    guide = two_halves()
    values = torch.where(guide > 0, 5.0, -3.0)
    samples = torch.full_like(values, NAN)
    samples[::6, ::5] = values[::6, ::5]
    filled = interpolate(samples, guide, neighbors=2)
    known = ~samples.isnan()
    assert torch.equal(filled[known], samples[known])
    assert (filled - values).abs().mean() < 0.1


def test_affine_functions_of_position_and_guide_are_reproduced():
    guide = torch.rand(1, 24, 26, generator=torch.Generator().manual_seed(1)).double()[0] * 0.1
    y, x = torch.meshgrid(torch.arange(24.0), torch.arange(26.0), indexing="ij")
    exact = 0.3 * y - 0.2 * x + 20 * guide
    samples = torch.where(torch.rand(24, 26, generator=torch.Generator().manual_seed(2)) < 0.3, exact, NAN)
    affine = interpolate(samples, guide, neighbors=16, ridge=1e-6)
    constant = interpolate(samples, guide, neighbors=16, ridge=1e6)
    inside = (slice(3, -3), slice(3, -3))
    assert (affine - exact)[inside].abs().mean() < 0.01 < 0.2 * (constant - exact)[inside].abs().mean()


def test_interpolation_keeps_kind_dtype_and_channels():
    guide = np.random.default_rng(0).random((9, 8, 3))
    samples = np.full((2, 9, 8), NAN, np.float32)
    samples[:, 4, 4] = 1, 2
    filled = interpolate(samples, guide, channel_axis=0, guide_channel_axis=-1)
    assert isinstance(filled, np.ndarray) and filled.dtype == np.float32 and filled.shape == samples.shape
    assert (filled[0] == 1).all() and (filled[1] == 2).all()
    half = interpolate(torch.from_numpy(samples[0]).half(), guide, guide_channel_axis=2)
    assert half.dtype == torch.float16 and bool((half == 1).all())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: segment(torch.zeros(4, 4), torch.zeros(4, 4).int()), ValueError, "`scribbles` must have at least one"),
        (
            lambda: segment(torch.zeros(4, 4), torch.ones(4, 5).int()),
            ValueError,
            r"`scribbles` .* \(4, 4\), got \(4, 5",
        ),
        (lambda: segment(torch.zeros(4, 4), torch.ones(4, 4)), TypeError, "`scribbles` must hold integers"),
        (lambda: superpixels(torch.zeros(4, 4), 17), ValueError, r"`n_segments` \(=17\) must be at most .*, 16"),
        (lambda: superpixels(torch.zeros(4, 4), 0), ValueError, "`n_segments`"),
        (lambda: interpolate(torch.full((4, 4), NAN), torch.zeros(4, 4)), ValueError, "`samples` must have at least"),
        (lambda: interpolate(torch.ones(4, 4), torch.zeros(4, 5)), ValueError, r"`samples` .* `guide`, \(4, 5\)"),
        (lambda: interpolate(torch.ones(4, 4), torch.full((4, 4), NAN)), ValueError, "`guide` must be finite"),
        (lambda: interpolate(torch.ones(4, 4).int(), torch.ones(4, 4)), TypeError, "`samples` must hold floating"),
    ],
)
def test_wrong_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
