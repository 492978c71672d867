"""Learning-free filters: invalid images and arguments."""

import numpy as np
import pytest
import torch

import metricconv as mc
from metricconv.filters import (
    box_filter,
    dilated_filter,
    geodesic_filter,
    interpolated_filter,
    random_deformable_filter,
    tangent_filter,
)
from metricconv.metrics import gradient_metric


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        ([[1.0, 2.0]], TypeError, "`image` must be a NumPy array or a torch.Tensor, got list"),
        (np.zeros((3, 3), dtype=complex), TypeError, "`image` must hold real numbers, got dtype torch.complex128"),
        (np.array([["a"]]), TypeError, "`image` must have a dtype that torch supports, got <U1"),
        (np.zeros(5), ValueError, r"`image` must have 2 or 3 spatial axes and not be empty, got shape \(5,\)"),
        (np.zeros((2, 3, 4, 5)), ValueError, r"2 or 3 spatial axes.*got shape \(2, 3, 4, 5\)"),
        (np.zeros((0, 4)), ValueError, r"not be empty, got shape \(0, 4\)"),
        (np.array([[1.0, np.nan]]), ValueError, r"`image` must be finite, got nan at index \(0, 1\)"),
        (torch.full((2, 2), torch.inf), ValueError, "`image` must be finite, got inf"),
        (torch.zeros(3, 3).to(torch.float8_e4m3fn), TypeError, "`image` must hold floats of 16 bits or more"),
        (np.ma.masked_less(np.eye(3), 1), ValueError, r"`image` has 6 masked pixels; fill them"),
    ],
)
def test_invalid_images_raise(image, error, message):
    with pytest.raises(error, match=message):
        box_filter(image)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: box_filter(x, 4), r"`size` \(=4\) must be a positive odd number"),
        (lambda x: box_filter(x, -3), r"`size` \(=-3\) must be a positive odd number"),
        (lambda x: dilated_filter(x, 3, 0), r"`dilation` \(=0\)"),
        (lambda x: interpolated_filter(x, 1), r"`samples` \(=1\) must be at least 2"),
        (lambda x: interpolated_filter(x, 3, 0.5), r"`size` \(=0.5\) must be more than 1"),
        (lambda x: random_deformable_filter(x, 3, -1.0), r"`reach` \(=-1.0\) must be finite and at least 0"),
        (lambda x: tangent_filter(x, metric="guess"), r"`metric` \(='guess'\) must be one of 'gradient', 'edge'"),
        (lambda x: tangent_filter(x, stencil="star"), r"`stencil` \(='star'\) must be one of 'polar'"),
        (lambda x: tangent_filter(x, samples=0), r"`samples` \(=0\)"),
        (lambda x: geodesic_filter(x, metric="guess"), r"`metric` \(='guess'\) must be one of 'gradient', 'edge'"),
        (lambda x: geodesic_filter(x, steps=0), r"`steps` \(=0\) must be at least 1"),
        (
            lambda x: geodesic_filter(x, metric=mc.Riemannian(-torch.ones(1, 1, 3, 5, 5))),
            r"not at index \(0, 0, 0, 0\)",
        ),
        (lambda x: box_filter(x, padding_mode="wrap"), r"`padding_mode` \(='wrap'\) must be one of"),
        (lambda x: box_filter(x, channel_axis=2), r"`channel_axis` \(=2\) is not an axis of `image` of shape \(5, 5\)"),
        (lambda x: tangent_filter(x, metric=mc.Riemannian.isotropic(1.0, dim=3)), "spatial axes"),
        (lambda x: tangent_filter(x, metric=mc.Riemannian(torch.full((1, 1, 3, 5, 5), torch.nan))), "must be positive"),
        (
            lambda x: tangent_filter(x, metric=3),
            "`metric` must be a name, a Metric or a function of the image, got int",
        ),
        (lambda x: geodesic_filter(x, metric=lambda image: image), "`metric` must be a Metric, got Tensor"),
        (lambda x: tangent_filter(x, stencil=None), "`stencil` must be a name or a Stencil, got NoneType"),
        (lambda x: box_filter(x, channel_axis="c"), r"`channel_axis` \(='c'\) is not an axis"),
        (lambda x: interpolated_filter(x, 3, "wide"), r"`size` \(='wide'\) must be positive"),
        (lambda x: random_deformable_filter(x, 3, "far"), r"`reach` \(='far'\) must be finite"),
        (lambda x: random_deformable_filter(x, 3, seed=1.5), r"`seed` \(=1.5\) must be an integer of at most 64 bits"),
        (lambda x: tangent_filter(x, 4, stencil="onion"), r"`samples` \(=4\) must be a positive odd number"),
        (lambda x: random_deformable_filter(x, 3, seed=2**70), r"`seed` \(=1180591620717411303424\)"),
    ],
)
def test_invalid_arguments_raise(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(torch.rand(5, 5))


@pytest.mark.parametrize("progress", [None, print])
def test_metric_of_wrong_size_raises(progress):
    metric = gradient_metric(torch.rand(1, 1, 4, 5))
    with pytest.raises(ValueError, match=r"`metric` must have the spatial size \(6, 7\) of `image`, got \(4, 5\)"):
        tangent_filter(torch.rand(6, 7), metric=metric, progress=progress)


@pytest.mark.parametrize("filtered", [tangent_filter, geodesic_filter])
def test_metric_from_function_is_checked(filtered):
    negative = mc.Riemannian.isotropic(1.0).map(lambda t: -t.expand(1, 1, 3, 20, 24))
    with pytest.raises(ValueError, match="`metric` must be positive"):
        filtered(np.random.default_rng(0).random((20, 24)), 3, lambda x: negative)


@pytest.mark.parametrize("metric", ["gradient", "edge", "structure"])
@pytest.mark.parametrize("unit", [2.0**-90, 2.0**-40, 2.0**60, 2.0**110])
def test_result_is_independent_of_intensity_unit(metric, unit):
    image = np.random.default_rng(0).random((20, 24)).astype(np.float32)
    found = tangent_filter(image * np.float32(unit), 5, metric) / np.float32(unit)
    np.testing.assert_allclose(found, tangent_filter(image, 5, metric), rtol=1e-5)


def test_single_sample_raises():
    with pytest.raises(ValueError, match=r"`samples` \(=1\) must be at least 2"):
        tangent_filter(np.zeros((8, 8)), 1)


def test_array_with_metric_that_requires_grad():
    layer = mc.nn.MetricConv2d(1, 1, 3, padding=1)
    with mc.nn.record_supports(layer) as supports:
        layer(torch.rand(1, 1, 9, 8))
    image = np.random.default_rng(0).random((9, 8))
    assert tangent_filter(image, 3, supports[""].metric).shape == image.shape


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"center": "no"}, r"`center` \(='no'\) must be True or False"),
        ({"channel_axis": True}, r"`channel_axis` \(=True\)"),
        ({"samples": True}, r"`samples` \(=True\)"),
    ],
)
def test_wrong_types_raise(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        tangent_filter(np.zeros((8, 8, 3)), **{"samples": 3, "channel_axis": -1} | options)
