"""Geodesic distance on a grid, compared with closed forms."""

import dataclasses
import math

import pytest
import torch

import metricconv as mc
from geodesy import circle, conformal, lattice, rough
from helpers import riemannian
from metricconv.metrics import geodesic_distance, geodesics
from metricconv.metrics.eikonal import _surface, hopf_lax_distance


def constant(values, size):
    return torch.tensor(values, dtype=torch.float64).view(1, 1, -1, *(1,) * len(size)).expand(1, 1, -1, *size)


METRICS = {
    "round": mc.Riemannian(constant([1.0, 0.0, 1.0], (21, 21))),
    "anisotropic": mc.Riemannian(constant([4.0, 1.5, 1.0], (21, 21))),
    "drift": mc.Randers(constant([1.0, 0.0, 1.0], (21, 21)), constant([0.3, 0.5], (21, 21))),
}


@pytest.mark.parametrize(("refine", "bound"), [(1, 0.03), (2, 0.02), (4, 0.005), (8, 0.0012)])
@pytest.mark.parametrize("name", METRICS)
def test_distances_of_constant_metrics_are_norms(name, refine, bound):
    metric = METRICS[name]
    vector = torch.stack(lattice((21, 21))) - 10
    exact = metric.norm(vector[None, None])
    distance = hopf_lax_distance(metric, torch.tensor([[10.0, 10.0]]), refine)
    assert (distance >= exact - 1e-9).all()  # since fronts are assumed to be flat
    annulus = (torch.linalg.vector_norm(vector, dim=0) - 9).abs() < 1
    assert ((distance - exact) / exact)[0, 0, annulus].mean() < bound


def test_distances_are_exact_along_axes_and_diagonals():
    distance = hopf_lax_distance(METRICS["round"], torch.tensor([[10.0, 10.0]]))[0, 0]
    torch.testing.assert_close(distance[10], (torch.arange(21).double() - 10).abs())
    torch.testing.assert_close(distance.diag(), (torch.arange(21).double() - 10).abs() * math.sqrt(2))


def test_distances_of_hyperbolic_half_plane():
    y, x = lattice((21, 21))
    distance = hopf_lax_distance(conformal(4 / (y + 12)), torch.tensor([[8.0, 10.0]]), 4)[0, 0]
    exact = 4 * torch.acosh(1 + ((y - 8) ** 2 + (x - 10) ** 2) / (2 * (y + 12) * 20))
    assert (distance - exact).abs().mean() < 0.01 * exact.mean()


def test_distances_in_3d():
    metric = mc.Riemannian(constant([1.0, 0.2, 0.0, 2.0, 0.1, 0.5], (9, 9, 9)))
    exact = metric.norm((torch.stack(lattice((9, 9, 9))) - 4)[None, None])
    distance = hopf_lax_distance(metric, torch.tensor([[4.0, 4.0, 4.0]]))
    assert (distance >= exact - 1e-9).all()
    assert ((distance - exact).abs().sum() / exact.sum()) < 0.05
    torch.testing.assert_close(distance[0, 0, 4, 4], (torch.arange(9).double() - 4).abs() * math.sqrt(0.5))


def test_nearest_of_several_sources_between_pixels():
    metric, sources = METRICS["anisotropic"], torch.tensor([[3.0, 4.25], [15.5, 12.0]])
    both = hopf_lax_distance(metric, sources)
    each = [hopf_lax_distance(metric, source[None]) for source in sources]
    nearest = torch.minimum(*each)
    assert (both <= nearest + 1e-9).all()
    assert (both < 0.999 * nearest).double().mean() < 0.1  # they differ slightly where the fronts meet
    expected = metric.norm(torch.tensor([0.0, -0.25]).view(1, 1, 2, 1, 1).double())[0, 0, 0, 0]
    assert each[0][0, 0, 3, 4] == pytest.approx(expected.item())


def test_images_and_groups_are_independent():
    metric = riemannian(2, 2, 3, (7, 8))
    together = hopf_lax_distance(metric, torch.tensor([[3.0, 3.0]]))
    assert together.shape == (2, 3, 7, 8)
    alone = hopf_lax_distance(metric[1, 2], torch.tensor([[3.0, 3.0]]))
    torch.testing.assert_close(together[1, 2], alone[0, 0])


def test_reversed_drift_exchanges_source_and_target():
    metric = rough(3)
    reversed_metric = mc.Randers(metric.M, -metric.omega)
    a, b = torch.tensor([[4.0, 4.0]]), torch.tensor([[8.0, 6.0]])
    forward = hopf_lax_distance(metric, a, 4)[0, 0, 8, 6]
    assert hopf_lax_distance(reversed_metric, b, 4)[0, 0, 4, 4] == pytest.approx(forward.item(), rel=0.01)
    assert hopf_lax_distance(metric, b, 4)[0, 0, 4, 4] != pytest.approx(forward.item(), rel=0.02)


def test_length_of_geodesics_equals_distance():
    metric = rough(4, (15, 15), passes=3)
    ends = geodesics(metric, torch.full((8, 2), 7.0).double(), circle(8), 0.8, 32)[0, 0, :, -1]
    for end in ends:
        distance = hopf_lax_distance(mc.Randers(metric.M, -metric.omega), end[None], 8)[0, 0, 7, 7]
        assert distance == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize(("dim", "counts"), [(2, [8, 8]), (3, [26, 72, 48])])
def test_surface_is_closed_and_symmetric(dim, counts):
    surface = _surface(dim, 1)
    assert [len(simplices) for simplices in surface] == counts
    # Euler characteristic of a circle or a sphere.
    assert sum((-1) ** k * n for k, n in enumerate(counts)) == (0 if dim == 2 else 2)
    for axis in range(dim):
        flipped = {
            tuple(sorted(tuple(-c if i == axis else c for i, c in enumerate(node)) for node in simplex))
            for simplices in surface
            for simplex in simplices
        }
        assert flipped == {simplex for simplices in surface for simplex in simplices}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"source": torch.zeros(2)}, ValueError, r"`source` must be \(N, d\).*\(2,\)"),
        ({"source": torch.zeros(0, 2)}, ValueError, r"`source` must be \(N, d\).*\(0, 2\)"),
        (
            {"source": torch.tensor([[30.0, 2.0]])},
            ValueError,
            r"`source` .* must lie within the image, of size \(6, 5\)",
        ),
        (
            {"source": torch.tensor([[2.0, 2.0], [2.0, 30.0]])},
            ValueError,
            r"`source` .* must lie within the image, of size \(6, 5\)",
        ),
        ({"source": torch.tensor([[2.0, 2.0], [2.0, torch.nan]])}, ValueError, r"`source` .* must lie within"),
        ({"tolerance": -1.0}, ValueError, r"`tolerance` \(=-1.0\) must be finite and at least 0"),
        ({"max_rounds": 0}, ValueError, r"`max_rounds` \(=0\) must be at least 1"),
        ({"refine": 0}, ValueError, r"`refine` \(=0\) must be at least 1"),
        ({"reach": 0}, ValueError, r"`reach` \(=0\) must be at least 1"),
        ({"max_rounds": 2}, RuntimeError, r"still change after `max_rounds` \(=2\)"),
        ({"metric": torch.ones(1, 1, 3, 6, 5)}, TypeError, "`metric` must be a Metric, got Tensor"),
        ({"metric": mc.Riemannian(torch.ones(1, 1, 3, 2, 2))}, ValueError, r"must be positive; .*index \(0, 0, 0, 0\)"),
    ],
)
def test_invalid_arguments_raise(change, error, message):
    arguments = {"metric": riemannian(2, spatial=(6, 5)), "source": torch.tensor([[2.0, 2.0]])} | change
    with pytest.raises(error, match=message):
        hopf_lax_distance(**arguments)


def test_unsupported_metric_raises():
    @dataclasses.dataclass(frozen=True, eq=False)
    class Conformal(mc.metrics.Metric):
        factor: torch.Tensor

        def norm(self, u):
            return self.factor[:, :, 0] * torch.linalg.vector_norm(u, dim=2)

        def dual(self):
            return Conformal(1 / self.factor)

        def is_positive(self):
            return self.factor[:, :, 0] > 0

        def scaled(self, radius):
            return Conformal(self.factor / radius)

        @property
        def bounding_radius(self):
            return 1 / self.factor[:, :, 0]

    with pytest.raises(TypeError, match="`metric` must be Riemannian or Randers for geodesics, got Conformal"):
        hopf_lax_distance(Conformal(torch.ones(1, 1, 1, 6, 5)), [[2.0, 2.0]])


def test_deprecated_name_still_works():
    with pytest.warns(DeprecationWarning, match=r"use geodesic\.distance_map"):
        distance = geodesic_distance(METRICS["round"], [[10.0, 10.0]])
    assert torch.equal(distance, hopf_lax_distance(METRICS["round"], [[10.0, 10.0]]))
