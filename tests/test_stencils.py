"""Stencils: directions and radii of the sampling patterns."""

import itertools
import math

import pytest
import torch

import metricconv as mc
from metricconv.stencils import Stencil, onion, polar, square_onion

odd = pytest.mark.parametrize("k", [1, 3, 5, 7, 11])


def cells_of(k: int, dim: int) -> list[tuple[int, ...]]:
    return list(itertools.product(range(-(k // 2), k // 2 + 1), repeat=dim))


def angles_of(stencil: Stencil) -> torch.Tensor:
    y, x = stencil.directions.unbind(1)
    return torch.atan2(y, x).remainder(2 * math.pi)


@pytest.mark.parametrize(
    ("make", "k", "dim"),
    [
        (polar, 4, 1),
        *itertools.product([polar, onion, square_onion], [3, 5], [2, 3]),
        (onion, 3, 1),
        (square_onion, 3, 1),
    ],
)
def test_stencil_has_one_unit_direction_per_cell(make, k, dim):
    stencil = make(k, dim)
    assert stencil.samples == k**dim
    assert stencil.dim == dim
    assert stencil.kernel_size == (k,) * dim
    torch.testing.assert_close(stencil.directions.norm(dim=1), torch.ones(k**dim).double())


def test_polar_rows_are_radii_and_columns_are_angles():
    for k in (2, 3, 4, 7):
        stencil = polar(k)
        rows = torch.arange(1, k + 1).double() / k
        torch.testing.assert_close(stencil.radii.view(k, k), rows[:, None].expand(k, k))
        columns = 2 * math.pi * torch.arange(k).double() / k
        torch.testing.assert_close(angles_of(stencil).view(k, k), columns.expand(k, k))


def test_polar_directions_start_right_and_continue_downwards():
    torch.testing.assert_close(
        polar(4).directions[:4], torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, -1.0], [-1.0, 0.0]]).double()
    )


def test_polar_in_one_dimension_is_symmetric():
    stencil = polar(4, 1)
    assert (stencil.directions[:, 0] * stencil.radii).tolist() == [-1.0, -0.5, 0.5, 1.0]


@pytest.mark.parametrize("k", [4, 7, 11])
def test_polar_in_three_dimensions_is_nearly_uniform(k):
    stencil = polar(k, 3)
    assert stencil.radii.view(k, k * k).eq((torch.arange(k).double()[:, None] + 1) / k).all()
    shell = stencil.directions[: k * k]
    torch.testing.assert_close(shell.mean(0), torch.zeros(3).double(), atol=2 / k**2, rtol=0)
    torch.testing.assert_close(shell.T @ shell / k**2, torch.eye(3).double() / 3, atol=2 / k**2, rtol=0)
    gaps = torch.cdist(shell, shell).fill_diagonal_(math.inf).amin(1)
    assert gaps.max() / gaps.min() < 1.6


@odd
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_onion_radius_is_ring_index(k, dim):
    expected = [max(map(abs, c)) / max(k // 2, 1) for c in cells_of(k, dim)]
    assert onion(k, dim).radii.tolist() == expected


@odd
def test_onion_rings_have_uniform_angles(k):
    stencil = onion(k)
    for ring in range(1, k // 2 + 1):
        on_ring = [max(map(abs, c)) == ring for c in cells_of(k, 2)]
        steps = angles_of(stencil)[on_ring] * (8 * ring / (2 * math.pi))
        torch.testing.assert_close(steps, steps.round(), atol=1e-9, rtol=0)
        assert sorted(int(s) % (8 * ring) for s in steps.round()) == list(range(8 * ring))


@odd
def test_onion_preserves_angular_order_of_cells(k):
    cells, angles = cells_of(k, 2), angles_of(onion(k)).tolist()
    for ring in range(1, k // 2 + 1):
        on_ring = [n for n, c in enumerate(cells) if max(map(abs, c)) == ring]
        angle_of_cell = {n: math.atan2(*cells[n]) % (2 * math.pi) for n in on_ring}
        assert sorted(on_ring, key=angle_of_cell.get) == sorted(
            on_ring, key=lambda n: round(angles[n], 9) % (2 * math.pi)
        )
        assert max(abs(angles[n] - angle_of_cell[n]) for n in on_ring) < math.radians(4.1)


@odd
@pytest.mark.parametrize("dim", [2, 3])
def test_onion_has_the_symmetries_of_the_cube(k, dim):
    cells, points = cells_of(k, dim), onion(k, dim).directions
    index = {c: n for n, c in enumerate(cells)}
    for axes in itertools.permutations(range(dim)):
        for signs in itertools.product((1, -1), repeat=dim):
            image = [index[tuple(s * c[a] for s, a in zip(signs, axes, strict=True))] for c in cells]
            expected = points[:, axes] * torch.tensor(signs).double()
            off_center = torch.tensor([any(c) for c in cells])
            torch.testing.assert_close(points[image][off_center], expected[off_center])


def test_onion_in_one_dimension_is_the_segment():
    stencil = onion(5, 1)
    assert (stencil.directions[:, 0] * stencil.radii).tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0]


def test_onion_of_size_three():
    r = math.sqrt(0.5)
    center = [0, 1]  # of radius 0: the last unit vector
    expected = [[-r, -r], [-1, 0], [-r, r], [0, -1], center, [0, 1], [r, -r], [1, 0], [r, r]]
    torch.testing.assert_close(onion(3).directions, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize(("k", "dim"), [(1, 2), (3, 1), (3, 2), (5, 2), (7, 2), (3, 3)])
def test_square_onion_of_isotropic_metric_is_dilated_grid(k, dim, dilation):
    metric = mc.Riemannian.isotropic(float(dilation * max(k // 2, 1)), dim).to(torch.float64)
    ball = mc.TangentBall(metric, square_onion(k, dim))
    torch.testing.assert_close(ball.offsets(), mc.Grid(k, dilation, dim=dim).offsets().double())


def test_square_onion_corners_have_radius_sqrt_dim():
    for dim in (1, 2, 3):
        assert square_onion(5, dim).radii.max().item() == pytest.approx(math.sqrt(dim))


@pytest.mark.parametrize("kernel_size", [(3, 1), (1, 5), (3, 5), (1, 3, 5)])
def test_square_onion_accepts_one_kernel_size_per_axis(kernel_size):
    stencil = square_onion(kernel_size)
    assert stencil.kernel_size == kernel_size
    grid = mc.Grid(kernel_size).offsets().view(-1, len(kernel_size)).double()
    torch.testing.assert_close(stencil.radii[:, None] * stencil.directions * (max(kernel_size) // 2), grid)


@pytest.mark.parametrize(("kernel_size", "spacing"), [((3, 5), (2, 1)), ((3, 3), (1, 3)), ((3, 1), (2, 2))])
def test_square_onion_with_spacing_is_anisotropically_dilated_grid(kernel_size, spacing):
    reach = max(k // 2 * s for k, s in zip(kernel_size, spacing, strict=True))
    metric = mc.Riemannian.isotropic(float(reach)).to(torch.float64)
    ball = mc.TangentBall(metric, square_onion(kernel_size, spacing=spacing))
    torch.testing.assert_close(ball.offsets(), mc.Grid(kernel_size, spacing).offsets().double())


def test_center_has_radius_zero_and_unit_direction():
    for stencil in (onion(3), square_onion(3), onion(3, 3), onion(1)):
        center = stencil.samples // 2
        assert stencil.radii[center] == 0
        assert stencil.directions[center].tolist() == [0.0] * (stencil.dim - 1) + [1.0]


def test_repr_is_short():
    assert repr(onion(3)) == "Stencil(kernel_size=(3, 3), dtype=torch.float64, device='cpu')"


def test_to_converts_a_stencil():
    stencil = onion(3).to(torch.float32)
    assert stencil.directions.dtype == stencil.radii.dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: onion(4), r"`kernel_size` \(=4\) must be odd"),
        (lambda: onion(0), r"`kernel_size` \(=0\) must be at least 1"),
        (lambda: onion(-3), r"`kernel_size` \(=-3\) must be at least 1"),
        (lambda: onion(2.5), r"`kernel_size` \(=2.5\) must be an int"),
        (lambda: square_onion((3, 2)), r"`kernel_size` \(=\(3, 2\)\) must be odd"),
        (lambda: polar(1), r"`kernel_size` \(=1\) must be at least 2"),
        (lambda: polar(3, 1), r"`kernel_size` \(=3\) must be even"),
        (lambda: square_onion(3, spacing=0), r"`spacing` \(=0\) must be at least 1"),
        (
            lambda: Stencil(torch.ones(4, 2), torch.ones(9), (3, 3)),
            r"must be \(9, 2\) and \(9,\).*got \(4, 2\) and \(9,\)",
        ),
    ],
)
def test_invalid_arguments_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()
