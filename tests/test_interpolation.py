"""Interpolation between pixels and padding at the border."""

import math

import pytest
import torch

from helpers import PADDING_MODES, read
from metricconv._interpolation import corners, interpolate

modes = pytest.mark.parametrize("padding_mode", PADDING_MODES)


@modes
@pytest.mark.parametrize("size", [(5,), (1,), (2,), (4, 3), (1, 6), (3, 4, 2), (2, 3, 2, 3)])
def test_interpolation_equals_the_python_loop(size, padding_mode):
    dim = len(size)
    field, position = torch.randn(2, 3, *size).double(), torch.randn(2, 7, dim).double() * 6
    expected = [
        [[read(c, size, p, padding_mode) for p in position[b].tolist()] for c in field[b].tolist()] for b in (0, 1)
    ]
    torch.testing.assert_close(interpolate(field, position, padding_mode), torch.tensor(expected).double())


@modes
def test_interpolation_at_pixels_returns_their_values(padding_mode):
    field = torch.randn(1, 2, 3, 4)
    position = torch.stack(torch.meshgrid(torch.arange(3.0), torch.arange(4.0), indexing="ij"), -1)[None]
    assert torch.equal(interpolate(field, position, padding_mode), field)


def test_padding_modes_equal_hand_computed_values():
    field, position = torch.tensor([[[10.0, 20.0, 40.0]]]), torch.tensor([[-1.0], [-2.0], [3.0], [4.0], [2.5], [-0.25]])
    expected = {
        "zeros": [0.0, 0.0, 0.0, 0.0, 20.0, 7.5],
        "border": [10.0, 10.0, 40.0, 40.0, 40.0, 10.0],
        "reflect": [20.0, 40.0, 20.0, 10.0, 30.0, 12.5],
        "circular": [40.0, 20.0, 10.0, 20.0, 25.0, 17.5],
    }
    for mode, values in expected.items():
        assert interpolate(field, position[None], mode).flatten().tolist() == values, mode


@modes
def test_corner_weights_sum_to_one_except_for_zero_padding(padding_mode):
    total = sum(weight for _, weight in corners(torch.randn(50, 2) * 5, (3, 4), padding_mode))
    if padding_mode == "zeros":
        assert ((total >= 0) & (total <= 1 + 1e-6)).all()
    else:
        torch.testing.assert_close(total, torch.ones(50))


@modes
@pytest.mark.parametrize("far", [1e30, -1e30, math.inf, -math.inf, 3e9])
def test_far_positions_read_finite_values(padding_mode, far):
    value = interpolate(torch.randn(1, 1, 4, 5), torch.full((1, 1, 2), far), padding_mode)
    assert value.isfinite().all()
    if padding_mode == "zeros":
        assert value.item() == 0


@modes
def test_a_nan_position_reads_nan(padding_mode):
    position = torch.tensor([[[1.0, math.nan], [math.nan, math.nan], [1.0, 1.0]]])
    value = interpolate(torch.randn(1, 1, 4, 5), position, padding_mode).flatten()
    assert value.isnan().tolist() == [True, True, False]


@modes
def test_interpolation_has_exact_derivatives_off_the_lattice(padding_mode):
    field = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    position = (torch.randn(1, 5, 2, dtype=torch.float64) * 3).requires_grad_()
    torch.autograd.gradcheck(lambda f, p: interpolate(f, p, padding_mode), (field, position))


@modes
def test_second_derivative_on_the_lattice_is_the_central_difference_of_the_first(padding_mode):
    field = torch.randn(1, 1, 4, 5).double()

    def slope_along_x(position: torch.Tensor) -> torch.Tensor:
        value = interpolate(field, position.view(1, 1, 2), padding_mode).sum()
        return torch.autograd.grad(value, position, create_graph=True)[0][1]

    for y in (-1.0, 0.0, 2.0, 3.0, 4.0, 1.3):
        for x in (-1.0, 0.0, 2.0, 4.0, 5.0, 0.6):
            position = torch.tensor([y, x]).double().requires_grad_()
            mixed, _ = torch.autograd.grad(slope_along_x(position), position)[0]
            step = torch.tensor([1e-4, 0.0], dtype=torch.float64)
            quotient = (slope_along_x(position + step) - slope_along_x(position - step)) / 2e-4
            torch.testing.assert_close(mixed, quotient.detach(), atol=1e-8, rtol=1e-8)


@modes
def test_values_on_the_lattice_do_not_depend_on_requires_grad(padding_mode):
    field = torch.randn(1, 2, 4, 5)
    position = torch.randint(-3, 8, (1, 40, 2)).float()
    position += torch.tensor([0.0, 6e-8, -6e-8, 0.4])[torch.randint(0, 4, position.shape)]
    expected = interpolate(field, position, padding_mode)
    torch.testing.assert_close(interpolate(field, position.requires_grad_(), padding_mode), expected, atol=1e-6, rtol=0)
