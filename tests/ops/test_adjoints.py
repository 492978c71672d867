"""The hand-written adjoints in the kernels equal those of autograd."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from metricconv.metrics.base import SMALLEST_NORM
from ops.on_torch import on_torch

Values = Sequence[Tensor]


def check_adjoint(
    formula: Callable[..., Values], adjoint: Callable[..., Values], inputs: Values, expected: Sequence[int]
) -> None:
    """Compare ``adjoint(*inputs, *upstream)`` with the gradients of the ``expected`` inputs by autograd."""
    leaves = [t.clone().requires_grad_() for t in inputs]
    outputs = formula(*leaves)
    upstream = [torch.randn_like(t) for t in outputs]
    gradients = torch.autograd.grad(outputs, leaves, upstream, materialize_grads=True)
    found = adjoint(*inputs, *upstream)
    for gradient, index in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, gradients[index], rtol=1e-7, atol=1e-9)


def random_field(clamped: str, count: int = 50) -> list[Tensor]:
    """Return twelve field values at points: M (3), ω (2), curl, ∂_y M (3), ∂_x M (3)."""
    root = torch.eye(2).double() + 0.4 * torch.randn(count, 2, 2).double()
    M = root @ root.mT
    m00, m01, m11 = M[:, 0, 0], M[:, 0, 1], M[:, 1, 1]
    if clamped == "pivot":  # not positive: the second pivot is below its bound
        m01 = 1.3 * (m00 * m11).sqrt()
    drift = 50.0 if clamped == "norm" else 0.2  # F may be below its bound
    return [m00, m01, m11, *drift * torch.randn(2, count).double(), *torch.randn(7, count).double()]


# The formulas for numba branch: points are taken one at a time. Those for Triton are elementwise.
clamps = pytest.mark.parametrize("clamped", ["nothing", "pivot", "norm"])


@clamps
def test_adjoint_of_the_flow_for_numba(clamped: str) -> None:
    pytest.importorskip("numba")
    from metricconv.ops.cpu import flow

    formulas, least = on_torch(flow), (flow._LEAST_PIVOT, flow._LEAST_NORM)
    field, momentum = torch.stack(random_field(clamped)), torch.randn(2, 50).double()
    for local, q in zip(field.unbind(1), momentum.unbind(1), strict=True):
        check_adjoint(
            lambda *v: formulas.rates(v[:12], *v[12:], least),
            lambda *v: formulas.rates_backward(v[:12], *v[12:], least),
            [*local, *q],
            [12, 13, *range(12)],
        )


@clamps
def test_adjoint_of_the_flow_for_triton(clamped: str) -> None:
    pytest.importorskip("triton")
    from metricconv.ops.triton import flow

    formulas = on_torch(flow, reciprocal=torch.reciprocal)
    check_adjoint(
        lambda *v: formulas.flow(v[:12], formulas.factorize(v[:12]), *v[12:], 1.0),
        lambda *v: formulas.flow_adjoint(v[:12], formulas.factorize(v[:12]), *v[12:]),
        [*random_field(clamped), *torch.randn(2, 50).double()],
        range(14),
    )


@clamps
def test_adjoint_of_the_initial_state_for_triton(clamped: str) -> None:
    pytest.importorskip("triton")
    from metricconv.ops.triton import trace

    formulas, (u0, u1) = on_torch(trace, reciprocal=torch.reciprocal), torch.randn(2, 50).double()
    check_adjoint(
        lambda *v: formulas.initial_state(v, u0, u1, 0.3),
        lambda *v: formulas.initial_state_adjoint(v[:5], u0, u1, 0.3, *v[5:]),
        random_field(clamped)[:5],
        range(5),
    )


def test_flows_of_both_backends_are_equal() -> None:
    pytest.importorskip("numba")
    pytest.importorskip("triton")
    from metricconv.ops.cpu import flow as numba_flow
    from metricconv.ops.triton import flow as triton_flow

    numba, triton = on_torch(numba_flow), on_torch(triton_flow, reciprocal=torch.reciprocal)
    least = numba._LEAST_PIVOT, numba._LEAST_NORM
    field, momentum = torch.stack(random_field("nothing")), torch.randn(2, 50).double()
    found = torch.stack(triton.flow(field, triton.factorize(field), *momentum, 1.0))
    points = zip(field.unbind(1), momentum.unbind(1), strict=True)
    expected = torch.stack([torch.stack(numba.rates(tuple(local), *q, least)) for local, q in points], 1)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("drift", ["none", "linear", "one-sided"])
@pytest.mark.parametrize("kind", ["ball", "dilated", "shifted"])
def test_adjoint_of_sample_offsets_for_triton(kind: str, drift: str) -> None:
    pytest.importorskip("triton")
    from metricconv.ops.triton import geometry

    formulas, (a, b) = on_torch(geometry), torch.nn.functional.normalize(torch.randn(2, 50).double(), dim=0)
    count = 3 if drift == "none" else 5  # parameters
    index, metric = torch.arange(50), random_field("nothing")[:3]
    if drift == "linear":
        metric = [torch.where(index % 7 == 0, -t, t) for t in metric]  # uᵀMu < 0
    omega = [torch.where(index % 7 < 2, 1.0, 0.2 * torch.randn(50).double()) for _ in range(2)]
    omega = [torch.where(index % 7 == 2, -9 * u, w) for u, w in zip((a, b), omega, strict=True)]  # linear: F(u) < 0
    omega = [torch.where(index % 7 == 3, v, w) for v, w in zip((-b, a), omega, strict=True)]  # ωᵀu = 0
    check_adjoint(
        lambda *p: formulas.sample_offset(a, b, 1.7, *p, kind, drift),
        lambda *p: formulas.sample_offset_gradient(a, b, 1.7, *p, kind, drift)[:count],
        [*metric, *omega],
        range(count),
    )


@pytest.mark.parametrize("drift", ["none", "linear", "one-sided"])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_adjoint_of_the_norm_for_numba(dim: int, drift: str) -> None:
    """1/F of many pixels in one direction, also where uᵀMu < 0, and where F is clamped."""
    pytest.importorskip("numba")
    from metricconv.ops.cpu import strip, tangent_ball

    pairs = [(i, j) for i in range(dim) for j in range(i, dim)]
    u, count = torch.nn.functional.normalize(torch.randn(dim).double(), dim=0), 21
    M, index = torch.stack([torch.eye(dim).double()[i, j].expand(count) for i, j in pairs]), torch.arange(count)
    M = torch.where(index % 7 == 0, -M, M + 0.2 * torch.randn(len(pairs), count).double())
    omega = torch.where(index % 7 == 1, -9 * u[:, None], 0.1 + 0.2 * torch.randn(dim, count).double())
    params = (M if drift == "none" else torch.cat([M, omega])).requires_grad_()
    square = sum((1 if i == j else 2) * u[i] * u[j] * m for (i, j), m in zip(pairs, params, strict=False))
    along = u @ params[len(pairs) :] if drift != "none" else torch.zeros(())
    square = square + along.relu().square() if drift == "one-sided" else square
    root = torch.where(square > 0, square, 1).sqrt() * (square > 0)
    norm = root + along if drift == "linear" else root
    inverse, upstream = 1 / norm.clamp_min(SMALLEST_NORM), torch.randn(count).double()
    (expected,) = torch.autograd.grad(inverse, params, upstream)

    stencil, terms, found = np.zeros((1, 7)), np.zeros((3, strip.STRIP)), np.zeros(params.shape)
    stencil[0, 3 - dim : 3] = u
    formula, pixels = (3 - dim, drift == "one-sided"), (np.uint64(0), stencil, 0, terms)
    tangent_ball.fill_inverse_norm(*formula, params.detach().numpy(), *pixels, np.uint64(count))
    assert terms[0, :count] == pytest.approx(inverse.detach().numpy(), rel=1e-9)
    terms[2, :count] = upstream
    tangent_ball.add_ball_gradient(*formula, *pixels, found, np.uint64(count))
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mode", ["zeros", "border", "reflect", "circular"])
def test_slopes_of_interpolation_weights_for_triton(mode: str) -> None:
    pytest.importorskip("triton")
    from metricconv.ops.triton import geometry

    formulas = on_torch(geometry)
    position = (torch.rand(200).double() * 24 - 12).requires_grad_()
    i0, i1, lower, upper, lower_slope, upper_slope = formulas.axis_corners(3, position, 5, mode)
    values = torch.randn(5).double()
    (expected,) = torch.autograd.grad((values[i0] * lower + values[i1] * upper).sum(), position)
    torch.testing.assert_close(values[i0] * lower_slope + values[i1] * upper_slope, expected)
