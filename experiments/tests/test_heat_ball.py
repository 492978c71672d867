"""The paper's geodesic ball by heat flow: exact on a window, and different from the unit ball of the metric."""

import math

import pytest
import torch

import metricconv as mc
from geodesy import distances, rough
from helpers import randers, riemannian
from metricconv.metrics import smoothed
from metricconv_experiments.heat_ball import HeatBall

STENCIL = mc.stencils.onion(3)
SMALL = {"dt": 0.5, "diffusion_time": 1.5, "flow_time": 1.0, "scale": 1.0, "kernel_radius": 2}


def diffuse_whole_image(metric, pixel, *, dt, steps, radius):
    """Diffuse the Dirac of one pixel over the whole image, with Python loops."""
    rows, columns = metric.spatial
    heat = {pixel: 1.0}
    near = [(dy, dx) for dy in range(-radius, radius + 1) for dx in range(-radius, radius + 1)]
    vectors = torch.tensor(near, dtype=torch.float64)
    kernels = torch.softmax(-metric.norm(vectors.view(1, 1, -1, 2, 1, 1)).square() / (4 * dt), 2)[0, 0].tolist()
    for _ in range(steps):
        heat = {
            (y, x): sum(kernels[k][y][x] * heat.get((y + dy, x + dx), 0.0) for k, (dy, dx) in enumerate(near))
            for y in range(rows)
            for x in range(columns)
        }
    return torch.tensor([[heat[y, x] for x in range(columns)] for y in range(rows)], dtype=torch.float64)


@pytest.mark.parametrize("pixel", [(4, 5), (0, 0), (8, 2)])
def test_diffusion_on_window_equals_diffusion_on_whole_image(pixel):
    metric = smoothed(randers(2, spatial=(9, 10), radius=1.5))
    ball = HeatBall(metric, STENCIL, **SMALL)
    whole = diffuse_whole_image(metric, pixel, dt=0.5, steps=3, radius=2)
    reach = 4
    half = math.ceil((3 * 2 + reach) / 2)
    window = ball._diffuse(ball._kernels()[0], torch.tensor([pixel[0] * 10 + pixel[1]]), half)[0]
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            y, x = pixel[0] + dy, pixel[1] + dx
            expected = whole[y, x].item() if 0 <= y < 9 and 0 <= x < 10 else 0.0
            assert window[half + dy, half + dx].item() == pytest.approx(expected, abs=1e-14)


def test_larger_window_gives_same_offsets(monkeypatch):
    ball = HeatBall(smoothed(randers(2, spatial=(9, 10))), STENCIL, **SMALL)
    expected, half = ball.offsets(), HeatBall.half_window
    monkeypatch.setattr(HeatBall, "half_window", lambda self, start: half(self, start) + 3)
    torch.testing.assert_close(ball.offsets(), expected, atol=1e-13, rtol=0)


def test_window_is_bounded_by_image(monkeypatch):
    metric = riemannian(2, spatial=(5, 6)).scaled(6.0)
    ball = HeatBall(metric, STENCIL, **SMALL)
    expected, half = ball.offsets(), HeatBall.half_window
    assert half(ball, torch.full((1, 1, 2, 1), 100.0)) == 7
    monkeypatch.setattr(HeatBall, "half_window", lambda self, start: 16)
    torch.testing.assert_close(ball.offsets(), expected, atol=1e-13, rtol=0)


def test_isotropic_ball_grows_by_flow_time():
    metric = riemannian(2).map(
        lambda t: torch.tensor([1.0, 0, 1.0]).double().view(1, 1, 3, 1, 1).expand(1, 1, 3, 13, 13)
    )
    ball = HeatBall(metric, STENCIL, **SMALL).offsets()[0, 0, :, :, 6, 6]
    length = torch.linalg.vector_norm(ball, dim=1)
    assert length[4] == 0
    torch.testing.assert_close(length[[1, 3, 5, 7]], torch.full((4,), 2.0).double())
    assert (length[[0, 2, 6, 8]] - 2).abs().max() < 0.05


def test_published_settings_move_samples_by_at_most_a_tenth_of_a_pixel():
    metric = rough(size=(6, 5), passes=1).scaled(1 / 2.5)
    ball = HeatBall.published(metric, STENCIL)
    assert (ball.dt, ball.diffusion_steps, ball.flow_steps, ball.scale) == (0.01, 10, 10, 2.0)
    outer = [j for j in range(9) if j != 4]
    start = 2 * mc.TangentBall(metric.dual(), STENCIL).offsets()[:, :, outer]
    move = ball.offsets()[:, :, outer] - start
    length = torch.linalg.vector_norm(move, dim=3)
    assert length.max() < 0.1 + 1e-9
    assert length.mean() > 0.09  # most samples move the full distance, some receive no heat
    assert ((move * start).sum(3) >= 0).double().mean() > 0.9  # outwards
    torch.testing.assert_close(metric.dual().dual().M, metric.M)


def test_heat_ball_differs_from_unit_ball():
    metric, pixel = rough(1, (7, 7)).scaled(0.5), [(3, 3)]
    stencil, outermost = mc.stencils.polar(8), slice(56, 64)
    heat = HeatBall.published(metric, stencil), HeatBall(metric, stencil, scale=1.0)
    published, primal, tangent, shot = (
        (distances(metric, ball.offsets(outermost)[0, 0], pixel, 3) - 1).abs().mean().item()
        for ball in (*heat, mc.TangentBall(metric, stencil), mc.GeodesicBall(metric, stencil, 8, smooth=0))
    )
    assert shot < 0.01 < tangent < primal < published
    assert published > 0.2 and primal > 10 * shot


def test_offsets_do_not_depend_on_slices_batches_groups_or_chunks(monkeypatch):
    metric = smoothed(randers(2, 2, 2, (5, 4)))
    ball = HeatBall(metric, STENCIL, **SMALL)
    offsets = ball.offsets()
    assert offsets.shape == (2, 2, 9, 2, 5, 4)
    torch.testing.assert_close(ball.offsets(slice(2, 5)), offsets[:, :, 2:5])
    assert ball.offsets(slice(5, 5)).shape == (2, 2, 0, 2, 5, 4)
    torch.testing.assert_close(HeatBall(metric[1, 0], STENCIL, **SMALL).offsets(), offsets[1:, :1])
    monkeypatch.setattr("metricconv_experiments.heat_ball._CHUNK_ELEMENTS", 10_000)
    torch.testing.assert_close(ball.offsets(), offsets)


def test_gradients_reach_the_metric():
    M = riemannian(2, spatial=(4, 4)).M.requires_grad_()
    HeatBall(mc.Riemannian(M), STENCIL, **SMALL).offsets().square().sum().backward()
    assert M.grad.isfinite().all() and M.grad.any()


def test_signals_and_volumes_are_supported():
    for dim in (1, 3):
        metric = riemannian(dim).map(lambda t, dim=dim: t.expand(1, 1, -1, *(4, 3, 3)[:dim]))
        ball = HeatBall(metric, mc.stencils.onion(3, dim), dt=0.5, diffusion_time=1.0, flow_time=0.5, kernel_radius=1)
        assert ball.offsets().shape == (1, 1, 3**dim, dim, *metric.spatial)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"dt": 0.0}, ValueError, r"`dt` \(=0.0\) must be positive"),
        (
            {"diffusion_time": 0.015},
            ValueError,
            r"`diffusion_time` \(=0.015\) must be a whole multiple of `dt` \(=0.01\)",
        ),
        ({"diffusion_time": 0.0}, ValueError, r"`diffusion_time` \(=0.0\) .* at least 0.01"),
        ({"flow_time": -0.1}, ValueError, r"`flow_time` \(=-0.1\)"),
        ({"scale": -1.0}, ValueError, r"`scale` \(=-1.0\) must be positive"),
        ({"kernel_radius": 0}, ValueError, r"`kernel_radius` \(=0\) must be at least 1"),
        ({"metric": 3}, TypeError, "`metric` must be a Metric, got int"),
        ({"stencil": mc.stencils.onion(3, 3)}, ValueError, "`stencil` has 3 spatial axes, `metric` has 2"),
    ],
)
def test_invalid_arguments_raise(change, error, message):
    with pytest.raises(error, match=message):
        HeatBall(**{"metric": riemannian(2), "stencil": STENCIL} | change)


def test_strided_output_raises():
    metric = mc.Riemannian(torch.tensor([1.0, 0.0, 1.0]).view(1, 1, 3, 1, 1).repeat(1, 1, 1, 4, 4))
    with pytest.raises(ValueError, match=r"`stride` \(=\(2, 2\)\) must be that of the support, \(1, 1\)"):
        mc.support_conv(
            torch.zeros(1, 1, 8, 8), HeatBall(metric, STENCIL), torch.zeros(1, 1, 3, 3), stride=2, padding=1
        )


def test_backends_compute_heat_balls():
    pytest.importorskip("numba")
    ball = HeatBall(mc.Riemannian.isotropic(2.0).expand_to((5, 5)), STENCIL)
    x, weight = torch.rand(1, 1, 5, 5), torch.rand(1, 1, 3, 3)
    results = [mc.support_conv(x, ball, weight, padding=1, backend=name) for name in ("cpu", "reference")]
    torch.testing.assert_close(*results)
