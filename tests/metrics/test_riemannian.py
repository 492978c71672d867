"""Riemannian metrics: F(u) = √(uᵀMu)."""

import math

import pytest
import torch

import metricconv as mc
from helpers import riemannian, sphere
from metricconv.metrics import _symmetric

dims = pytest.mark.parametrize("dim", [1, 2, 3, 4])


def metric_of(*packed: float) -> mc.Riemannian:
    dim = _symmetric.dim_of(len(packed))
    return mc.Riemannian(torch.tensor(packed, dtype=torch.float64).view(1, 1, -1, *(1,) * dim))


def test_order_of_axes_and_orientation_of_angles():
    metric = metric_of(1 / 9, 0.0, 1 / 4)  # M_yy, M_yx, M_xx: reaches 3 px along y, 2 px along x
    right, down, left, up = metric.unit_vectors(mc.stencils.polar(4).directions[:4]).view(4, 2).tolist()
    assert right == pytest.approx([0, 2])
    assert down == pytest.approx([3, 0])
    assert left == pytest.approx([0, -2])
    assert up == pytest.approx([-3, 0])


def test_negative_off_diagonal_elongates_ball_along_diagonal():
    metric = metric_of(1.0, -0.5, 1.0)
    along, across = metric.norm(torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double().view(1, 1, 2, 2, 1, 1)).flatten()
    assert along.item() == pytest.approx(1.0)
    assert across.item() == pytest.approx(math.sqrt(3))


@dims
def test_norm_is_the_matrix_norm(dim):
    metric = riemannian(dim, 2, 2, (2,) * dim)
    u = torch.randn(2, 2, dim, *(2,) * dim, dtype=torch.float64)
    columns = u.movedim(2, -1).unsqueeze(-1)
    expected = (columns.mT @ _symmetric.full(metric.M) @ columns).sqrt()[..., 0, 0]
    torch.testing.assert_close(metric.norm(u), expected)


@dims
def test_dual_is_metric_of_inverse_matrix(dim):
    metric = riemannian(dim, 3, 2)
    torch.testing.assert_close(_symmetric.full(metric.dual().M), torch.linalg.inv(_symmetric.full(metric.M)))


@dims
@pytest.mark.parametrize("radius", [1e-8, 1e-4, 1e4, 1e8])
def test_dual_is_accurate_for_all_radii_in_float32(dim, radius):
    metric = riemannian(dim, 20, radius=radius).to(torch.float32)
    expected = _symmetric.packed(torch.linalg.inv(_symmetric.full(metric.M.double())))
    torch.testing.assert_close(metric.dual().M.double() / radius**2, expected / radius**2, atol=1e-3, rtol=1e-4)


@dims
def test_inverse_quadratic_is_squared_dual_norm(dim):
    metric, v = riemannian(dim, 20), torch.randn(20, 1, dim, *(1,) * dim, dtype=torch.float64)
    expected = metric.dual().norm(v).square()
    torch.testing.assert_close(_symmetric.inverse_quadratic(metric.M, v), expected)


@dims
def test_packed_and_full_are_inverse(dim):
    packed = torch.randn(2, 3, dim * (dim + 1) // 2, *(2,) * dim)
    matrix = _symmetric.full(packed)
    assert torch.equal(matrix, matrix.mT)
    assert torch.equal(_symmetric.packed(matrix), packed)


@dims
def test_determinant_and_eigenvalues_agree_with_torch(dim):
    packed = torch.randn(50, 1, dim * (dim + 1) // 2, *(1,) * dim, dtype=torch.float64)
    values = torch.linalg.eigvalsh(_symmetric.full(packed))
    low, high = _symmetric.eigenvalues(packed)
    torch.testing.assert_close(low, values[..., 0])
    torch.testing.assert_close(high, values[..., -1])
    torch.testing.assert_close(_symmetric.determinant(packed), values.prod(-1))


@pytest.mark.parametrize(
    ("packed", "positive"),
    [
        ((0.3,), True),
        ((0.0,), False),
        ((-1.0,), False),
        ((1.0, 0.0, 1.0), True),
        ((1.0, 0.99, 1.0), True),
        ((1.0, 1.0, 1.0), False),
        ((1.0, 1.01, 1.0), False),
        ((-1.0, 0.0, -1.0), False),
        ((1.0, 0.0, -1.0), False),
        ((1.0, 0.0, -2.0), False),
        ((0.0, 0.0, 0.0), False),
        ((1.0, 0.0, 1e-12), True),
        ((math.nan, 0.0, 1.0), False),
        ((1.0, 0.0, 0.0, 1.0, 0.0, 1.0), True),
        ((1.0, 0.9, 0.9, 1.0, 0.9, 1.0), True),
        ((1.0, 0.9, 0.9, 1.0, -0.9, 1.0), False),
        ((1.0, 0.0, 0.0, 1.0, 0.0, 0.0), False),
        ((-1.0, 0.0, 0.0, -1.0, 0.0, 1.0), False),
        ((0.0, 0.0, 0.0, 0.0, 0.0, 0.0), False),
    ],
)
def test_is_positive_if_and_only_if_matrix_is_positive_definite(packed, positive):
    assert metric_of(*packed).is_positive().item() is positive


def test_small_eigenvalues_are_accurate_in_float32():
    metric = metric_of(1.0, 0.0, 1e-10).to(torch.float32)
    assert metric.is_positive().all()
    torch.testing.assert_close(metric.anisotropy.item(), 1e5, rtol=1e-5, atol=0)
    torch.testing.assert_close(metric.bounding_radius.item(), 1e5, rtol=1e-5, atol=0)


@dims
@pytest.mark.parametrize("radius", [0.5, 3])
def test_isotropic_is_round_with_given_radius(dim, radius):
    metric = mc.Riemannian.isotropic(radius, dim)
    points = metric.unit_vectors(sphere(dim, 50))
    torch.testing.assert_close(points.norm(dim=3), torch.full_like(points.norm(dim=3), radius))
    assert metric.anisotropy.item() == pytest.approx(1)
    assert metric.bounding_radius.item() == pytest.approx(radius)


def test_isotropic_of_field_in_all_dtypes():
    radii = torch.tensor([1.0, 2.0, 300.0]).view(1, 1, 1, 3)
    for dtype in (torch.float16, torch.float32, torch.float64):
        torch.testing.assert_close(mc.Riemannian.isotropic(radii.to(dtype)).bounding_radius.float(), radii)


@pytest.mark.parametrize("dim", [2, 3, 4])
def test_needle_has_given_length_and_width(dim):
    frame = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64))[0].T
    metric = mc.Riemannian.needle(3.7 * frame[0].view(1, 1, dim, *(1,) * dim), length=4.0, width=0.5)
    reach = metric.unit_vectors(frame).norm(dim=3).flatten()
    torch.testing.assert_close(reach, torch.tensor([4.0] + [0.5] * (dim - 1)).double())
    assert metric.anisotropy.item() == pytest.approx(8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_needle_without_direction_is_a_disc(dtype):
    metric = mc.Riemannian.needle(torch.zeros(1, 1, 2, 1, 1, dtype=dtype), length=4.0, width=0.5)
    torch.testing.assert_close(metric.M.flatten(), torch.tensor([4.0, 0.0, 4.0]))


def test_needle_with_fields_of_lengths_and_widths():
    length, width = 1 + torch.rand(2, 1, 4, 5), torch.rand(2, 1, 4, 5) + 0.1
    metric = mc.Riemannian.needle(torch.randn(2, 1, 2, 4, 5), length, width)
    torch.testing.assert_close(metric.bounding_radius, torch.maximum(length, width), rtol=1e-4, atol=0)
    torch.testing.assert_close(metric.volume, math.pi * length * width, rtol=1e-4, atol=0)


@pytest.mark.parametrize(("length", "width"), [(-1.0, 1.0), (1.0, 0.0)])
def test_needle_with_invalid_size_raises(length, width):
    with pytest.raises(ValueError, match=r"`(length|width)` \(=(-1.0|0.0)\) must be positive"):
        mc.Riemannian.needle(torch.ones(1, 1, 2, 1, 1), length, width)


@pytest.mark.parametrize("dim", [2, 3])
def test_anisotropy_is_ratio_of_longest_to_shortest_unit_vector(dim):
    metric = riemannian(dim, 4)
    reach = metric.unit_vectors(sphere(dim, 2**14)).norm(dim=3)
    torch.testing.assert_close(metric.anisotropy, reach.amax(2) / reach.amin(2), rtol=1e-2, atol=0)


@dims
def test_asymmetry_is_zero(dim):
    assert (riemannian(dim, 2).asymmetry == 0).all()


@dims
def test_volume_of_a_box_of_half_axes(dim):
    axes = torch.tensor([0.5, 2.0, 3.0, 1.5][:dim]).double()
    metric = mc.Riemannian.isotropic(1.0, dim).to(torch.float64).scaled(axes.tolist())
    expected = {1: 2.0, 2: math.pi, 3: 4 * math.pi / 3, 4: math.pi**2 / 2}[dim] * axes.prod().item()
    assert metric.volume.item() == pytest.approx(expected)


def test_cat_requires_metrics_of_same_class():
    one, other = (
        mc.Riemannian.isotropic(1.0),
        mc.Randers(torch.tensor([1.0, 0, 1]).view(1, 1, 3, 1, 1), torch.zeros(1, 1, 2, 1, 1)),
    )
    joined = mc.Riemannian.cat([one, one])
    assert joined.batch == 2 and isinstance(joined, mc.Riemannian)
    with pytest.raises(TypeError, match=r"`metrics` must be one or more Riemannian, got \['Riemannian', 'Randers'\]"):
        mc.Riemannian.cat([one, other])
    with pytest.raises(TypeError, match="`metrics` must be one or more Riemannian"):
        mc.Riemannian.cat([])


def test_expand_to():
    strip = mc.Riemannian.isotropic(torch.tensor([1.0, 2.0]).view(1, 1, 1, 2))
    whole = strip.expand_to((3, 2))
    assert whole.spatial == (3, 2) and (whole.M == strip.M).all() and strip.expand_to((1, 2)).spatial == (1, 2)
    for size in ((3, 4), (3,), (3, 2, 2), (-1, 2), (None, 2), (1.0, 2), 2, "12"):
        with pytest.raises(ValueError, match=r"must equal the size \(1, 2\) of the metric"):
            strip.expand_to(size)
