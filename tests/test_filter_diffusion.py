"""Anisotropic diffusion: the maximum principle, conservation, consistency, and what it does to stripes and edges."""

import numpy as np
import pytest
import torch

import metricconv as mc
from metricconv.filters import anisotropic_diffusion
from metricconv.geodesic import _links

ALL_METRICS = ["structure", "gradient", "edge"]


def constant(matrix, size) -> mc.Riemannian:
    """Return the metric with D = M⁻¹ = ``matrix`` everywhere."""
    dual = torch.as_tensor(matrix, dtype=torch.float64)
    inverse = torch.linalg.inv(dual)
    dim = len(dual)
    packed = torch.stack([inverse[i, j] for i in range(dim) for j in range(i, dim)])
    return mc.Riemannian(packed.view(1, 1, -1, *[1] * dim)).expand_to(size)


@pytest.mark.parametrize("metric", ALL_METRICS)
@pytest.mark.parametrize("size", [(23, 18), (1, 1), (1, 7), (2, 1), (7, 6, 5)])
def test_values_stay_between_minimum_and_maximum_and_keep_their_mean(metric, size):
    image = torch.randint(0, 2, size).double()  # the largest possible contrast
    result = anisotropic_diffusion(image, 2.0, metric)
    assert image.min() - 1e-12 <= result.min() and result.max() <= image.max() + 1e-12
    torch.testing.assert_close(result.mean(), image.mean())


@pytest.mark.parametrize("metric", ALL_METRICS)
def test_constant_images_and_time_zero_change_nothing(metric):
    image = torch.full((9, 8), 0.3)
    assert torch.equal(anisotropic_diffusion(image, 5.0, metric), image)
    image = torch.rand(9, 8)
    assert torch.equal(anisotropic_diffusion(image, 0.0, metric), image)


@pytest.mark.parametrize("dual", [[[2.0, 0.9], [0.9, 0.7]], [[1.0, 0, 0], [0, 2.0, 0.5], [0, 0.5, 0.4]]])
def test_generator_is_exact_for_quadratic_functions_of_a_constant_metric(dual):
    dim = len(dual)
    size = (13,) * dim
    axes = torch.meshgrid(*[torch.arange(n, dtype=torch.float64) for n in size], indexing="ij")
    hessian = torch.randn(dim, dim, dtype=torch.float64)
    hessian = hessian + hessian.mT
    image = 0.5 * sum(hessian[i, j] * axes[i] * axes[j] for i in range(dim) for j in range(dim))
    time = 1e-3
    result = anisotropic_diffusion(image, time, constant(dual, size), rounds=1)
    rate = ((result - image) / time)[(slice(4, 9),) * dim]
    expected = (torch.tensor(dual, dtype=torch.float64) * hessian).sum()
    torch.testing.assert_close(rate, expected.expand_as(rate), rtol=1e-8, atol=1e-8)


def test_point_spreads_to_a_gaussian_of_covariance_2tD():
    dual, time = torch.tensor([[6.0, 3.0], [3.0, 4.0]], dtype=torch.float64), 0.5
    image = torch.zeros(41, 41, dtype=torch.float64)
    image[20, 20] = 1
    result = anisotropic_diffusion(image, time, constant(dual, (41, 41)), rounds=1)
    axis = torch.arange(41, dtype=torch.float64) - 20
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    moments = [(result * a * b).sum() for a, b in ((y, y), (y, x), (x, x))]
    torch.testing.assert_close(torch.stack(moments), 2 * time * dual[[0, 0, 1], [0, 1, 1]], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [(14, 11), (6, 7, 8)])
def test_compiled_links_equal_those_in_torch(size):
    pytest.importorskip("numba")
    factor = torch.randn(int(np.prod(size)), len(size), len(size), dtype=torch.float64)
    full = factor @ factor.mT + 0.01 * torch.eye(len(size))
    packed = torch.stack([full[:, i, j] for i in range(len(size)) for j in range(i, len(size))])
    values = torch.randn(packed.shape[1], 2, dtype=torch.float64)
    plain, fast = _links.TorchLinks(packed, size), _links.CompiledLinks(packed, size)
    assert plain.largest_outflow() == pytest.approx(fast.largest_outflow())
    torch.testing.assert_close(fast.step(values, 0.01), plain.step(values, 0.01))


def test_result_does_not_depend_on_the_number_of_threads():
    image, threads = torch.rand(200, 30), torch.get_num_threads()
    results = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            results.append(anisotropic_diffusion(image))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


def test_structure_metric_closes_gaps_of_a_line_and_edge_metric_keeps_a_step():
    line = torch.zeros(31, 31)
    line[:, 14:17] = 1
    broken = line.clone()
    broken[14:17] = 0
    closed = anisotropic_diffusion(broken, 0.5, "structure")
    assert closed[15, 15] > 0.4 and closed[15, 12] < 0.2  # in the gap, and beside the line
    step = torch.zeros(24, 24)
    step[:, 12:] = 1
    noisy = step + 0.1 * torch.randn(24, 24)
    kept = anisotropic_diffusion(noisy, 0.5, "edge")
    assert (kept[:, 12:].mean() - kept[:, :12].mean()) > 0.9
    assert (kept - step).std() < 0.5 * (noisy - step).std()


def test_arrays_channels_and_batches_of_a_module_give_the_same_result():
    image = np.random.default_rng(0).random((12, 13, 3))
    result = anisotropic_diffusion(image, channel_axis=-1)
    assert result.dtype == np.float64 and result.shape == image.shape
    tensor = torch.from_numpy(image).permute(2, 0, 1)
    batch = mc.filters.AnisotropicDiffusion()(torch.stack([tensor, tensor.flip(1)]))
    torch.testing.assert_close(batch[0].permute(1, 2, 0), torch.from_numpy(result))
    bytes_ = (image * 255).astype(np.uint8)
    assert anisotropic_diffusion(bytes_, channel_axis=-1).max() <= 1


def test_progress_counts_rounds():
    seen = []
    anisotropic_diffusion(torch.rand(5, 5), rounds=3, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"time": -1.0}, "time"),
        ({"time": 1e4}, "`time` .* at most 1000"),
        ({"rounds": 0}, "rounds"),
        ({"metric": "riemann"}, "metric"),
        ({"metric": mc.Riemannian.isotropic(torch.ones(1, 1, 3, 3))}, r"`metric` must have the spatial size \(8, 8\)"),
        ({"progress": 3}, "progress"),
    ],
)
def test_unsuitable_arguments_are_named(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        anisotropic_diffusion(torch.rand(8, 8), **arguments)


def test_randers_metrics_raise():
    metric = mc.metrics.gradient_metric(torch.rand(1, 1, 8, 8), eps_omega=0.5)
    with pytest.raises(TypeError, match="`metric` must be Riemannian, got Randers"):
        anisotropic_diffusion(torch.rand(8, 8), metric=metric)
