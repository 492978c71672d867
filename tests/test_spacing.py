"""``spacing=``: metrics and filters of anisotropic pixels measure lengths, not pixels."""

from functools import partial

import numpy as np
import pytest
import torch

from metricconv import Riemannian, filters
from metricconv.geodesic import surface_metric, tube_metric
from metricconv.metrics import edge_metric, gradient_metric, structure_metric


def blob(spacing, center=(12.0, 12.0, 12.0)):
    """A smooth volume sampled at a spacing, of 24 units along each axis."""
    axes = [torch.arange(0, 24, s, dtype=torch.float64) for s in spacing]
    z, y, x = torch.meshgrid(*axes, indexing="ij")
    values = [(u - c) / w for u, c, w in zip((z, y, x), center, (4.0, 3.0, 5.0), strict=True)]
    return torch.exp(-sum(v.square() for v in values))[None, None]


@pytest.mark.parametrize(
    "metric",
    [
        partial(gradient_metric, scale=2.0),
        partial(edge_metric, scale=2.0),
        partial(structure_metric, noise_scale=2.0),
        partial(surface_metric, scale=2.0),
        partial(tube_metric, scale=4.0),
    ],
)
def test_metric_of_a_coarser_volume_is_the_same_in_units_of_length(metric):
    fine, coarse = metric(blob((1, 1, 1))), metric(blob((2, 1, 1)), spacing=(2, 1, 1))
    in_units = coarse.scaled((2, 1, 1))  # from pixels
    torch.testing.assert_close(
        in_units.M[..., 3:9, :, :], fine.M[..., 6:18:2, :, :], rtol=0.02, atol=0.02 * fine.M.max().item()
    )
    assert (coarse.M - in_units.M).abs().max() > 0.5 * fine.M.max()


def test_spacing_is_relative_to_the_smallest():
    image = torch.rand(1, 1, 6, 7)
    assert torch.equal(structure_metric(image, spacing=3.0).M, structure_metric(image).M)
    assert torch.equal(structure_metric(image, spacing=(4, 2)).M, structure_metric(image, spacing=(2.0, 1.0)).M)


FILTERS = {
    "tangent": partial(filters.tangent_filter, samples=3, metric="edge"),
    "geodesic": partial(filters.geodesic_filter, samples=3, metric="edge"),
    "regression": partial(filters.regression_filter, samples=4),
    "regression gradient": partial(filters.regression_gradient, samples=4),
    "diffusion": partial(filters.anisotropic_diffusion, time=0.3),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters_pass_the_spacing_to_their_metric(name):
    image = np.random.default_rng(0).random((12, 9))
    function = edge_metric if "metric" in FILTERS[name].keywords else structure_metric
    own = partial(function, spacing=(3, 1), padding_mode="reflect")
    result = FILTERS[name](image, spacing=(3, 1))
    np.testing.assert_array_equal(result, FILTERS[name](image, metric=own))
    assert np.abs(result - FILTERS[name](image)).max() > 1e-3


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("metric", [Riemannian.isotropic(2.0), partial(edge_metric, iota=0.1)])
def test_spacing_of_a_metric_in_pixels_raises(name, metric):
    with pytest.raises(ValueError, match=r"`spacing` \(=\(3, 1\)\) requires a metric"):
        FILTERS[name](np.zeros((12, 9)), metric=metric, spacing=(3, 1))


def test_balls_of_a_flat_volume_are_round_in_units_of_length():
    ball = edge_metric(torch.zeros(1, 1, 4, 5, 6), iota=0.25, spacing=(4, 2, 2)).unit_vectors(torch.eye(3))
    torch.testing.assert_close(ball[0, 0, :, :, 2, 2, 2].diag(), torch.tensor([1.0, 2.0, 2.0]))  # of radius 2 units


def test_diffusion_of_anisotropic_pixels_is_a_gaussian_of_physical_width():
    image = np.zeros((41, 41))
    image[20, 20] = 1.0
    spread = filters.anisotropic_diffusion(image, 2.0, partial(structure_metric, alpha=0.0, iota=0.25, spacing=(2, 1)))
    offset = np.arange(41) - 20
    variance = [(spread.sum(1 - axis) * offset**2).sum() for axis in (0, 1)]
    np.testing.assert_allclose(variance, [16 / 4, 16], rtol=1e-3)  # 2 t / ι, in pixels: divided by s²


@pytest.mark.parametrize("module", [filters.TangentFilter, filters.GeodesicFilter, filters.AnisotropicDiffusion])
def test_modules_take_the_spacing(module):
    images = torch.rand(1, 1, 9, 8)
    assert not torch.equal(module(metric="edge", spacing=(2, 1))(images), module(metric="edge")(images))


@pytest.mark.parametrize("name", ["tangent_filter", "geodesic_filter"])
@pytest.mark.parametrize("metric", ["gradient", "edge", "structure"])
def test_tiles_with_a_spacing_equal_the_whole(name, metric):
    array, large = pytest.importorskip("dask.array"), pytest.importorskip("metricconv.large")
    image = np.random.default_rng(0).random((40, 36))
    tiled = getattr(large, name)(array.from_array(image, chunks=20), 3, metric, spacing=(1, 2.5))
    whole = getattr(filters, name)(image, 3, metric, spacing=(1, 2.5))
    np.testing.assert_allclose(tiled.compute(), whole, atol=1e-6)
