"""Parametrizations: metrics are positive, bounded and differentiable for all finite raw parameters."""

import dataclasses
import itertools
import math

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import metricconv as mc
from metricconv.metrics.parametrizations import (
    Cholesky,
    Parametrization,
    Spectral,
    Spectral6,
    Spectral7,
)
from raw_parameters import ELLIPSOIDS, EXTREMES, LARGEST, assert_sound, field, matrices, random_raw

EVERY = [cls(dim=dim) for cls in ELLIPSOIDS.values() for dim in (1, 2, 3)]
EVERY += [cls(dim=dim, frame=frame) for cls in (Spectral6, Spectral7) for dim, frame in
          [(2, "skew"), (2, "givens"), (2, "qr"), (3, "skew"), (3, "givens")]]  # fmt: skip
PLANAR = [cls() for cls in ELLIPSOIDS.values()]

every = pytest.mark.parametrize("parametrization", EVERY, ids=str)
planar = pytest.mark.parametrize("parametrization", PLANAR, ids=str)
spectral = pytest.mark.parametrize("parametrization", [p for p in EVERY if isinstance(p, Spectral)], ids=str)


def frame_channels(parametrization: Parametrization) -> int:
    return parametrization.frame_channels if isinstance(parametrization, Spectral) else 0


def replace(parametrization: Parametrization, **changes: object) -> Parametrization:
    return dataclasses.replace(parametrization, **changes)


@every
@hypothesis.settings(max_examples=25)
@hypothesis.given(data=st.data())
def test_metrics_are_sound_for_all_finite_parameters(parametrization, data):
    values = (
        st.sampled_from(EXTREMES)
        | st.floats(-5, 5, width=32)
        | st.floats(width=32, allow_nan=False, allow_infinity=False)
    )
    count = 4 * parametrization.channels
    numbers = data.draw(st.lists(values, min_size=count, max_size=count))
    assert_sound(parametrization, field(torch.tensor(numbers).view(4, -1), parametrization.dim))


@every
@pytest.mark.parametrize("eps_omega", [0.02, 0.1, 0.9])
@pytest.mark.parametrize("detach_factor", [False, True])
def test_metrics_are_sound_for_all_magnitudes(parametrization, eps_omega, detach_factor):
    parametrization = replace(parametrization, eps_omega=eps_omega, detach_factor=detach_factor)
    shape = (4000, parametrization.channels)
    magnitudes = torch.empty(shape).uniform_(math.log(1e-6), math.log(1e5)).exp()
    raw = magnitudes * torch.empty(shape).bernoulli_().mul(2).sub(1)
    extremes = torch.tensor(EXTREMES)[torch.randint(len(EXTREMES), shape)]
    assert_sound(parametrization, field(torch.where(torch.rand(shape) < 0.2, extremes, raw), parametrization.dim))


@planar
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_half_precision_are_those_of_float32_rounded(parametrization, dtype):
    largest = torch.finfo(dtype).max
    shape = (100_000, parametrization.channels)
    sizes = torch.empty(shape).uniform_(math.log(1e-6), math.log(6e4)).exp() * torch.randn(shape).sign()
    extremes = torch.tensor([0.0, -0.0, 1e4, -1e4, largest, -largest])[torch.randint(6, shape)]
    raw = field(torch.where(torch.rand(shape) < 0.2, extremes, sizes).to(dtype), 2)

    def gradient(raw):
        raw = raw.requires_grad_()
        (grad,) = torch.autograd.grad(sum(100 * t.sum() for t in parametrization(raw).tensors().values()), raw)
        return grad

    narrow, wide = gradient(raw.clone()), gradient(raw.float())
    assert wide.isfinite().all() and torch.equal(narrow, wide.to(dtype))
    assert narrow.isinf().any() == (dtype == torch.float16)  # beyond 65504


def test_cholesky_eigenvalue_bound_is_tight_in_2d():
    cholesky = Cholesky()
    shear = torch.linspace(0, 0.3, 3001)
    raw = torch.zeros(3001, 5)
    raw[:, 1] = shear
    eigenvalues = torch.linalg.eigvalsh(matrices(cholesky(field(raw, 2))))
    assert cholesky.smallest_eigenvalue == pytest.approx(2 * 1e-2 * 1e-4)
    assert cholesky.smallest_eigenvalue <= eigenvalues.min() <= 1.02 * cholesky.smallest_eigenvalue


@every
def test_anisotropy_is_at_most_100(parametrization):
    shape = (2000, parametrization.channels)
    raw = torch.tensor([0.0, 1.0, LARGEST, -LARGEST])[torch.randint(4, shape)] * torch.rand(shape)
    assert parametrization(field(raw, parametrization.dim)).to(torch.float64).anisotropy.max() < 101


@every
def test_float32_resolves_size_and_volume_of_thin_balls(parametrization):
    shape = (20_000, parametrization.channels)
    sizes = torch.empty(shape).uniform_(math.log(1e-6), math.log(1e5)).exp() * torch.randn(shape).sign()
    chosen = torch.tensor([0.0, 1e4, -1e4, 1.0, 3.0])[torch.randint(5, shape)]
    metric = replace(parametrization, eps_omega=0.1)(
        field(torch.where(torch.rand(shape) < 0.3, chosen, sizes), parametrization.dim)
    )
    wide = metric.to(torch.float64)
    for name in ("bounding_radius", "volume"):
        torch.testing.assert_close(getattr(metric, name).double(), getattr(wide, name), rtol=0.02, atol=0, msg=name)


def test_spectral7_eigenvalues_are_bounded_by_scale():
    spectral7 = Spectral7(s_min=0.5, s_max=2.0)
    eigenvalues = torch.linalg.eigvalsh(matrices(spectral7(100 * random_raw(spectral7, 500))))
    assert eigenvalues.min() >= 0.01 * 0.5 - 1e-12
    assert eigenvalues.max() <= 1.99 * 2.0 + 1e-12


@every
@pytest.mark.parametrize("eps_omega", [0.3, 1])
def test_identity_parameters_give_identity_metric(parametrization, eps_omega):
    parametrization = replace(parametrization, eps_omega=eps_omega)
    metric = parametrization(field(parametrization.identity()[None], parametrization.dim))
    eye = torch.eye(parametrization.dim, dtype=torch.float64)[None]
    torch.testing.assert_close(matrices(metric), eye, rtol=0, atol=1e-14)
    if eps_omega < 1:
        assert not metric.omega.any()


@every
def test_derivatives_at_identity(parametrization):
    raw = field(parametrization.identity()[None], parametrization.dim).requires_grad_()
    metric = parametrization(raw)
    outputs = torch.cat([t.flatten() for t in metric.tensors().values()])
    slopes = torch.stack([torch.autograd.grad(y, raw, retain_graph=True)[0].flatten() for y in outputs]).abs().amax(0)
    frame = frame_channels(parametrization)
    assert (slopes[frame:] > 1e-4).all()
    assert (slopes[:frame] < 1e-6).all()  # a round ball has no axes


@spectral
def test_frame_has_gradients_near_identity(parametrization):
    raw = parametrization.identity()
    first = parametrization.frame_channels
    raw[first : first + parametrization.dim] += 0.1 * torch.arange(parametrization.dim)
    raw = field(raw[None], parametrization.dim).requires_grad_()
    M = matrices(parametrization(raw))[0]
    for i, j in itertools.combinations(range(parametrization.dim), 2):
        (slope,) = torch.autograd.grad(M[i, j], raw, retain_graph=True)
        assert slope.flatten()[:first].abs().max() > 0.01


@spectral
def test_eigenvalue_k_belongs_to_axis_k_at_identity(parametrization):
    for k in range(parametrization.dim):
        raw = parametrization.identity()
        raw[parametrization.frame_channels + k] += 1
        M = matrices(parametrization(field(raw[None], parametrization.dim)))[0]
        torch.testing.assert_close(M, torch.diag(M.diagonal()), rtol=0, atol=1e-5)
        assert M.diagonal().argmax() == k


@every
def test_eigenvalues_have_gradients_at_neutral_parameters(parametrization):
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
def test_identity_raises_if_it_does_not_exist(parametrization, named):
    with pytest.raises(ValueError, match=f"`{named}` .*M = I"):
        parametrization.identity()


@every
def test_eps_omega_1_is_riemannian_without_drift_channels(parametrization):
    riemannian = replace(parametrization, eps_omega=1)
    assert riemannian.channels == parametrization.channels - parametrization.dim
    raw = random_raw(parametrization, 3)
    metric = riemannian(raw[:, :, : riemannian.channels])
    assert isinstance(metric, mc.Riemannian)
    torch.testing.assert_close(metric.M, parametrization(raw).M)


@every
def test_drift_has_direction_of_raw_drift_and_approaches_bound(parametrization):
    raw = random_raw(parametrization, 4)
    raw[:, :, -parametrization.dim :] *= torch.tensor([1e-3, 1, 10, 1e3]).view(4, *(1,) * (raw.dim() - 1))
    metric = parametrization(raw)
    assert (metric.omega * raw[:, :, -parametrization.dim :] >= 0).all()
    assert (metric.asymmetry < parametrization.max_asymmetry * (1 + 1e-9)).all()
    assert metric.asymmetry.flatten()[-1] > 0.99 * parametrization.max_asymmetry


@planar
def test_detached_factor_has_gradients_of_drift_only(parametrization):
    raw = random_raw(parametrization, 3).requires_grad_()
    detached = replace(parametrization, detach_factor=True)(raw)
    attached = replace(parametrization, detach_factor=False)(raw)
    assert torch.equal(detached.omega, attached.omega)
    (gradient,) = torch.autograd.grad(detached.omega.sum(), raw, retain_graph=True)
    assert not gradient[:, :, :-2].any()
    torch.testing.assert_close(gradient[:, :, -2:], (detached.omega / raw[:, :, -2:]).detach())
    (gradient,) = torch.autograd.grad(attached.omega.sum(), raw)
    assert gradient[:, :, :-2].any()


@every
def test_gradcheck(parametrization):
    parametrization = replace(parametrization, detach_factor=False)
    raw = random_raw(parametrization, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda r: tuple(parametrization(r).tensors().values()), raw)


@planar
def test_gradgradcheck(parametrization):
    parametrization = replace(parametrization, detach_factor=False)
    raw = random_raw(parametrization, 1).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda r: tuple(parametrization(r).tensors().values()), raw)


@planar
def test_dtype_is_float32_or_wider(parametrization):
    raw = random_raw(parametrization, 3)
    assert parametrization(raw).dtype == torch.float64
    for dtype in (torch.float16, torch.bfloat16):
        assert parametrization(raw.to(dtype)).dtype == torch.float32
        torch.testing.assert_close(parametrization(raw.to(dtype)).M, parametrization(raw.to(dtype).float()).M)


@every
def test_autocast_has_no_effect(parametrization):
    raw = random_raw(parametrization, 3, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        metric = parametrization(raw)
    assert all(torch.equal(t, parametrization(raw).tensors()[name]) for name, t in metric.tensors().items())


@every
def test_pixels_and_groups_are_independent(parametrization):
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
def test_compiles_to_one_graph(parametrization):
    raw = random_raw(parametrization, 2, torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(lambda r: parametrization(r).tensors(), fullgraph=True, backend="eager")
    for name, tensor in compiled(raw).items():
        torch.testing.assert_close(tensor, parametrization(raw).tensors()[name])


def test_exports_with_dynamic_batch():
    spectral7 = Spectral7()

    class Field(torch.nn.Module):
        def forward(self, raw: Tensor) -> dict[str, Tensor]:
            return spectral7(raw).tensors()

    program = torch.export.export(Field(), (torch.randn(2, 1, 7, 3, 3),), dynamic_shapes=({0: torch.export.Dim("b")},))
    raw = torch.randn(5, 1, 7, 3, 3)
    torch.testing.assert_close(program.module()(raw), spectral7(raw).tensors())


@pytest.mark.slow
def test_compiles_with_inductor():
    spectral7 = Spectral7(detach_factor=False)
    raw = random_raw(spectral7, 2, torch.float32)
    torch.testing.assert_close(
        torch.compile(lambda r: spectral7(r).tensors(), fullgraph=True)(raw), spectral7(raw).tensors()
    )


def test_channel_counts():
    assert [p.channels for p in PLANAR] == [5, 6, 7]
    assert [cls(dim=1).channels for cls in ELLIPSOIDS.values()] == [2, 2, 3]
    assert [Spectral7(dim=3, frame=f).channels for f in ("skew", "givens", "qr")] == [10, 10, 16]
    assert Cholesky(dim=3).channels == 9
    assert Spectral7(eps_omega=1).channels == 5


def test_parametrizations_compare_by_value():
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
        (lambda: Cholesky(eps_L=1e-9), "1e-09.*may reach .* pixels"),
        (lambda: Spectral7(frame="euler"), r"`frame` \(='euler'\) must be one of 'vector', 'skew', 'givens', 'qr'"),
        (lambda: Spectral7(dim=3, frame="vector"), r"`frame` \(='vector'\) requires `dim` \(=3\) to be 2"),
        (lambda: Spectral7(dim=1, frame="givens"), r"`frame` \(='givens'\) must be None for `dim` \(=1\)"),
        (lambda: Cholesky()(torch.zeros(1, 1, 4, 2, 2)), r"`raw` must be \(B, G, 5, \*spatial\).*\(1, 1, 4, 2, 2\)"),
        (lambda: Cholesky()(torch.zeros(1, 5, 2, 2)), r"`raw` must be .* 2 spatial axes"),
        (lambda: Cholesky(dim=1)(torch.zeros(1, 1, 5, 2)), r"`raw` must be \(B, G, 2, \*spatial\), 1 spatial axis,"),
    ],
)
def test_invalid_arguments_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_raw_must_be_floating():
    with pytest.raises(TypeError, match="`raw`"):
        Cholesky()(torch.zeros(1, 1, 5, 2, 2, dtype=torch.int64))


@pytest.mark.parametrize(
    ("start", "gain", "message"),
    [(torch.zeros(6), None, r"`start` must be \(7,\)"), (None, torch.ones(2), "`gain` must be one number")],
)
def test_start_and_gain_of_wrong_shape_raise(start, gain, message):
    with pytest.raises(ValueError, match=message):
        Spectral7()(torch.zeros(1, 1, 7, 2, 2), start, gain)
