"""Raw numbers, any, become a metric: positive, bounded, differentiable, and the paper's where the paper's is sound."""

import itertools
import math

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import metricconv as mc
from helpers import norm_of, sphere
from metricconv.metrics import _symmetric
from metricconv.metrics._frames import FRAMES, frame_of
from metricconv.metrics.parametrizations import (
    PARAMETRIZATIONS,
    Cholesky,
    Parametrization,
    Spectral,
    Spectral6,
    Spectral7,
)

LARGEST, DENORMAL = 3.4028234663852886e38, 1e-45
EXTREMES = [0.0, -0.0, 1e4, -1e4, 1e30, -1e30, LARGEST, -LARGEST, DENORMAL, -1e-40]

EVERY = [cls(dim=dim) for cls in PARAMETRIZATIONS.values() for dim in (1, 2, 3)]
EVERY += [cls(dim=dim, frame=frame) for cls in (Spectral6, Spectral7) for dim, frame in
          [(2, "skew"), (2, "givens"), (2, "qr"), (3, "skew"), (3, "givens")]]  # fmt: skip
PLANAR = [cls() for cls in PARAMETRIZATIONS.values()]

every = pytest.mark.parametrize("parametrization", EVERY, ids=str)
planar = pytest.mark.parametrize("parametrization", PLANAR, ids=str)
spectral = pytest.mark.parametrize("parametrization", [p for p in EVERY if isinstance(p, Spectral)], ids=str)


def field(values: Tensor, dim: int) -> Tensor:
    """Turn (pixels, channels) into raw numbers (pixels, 1, channels, 1, …)."""
    return values.view(*values.shape[:1], 1, values.shape[1], *(1,) * dim)


def ordinary(parametrization: Parametrization, pixels: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return field(torch.randn(pixels, parametrization.channels, dtype=dtype), parametrization.dim)


def matrices(metric: mc.Metric) -> Tensor:
    """Return M as (pixels, d, d), in float64."""
    return _symmetric.full(metric.M.double()).flatten(0, -3)


def drifts(metric: mc.Randers) -> Tensor:
    """Return ω as (pixels, d), in float64."""
    return metric.omega.double().movedim(2, -1).flatten(0, -2)


def frame_channels(parametrization: Parametrization) -> int:
    return parametrization.frame_channels if isinstance(parametrization, Spectral) else 0


def changed(parametrization: Parametrization, **changes: object) -> Parametrization:
    return type(parametrization)(**{**vars(parametrization), **changes})


def assert_sound(parametrization: Parametrization, raw: Tensor) -> None:
    """Assert all that is promised for any finite raw numbers."""
    raw = raw.requires_grad_()
    metric = parametrization(raw)
    assert all(t.isfinite().all() for t in metric.tensors().values())

    (gradient,) = torch.autograd.grad(sum(t.sum() for t in metric.tensors().values()), raw)
    assert gradient.isfinite().all()

    metric = metric.detach()
    eigenvalues, eigenvectors = torch.linalg.eigh(matrices(metric))
    assert (eigenvalues[:, 0] >= parametrization.smallest_eigenvalue * (1 - 1e-3)).all()

    along = (eigenvectors.mT @ drifts(metric).unsqueeze(-1)).squeeze(-1)
    asymmetry = (along.square() / eigenvalues).sum(-1).sqrt()
    assert (asymmetry <= parametrization.max_asymmetry * (1 + 1e-3)).all()

    # In float32: everywhere around, and along the axes of each ball, where it is longest.
    axes = torch.cat([eigenvectors, -eigenvectors], -1).mT.float()
    axes = axes.view(*metric.M.shape[:2], -1, metric.dim, *metric.spatial)
    assert (metric.norm(axes) > 0).all()
    assert (norm_of(metric, sphere(metric.dim, 256).float()) > 0).all()
    assert (axes.norm(dim=3) / metric.norm(axes)).max() < parametrization.max_reach
    assert metric.unit_vectors(sphere(metric.dim, 256)).norm(dim=3).max() < parametrization.max_reach
    assert metric.to(torch.float64).bounding_radius.max() < parametrization.max_reach


@every
@hypothesis.settings(max_examples=25)
@hypothesis.given(data=st.data())
def test_every_finite_input_gives_a_positive_bounded_differentiable_metric(parametrization, data):
    number = (
        st.sampled_from(EXTREMES)
        | st.floats(-5, 5, width=32)
        | st.floats(width=32, allow_nan=False, allow_infinity=False)
    )
    count = 4 * parametrization.channels
    numbers = data.draw(st.lists(number, min_size=count, max_size=count))
    assert_sound(parametrization, field(torch.tensor(numbers).view(4, -1), parametrization.dim))


@every
@pytest.mark.parametrize("eps_omega", [0.02, 0.1, 0.9])
@pytest.mark.parametrize("detach_factor", [False, True])
def test_the_bounds_hold_over_many_magnitudes_at_once(parametrization, eps_omega, detach_factor):
    parametrization = changed(parametrization, eps_omega=eps_omega, detach_factor=detach_factor)
    shape = (4000, parametrization.channels)
    magnitudes = torch.empty(shape).uniform_(math.log(1e-6), math.log(1e5)).exp()
    raw = magnitudes * torch.empty(shape).bernoulli_().mul(2).sub(1)
    extremes = torch.tensor(EXTREMES)[torch.randint(len(EXTREMES), shape)]
    assert_sound(parametrization, field(torch.where(torch.rand(shape) < 0.2, extremes, raw), parametrization.dim))


def test_the_cholesky_ball_really_comes_close_to_its_bound_in_2d():
    five = Cholesky()
    shear = torch.linspace(0, 0.3, 3001)
    raw = torch.zeros(3001, 5)
    raw[:, 1] = shear
    eigenvalues = torch.linalg.eigvalsh(matrices(five(field(raw, 2))))
    assert five.smallest_eigenvalue == pytest.approx(2 * 1e-2 * 1e-4)
    assert five.smallest_eigenvalue <= eigenvalues.min() <= 1.02 * five.smallest_eigenvalue


@every
def test_balls_are_at_most_a_hundred_times_as_long_as_wide(parametrization):
    shape = (2000, parametrization.channels)
    raw = torch.tensor([0.0, 1.0, LARGEST, -LARGEST])[torch.randint(4, shape)] * torch.rand(shape)
    assert parametrization(field(raw, parametrization.dim)).to(torch.float64).anisotropy.max() < 101


def test_spectral7_eigenvalues_stay_within_the_scale():
    seven = Spectral7(s_min=0.5, s_max=2.0)
    eigenvalues = torch.linalg.eigvalsh(matrices(seven(100 * ordinary(seven, 500))))
    assert eigenvalues.min() >= 0.01 * 0.5 - 1e-12
    assert eigenvalues.max() <= 1.99 * 2.0 + 1e-12


@every
@pytest.mark.parametrize("eps_omega", [0.3, 1])
def test_identity_gives_the_identity_and_no_drift(parametrization, eps_omega):
    parametrization = changed(parametrization, eps_omega=eps_omega)
    metric = parametrization(field(parametrization.identity()[None], parametrization.dim))
    eye = torch.eye(parametrization.dim, dtype=torch.float64)[None]
    torch.testing.assert_close(matrices(metric), eye, rtol=0, atol=1e-14)
    if eps_omega < 1:
        assert not metric.omega.any()


@every
def test_every_number_has_a_slope_at_the_identity(parametrization):
    raw = field(parametrization.identity()[None], parametrization.dim).requires_grad_()
    metric = parametrization(raw)
    outputs = torch.cat([t.flatten() for t in metric.tensors().values()])
    slopes = torch.stack([torch.autograd.grad(y, raw, retain_graph=True)[0].flatten() for y in outputs]).abs().amax(0)
    frame = frame_channels(parametrization)
    assert (slopes[frame:] > 1e-4).all()
    assert (slopes[:frame] < 1e-6).all()  # a round ball has no axes to turn


@spectral
def test_the_frame_turns_as_soon_as_the_identity_is_left(parametrization):
    raw = parametrization.identity()
    first = parametrization.frame_channels
    raw[first : first + parametrization.dim] += 0.1 * torch.arange(parametrization.dim)
    raw = field(raw[None], parametrization.dim).requires_grad_()
    M = matrices(parametrization(raw))[0]
    for i, j in itertools.combinations(range(parametrization.dim), 2):
        (slope,) = torch.autograd.grad(M[i, j], raw, retain_graph=True)
        assert slope.flatten()[:first].abs().max() > 0.01


@spectral
def test_at_the_identity_eigenvalue_k_belongs_to_axis_k(parametrization):
    for k in range(parametrization.dim):
        raw = parametrization.identity()
        raw[parametrization.frame_channels + k] += 1
        M = matrices(parametrization(field(raw[None], parametrization.dim)))[0]
        torch.testing.assert_close(M, torch.diag(M.diagonal()), rtol=0, atol=1e-5)
        assert M.diagonal().argmax() == k


@every
def test_a_silent_head_can_learn_its_eigenvalues(parametrization):
    raw = field(parametrization.neutral()[None], parametrization.dim).requires_grad_()
    metric = parametrization(raw)
    (slope,) = torch.autograd.grad(torch.linalg.eigvalsh(matrices(metric)).sum(), raw)
    diagonal = slope.flatten()[frame_channels(parametrization) :]
    assert diagonal[0] > 1e-3 and diagonal[: parametrization.matrix_channels].abs().max() > 1e-3


@pytest.mark.parametrize(
    ("parametrization", "named"),
    [
        (Cholesky(eps_L=1.0), "eps_L"),
        (Spectral6(eps_L=2.0), "eps_L"),
        (Spectral7(s_min=1.0), "s_min"),
        (Spectral7(s_max=0.9), "s_max"),
    ],
)
def test_identity_says_when_it_is_out_of_reach(parametrization, named):
    with pytest.raises(ValueError, match=f"`{named}` .*M = I"):
        parametrization.identity()


# The paper's formulas, in its own words, its (x, y) order and float64; then our floors.
DELTA, EPS_OMEGA, EPS = 1e-4, 0.3, 1e-6


def paper_drift(M: Tensor, omega: Tensor) -> Tensor:
    norm = (omega @ torch.linalg.inv(M) @ omega + EPS).sqrt()
    return 2 * (1 - EPS_OMEGA) * (torch.sigmoid(norm) - 0.5) / norm * omega


def paper_rotation(r: Tensor) -> Tensor:
    r = r + EPS
    return torch.stack([r, torch.stack([-r[1], r[0]])], 1) / (r.norm() + EPS)


def in_their_order(metric: mc.Randers) -> tuple[Tensor, Tensor]:
    """Return M and ω of the one pixel in the paper's (x, y) order."""
    return matrices(metric)[0].flip(0, 1), drifts(metric)[0].flip(0)


@pytest.mark.parametrize("seed", range(5))
def test_cholesky_is_algorithm_1_up_to_the_floor(seed):
    torch.manual_seed(seed)
    l11, l21, l22, *omega = torch.randn(5, dtype=torch.float64)
    # Their L stands in (x, y), ours in (y, x): the same channels give the same matrix, its axes called otherwise.
    L = torch.stack([torch.stack([l11.abs() + 0.01, torch.zeros(()).double()]), torch.stack([l21, l22.abs() + 0.01])])
    M = L @ L.T
    M = M + DELTA * M.trace() * torch.eye(2).double()
    metric = Cholesky(eps_omega=EPS_OMEGA)(field(torch.stack([l11, l21, l22, *omega])[None], 2))
    torch.testing.assert_close(matrices(metric)[0], M, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(drifts(metric)[0], paper_drift(M, torch.stack(omega)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_spectral6_is_algorithm_2_up_to_the_floor(seed):
    torch.manual_seed(seed)
    r, eigenvalues, omega = torch.randn(3, 2, dtype=torch.float64)
    R = paper_rotation(r)
    M = R @ torch.diag(eigenvalues.abs() + 0.01) @ R.T
    M = M + DELTA * M.trace() * torch.eye(2).double()
    raw = torch.cat([r.flip(0), eigenvalues, omega.flip(0)])
    ours = in_their_order(Spectral6(eps_omega=EPS_OMEGA)(field(raw[None], 2)))
    torch.testing.assert_close(ours, (M, paper_drift(M, omega)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_spectral7_is_algorithm_3_in_half_its_range_up_to_the_floor(seed):
    torch.manual_seed(seed)
    r, eigenvalues, omega = torch.randn(3, 2, dtype=torch.float64)
    s = torch.randn((), dtype=torch.float64)
    R = paper_rotation(r)
    scale = (0.1 + 1.5) / 2 + (torch.sigmoid(s) - 0.5) * (1.5 - 0.1)  # printed with a factor 2, which leaves [0.1, 1.5]
    M = R @ torch.diag(2 * torch.sigmoid(eigenvalues) * scale) @ R.T
    M = 0.99 * M + 0.01 * scale * torch.eye(2).double()
    raw = torch.cat([r.flip(0), eigenvalues, s[None], omega.flip(0)])
    ours = in_their_order(Spectral7(eps_omega=EPS_OMEGA)(field(raw[None], 2)))
    torch.testing.assert_close(ours, (M, paper_drift(M, omega)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
def test_cholesky_reads_the_lower_triangle_row_by_row(dim):
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
    tolerance = 1e-5 if frame == "vector" else 1e-12  # a vector 0.01 long is a little uncertain of its direction
    torch.testing.assert_close(U.mT @ U, torch.eye(dim).double().expand(20, -1, -1), rtol=0, atol=tolerance)


@pytest.mark.parametrize("dim", [2, 3, 4])
def test_the_qr_frame_is_the_orthonormal_factor_of_its_matrix(dim):
    A = torch.randn(20, dim, dim, dtype=torch.float64) + 3 * torch.eye(dim)
    U = torch.stack([axis.flatten(1) for axis in FRAMES["qr"].axes(field(A.flatten(1), dim), dim)], -1)
    Q, R = torch.linalg.qr(A)
    torch.testing.assert_close(U, Q * R.diagonal(dim1=1, dim2=2).sign().unsqueeze(1), rtol=0, atol=1e-3)


@pytest.mark.parametrize("dim", [2, 3, 4])
def test_the_skew_frame_is_the_exponential_of_its_matrix(dim):
    raw = 3 * torch.randn(20, dim * (dim - 1) // 2, dtype=torch.float64)
    U = torch.stack([axis.flatten(1) for axis in FRAMES["skew"].axes(field(raw, dim), dim)], -1)
    S = torch.zeros(20, dim, dim, dtype=torch.float64)
    S[:, *torch.triu_indices(dim, dim, 1)] = -math.pi * torch.tanh(raw / math.pi)
    torch.testing.assert_close(U, torch.matrix_exp(S - S.mT), rtol=0, atol=1e-12)


@pytest.mark.parametrize("frame", FRAMES)
def test_no_frame_is_longer_than_orthonormal_whatever_its_numbers(frame):
    dim = 2 if frame == "vector" else 3
    numbers = len(FRAMES[frame].start(dim))
    raw = torch.tensor([0.0, 1.0, -1.0, 1e-4, 1e4, DENORMAL])[torch.randint(6, (2000, numbers))]
    axes = torch.stack(
        [a.expand(2000, 1, dim, *(1,) * dim).flatten(1) for a in FRAMES[frame].axes(field(raw, dim), dim)], -1
    )
    assert torch.linalg.matrix_norm(axes.double(), 2).max() < 1 + 1e-5


@pytest.mark.parametrize("parametrization", [Spectral6(), Spectral7(), Spectral6(3), Spectral7(3)], ids=str)
def test_a_frame_without_direction_gives_a_round_ball(parametrization):
    raw = ordinary(parametrization, 5)
    raw[:, :, : parametrization.frame_channels] = 0
    torch.testing.assert_close(parametrization(raw).anisotropy, torch.ones(5, 1, *(1,) * parametrization.dim).double())


def test_rotating_the_vector_rotates_the_metric():
    seven = Spectral7(eps_omega=1)
    raw = ordinary(seven, 10)
    turned = raw.clone()
    turned[:, :, 0], turned[:, :, 1] = raw[:, :, 1], -raw[:, :, 0]
    quarter = torch.tensor([[0.0, 1.0], [-1.0, 0.0]]).double()
    torch.testing.assert_close(matrices(seven(turned)), quarter @ matrices(seven(raw)) @ quarter.T)


@every
def test_eps_omega_1_is_riemannian_and_takes_no_drift(parametrization):
    round_ = changed(parametrization, eps_omega=1)
    assert round_.channels == parametrization.channels - parametrization.dim
    raw = ordinary(parametrization, 3)
    metric = round_(raw[:, :, : round_.channels])
    assert isinstance(metric, mc.Riemannian)
    torch.testing.assert_close(metric.M, parametrization(raw).M)


@every
def test_the_drift_keeps_its_direction_and_grows_to_the_bound(parametrization):
    raw = ordinary(parametrization, 4)
    raw[:, :, -parametrization.dim :] *= torch.tensor([1e-3, 1, 10, 1e3]).view(4, *(1,) * (raw.dim() - 1))
    metric = parametrization(raw)
    assert (metric.omega * raw[:, :, -parametrization.dim :] >= 0).all()
    assert (metric.asymmetry < parametrization.max_asymmetry * (1 + 1e-9)).all()
    assert metric.asymmetry.flatten()[-1] > 0.99 * parametrization.max_asymmetry


@planar
def test_a_detached_factor_passes_the_drift_s_gradient_alone(parametrization):
    raw = ordinary(parametrization, 3).requires_grad_()
    detached = changed(parametrization, detach_factor=True)(raw)
    whole = changed(parametrization, detach_factor=False)(raw)
    assert torch.equal(detached.omega, whole.omega)
    (gradient,) = torch.autograd.grad(detached.omega.sum(), raw, retain_graph=True)
    assert not gradient[:, :, :-2].any()
    torch.testing.assert_close(gradient[:, :, -2:], (detached.omega / raw[:, :, -2:]).detach())
    (gradient,) = torch.autograd.grad(whole.omega.sum(), raw)
    assert gradient[:, :, :-2].any()


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
def test_inverse_quadratic_is_the_norm_of_the_inverse(dim):
    root = torch.randn(5, 2, *(3,) * dim, dim, dim, dtype=torch.float64)
    M = root @ root.mT + 0.1 * torch.eye(dim)
    v = torch.randn(5, 2, *(3,) * dim, dim, dtype=torch.float64)
    ours = _symmetric.inverse_quadratic(_symmetric.packed(M), v.movedim(-1, 2))
    torch.testing.assert_close(ours, (v * torch.linalg.solve(M, v)).sum(-1))


@every
def test_gradcheck(parametrization):
    parametrization = changed(parametrization, detach_factor=False)
    raw = ordinary(parametrization, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda r: tuple(parametrization(r).tensors().values()), raw)


@planar
def test_gradgradcheck(parametrization):
    parametrization = changed(parametrization, detach_factor=False)
    raw = ordinary(parametrization, 1).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda r: tuple(parametrization(r).tensors().values()), raw)


@planar
def test_half_precision_is_widened_and_float64_kept(parametrization):
    raw = ordinary(parametrization, 3)
    assert parametrization(raw).dtype == torch.float64
    for dtype in (torch.float16, torch.bfloat16):
        assert parametrization(raw.to(dtype)).dtype == torch.float32
        torch.testing.assert_close(parametrization(raw.to(dtype)).M, parametrization(raw.to(dtype).float()).M)


@every
def test_autocast_does_not_touch_the_metric(parametrization):
    raw = ordinary(parametrization, 3, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        metric = parametrization(raw)
    assert all(torch.equal(t, parametrization(raw).tensors()[name]) for name, t in metric.tensors().items())


@every
def test_pixels_and_groups_do_not_mix(parametrization):
    spatial = (2, 3, 2)[: parametrization.dim]
    raw = torch.randn(2, 3, parametrization.channels, *spatial)
    metric = parametrization(raw)
    assert (metric.batch, metric.groups, tuple(metric.spatial)) == (2, 3, spatial)
    last = tuple(n - 1 for n in spatial)
    alone = parametrization(raw[(slice(1, 2), slice(2, 3), slice(None), *(slice(i, i + 1) for i in last))])
    torch.testing.assert_close(metric[(1, 2, *last)].M, alone.M)
    torch.testing.assert_close(metric[(1, 2, *last)].omega, alone.omega)
    assert parametrization(raw[:0]).batch == 0


@every
def test_traces_as_one_graph(parametrization):
    raw = ordinary(parametrization, 2, torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(lambda r: parametrization(r).tensors(), fullgraph=True, backend="eager")
    for name, tensor in compiled(raw).items():
        torch.testing.assert_close(tensor, parametrization(raw).tensors()[name])


def test_exports_with_a_free_batch():
    seven = Spectral7()

    class Field(torch.nn.Module):
        def forward(self, raw: Tensor) -> dict[str, Tensor]:
            return seven(raw).tensors()

    program = torch.export.export(Field(), (torch.randn(2, 1, 7, 3, 3),), dynamic_shapes=({0: torch.export.Dim("b")},))
    raw = torch.randn(5, 1, 7, 3, 3)
    torch.testing.assert_close(program.module()(raw), seven(raw).tensors())


@pytest.mark.slow
def test_compiles_with_inductor():
    seven = Spectral7(detach_factor=False)
    raw = ordinary(seven, 2, torch.float32)
    torch.testing.assert_close(torch.compile(lambda r: seven(r).tensors(), fullgraph=True)(raw), seven(raw).tensors())


def test_channel_counts_by_hand():
    assert [p.channels for p in PLANAR] == [5, 6, 7]
    assert [cls(dim=1).channels for cls in PARAMETRIZATIONS.values()] == [2, 2, 3]
    assert [Spectral7(dim=3, frame=f).channels for f in ("skew", "givens", "qr")] == [10, 10, 16]
    assert Cholesky(dim=3).channels == 9
    assert Spectral7(eps_omega=1).channels == 5


def test_parametrizations_are_values():
    assert Spectral7() == Spectral7(dim=2) != Spectral7(eps_omega=0.4)
    assert len({Cholesky(), Cholesky(), Spectral6()}) == 2
    assert Spectral7().max_asymmetry == 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cholesky(eps_omega=0.0), r"`eps_omega` \(=0.0\) must be in \(0, 1\]"),
        (lambda: Spectral6(eps_omega=1.5), r"`eps_omega` \(=1.5\)"),
        (lambda: Spectral7(eps_omega=math.nan), r"`eps_omega` \(=nan\)"),
        (lambda: Cholesky(eps_L=0.0), r"`eps_L` \(=0.0\) must be positive"),
        (lambda: Spectral6(eps_L=-1.0), r"`eps_L` \(=-1.0\) must be positive"),
        (lambda: Spectral7(s_min=0.0), r"`s_min` \(=0.0\) must be positive"),
        (lambda: Spectral7(s_min=2.0), r"`s_max` \(=1.5\) must be at least `s_min` \(=2.0\)"),
        (lambda: Spectral7(dim=0), r"`dim` \(=0\)"),
        (lambda: Cholesky(eps_L=1e-9), "1e-09.*pixels away"),
        (lambda: Spectral7(frame="euler"), r"`frame` \(='euler'\) must be one of 'vector', 'skew', 'givens', 'qr'"),
        (lambda: Spectral7(dim=3, frame="vector"), r"`frame` \(='vector'\) needs `dim` \(=3\) to be 2"),
        (lambda: Spectral7(dim=1, frame="givens"), r"`frame` \(='givens'\) must be None for `dim` \(=1\)"),
        (lambda: Cholesky()(torch.zeros(1, 1, 4, 2, 2)), r"`raw` must be \(B, G, 5, \*spatial\).*\(1, 1, 4, 2, 2\)"),
        (lambda: Cholesky()(torch.zeros(1, 5, 2, 2)), r"`raw` must be .* 2 spatial axes"),
        (lambda: Cholesky(dim=1)(torch.zeros(1, 1, 5, 2)), r"`raw` must be \(B, G, 2, \*spatial\), 1 spatial axis,"),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_raw_must_be_floating():
    with pytest.raises(TypeError, match="`raw`"):
        Cholesky()(torch.zeros(1, 1, 5, 2, 2, dtype=torch.int64))


def test_the_default_frame_is_the_vector_in_2d_and_qr_beyond():
    assert frame_of(None, 2) is FRAMES["vector"]
    assert frame_of(None, 3) is frame_of(None, 4) is FRAMES["qr"]
    assert frame_of(None, 1).start(1) == []


@pytest.mark.parametrize(
    ("start", "gain", "message"),
    [(torch.zeros(6), None, r"`start` must be \(7,\)"), (None, torch.ones(2), "`gain` must be one number")],
)
def test_numbers_that_do_not_fit_are_refused(start, gain, message):
    for read in (Spectral7(), Spectral7().formula):
        with pytest.raises(ValueError, match=message):
            read(torch.zeros(1, 1, 7, 2, 2), start, gain)
