"""Supports: offsets, checks, conversion to torchvision's layout, immutability."""

import copy
import dataclasses
import itertools
import math
import pickle

import numpy as np
import pytest
import torch

import metricconv as mc
from helpers import SUPPORT_KINDS, make_support, mapped, randers, riemannian
from metricconv.supports import from_torchvision_offsets, to_torchvision_offsets

PARAMETRIZED = [kind for kind in SUPPORT_KINDS if kind not in ("grid", "spaced")]
KERNELS = {1: (3,), 2: (3, 3), 3: (3, 3, 3)}


def cells_of(kernel_size: tuple[int, ...]) -> torch.Tensor:
    axes = [[i - (k - 1) / 2 for i in range(k)] for k in kernel_size]
    return torch.tensor(list(itertools.product(*axes)), dtype=torch.float64)


@pytest.mark.parametrize("kind", PARAMETRIZED)
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_offsets_have_documented_shape(kind, dim):
    out = (4, 5, 2)[:dim]
    support = make_support(kind, KERNELS[dim], 2, 3, out)
    assert support.offsets().shape == (2, 3, 3**dim, dim, *out)
    assert (support.dim, support.samples, support.batch, support.groups) == (dim, 3**dim, 2, 3)
    assert support.spatial == out


@pytest.mark.parametrize("kind", SUPPORT_KINDS)
@pytest.mark.parametrize("samples", [slice(0, 1), slice(2, 7), slice(8, 9), slice(5, 5)])
def test_offsets_of_a_slice_are_the_slice_of_all(kind, samples):
    support = make_support(kind, (3, 3), 2, 2, (3, 4))
    torch.testing.assert_close(support.offsets(samples), support.offsets()[:, :, samples])


@pytest.mark.parametrize(("kernel_size", "dilation"), [((3, 3), 1), ((2, 4), (3, 1)), ((5,), 2), ((3, 1, 2), 2)])
def test_grid_is_centered_and_row_major(kernel_size, dilation):
    support = mc.Grid(kernel_size, dilation)
    assert support.offsets().shape == (1, 1, math.prod(kernel_size), len(kernel_size), *(1,) * len(kernel_size))
    expected = cells_of(kernel_size) * torch.tensor(dilation).double()
    torch.testing.assert_close(support.offsets().view(expected.shape).double(), expected)


def test_grid_offsets_of_a_small_kernel():
    rows = mc.Grid((2, 3)).offsets().view(6, 2).tolist()
    assert rows == [[-0.5, -1], [-0.5, 0], [-0.5, 1], [0.5, -1], [0.5, 0], [0.5, 1]]


def test_grid_spacing_scales_offsets_but_not_dilation():
    grid = mc.Grid(3, spacing=(0.5, 2.0))
    assert grid.offsets().view(9, 2)[0].tolist() == [-0.5, -2.0]
    assert grid.dilation == (1, 1)


@pytest.mark.parametrize("spacing", ["a", "ab", 0, -1.0, float("nan"), [1.0], [1.0, None], 1j])
def test_invalid_grid_spacing_raises(spacing):
    with pytest.raises(ValueError, match=r"`spacing` .* must be positive, one number or one for each of 2 axes"):
        mc.Grid(3, spacing=spacing)


@pytest.mark.parametrize("spacing", [2, np.int64(2), np.float32(2), [2.0, 2.0], np.array([2, 2])])
def test_grid_spacing_accepts_numbers_of_any_type(spacing):
    assert mc.Grid(3, spacing=spacing).spacing == (2.0, 2.0)


def test_grid_has_no_tensors():
    grid = mc.Grid(3, dim=3)
    assert (grid.tensors(), grid.batch, grid.groups, grid.spatial) == ({}, 1, 1, (1, 1, 1))


def test_shifted_adds_one_vector_to_the_whole_grid():
    support = make_support("shifted", (3, 2), 2, 2, (3, 4), dilation=(2, 1))
    grid = (cells_of((3, 2)) * torch.tensor([2.0, 1.0])).view(1, 1, 6, 2, 1, 1)
    torch.testing.assert_close(support.offsets(), grid + support.tensors()["shift"].unsqueeze(2))


def test_dilated_multiplies_the_whole_grid():
    support = make_support("dilated", (3, 2), 2, 2, (3, 4), dilation=(2, 1))
    grid = (cells_of((3, 2)) * torch.tensor([2.0, 1.0])).view(1, 1, 6, 2, 1, 1)
    torch.testing.assert_close(support.offsets(), grid * support.tensors()["scale"].unsqueeze(3))


def test_deformable_adds_a_vector_to_each_cell():
    support = make_support("deformable", (3, 2), 2, 2, (3, 4), dilation=(2, 1))
    grid = (cells_of((3, 2)) * torch.tensor([2.0, 1.0])).view(1, 1, 6, 2, 1, 1)
    torch.testing.assert_close(support.offsets(), grid + support.tensors()["displacement"])


@pytest.mark.parametrize("stencil", [mc.stencils.onion(3), mc.stencils.polar(3), mc.stencils.square_onion(3)])
def test_tangent_ball_is_radius_times_direction_over_norm(stencil):
    metric = randers(2, 2, 1, (2, 3))
    offsets = mc.TangentBall(metric, stencil).offsets()
    for b, y, x, j in itertools.product((0, 1), (0, 1), (0, 2), range(9)):
        yy, yx, xx = metric.M[b, 0, :, y, x].tolist()
        (wy, wx), (uy, ux) = metric.omega[b, 0, :, y, x].tolist(), stencil.directions[j].tolist()
        norm = math.sqrt(yy * uy * uy + 2 * yx * uy * ux + xx * ux * ux) + wy * uy + wx * ux
        s = stencil.radii[j].item()
        assert offsets[b, 0, j, :, y, x].tolist() == pytest.approx([s * uy / norm, s * ux / norm])


def test_every_sample_of_a_tangent_ball_has_its_radius_as_norm():
    metric, stencil = randers(3, 2, 2, (2, 2, 2)), mc.stencils.onion(3, 3)
    norm = metric.norm(mc.TangentBall(metric, stencil).offsets())
    torch.testing.assert_close(norm, stencil.radii.view(1, 1, -1, 1, 1, 1).expand_as(norm))


def test_tangent_ball_has_tensors_of_its_metric():
    metric = randers(2, 2, 3, (4, 5))
    ball = mc.TangentBall(metric, mc.stencils.onion(5), dilation=2)
    assert ball.tensors() == metric.tensors()
    assert (ball.kernel_size, ball.dilation) == ((5, 5), (2, 2))


def make_any(kind: str) -> mc.Support:
    if kind == "geodesic":
        return mc.GeodesicBall(randers(2, 1, 1, (4, 5)), mc.stencils.onion(3), steps=2)
    return make_support(kind, (3, 3), 2, 2, (4, 5))


@pytest.mark.parametrize("kind", [*SUPPORT_KINDS, "geodesic"])
def test_attributes_cannot_be_assigned(kind):
    support = make_any(kind)
    with pytest.raises(dataclasses.FrozenInstanceError):
        support.stride = (2, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        del support.dilation


@pytest.mark.parametrize("kind", [*SUPPORT_KINDS, "geodesic"])
def test_replace_changes_only_given_attributes(kind):
    support = make_any(kind)
    strided = dataclasses.replace(support, stride=(2, 1))
    assert type(strided) is type(support) and strided.stride == (2, 1) and support.stride in (None, (1, 1))
    assert strided.tensors().keys() == support.tensors().keys()
    assert all(strided.tensors()[name] is t for name, t in support.tensors().items())
    if kind != "geodesic":  # whose rays take the stride into account
        assert torch.equal(strided.offsets(), support.offsets())


@pytest.mark.parametrize("kind", [*SUPPORT_KINDS, "geodesic"])
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_copies_and_pickles_have_equal_offsets(kind, duplicate):
    support = make_any(kind)
    result = duplicate(support)
    assert type(result) is type(support) and vars(result).keys() == vars(support).keys()
    assert torch.equal(result.offsets(), support.offsets())


@pytest.mark.parametrize(
    ("support", "expected"),
    [
        (mc.Grid(3, 2), "Grid(kernel_size=(3, 3), dilation=(2, 2))"),
        (mc.Grid(3, spacing=0.5), "Grid(kernel_size=(3, 3), spacing=(0.5, 0.5))"),
        (
            mc.Shifted(torch.zeros(2, 1, 2, 4, 5), 3, stride=2),
            "Shifted(kernel_size=(3, 3), stride=(2, 2), batch=2, groups=1, spatial=(4, 5), dtype=torch.float32, "
            "device='cpu')",
        ),
        (
            mc.TangentBall(mc.Riemannian.isotropic(2.0), mc.stencils.onion(3)),
            "TangentBall(kernel_size=(3, 3), metric=Riemannian, batch=1, groups=1, spatial=(1, 1), "
            "dtype=torch.float32, device='cpu')",
        ),
        (
            mc.GeodesicBall(mc.Riemannian.isotropic(2.0), mc.stencils.onion(3), padding_mode="circular"),
            "GeodesicBall(kernel_size=(3, 3), metric=Riemannian, steps=3, smooth=1, padding_mode='circular', batch=1, "
            "groups=1, spatial=(1, 1), dtype=torch.float32, device='cpu')",
        ),
    ],
)
def test_repr_is_short(support, expected):
    assert repr(support) == expected


def test_reach_bounds_offsets():
    metric = mc.Riemannian.isotropic(torch.tensor([[1.0, 4.0]]).view(1, 1, 1, 2))
    ball = mc.TangentBall(metric, mc.stencils.square_onion(3))
    assert ball.reach() == pytest.approx(4 * 2**0.5)
    assert float(ball.offsets().norm(dim=3).max()) == pytest.approx(ball.reach())
    assert mc.GeodesicBall(metric.scaled(0.5), ball.stencil).reach() == pytest.approx(ball.reach() / 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", PARAMETRIZED)
def test_half_precision_parameters_are_widened(kind, dtype):
    support = make_support(kind, (3, 3), dtype=torch.float32)
    half = mapped(support, lambda t: t.to(dtype))
    assert half.offsets().dtype == torch.float32
    assert all(t.dtype == torch.float32 for t in half.tensors().values())


@pytest.mark.parametrize("kind", PARAMETRIZED)
def test_offsets_are_differentiable_in_all_parameters(kind):
    support = make_support(kind, (3, 3), 2, 2, (2, 2))
    leaves = list(support.tensors().values())
    for leaf in leaves:
        leaf.requires_grad_()
    for grad in torch.autograd.grad(support.offsets().square().sum(), leaves):
        assert grad.isfinite().all()
        assert (grad != 0).all()


def test_torchvision_channels_are_ordered_by_group_cell_axis():
    offset = torch.arange(2 * 2 * 6.0).view(1, 24, 1, 1).expand(2, 24, 4, 5)
    displacement = from_torchvision_offsets(offset, (2, 3)).tensors()["displacement"]
    assert displacement.shape == (2, 2, 6, 2, 4, 5)
    assert displacement[0, 0, :, :, 0, 0].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert displacement[1, 1, 0, :, 3, 4].tolist() == [12, 13]


def test_torchvision_offsets_round_trip():
    offset = torch.randn(2, 2 * 3 * 6, 4, 5)
    support = from_torchvision_offsets(offset, (2, 3), dilation=(2, 1))
    torch.testing.assert_close(to_torchvision_offsets(support), offset, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", SUPPORT_KINDS)
def test_torchvision_layout_preserves_offsets_of_any_support(kind):
    support = make_support(kind, (3, 3), 2, 2, (4, 5), dilation=2)
    converted = from_torchvision_offsets(to_torchvision_offsets(support), (3, 3), dilation=2)
    torch.testing.assert_close(converted.offsets(), support.offsets())


def test_torchvision_layout_requires_two_dimensions():
    with pytest.raises(ValueError, match=r"`support` must have 2 spatial axes .* got 3"):
        to_torchvision_offsets(mc.Grid(3, dim=3))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: mc.Grid(0), ValueError, r"`kernel_size` \(=0\) must be at least 1"),
        (lambda: mc.Grid(3, dilation=0), ValueError, r"`dilation` \(=0\) must be at least 1"),
        (lambda: mc.Grid(3, dilation=(1, 1, 1)), ValueError, r"`dilation` \(=\(1, 1, 1\)\) must be an int or 2 ints"),
        (lambda: mc.Grid(3, spacing=-1.0), ValueError, r"`spacing` \(=-1.0\) must be positive"),
        (lambda: mc.Shifted(torch.zeros(1, 1, 3, 4, 4), 3), ValueError, r"`shift` .*got \(1, 1, 3, 4, 4\)"),
        (
            lambda: mc.Shifted(torch.zeros(2, 2), 3),
            ValueError,
            r"`shift` must be \(B, G, d, \*out\), got shape \(2, 2\)",
        ),
        (lambda: mc.Shifted([0.0, 1.0], 3), TypeError, r"`shift` must be a torch.Tensor, got list"),
        (lambda: mc.Dilated(torch.ones(1, 1, 2, 4, 4), 3), ValueError, r"`scale` .*got \(1, 1, 2, 4, 4\)"),
        (lambda: mc.Dilated(torch.ones(1, 1, 1, 4, 4).int(), 3), TypeError, r"`scale` must hold floating.*torch.int32"),
        (lambda: mc.Deformable(torch.zeros(1, 18, 4, 4), 3), ValueError, r"`displacement` must be .*\(1, 18, 4, 4\)"),
        (
            lambda: mc.Deformable(torch.zeros(1, 1, 4, 2, 4, 4), 3),
            ValueError,
            r"\(B, G, 9, 2, \*out\).*\(1, 1, 4, 2, 4, 4\)",
        ),
        (lambda: from_torchvision_offsets(torch.zeros(1, 17, 4, 4), 3), ValueError, r"`offset` .*\(1, 17, 4, 4\)"),
        (lambda: from_torchvision_offsets(torch.zeros(1, 0, 4, 4), 3), ValueError, r"`offset` .*\(1, 0, 4, 4\)"),
        (
            lambda: mc.TangentBall(torch.ones(3), mc.stencils.onion(3)),
            TypeError,
            r"`metric` must be a Metric, got Tensor",
        ),
        (lambda: mc.TangentBall(riemannian(2), "onion"), TypeError, r"`stencil` must be a Stencil, got str"),
        (
            lambda: mc.TangentBall(riemannian(2), mc.stencils.onion(3, 3)),
            ValueError,
            r"`stencil` has 3 .*`metric` has 2",
        ),
    ],
)
def test_invalid_arguments_raise(make, error, message):
    with pytest.raises(error, match=message):
        make()
