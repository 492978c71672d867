"""Formulas of the parametrizations: the paper's algorithms, frames, drift."""

import itertools
import math

import pytest
import torch
from torch import Tensor

import metricconv as mc
from metricconv.metrics import _symmetric
from metricconv.metrics._frames import FRAMES, frame_of
from metricconv.metrics.parametrizations import Cholesky, Spectral6, Spectral7
from raw_parameters import DENORMAL, drifts, field, matrices, random_raw

# The formulas of the paper in its (x, y) order, plus the lower bounds of the implementation.
DELTA, EPS_OMEGA, EPS = 1e-4, 0.3, 1e-6


def paper_drift(M: Tensor, omega: Tensor) -> Tensor:
    norm = (omega @ torch.linalg.inv(M) @ omega + EPS).sqrt()
    return 2 * (1 - EPS_OMEGA) * (torch.sigmoid(norm) - 0.5) / norm * omega


def paper_rotation(r: Tensor) -> Tensor:
    r = r + EPS
    return torch.stack([r, torch.stack([-r[1], r[0]])], 1) / (r.norm() + EPS)


def in_paper_order(metric: mc.Randers) -> tuple[Tensor, Tensor]:
    """Return M and ω of a single pixel in (x, y) order."""
    return matrices(metric)[0].flip(0, 1), drifts(metric)[0].flip(0)


@pytest.mark.parametrize("seed", range(5))
def test_cholesky_is_algorithm_1_with_trace_floor(seed):
    torch.manual_seed(seed)
    l11, l21, l22, *omega = torch.randn(5, dtype=torch.float64)
    # The paper's L is in (x, y) order, ours in (y, x): equal channels give equal matrices, for different axes.
    L = torch.stack([torch.stack([l11.abs() + 0.01, torch.zeros(()).double()]), torch.stack([l21, l22.abs() + 0.01])])
    M = L @ L.T
    M = M + DELTA * M.trace() * torch.eye(2).double()
    metric = Cholesky(eps_omega=EPS_OMEGA)(field(torch.stack([l11, l21, l22, *omega])[None], 2))
    torch.testing.assert_close(matrices(metric)[0], M, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(drifts(metric)[0], paper_drift(M, torch.stack(omega)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_spectral6_is_algorithm_2_with_trace_floor(seed):
    torch.manual_seed(seed)
    r, eigenvalues, omega = torch.randn(3, 2, dtype=torch.float64)
    R = paper_rotation(r)
    M = R @ torch.diag(eigenvalues.abs() + 0.01) @ R.T
    M = M + DELTA * M.trace() * torch.eye(2).double()
    raw = torch.cat([r.flip(0), eigenvalues, omega.flip(0)])
    ours = in_paper_order(Spectral6(eps_omega=EPS_OMEGA)(field(raw[None], 2)))
    torch.testing.assert_close(ours, (M, paper_drift(M, omega)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_spectral7_is_algorithm_3_with_half_its_range_and_floor(seed):
    torch.manual_seed(seed)
    r, eigenvalues, omega = torch.randn(3, 2, dtype=torch.float64)
    s = torch.randn((), dtype=torch.float64)
    R = paper_rotation(r)
    scale = (0.1 + 1.5) / 2 + (torch.sigmoid(s) - 0.5) * (1.5 - 0.1)  # the printed factor 2 exceeds [0.1, 1.5]
    M = R @ torch.diag(2 * torch.sigmoid(eigenvalues) * scale) @ R.T
    M = 0.99 * M + 0.01 * scale * torch.eye(2).double()
    raw = torch.cat([r.flip(0), eigenvalues, s[None], omega.flip(0)])
    ours = in_paper_order(Spectral7(eps_omega=EPS_OMEGA)(field(raw[None], 2)))
    torch.testing.assert_close(ours, (M, paper_drift(M, omega)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
def test_cholesky_channels_are_the_lower_triangle_row_by_row(dim):
    raw = torch.randn(1, dim * (dim + 1) // 2, dtype=torch.float64)
    L = torch.zeros(dim, dim, dtype=torch.float64)
    L[tuple(torch.tril_indices(dim, dim))] = raw[0]
    L = L.tril(-1) + torch.diag(L.diagonal().abs() + 0.01)
    M = L @ L.T
    ours = matrices(Cholesky(dim=dim, eps_omega=1)(field(raw, dim)))[0]
    torch.testing.assert_close(ours, M + DELTA * M.trace() * torch.eye(dim).double(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("frame", "dim"), [("vector", 2), *itertools.product(["skew", "givens"], [2, 3, 4])])
def test_frames_are_orthonormal(frame, dim):
    raw = torch.randn(20, len(FRAMES[frame].start(dim)), dtype=torch.float64)
    U = torch.stack([axis.flatten(1) for axis in FRAMES[frame].axes(field(raw, dim), dim)], -1)
    tolerance = 1e-5 if frame == "vector" else 1e-12  # since short vectors are regularized
    torch.testing.assert_close(U.mT @ U, torch.eye(dim).double().expand(20, -1, -1), rtol=0, atol=tolerance)


@pytest.mark.parametrize("dim", [2, 3, 4])
def test_qr_frame_is_the_orthonormal_factor(dim):
    A = torch.randn(20, dim, dim, dtype=torch.float64) + 3 * torch.eye(dim)
    U = torch.stack([axis.flatten(1) for axis in FRAMES["qr"].axes(field(A.flatten(1), dim), dim)], -1)
    Q, R = torch.linalg.qr(A)
    torch.testing.assert_close(U, Q * R.diagonal(dim1=1, dim2=2).sign().unsqueeze(1), rtol=0, atol=1e-3)


@pytest.mark.parametrize("dim", [2, 3, 4])
def test_skew_frame_is_the_matrix_exponential(dim):
    raw = 3 * torch.randn(20, dim * (dim - 1) // 2, dtype=torch.float64)
    U = torch.stack([axis.flatten(1) for axis in FRAMES["skew"].axes(field(raw, dim), dim)], -1)
    S = torch.zeros(20, dim, dim, dtype=torch.float64)
    S[:, *torch.triu_indices(dim, dim, 1)] = -math.pi * torch.tanh(raw / math.pi)
    torch.testing.assert_close(U, torch.matrix_exp(S - S.mT), rtol=0, atol=1e-12)


@pytest.mark.parametrize("frame", FRAMES)
def test_frames_have_spectral_norm_at_most_one(frame):
    dim = 2 if frame == "vector" else 3
    channels = len(FRAMES[frame].start(dim))
    raw = torch.tensor([0.0, 1.0, -1.0, 1e-4, 1e4, DENORMAL])[torch.randint(6, (2000, channels))]
    axes = torch.stack(
        [a.expand(2000, 1, dim, *(1,) * dim).flatten(1) for a in FRAMES[frame].axes(field(raw, dim), dim)], -1
    )
    assert torch.linalg.matrix_norm(axes.double(), 2).max() < 1 + 1e-5


@pytest.mark.parametrize("parametrization", [Spectral6(), Spectral7(), Spectral6(3), Spectral7(3)], ids=str)
def test_frame_of_zero_gives_round_ball(parametrization):
    raw = random_raw(parametrization, 5)
    raw[:, :, : parametrization.frame_channels] = 0
    torch.testing.assert_close(parametrization(raw).anisotropy, torch.ones(5, 1, *(1,) * parametrization.dim).double())


def test_rotated_vector_gives_rotated_metric():
    spectral7 = Spectral7(eps_omega=1)
    raw = random_raw(spectral7, 10)
    rotated = raw.clone()
    rotated[:, :, 0], rotated[:, :, 1] = raw[:, :, 1], -raw[:, :, 0]
    rotation = torch.tensor([[0.0, 1.0], [-1.0, 0.0]]).double()
    torch.testing.assert_close(matrices(spectral7(rotated)), rotation @ matrices(spectral7(raw)) @ rotation.T)


def test_default_frames():
    assert frame_of(None, 2) is FRAMES["vector"]
    assert frame_of(None, 3) is frame_of(None, 4) is FRAMES["qr"]
    assert frame_of(None, 1).start(1) == []


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
def test_inverse_quadratic_agrees_with_solve(dim):
    root = torch.randn(5, 2, *(3,) * dim, dim, dim, dtype=torch.float64)
    M = root @ root.mT + 0.1 * torch.eye(dim)
    v = torch.randn(5, 2, *(3,) * dim, dim, dtype=torch.float64)
    ours = _symmetric.inverse_quadratic(_symmetric.packed(M), v.movedim(-1, 2))
    torch.testing.assert_close(ours, (v * torch.linalg.solve(M, v)).sum(-1))
