"""The one-sided metric: balls beside an edge end before it."""

import pytest
import torch

import metricconv as mc
from metricconv.metrics import one_sided_metric


def step(column: int = 10) -> torch.Tensor:
    image = torch.zeros(1, 1, 9, 20)
    image[..., column:] = 1.0
    return image


def extents(image: torch.Tensor) -> torch.Tensor:
    """Return the extents to the right and to the left along the middle row: (2, W)."""
    metric = one_sided_metric(image)
    return metric.unit_vectors(torch.tensor([[0.0, 1.0], [0.0, -1.0]]))[0, 0, :, 1, 4].abs()


def test_balls_beside_an_edge_are_short_towards_it_only():
    right, left = extents(step())
    assert right[7] < 0.5 * left[7] and left[12] < 0.5 * right[12]
    torch.testing.assert_close(right, left.flip(0))


def test_balls_are_round_far_from_edges_and_narrow_on_them():
    right, left = extents(step())
    assert torch.isclose(right[0], torch.tensor(10.0).sqrt()) and torch.isclose(left[0], right[0])
    assert max(right[9], left[9]) < 1


def test_constant_image_has_round_balls_and_finite_gradients():
    image = torch.full((1, 3, 6, 5), 0.3, requires_grad=True)
    metric = one_sided_metric(image)
    assert not metric.w.any()
    (metric.M.sum() + metric.w.sum()).backward()
    assert image.grad.isfinite().all()


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_metric_is_positive_in_any_dimension_and_independent_of_the_batch(dim):
    image = torch.rand(2, 2, *(7,) * dim)
    metric = one_sided_metric(image, alpha=1e6)
    assert metric.is_positive().all()
    torch.testing.assert_close(metric[1].w, one_sided_metric(image[1:], alpha=1e6).w)


def test_filter_with_one_sided_balls_keeps_an_edge_sharper_than_a_disc():
    image = step()[0, 0].numpy()
    sharp = mc.filters.tangent_filter(image, 5, metric=one_sided_metric)
    blurred = mc.filters.tangent_filter(image, 5, metric=mc.Riemannian.isotropic(10**0.5))
    assert abs(sharp - image).mean() < 0.5 * abs(blurred - image).mean()
