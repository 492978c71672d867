"""Geodesic balls: equal to tangent balls for constant metrics, samples within geodesic distance s_j."""

import math
import time
from functools import partial

import pytest
import skimage
import torch

import metricconv as mc
from geodesy import conformal, distances, lattice, rough
from helpers import randers, riemannian
from metricconv.metrics import edge_metric, geodesics, gradient_metric, smoothed
from metricconv.supports import Rays, geodesic

STENCILS = {
    "polar": mc.stencils.polar(4),
    "onion": mc.stencils.onion(5),
    "square onion": mc.stencils.square_onion(5),
}
every_stencil = pytest.mark.parametrize("stencil", STENCILS.values(), ids=STENCILS.keys())
OUTLINE, BOUNDARY = mc.stencils.polar(16), slice(15 * 16, 16 * 16)


def boundary(metric, **options):
    """Return the outermost samples of the unsmoothed ball: (16, 2, H, W)."""
    return mc.GeodesicBall(metric, OUTLINE, smooth=0, **options).offsets(BOUNDARY)[0, 0]


@every_stencil
@pytest.mark.parametrize("smooth", [0, 1, 2])
def test_geodesic_ball_equals_tangent_ball_for_constant_metric(stencil, smooth):
    metric = randers(2, 2, 3).map(lambda t: t.expand(2, 3, -1, 6, 5))
    for steps in (1, 4):
        ball = mc.GeodesicBall(metric, stencil, steps, smooth)
        torch.testing.assert_close(ball.offsets(), mc.TangentBall(metric, stencil).offsets(), atol=1e-13, rtol=0)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_samples_are_end_points_of_geodesics_in_any_dimension(dim):
    metric = smoothed(randers(dim, 2, 2, (5, 4, 3)[:dim]))
    stencil = mc.stencils.onion(3, dim)
    offsets = mc.GeodesicBall(metric, stencil, 3, smooth=0).offsets()
    assert offsets.shape == (2, 2, 3**dim, dim, *metric.spatial)
    pixel = (1,) * dim
    for j in range(3**dim):
        if stencil.radii[j]:
            point = torch.tensor([pixel], dtype=torch.float64)
            curve = geodesics(metric, point, stencil.directions[j : j + 1], 1.0, 3)[:, :, 0, -1] - point
            torch.testing.assert_close(offsets[(slice(None), slice(None), j, slice(None), *pixel)], curve)
    center = offsets[:, :, 3**dim // 2]
    assert torch.equal(center, torch.zeros_like(center))


@every_stencil
@pytest.mark.parametrize("samples", [slice(0, 1), slice(2, 7), slice(3, 15, 4), slice(12, 13), slice(5, 5)])
def test_offsets_of_a_slice_are_the_slice_of_all(stencil, samples):
    ball = mc.GeodesicBall(randers(2, 2, 2, (3, 4)), stencil)
    torch.testing.assert_close(ball.offsets(samples), ball.offsets()[:, :, samples])


def test_all_radii_of_a_direction_lie_on_one_ray():
    polar, onion, square = (
        Rays.of(make(11)) for make in (mc.stencils.polar, mc.stencils.onion, mc.stencils.square_onion)
    )
    assert (len(polar.vectors), len(onion.vectors), len(square.vectors)) == (11, 80, 80)
    assert len(polar.positions) == 121 and len(square.positions) == 120  # without the center
    for rays in (polar, onion, square):
        for j, (ray, fraction) in rays.positions.items():
            *direction, length = rays.vectors[ray].tolist()
            assert length * fraction == pytest.approx(rays.stencil.radii[j].item())
            assert direction == pytest.approx(rays.stencil.directions[j].tolist())


def test_inner_samples_lie_on_the_geodesic_between_steps():
    y, x = lattice((25, 25))
    metric = conformal(0.2 * (1 + 0.3 * torch.sin(y / 5) * torch.cos(x / 4)))
    stencil = mc.stencils.polar(8)
    few = mc.GeodesicBall(metric, stencil, 3, smooth=0).offsets()[0, 0, :, :, 12, 12]
    many = mc.GeodesicBall(metric, stencil, 64, smooth=0).offsets()[0, 0, :, :, 12, 12]
    assert torch.linalg.vector_norm(few - many, dim=1).max() < 0.04
    assert (
        torch.linalg.vector_norm(few - mc.TangentBall(metric, stencil).offsets()[0, 0, :, :, 12, 12], dim=1).max() > 0.3
    )


def test_small_geodesic_balls_are_tangent_balls_up_to_second_order():
    metric = rough()
    gaps = []
    for rho in (0.1, 0.05, 0.025):
        tangent = mc.TangentBall(metric.scaled(rho), OUTLINE).offsets(BOUNDARY)[0, 0]
        gaps.append((boundary(metric.scaled(rho)) - tangent).abs().mean())
    assert math.log2(gaps[0] / gaps[1]) == pytest.approx(2, abs=0.25)
    assert math.log2(gaps[1] / gaps[2]) == pytest.approx(2, abs=0.25)


def test_balls_are_shift_equivariant():
    metric = rough()
    ball = boundary(metric, padding_mode="circular")
    rolled = boundary(metric.map(lambda t: t.roll((3, 4), (3, 4))), padding_mode="circular")
    torch.testing.assert_close(rolled, ball.roll((3, 4), (2, 3)), atol=1e-12, rtol=0)


def test_balls_are_flip_equivariant():
    metric = rough()
    flipped = mc.Randers(
        metric.M.flip(4) * torch.tensor([1.0, -1.0, 1.0]).view(3, 1, 1),
        metric.omega.flip(4) * torch.tensor([1.0, -1.0]).view(2, 1, 1),
    )
    # (y, x) → (y, −x) takes the angle 2πt/16 to 2π(8 − t)/16.
    order = [(8 - t) % 16 for t in range(16)]
    expected = boundary(metric).flip(3)[order] * torch.tensor([1.0, -1.0]).view(2, 1, 1)
    torch.testing.assert_close(boundary(flipped), expected, atol=1e-12, rtol=0)


def test_balls_are_equivariant_to_90_degree_rotations():
    metric = rough()
    # The rotation takes (y, x) to (−x, y), and the angle 2πt/16 to 2π(t − 4)/16.
    yy, yx, xx = metric.M.rot90(1, (3, 4)).unbind(2)
    wy, wx = metric.omega.rot90(1, (3, 4)).unbind(2)
    rotated = mc.Randers(torch.stack([xx, -yx, yy], 2), torch.stack([-wx, wy], 2))
    y, x = boundary(metric).rot90(1, (2, 3))[[(t + 4) % 16 for t in range(16)]].unbind(1)
    torch.testing.assert_close(boundary(rotated), torch.stack([-x, y], 1), atol=1e-12, rtol=0)


def test_samples_of_a_geodesic_ball_lie_within_geodesic_distance_s():
    metric = rough(5, (19, 19), passes=3)
    stencil = mc.stencils.polar(8)
    ball = mc.GeodesicBall(metric, stencil, 8, smooth=0).offsets()[0, 0]
    distance = distances(metric, ball, [(9, 9), (8, 10)], 6)
    assert (distance - stencil.radii).max() < 0.012
    assert (distance[:, -8:] - 1).abs().mean() < 0.006  # samples of radius 1


def noisy_photograph():
    clean = torch.nn.functional.avg_pool2d(torch.from_numpy(skimage.data.camera())[None, None] / 255.0, 4).double()
    return clean + 0.1 * torch.randn_like(clean)


def distance_errors(metric, steps, min_length, refine):
    """Return geodesic distance − 1 of the outermost samples of geodesic and tangent balls, of a minimum mean length."""
    pixels = [(y, x) for y in (24, 60, 100) for x in (24, 50, 75, 100)]
    rows, columns = zip(*pixels, strict=True)
    tangent = mc.TangentBall(metric, OUTLINE).offsets(BOUNDARY)[0, 0]
    both = torch.cat([boundary(metric, steps=steps), tangent])  # [32, 2, H, W]
    selected = both[:, :, rows, columns]
    assert torch.linalg.vector_norm(selected[:16], dim=1).mean() > min_length
    error = distances(metric, both, pixels, math.ceil(selected.abs().max().item()) + 1, refine=refine) - 1
    return error[:, :16], error[:, 16:]


@pytest.mark.parametrize(
    "compute_metric", [partial(edge_metric, iota=0.03), partial(gradient_metric, alpha=10.0)], ids=["edge", "gradient"]
)
def test_four_steps_are_accurate_for_a_noisy_photograph(compute_metric):
    geodesic_error, tangent_error = distance_errors(
        smoothed(compute_metric(noisy_photograph())), steps=4, min_length=2.5, refine=6
    )
    assert geodesic_error.abs().mean() <= 0.006 and geodesic_error.abs().max() <= 0.06
    assert tangent_error.abs().mean() > 0.06


def test_eight_steps_are_accurate_for_larger_balls():
    metric = smoothed(edge_metric(noisy_photograph(), iota=0.01))
    geodesic_error, tangent_error = distance_errors(metric, steps=8, min_length=4, refine=4)
    assert geodesic_error.abs().mean() <= 0.006
    # Tangent balls with scaled radii would be nearly as accurate on average, but too short at some pixels.
    assert geodesic_error.min() >= -0.02 and geodesic_error.max() <= 0.04
    assert tangent_error.abs().mean() > 0.06


def test_strided_metric_equals_its_interpolation():
    # The fine metric interpolates the one at every second pixel. Only the finite differences of the two differ.
    y, x = lattice((13, 13))
    coarse = conformal(0.3 * (1 + 0.2 * torch.sin(y / 4) * torch.cos(x / 3)))
    fine = coarse.at((torch.stack(lattice((25, 25))) / 2).unsqueeze(0))
    one = mc.GeodesicBall(coarse, OUTLINE, 16, 0, stride=2).offsets(BOUNDARY)[0, 0, :, :, 6, 6]
    two = mc.GeodesicBall(fine, OUTLINE, 16, 0).offsets(BOUNDARY)[0, 0, :, :, 12, 12]
    assert torch.linalg.vector_norm(one - two, dim=1).max() < 0.02
    without_stride = mc.GeodesicBall(coarse, OUTLINE, 16, 0).offsets(BOUNDARY)[0, 0, :, :, 6, 6]
    assert torch.linalg.vector_norm(one - without_stride, dim=1).max() > 0.1


def test_metric_groups_and_images_are_independent():
    metric = mc.Randers.cat([rough(groups=3), rough(1, groups=3)])
    ball = mc.GeodesicBall(metric, STENCILS["onion"])
    assert (ball.batch, ball.groups, ball.spatial) == (2, 3, metric.spatial)
    alone = mc.GeodesicBall(metric[1, 2], STENCILS["onion"]).offsets()
    torch.testing.assert_close(ball.offsets()[1:, 2:], alone)


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (2, 1)])
@pytest.mark.parametrize("padding_mode", ["border", "circular"])
def test_images_one_pixel_wide(size, padding_mode):
    metric = randers(2, spatial=size)
    ball = mc.GeodesicBall(metric, STENCILS["onion"], padding_mode=padding_mode)
    assert ball.offsets().isfinite().all()
    if size == (1, 1):
        torch.testing.assert_close(ball.offsets(), mc.TangentBall(metric, STENCILS["onion"]).offsets())
    y = mc.support_conv(torch.rand(1, 1, *size).double(), ball, torch.ones(1, 1, 5, 5).double(), padding=2)
    assert y.shape == (1, 1, *size)


def test_offsets_and_gradients_do_not_depend_on_chunks(monkeypatch):
    metric = rough()
    tensors = list(metric.tensors().values())

    def both():
        leaves = [t.detach().clone().requires_grad_() for t in tensors]
        offsets = mc.GeodesicBall(mc.Randers(*leaves), STENCILS["onion"]).offsets()
        return offsets, *torch.autograd.grad(offsets.square().sum(), leaves)

    whole = both()
    monkeypatch.setattr(geodesic, "_CHUNK_ELEMENTS", 12 * 12 * 11 * 3)
    for one, other in zip(whole, both(), strict=True):
        torch.testing.assert_close(other, one)


def test_first_and_second_derivatives():
    metric = smoothed(randers(2, spatial=(4, 3), asymmetry=0.4))
    leaves = [t.detach().clone().requires_grad_() for t in metric.tensors().values()]

    def offsets(M, omega):
        return mc.GeodesicBall(mc.Randers(M, omega), mc.stencils.onion(3), 2).offsets()

    assert torch.autograd.gradcheck(offsets, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(offsets, leaves, fast_mode=True)


def test_smoothing_reduces_gradients_of_rough_metrics():
    metric = mc.metrics.edge_metric(torch.rand(1, 1, 24, 24, dtype=torch.float64), iota=0.05, alpha=10.0, scale=None)
    sensitivity = []
    for smooth in (0, 1):
        log = metric.M.detach()[:, :, :1].log().requires_grad_()
        square = log.exp()
        field = mc.Riemannian(torch.cat([square, 0 * square, square], 2))
        ends = mc.GeodesicBall(field, OUTLINE, 4, smooth).offsets(BOUNDARY)
        (grad,) = torch.autograd.grad((ends * torch.randn_like(ends)).sum(), log)
        sensitivity.append(grad.square().mean().sqrt().item())
    assert sensitivity[1] < sensitivity[0] / 1.5


def test_balls_change_continuously_along_a_path_of_metrics():
    t = torch.linspace(0, 1, 321, dtype=torch.float64).view(-1, 1, 1, 1, 1)
    ends = zip(rough(6).tensors().values(), rough(7).tensors().values(), strict=True)
    path = mc.Randers(*(torch.lerp(a, b, t) for a, b in ends))
    balls = mc.GeodesicBall(path, OUTLINE, smooth=0).offsets(BOUNDARY)[:, 0]
    # A discontinuity would be independent of the step size.
    coarse, fine = (torch.linalg.vector_norm(balls[::n].diff(dim=0), dim=2).max() for n in (8, 1))
    assert 0 < fine < min(0.04, coarse / 7)


def test_geometry_stays_in_float32_under_autocast():
    metric = rough().to(torch.bfloat16)
    ball = mc.GeodesicBall(metric, STENCILS["onion"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        offsets = ball.offsets()
    assert offsets.dtype == torch.float32
    torch.testing.assert_close(offsets, ball.offsets())


def test_support_conv_sums_over_geodesic_balls():
    metric, x = rough(), torch.rand(1, 2, 12, 11, dtype=torch.float64)
    stencil, weight = STENCILS["polar"], torch.rand(3, 2, 4, 4, dtype=torch.float64)
    ball = mc.GeodesicBall(metric, stencil, dilation=2)
    deformable = mc.supports.from_torchvision_offsets(mc.supports.to_torchvision_offsets(ball), 4, 2)
    expected = mc.support_conv(x, deformable, weight, padding=3)
    torch.testing.assert_close(mc.support_conv(x, ball, weight, padding=3), expected)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        ({"steps": 0}, ValueError, r"`steps` \(=0\) must be at least 1"),
        ({"steps": 2.5}, ValueError, r"`steps` \(=2.5\)"),
        ({"smooth": -1}, ValueError, r"`smooth` \(=-1\) must be at least 0"),
        ({"stride": 0}, ValueError, r"`stride` \(=0\) must be at least 1"),
        ({"padding_mode": "zeros"}, ValueError, r"`padding_mode` \(='zeros'\) must be one of 'border', 'circular'"),
        ({"metric": torch.ones(3)}, TypeError, "`metric` must be a Metric, got Tensor"),
        ({"stencil": "onion"}, TypeError, "`stencil` must be a Stencil, got str"),
        ({"stencil": mc.stencils.onion(3, 3)}, ValueError, "`stencil` has 3 spatial axes, `metric` has 2"),
    ],
)
def test_invalid_arguments_raise(make, error, message):
    with pytest.raises(error, match=message):
        mc.GeodesicBall(**{"metric": riemannian(2), "stencil": STENCILS["onion"]} | make)


def test_metric_smaller_than_output_raises():
    ball = mc.GeodesicBall(riemannian(2, spatial=(5, 5)), mc.stencils.onion(3))
    with pytest.raises(ValueError, match=r"`metric.M` has .*\(5, 5\); the output needs .*\(8, 8\)"):
        mc.support_conv(torch.zeros(1, 1, 8, 8).double(), ball, torch.ones(1, 1, 3, 3).double(), padding=1)


@pytest.fixture
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.timing
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("stencil", [mc.stencils.polar(11), mc.stencils.onion(11)], ids=["polar", "onion"])
def test_reference_backend_takes_less_than_5_seconds_for_256_pixels(stencil):
    x, weight = torch.rand(1, 1, 256, 256), torch.full((1, 1, 11, 11), 1 / 121)
    metric = mc.Randers(edge_metric(x).M, 0.01 * torch.randn(1, 1, 2, 256, 256))
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        mc.support_conv(x, mc.GeodesicBall(metric, stencil, 4), weight, padding=5, backend="reference")
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 5


def test_polar_stencil_in_3d():
    metric = riemannian(3).expand_to((3, 3, 3))
    stencil = mc.stencils.polar(3, 3)
    assert len(Rays.of(stencil).vectors) == 9
    torch.testing.assert_close(
        mc.GeodesicBall(metric, stencil).offsets(), mc.TangentBall(metric, stencil).offsets(), atol=1e-13, rtol=0
    )


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_broadcast_metric_equals_expanded_metric(backend):
    torch.manual_seed(0)
    strip = mc.Riemannian(torch.tensor([1.0, 0, 1]).view(1, 1, 3, 1, 1) * torch.rand(1, 1, 1, 12, 1).add(0.05))
    whole = strip.map(lambda t: t.expand(1, 1, 3, 12, 10).contiguous())
    x, w, stencil = torch.randn(1, 1, 12, 10), torch.randn(1, 1, 5, 5), mc.stencils.onion(5)
    result, expected = (
        mc.support_conv(x, mc.GeodesicBall(metric, stencil), w, padding=2, backend=backend) for metric in (strip, whole)
    )
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
