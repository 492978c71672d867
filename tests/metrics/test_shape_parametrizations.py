"""Parametrizations of shapes beyond ellipsoids: positive, bounded and differentiable for all finite raw parameters."""

import math

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from helpers import norm_of, sphere
from metricconv.metrics import Asymmetric, HalfSpace, Orthant, Parametrization, smoothed
from raw_parameters import EXTREMES, field, random_raw

EVERY: list[Parametrization] = [cls(dim=dim) for cls in (Asymmetric, Orthant, HalfSpace) for dim in (1, 2, 3, 4)]
EVERY += [Orthant(p=math.inf), Orthant(dim=3, p=1), HalfSpace(p=math.inf), HalfSpace(half_spaces=12)]
EVERY += [Asymmetric(dim=3, frame="skew", s_min=0.01)]

every = pytest.mark.parametrize(
    "parametrization", [pytest.param(p, id=str(p), marks=[pytest.mark.slow] * (p.dim == 4)) for p in EVERY]
)
planar = pytest.mark.parametrize("parametrization", [Asymmetric(), Orthant(), HalfSpace()], ids=str)


def assert_sound(parametrization: Parametrization, raw: Tensor, start: Tensor | None = None) -> None:
    """Assert positivity, the bound of the reach and finite derivatives of the metrics of start + raw."""
    raw = raw.requires_grad_()
    metric = parametrization(raw, start)
    assert metric.is_positive().all()
    assert metric.bounding_radius.max() <= parametrization.max_reach
    points = metric.unit_vectors(sphere(parametrization.dim, 32))
    assert points.isfinite().all() and points.norm(dim=3).max() < parametrization.max_reach
    (gradient,) = torch.autograd.grad(points.sum() + points.square().sum(), raw)
    assert gradient.isfinite().all()


def awkward(parametrization: Parametrization, pixels: int) -> Tensor:
    """Return raw parameters of all magnitudes, a fifth of them extreme."""
    shape = (pixels, parametrization.channels)
    sizes = torch.empty(shape).uniform_(math.log(1e-6), math.log(1e5)).exp() * torch.randn(shape).sign()
    extremes = torch.tensor(EXTREMES)[torch.randint(len(EXTREMES), shape)]
    return field(torch.where(torch.rand(shape) < 0.2, extremes, sizes), parametrization.dim)


@every
@hypothesis.settings(max_examples=6, deadline=None)
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
def test_metrics_are_sound_for_all_magnitudes(parametrization):
    assert_sound(parametrization, awkward(parametrization, 1000))
    assert_sound(parametrization, awkward(parametrization, 1000), parametrization.identity())


@pytest.mark.slow
@planar
def test_a_million_metrics_are_sound(parametrization):
    for _ in range(20):
        assert_sound(parametrization, awkward(parametrization, 50_000))


@every
def test_identity_is_round_with_radius_one(parametrization):
    metric = parametrization(field(parametrization.identity()[None], parametrization.dim))
    axes = torch.eye(parametrization.dim).double()
    fixed = getattr(parametrization, "p", None)
    length = norm_of(metric, torch.cat([axes, -axes]) if fixed else sphere(parametrization.dim, 64))
    if isinstance(parametrization, HalfSpace) and fixed:
        torch.testing.assert_close(length, length[:, :, :1].expand_as(length))
    else:
        torch.testing.assert_close(length, torch.ones_like(length), rtol=0, atol=1e-6)


@every
def test_all_channels_have_gradients_at_identity(parametrization):
    raw = field(parametrization.identity()[None], parametrization.dim).requires_grad_()
    u = sphere(parametrization.dim, 64)
    weight = torch.randn(len(u)).double().view(1, 1, -1, *(1,) * parametrization.dim)
    (slope,) = torch.autograd.grad((weight * norm_of(parametrization(raw), u)).sum(), raw)
    of_frame = 0
    if isinstance(parametrization, Asymmetric):
        of_frame = parametrization.ellipsoid.frame_channels  # a round ball has no axes
    if isinstance(parametrization, Orthant) and parametrization.p is None:
        of_frame = parametrization.dim * (parametrization.dim - 1) // 2  # so has one with p = 2
    changed = slope.flatten()[of_frame:].abs() > 1e-4
    if parametrization.dim == 1:  # the exponent has no effect on an interval
        changed = changed[: len(changed) - (getattr(parametrization, "p", 1) is None)]
    assert changed.all()


@every
def test_averages_of_metrics_are_positive_and_bounded(parametrization):
    size = (3,) * parametrization.dim
    raw = 3 * torch.randn(20, 1, parametrization.channels, *size)
    averaged = smoothed(parametrization(raw), 2)
    assert averaged.is_positive().all()
    # Averages of rotations by less than 75° shrink vectors by at most cos 75°.
    longest = averaged.unit_vectors(sphere(parametrization.dim, 32)).norm(dim=3).max()
    assert longest <= parametrization.max_reach * (4 if isinstance(parametrization, Orthant) else 1)


@every
def test_gradcheck(parametrization):
    raw = random_raw(parametrization, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda r: tuple(parametrization(r).tensors().values()), raw)


@planar
def test_compiles_to_one_graph(parametrization):
    raw = random_raw(parametrization, 2, torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda r: parametrization(r).norm(torch.ones(1, 1, 2, 1, 1)), fullgraph=True, backend="eager"
    )
    torch.testing.assert_close(compiled(raw), parametrization(raw).norm(torch.ones(1, 1, 2, 1, 1)))


@planar
def test_dtype_is_float32_or_wider_also_under_autocast(parametrization):
    raw = random_raw(parametrization, 3)
    assert parametrization(raw).dtype == torch.float64
    assert parametrization(raw.half()).dtype == torch.float32
    u = torch.randn(1, 1, 5, 2, 1, 1)
    expected = parametrization(raw.float()).norm(u)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(parametrization(raw.float()).norm(u), expected)


def test_channel_counts():
    assert [cls(dim=dim).channels for cls in (Asymmetric, Orthant, HalfSpace) for dim in (1, 2, 3)] == [
        *(3, 7, 16),
        *(3, 6, 10),
        *(3, 9, 27),
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Orthant(p=0.5), r"`p` \(=0.5\) must be at least 1"),
        (lambda: Orthant(max_extent=1.0), r"`max_extent` \(=1.0\) must be above 1"),
        (lambda: Orthant(dim=0), r"`dim` \(=0\)"),
        (lambda: Orthant(max_extent=1e6), "may reach 1.4e\\+06 pixels"),
        (lambda: HalfSpace(half_spaces=7), r"`half_spaces` \(=7\) must be even"),
        (lambda: HalfSpace(dim=3, half_spaces=8), r"half-spaces \(=8\) must be 6 or 26 for `dim` \(=3\)"),
        (lambda: HalfSpace(p=math.nan), r"`p` \(=nan\)"),
        (lambda: Asymmetric(s_min=0.0), r"`s_min` \(=0.0\)"),
        (lambda: Asymmetric(frame="euler"), r"`frame` \(='euler'\)"),
        (lambda: Orthant()(torch.zeros(1, 1, 5, 2, 2)), r"`raw` must be \(B, G, 6, \*spatial\)"),
    ],
)
def test_invalid_arguments_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()
