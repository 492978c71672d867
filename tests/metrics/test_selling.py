"""Selling's decomposition: nonnegative weights, integer directions, and the matrix as their sum."""

import pytest
import torch

from metricconv.metrics import _selling, _symmetric


def matrices(dim: int, count: int, condition: float) -> torch.Tensor:
    """Return random positive definite matrices of a condition number, packed: (d(d+1)/2, P)."""
    frames = torch.linalg.qr(torch.randn(count, dim, dim, dtype=torch.float64)).Q
    values = torch.logspace(0, torch.tensor(condition).log10().item(), dim, dtype=torch.float64)
    full = frames @ torch.diag(values) @ frames.mT
    return torch.stack([full[:, i, j] for i, j in _symmetric.pairs(dim)])


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("condition", [1.0, 30.0, 1e6])
def test_weighted_directions_sum_to_the_matrix(dim, condition):
    packed = matrices(dim, 200, condition)
    weights, directions = _selling.decompose(packed)
    e = directions.double()
    total = torch.stack([(weights * e[:, i] * e[:, j]).sum(0) for i, j in _symmetric.pairs(dim)])
    assert weights.min() >= 0
    torch.testing.assert_close(total, packed, rtol=1e-9, atol=1e-9 * condition)


def test_diagonal_matrices_have_axis_directions():
    weights, directions = _selling.decompose(torch.tensor([[2.0], [0.0], [0.5]]))
    found = {
        tuple(abs(v) for v in e.tolist()): w for w, e in zip(weights[:, 0].tolist(), directions[..., 0], strict=True)
    }
    assert found[(1, 0)] == 2 and found[(0, 1)] == 0.5
    assert sorted(weights[:, 0].tolist()) == [0.0, 0.5, 2.0]


def test_directions_of_a_thin_matrix_are_along_it():
    along = torch.tensor([3.0, 5.0]) / 34**0.5
    across = torch.tensor([5.0, -3.0]) / 34**0.5
    full = torch.outer(along, along) + 1e-6 * torch.outer(across, across)
    weights, directions = _selling.decompose(torch.stack([full[0, 0], full[0, 1], full[1, 1]]).unsqueeze(1))
    assert directions[weights[:, 0].argmax(), :, 0].abs().tolist() == [3, 5]
