"""Properties of the operator for any geometry: dimension, sizes, kernel, stride, padding, dilation, groups, support."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import hypothesis
import torch
from hypothesis import strategies as st
from torch import Tensor

import metricconv as mc
from helpers import CONVOLUTIONS, PADDING_MODES, SUPPORT_KINDS, make_support

ANY_KERNEL = [kind for kind in SUPPORT_KINDS if kind not in ("riemannian", "randers")]  # these have a cubic one


class Problem(NamedTuple):
    """A random convolution in float64."""

    input: Tensor
    support: mc.Support
    weight: Tensor
    bias: Tensor
    options: dict[str, Any]

    def output(self, input: Tensor | None = None, weight: Tensor | None = None, *, bias: bool = False) -> Tensor:
        return mc.support_conv(
            self.input if input is None else input,
            self.support,
            self.weight if weight is None else weight,
            self.bias if bias else None,
            backend="reference",
            **self.options,
        )


@st.composite
def problems(draw: st.DrawFn, kinds: Sequence[str] = ANY_KERNEL, dims: Sequence[int] = (1, 2, 3)) -> Problem:
    dim = draw(st.sampled_from(dims))

    def axes(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(dim))

    kind = draw(st.sampled_from(kinds))
    kernel = tuple(k | 1 for k in axes(1, 3)) if kind == "square" else axes(1, 3)
    stride, dilation, padding = axes(1, 3), axes(1, 2), axes(0, 3)
    least = [max(1, d * (k - 1) + 1 - 2 * p) for d, k, p in zip(dilation, kernel, padding, strict=True)]
    size = [n + extra for n, extra in zip(least, axes(0, 3), strict=True)]
    geometry = zip(size, kernel, dilation, stride, padding, strict=True)
    out = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, s, p in geometry]
    batch, groups = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    channels, out_channels = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    metric_groups = draw(st.sampled_from([n for n in range(1, channels + 1) if channels % n == 0]))
    support = make_support(kind, kernel, batch, metric_groups, out, dilation)
    return Problem(
        torch.randn(batch, channels, *size, dtype=torch.float64),
        support,
        torch.randn(out_channels, channels // groups, *kernel, dtype=torch.float64),
        torch.randn(out_channels, dtype=torch.float64),
        {"stride": stride, "padding": padding, "groups": groups, "padding_mode": draw(st.sampled_from(PADDING_MODES))},
    )


@hypothesis.given(problem=problems(["grid"]))
def test_grid_gives_an_ordinary_convolution(problem):
    options = {name: value for name, value in problem.options.items() if name != "padding_mode"}
    expected = CONVOLUTIONS[problem.input.dim() - 2](
        problem.input, problem.weight, problem.bias, dilation=problem.support.dilation, **options
    )
    zeros = problem._replace(options=problem.options | {"padding_mode": "zeros"})
    torch.testing.assert_close(zeros.output(bias=True), expected)


@hypothesis.given(problem=problems())
def test_output_is_linear_in_the_input_and_in_the_weight(problem):
    x, w = torch.randn_like(problem.input), torch.randn_like(problem.weight)
    y = problem.output()
    torch.testing.assert_close(problem.output(problem.input + 2 * x), y + 2 * problem.output(x))
    torch.testing.assert_close(problem.output(weight=problem.weight + 2 * w), y + 2 * problem.output(weight=w))


@hypothesis.given(problem=problems())
def test_gradients_are_the_adjoint_of_the_convolution(problem):
    x, w = (t.clone().requires_grad_() for t in (problem.input, problem.weight))
    y = problem.output(x, w)
    upstream = torch.randn_like(y)
    for gradient, tensor in zip(torch.autograd.grad(y, [x, w], upstream), (x, w), strict=True):
        torch.testing.assert_close((gradient * tensor).sum(), (upstream * y).sum())


@hypothesis.given(problem=problems())
def test_images_of_a_batch_are_independent(problem):
    y = problem.output()
    for n in range(len(y)):
        changed = problem.input.clone()
        changed[torch.arange(len(y)) != n] = math.nan
        torch.testing.assert_close(problem.output(changed)[n], y[n])


@hypothesis.given(problem=problems())
def test_constant_image_stays_constant_inside_a_border(problem):
    mode = "border" if problem.options["padding_mode"] == "zeros" else problem.options["padding_mode"]
    constant = problem._replace(options=problem.options | {"padding_mode": mode})
    y = constant.output(torch.ones_like(problem.input))
    total = problem.weight.flatten(1).sum(1).view(1, -1, *(1,) * (y.dim() - 2))
    torch.testing.assert_close(y, total.expand_as(y))


@hypothesis.given(problem=problems(["deformable"], dims=(2,)))
def test_exchanging_the_axes_of_a_problem_exchanges_those_of_the_output(problem):
    rows, columns = problem.support.kernel_size
    displacement = problem.support.displacement.unflatten(2, (rows, columns)).transpose(2, 3).flatten(2, 3)
    exchanged = Problem(
        problem.input.mT,
        mc.Deformable(displacement.flip(3).mT, (columns, rows), problem.support.dilation[::-1]),
        problem.weight.mT,
        problem.bias,
        problem.options | {name: problem.options[name][::-1] for name in ("stride", "padding")},
    )
    torch.testing.assert_close(exchanged.output(), problem.output().mT)
