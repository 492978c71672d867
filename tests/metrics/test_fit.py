"""Fitting Randers metrics to supports."""

import dataclasses

import pytest
import torch

import metricconv as mc
from helpers import randers
from metricconv.metrics import RandersFit, fit_randers


def ball(metric: mc.Metric, levels: torch.Tensor) -> torch.Tensor:
    """Return samples s_j u/F(u) in random directions: (B, G, P, d, *out)."""
    directions = torch.nn.functional.normalize(torch.randn(len(levels), metric.dim, dtype=torch.float64), dim=1)
    return metric.unit_vectors(directions) * levels.view(1, 1, -1, 1, *(1,) * metric.dim)


def assert_positive_and_finite(fit: RandersFit) -> None:
    assert fit.metric.is_positive().all()
    for tensor in (fit.metric.M, fit.metric.omega, fit.residual):
        assert tensor.isfinite().all()


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("asymmetry", [0.0, 0.6, 0.95])
def test_fit_of_tangent_ball_returns_its_metric(dim, asymmetry):
    metric = randers(dim, 2, 2, (3,) * dim, radius=4.0, asymmetry=asymmetry)
    levels = torch.rand(20, dtype=torch.float64) + 0.1
    fit = fit_randers(ball(metric, levels), levels)
    torch.testing.assert_close(fit.metric.M, metric.M, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(fit.metric.omega, metric.omega, rtol=1e-6, atol=1e-8)
    assert fit.residual.shape == (2, 2, *(3,) * dim)
    assert fit.residual.max() < 1e-6


def test_five_boundary_points_determine_a_2d_metric():
    metric = randers(2)
    fit = fit_randers(
        ball(metric, torch.ones(5, dtype=torch.float64))
    )  # default levels are 1, since 5 is not an odd square
    torch.testing.assert_close(fit.metric.M, metric.M, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(fit.metric.omega, metric.omega, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(("k", "dim"), [(3, 2), (5, 2), (11, 2), (3, 3), (5, 1)])
def test_fit_of_grid_is_isotropic(k, dim):
    for offsets in (mc.Grid(k, dim=dim), mc.Grid(k, dim=dim).offsets()):
        fit = fit_randers(offsets)
        torch.testing.assert_close(fit.metric.M, mc.Riemannian.isotropic(k // 2, dim).M, atol=1e-6, rtol=1e-5)
        assert fit.metric.omega.abs().max() < 1e-6
        assert fit.residual.max() < 1e-5


@pytest.mark.parametrize("stencil", [mc.stencils.polar(5), mc.stencils.onion(5), mc.stencils.square_onion((3, 5))])
def test_default_levels_are_radii_of_stencil(stencil):
    metric = randers(2, 1, 1, (2, 2), radius=3.0)
    fit = fit_randers(mc.TangentBall(metric, stencil))
    torch.testing.assert_close(fit.metric.M, metric.M, rtol=1e-6, atol=1e-8)


def test_levels_of_rectangular_kernels():
    fit = fit_randers(mc.Grid((3, 7)))
    torch.testing.assert_close(fit.metric.M.flatten(), torch.tensor([1 / 9, 0.0, 1 / 9]), atol=1e-6, rtol=1e-5)


def test_fit_of_shifted_grid_is_shifted_in_same_direction():
    fit = fit_randers(mc.Shifted(torch.tensor([0.0, 0.4]).view(1, 1, 2, 1, 1), 5))
    directions = torch.tensor([[0.0, 1.0], [0.0, -1.0]])
    right, left = fit.metric.unit_vectors(directions).norm(dim=3).flatten()
    assert right > left
    assert fit.residual.item() > 0.1


def boundary_samples(kind: str) -> torch.Tensor:
    """Return the outermost samples of a 5 × 5 grid, or of a polar ball with a radius of about 2: (P, 2)."""
    if kind == "grid":
        cells = torch.cartesian_prod(*2 * [torch.arange(-2.0, 3.0, dtype=torch.float64)])
        return cells[cells.abs().amax(1) == 2]
    stencil = mc.stencils.polar(5)
    metric = randers(2, radius=2.0, asymmetry=0.6) if kind == "off-center ball" else mc.Riemannian.isotropic(2.0)
    offsets = mc.TangentBall(metric, stencil).offsets().double()
    return offsets[0, 0, stencil.radii == 1, :, 0, 0]


def shifted(points: torch.Tensor, steps: int) -> torch.Tensor:
    """Return points (P, 2) translated by up to ±4 px along each axis: (1, 1, P, 2, steps, steps)."""
    translations = torch.linspace(-4, 4, steps, dtype=torch.float64)
    return (points[..., None, None] + torch.stack(torch.meshgrid(translations, translations, indexing="ij")))[
        None, None
    ]


def residual_of_best_disc(y: torch.Tensor, largest_asymmetry: float) -> torch.Tensor:
    """Return the residual of the best disc |z − c| ≤ R around the pixel, by a refined grid search over log R, c/R."""
    y = y[0, 0].flatten(2).movedim(2, 0)  # [N, P, 2]
    length = torch.linalg.vector_norm(y, dim=2, keepdim=True)
    grid = torch.cartesian_prod(*3 * [torch.linspace(-1, 1, 7, dtype=y.dtype)])  # [343, 3]
    best = torch.cat([length.mean(1).log(), torch.zeros_like(y[:, 0])], 1)
    for width in (0.75**i for i in range(25)):
        candidates = best.unsqueeze(1) + width * grid  # [N, 343, 3]
        radius, center = candidates[..., :1].exp().mT, candidates[..., 1:].mT  # [N, 1, 343], [N, 2, 343]
        center = center * (largest_asymmetry / torch.linalg.vector_norm(center, dim=1, keepdim=True)).clamp_max(1)
        along = y / length @ center
        on_disc = radius * (along + (along.square() + 1 - center.square().sum(1, keepdim=True)).sqrt())
        residual, index = (length - on_disc).square().mean(1).sqrt().min(1)
        best = candidates[torch.arange(len(y)), index]
    return residual


@pytest.mark.parametrize("kind", ["grid", "polar ball", "off-center ball"])
@pytest.mark.parametrize("eps_omega", [0.001, 0.05, 0.3])
def test_reach_of_fits_to_translated_samples_is_bounded(kind, eps_omega):
    y = shifted(boundary_samples(kind), 33)
    fit = fit_randers(y, 1.0, eps_omega=eps_omega)
    angle = torch.linspace(0, 2 * torch.pi, 361, dtype=torch.float64)
    outline = fit.metric.unit_vectors(torch.stack([angle.sin(), angle.cos()], 1))
    reach, farthest = (torch.linalg.vector_norm(points, dim=3).amax(2) for points in (outline, y))
    assert (reach < 3 * farthest).all()
    assert_positive_and_finite(fit)


@pytest.mark.parametrize("kind", ["grid", "polar ball"])
@pytest.mark.parametrize("eps_omega", [0.001, 0.05, 0.3])
def test_fit_is_at_least_as_good_as_best_disc(kind, eps_omega):
    y = shifted(boundary_samples(kind), 16)  # no sample is at 0, which has no direction
    disc = residual_of_best_disc(y, 1 - eps_omega)
    assert (fit_randers(y, 1.0, eps_omega=eps_omega).residual.flatten() <= disc + 1e-6).all()


def test_fit_near_the_boundary_of_samples_is_not_a_needle():
    y = boundary_samples("grid") + torch.tensor([2.157, -1.544], dtype=torch.float64)
    fit = fit_randers(y.view(1, 1, 16, 2, 1, 1), 1.0, eps_omega=0.05)
    assert fit.residual.item() < 1.02  # the residual of the disc of radius 2.3 around (1.725, −1.235)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_on_a_part_of_a_ball_determine_it(dtype):
    metric = mc.Randers(
        torch.tensor([0.25, 0.0, 0.25]).view(1, 1, 3, 1, 1), torch.tensor([0.0, 0.45]).view(1, 1, 2, 1, 1)
    )
    angle = torch.linspace(-1, 1, 12)
    near = metric.unit_vectors(torch.stack([angle.sin(), angle.cos()], 1)).to(
        dtype
    )  # up to 1.35 px away; the ball reaches 20 px
    fit = fit_randers(near)
    torch.testing.assert_close(fit.metric.M.float(), metric.M, rtol=0, atol=1e-3)
    torch.testing.assert_close(fit.metric.omega.float(), metric.omega, rtol=0, atol=1e-3)


def test_residual_of_random_displacements():
    small, large = (fit_randers(mc.Deformable(size * torch.randn(1, 1, 25, 2, 6, 6), 5)) for size in (0.1, 1.0))
    assert 0.05 < small.residual.mean() < 0.1  # less than 0.1 px, since five parameters are fitted
    assert 0.5 < large.residual.mean() < 1.0
    assert_positive_and_finite(large)


def test_residual_is_distance_along_rays():
    support = mc.Deformable(0.5 * torch.randn(1, 1, 9, 2, 2, 2, dtype=torch.float64), 3)
    fit = fit_randers(support)
    y, s = support.offsets(), mc.stencils.square_onion(3).radii
    on_ball = y / fit.metric.norm(y).unsqueeze(3) * s.view(1, 1, 9, 1, 1, 1)
    torch.testing.assert_close(fit.residual, (y - on_ball).square().sum(3).mean(2).sqrt())


def test_refinement_finds_a_minimum_of_the_residual():
    y = mc.Grid(5).offsets().double() + 0.7 * torch.randn(1, 1, 25, 2, 4, 4, dtype=torch.float64)
    first, refined, further = (fit_randers(y, refinements=n) for n in (0, 15, 60))
    assert (refined.residual <= first.residual).all()
    assert refined.residual.mean() < 0.9 * first.residual.mean()
    torch.testing.assert_close(further.residual, refined.residual, rtol=1e-3, atol=0)
    directions = y / torch.linalg.vector_norm(y, dim=3, keepdim=True)
    levels = mc.stencils.square_onion(5).radii.view(1, 1, -1, 1, 1)

    def residual(metric: mc.Randers) -> torch.Tensor:
        distance = torch.linalg.vector_norm(y, dim=3) - levels / metric.norm(directions)
        return distance.square().mean(2).sqrt()

    for _ in range(20):
        noise = [1e-2 * t.abs().amax(2, keepdim=True) * torch.randn_like(t) for t in further.metric.tensors().values()]
        nearby = mc.Randers(further.metric.M + noise[0], further.metric.omega + noise[1])
        interior = further.metric.asymmetry < 0.99  # elsewhere the bound is active
        assert (residual(nearby) > further.residual)[interior].all()


def test_eps_omega_bounds_asymmetry():
    y = ball(randers(2, 1, 1, (3, 3), asymmetry=0.95), torch.ones(20, dtype=torch.float64))
    for eps_omega in (0.02, 0.5):
        fit = fit_randers(y, eps_omega=eps_omega)
        assert fit.metric.asymmetry.max().item() == pytest.approx(min(0.95, 1 - eps_omega))


def test_fit_is_scale_equivariant():
    y = mc.Grid(3).offsets().double() + 0.2 * torch.randn(1, 1, 9, 2, 3, 3, dtype=torch.float64)
    fit, larger = fit_randers(y), fit_randers(7 * y)
    torch.testing.assert_close(larger.metric.M, fit.metric.M / 49, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(larger.residual, 7 * fit.residual, rtol=1e-6, atol=0)


DEGENERATE = {
    "all zero": torch.zeros(9, 2),
    "all equal": torch.tensor([2.0, -1.0]).expand(9, 2),
    "collinear": torch.arange(-4.0, 5.0)[:, None] * torch.tensor([1.0, 2.0]),
    "half line": torch.arange(9.0)[:, None] * torch.tensor([1.0, 2.0]),
    "one far away": torch.eye(9, 2) * 1e5,
    "two points": torch.tensor([[0.0, 1.0], [1e-4, 0.0]]).repeat(5, 1)[:9],
    "hyperbola": torch.stack([torch.linspace(-2, 2, 9).cosh(), torch.linspace(-2, 2, 9).sinh()], 1),
}


@pytest.mark.parametrize("points", DEGENERATE.values(), ids=DEGENERATE.keys())
@pytest.mark.parametrize("levels", [None, 1.0])
def test_fits_of_degenerate_supports_are_finite_and_positive(points, levels):
    assert_positive_and_finite(fit_randers(points.reshape(1, 1, 9, 2, 1, 1), levels))


def test_undetermined_fit_is_round():
    points = torch.tensor([[0.0, 3.0], [0.0, -3.0]]).view(1, 1, 2, 2, 1, 1)  # the extent along y is not determined
    fit = fit_randers(points, levels=1.0)
    torch.testing.assert_close(fit.metric.M.flatten(), torch.tensor([1 / 9, 0.0, 1 / 9]), atol=1e-6, rtol=1e-5)


def test_pixels_are_independent_of_chunks(monkeypatch):
    y = torch.randn(2, 1, 9, 2, 3, 4)
    whole = fit_randers(y)
    monkeypatch.setattr("metricconv.metrics.fit._CHUNK_SAMPLES", 9 * 5)
    chunked = fit_randers(y)
    alone = fit_randers(y[1:, ..., 2:, 3:])
    torch.testing.assert_close(chunked.metric.M, whole.metric.M)
    torch.testing.assert_close(chunked.residual, whole.residual)
    torch.testing.assert_close(alone.residual, whole.residual[1:, :, 2:, 3:])


def test_fit_is_immutable_with_short_repr():
    fit = fit_randers(mc.Grid(3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        fit.residual = torch.zeros(1)
    assert repr(fit) == f"RandersFit(metric={fit.metric})" and len(repr(fit)) < 120


def test_empty_batch():
    fit = fit_randers(torch.zeros(0, 1, 9, 2, 3, 3))
    assert fit.metric.M.shape == (0, 1, 3, 3, 3) and fit.residual.shape == (0, 1, 3, 3)


def test_invalid_arguments_raise():
    with pytest.raises(TypeError, match=r"`offsets` must be a torch.Tensor or a Support, got list"):
        fit_randers([[0.0, 1.0]])
    with pytest.raises(ValueError, match=r"`offsets` must be \(B, G, P, d, \*out\).*got shape \(9, 2\)"):
        fit_randers(torch.zeros(9, 2))
    with pytest.raises(ValueError, match="`offsets` must be finite, got nan"):
        fit_randers(torch.full((1, 1, 9, 2, 1, 1), torch.nan))
    with pytest.raises(ValueError, match=r"`levels` must be finite and at least 0, one number or \(9,\)"):
        fit_randers(mc.Grid(3), levels=[1.0, 2.0])
    with pytest.raises(ValueError, match="`levels` must be finite and at least 0"):
        fit_randers(mc.Grid(3), levels=-1.0)
    with pytest.raises(ValueError, match=r"`eps_omega` \(=0\) must be in \(0, 1\)"):
        fit_randers(mc.Grid(3), eps_omega=0)
    with pytest.raises(ValueError, match=r"`refinements` \(=-1\)"):
        fit_randers(mc.Grid(3), refinements=-1)


def test_default_device_has_no_effect():
    offsets = mc.TangentBall(randers(2, spatial=(2, 3)), mc.stencils.onion(3)).offsets()
    expected = fit_randers(offsets).metric.M
    with torch.device("meta"):
        torch.testing.assert_close(fit_randers(offsets).metric.M, expected)
