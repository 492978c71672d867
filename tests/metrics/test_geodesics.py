"""The functions ``geodesics``, ``exp_map`` and ``check_positive``: arguments, derivatives, errors."""

import math

import numpy as np
import pytest
import torch

import metricconv as mc
from geodesy import circle, conformal, lattice, rough
from helpers import make_metric, randers, riemannian, sphere
from metricconv.metrics import check_positive, exp_map, geodesics, smoothed
from metricconv.metrics.eikonal import hopf_lax_distance


@pytest.mark.parametrize("kind", ["riemannian", "randers"])
@pytest.mark.parametrize("dim", [2, 3])
def test_exp_map_is_the_end_of_the_geodesic(kind, dim):
    metric = smoothed(make_metric(kind, dim, 2, 2, (6, 5, 4)[:dim], radius=1.5))
    points, directions = 1 + torch.rand(5, dim, dtype=torch.float64), sphere(dim, 5)
    ends = geodesics(metric, points, directions, 0.7, 6)[:, :, :, -1]
    local = metric.at(points.t().reshape(1, dim, 5, *(1,) * (dim - 1)))
    norm = local.norm(directions.t().reshape(1, 1, dim, 5, *(1,) * (dim - 1))).flatten(2)  # [2, 2, 5]
    vectors = 0.7 * directions / norm.unsqueeze(-1)
    torch.testing.assert_close(exp_map(metric, points.expand(2, 2, 5, dim), vectors, 6), ends)


def test_exp_map_of_zero_is_the_point_itself():
    metric = rough()
    point = torch.tensor([[4.0, 5.0]], dtype=torch.float64, requires_grad=True)
    end = exp_map(metric, point, torch.zeros(1, 2))
    assert torch.equal(end[0, 0], point)
    end.sum().backward()
    assert point.grad.isfinite().all()


def test_geodesics_along_zero_are_constant():
    metric = mc.Riemannian.isotropic(2.0)
    directions = torch.tensor([[0.0, 0.0], [0.0, 1.0]], requires_grad=True)
    curves = geodesics(metric, torch.tensor([[5.0, 5.0], [5.0, 5.0]]), directions, length=3.0, steps=2)
    assert curves[0, 0, 0].tolist() == [[5.0, 5.0]] * 3 and curves[0, 0, 1, -1].tolist() == [5.0, 11.0]
    (grad,) = torch.autograd.grad(curves.sum(), directions)
    assert grad[0].tolist() == [0.0, 0.0] and grad.isfinite().all()


def test_one_length_per_geodesic():
    metric, points, lengths = rough(), torch.full((3, 2), 5.0), torch.tensor([0.2, 0.5, 1.0])
    together = geodesics(metric, points, circle(3), lengths, 5)
    for n, length in enumerate(lengths.tolist()):
        alone = geodesics(metric, points[n : n + 1], circle(3)[n : n + 1], length, 5)
        torch.testing.assert_close(together[:, :, n : n + 1], alone)


def test_geodesics_are_straight_outside_of_the_image():
    y, x = lattice((8, 9))
    metric = conformal(0.3 * (1 + 0.4 * torch.sin(2 * math.pi * x / 9) * torch.cos(2 * math.pi * y / 8)))
    upwards = circle(6) * torch.tensor([-1.0, 1.0]) * circle(6)[:, :1].sign()
    curves = geodesics(metric, torch.tensor([[-2.0, 4.0]]).expand(6, 2), upwards, 0.5, 3)[0, 0]
    steps = torch.nn.functional.normalize(curves.diff(dim=1), dim=-1)
    torch.testing.assert_close(steps, torch.nn.functional.normalize(upwards, dim=-1).unsqueeze(1).expand_as(steps))


def test_circular_padding_wraps_around():
    y, x = lattice((8, 9))
    metric = conformal(0.3 * (1 + 0.4 * torch.sin(2 * math.pi * x / 9) * torch.cos(2 * math.pi * y / 8)))
    rolled = metric.map(lambda t: t.roll((4, 5), (3, 4)))
    corner = torch.tensor([[7.0, 8.0]]).expand(6, 2)
    one = geodesics(metric, corner, circle(6), 1.0, 4, padding_mode="circular")
    two = geodesics(rolled, corner - 4, circle(6), 1.0, 4, padding_mode="circular")
    torch.testing.assert_close(two + 4, one)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_derivatives_of_first_and_second_order(dim):
    size = (5, 4, 3)[:dim]
    metric = smoothed(randers(dim, spatial=size, radius=1.0, asymmetry=0.4))
    leaves = [t.detach().clone().requires_grad_() for t in metric.tensors().values()]
    points = (1.137 + 0.31 * torch.rand(1, dim, dtype=torch.float64)).requires_grad_()
    vectors = (0.4 * sphere(dim, 1)[:1]).clone().requires_grad_()

    def end(M, omega, points, vectors):
        return exp_map(mc.Randers(M, omega), points, vectors, 2)

    assert torch.autograd.gradcheck(end, (*leaves, points, vectors), fast_mode=True)
    if dim == 2:
        assert torch.autograd.gradgradcheck(end, (*leaves, points, vectors), fast_mode=True)


def test_check_positive_error_names_the_pixel():
    metric = riemannian(2, 2, 1, (4, 5))
    check_positive(metric)
    M = metric.M.clone()
    M[1, 0, :, 2, 3] = torch.tensor([1.0, 2.0, 1.0])
    with pytest.raises(ValueError, match=r"index \(1, 0, 2, 3\) \(1 such of 40 pixels\): M = \[1.0, 2.0, 1.0\]"):
        check_positive(mc.Riemannian(M))


@pytest.mark.parametrize("bad", [[1.0, 2.0, 1.0], [-1.0, 0.0, -1.0]], ids=["indefinite", "negative"])
def test_geodesics_of_metrics_that_are_not_positive_raise(bad):
    M = riemannian(2, spatial=(6, 6)).M.clone()
    M[0, 0, :, 3, 4] = torch.tensor(bad)
    point, message = torch.ones(1, 2), r"`metric` must be positive; it is not at index \(0, 0, 3, 4\)"
    for trace in (geodesics, exp_map):
        with pytest.raises(ValueError, match=message):
            trace(mc.Riemannian(M), point, point)


def test_exp_map_under_torch_func_and_torch_compile():
    points, M = torch.full((3, 2), 5.0).double(), rough().M

    def ends(M):
        return exp_map(mc.Riemannian(M), points, circle(3), 2)

    expected = ends(M)
    together = torch.func.vmap(ends)(torch.stack([M, 2 * M]))
    torch.testing.assert_close(together[0], expected)
    assert torch.func.jacrev(ends)(M).isfinite().all()
    graph = torch.compile(ends, backend="eager", fullgraph=True)
    torch.testing.assert_close(graph(M), expected)


def test_invalid_arguments_raise():
    metric, point = riemannian(2, spatial=(4, 4)), torch.zeros(1, 2)
    for steps in (0, -1, 1.5):
        with pytest.raises(ValueError, match=rf"`steps` \(={steps}\) must be"):
            geodesics(metric, point, point + 1, steps=steps)
    with pytest.raises(
        ValueError, match=r"`points` must be \(N, 2\) or, for this metric, \(1, 1, N, 2\), got.*\(1, 3\)"
    ):
        geodesics(metric, torch.zeros(1, 3), point)
    with pytest.raises(ValueError, match=r"`directions` must be .*got shape \(2, 1, 1, 2\)"):
        geodesics(metric, point, torch.zeros(2, 1, 1, 2))
    with pytest.raises(ValueError, match=r"`padding_mode` \(='zeros'\) must be one of 'border', 'circular'"):
        geodesics(metric, point, point + 1, padding_mode="zeros")
    with pytest.raises(ValueError, match=r"`points` must be .*got shape \(1, 3\)"):
        exp_map(metric, points=torch.zeros(1, 3), vectors=point)
    with pytest.raises(ValueError, match=r"`points`, `vectors` must have the same length N, got \[2, 3\]"):
        exp_map(metric, torch.zeros(2, 2), torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"`passes` \(=-1\)"):
        smoothed(metric, -1)

    class Other(mc.Riemannian):
        pass

    with pytest.raises(TypeError, match="`metric` must be Riemannian or Randers for geodesics, got Other"):
        geodesics(Other(metric.M), point, point + 1)


@pytest.mark.parametrize(
    "convert", [lambda p: p, lambda p: torch.tensor(p), np.array], ids=["lists", "tensor", "array"]
)
def test_points_may_be_integers_in_lists_tensors_and_arrays(convert):
    metric = riemannian(2, spatial=(6, 6))
    point, step = torch.tensor([[2.0, 3.0]]), torch.tensor([[1.0, 0.0]])
    pixel, along = convert([[2, 3]]), convert([[1, 0]])
    assert torch.equal(geodesics(metric, pixel, along), geodesics(metric, point, step))
    assert torch.equal(exp_map(metric, pixel, along), exp_map(metric, point, step))
    assert torch.equal(hopf_lax_distance(metric, pixel), hopf_lax_distance(metric, point))


def test_points_of_invalid_type_raise():
    metric = riemannian(2, spatial=(6, 6))
    with pytest.raises(
        TypeError, match=r"`source` must be a torch.Tensor, an array or lists of numbers, got \[\['a'\]\]"
    ):
        hopf_lax_distance(metric, [["a"]])
    with pytest.raises(TypeError, match=r"`points` must hold real numbers, got dtype torch.bool"):
        geodesics(metric, torch.ones(1, 2, dtype=torch.bool), torch.ones(1, 2))


@pytest.mark.parametrize(
    ("count", "length", "message"),
    [
        (3, 1.0, r"`points`, `directions` must have the same length N, got \[2, 3\]"),
        (2, torch.ones(3), r"`points`, `directions`, `length` must have the same length N, got \[2, 2, 3\]"),
        (2, torch.ones(1, 2), r"`length` must be a number, \(N,\) or \(B, G, N\), got shape \(1, 2\)"),
    ],
)
def test_different_numbers_of_points_raise(count, length, message):
    with pytest.raises(ValueError, match=message):
        geodesics(rough(), torch.full((2, 2), 5.0), circle(count), length)


def test_one_point_broadcasts_to_all_directions():
    point = torch.full((1, 2), 5.0)
    torch.testing.assert_close(geodesics(rough(), point, circle(3)), geodesics(rough(), point.expand(3, 2), circle(3)))


@pytest.mark.parametrize("size", [1e-38, 1e-23, 1.0, 1e20, 1e30])
def test_vectors_of_any_length_in_float32(size):
    flat = mc.Riemannian.isotropic(1.0).expand_to((12, 12))
    vector = size * torch.tensor([[0.6, 0.8]])
    curve = geodesics(flat, [[5.0, 5.0]], vector, length=2.0, steps=2)[0, 0, 0]
    torch.testing.assert_close(curve[-1], torch.tensor([6.2, 6.6]))
    vector = vector.clamp_max(1e9).requires_grad_()  # the length of the path
    end = exp_map(flat, [[5.0, 5.0]], vector)[0, 0, 0]
    assert torch.isfinite(end).all()
    (gradient,) = torch.autograd.grad(end[0], vector)
    torch.testing.assert_close(gradient, torch.tensor([[1.0, 0.0]]), atol=1e-5, rtol=0)


def test_length_of_invalid_type_raises():
    with pytest.raises(TypeError, match=r"`length` must be .* numbers, got 'far'"):
        geodesics(mc.Riemannian.isotropic(1.0), [[5.0, 5.0]], [[1.0, 0.0]], length="far")


def test_replicate_is_border():
    metric, points, vectors = rough(), torch.tensor([[0.0, 1.0]]), torch.tensor([[-2.0, 1.0]])
    ends = [exp_map(metric, points, vectors, 4, padding_mode=mode) for mode in ("border", "replicate")]
    assert torch.equal(*ends)
    balls = [mc.GeodesicBall(metric, mc.stencils.onion(3), padding_mode=mode) for mode in ("border", "replicate")]
    assert torch.equal(*(ball.offsets() for ball in balls)) and balls[1].padding_mode == "border"
    position = torch.full((1, 2, 1, 1), -3.0, dtype=torch.float64)
    assert torch.equal(*(metric.at(position, mode).M for mode in ("border", "replicate")))
