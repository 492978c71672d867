"""Supports without kernels of their own in Triton's interpreter, run by test_interpreted.py."""

import pytest
import torch

import metricconv as mc
from metricconv.ops import displacements
from shapes import make_shape

pytestmark = pytest.mark.usefixtures("poison")


@pytest.mark.parametrize(("kernel", "chunk"), [((3, 3), 2**22), ((2, 4), 96), ((4,), 10)])
def test_balls_of_other_metrics_equal_reference(
    kernel: tuple[int, ...], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(displacements, "_CHUNK_ELEMENTS", chunk)
    dim, samples = len(kernel), torch.Size(kernel).numel()
    stencil = mc.stencils.Stencil(torch.randn(samples, dim), torch.rand(samples), kernel)
    x, weight = torch.randn(1, 2, *(3,) * dim, requires_grad=True), torch.randn(1, 2, *kernel, requires_grad=True)
    out = [3 + 2 - (k - 1) for k in kernel]
    metric = make_shape("half_space", dim, 1, 2, out, dtype=torch.float32)
    metric = metric.map(lambda t: t.clone().requires_grad_())
    results = []
    for backend in ("triton", "reference"):
        y = mc.support_conv(x, mc.TangentBall(metric, stencil), weight, padding=1, backend=backend)
        slope = torch.linspace(-1, 1, y.numel()).view_as(y)
        results.append([y, *torch.autograd.grad((y * slope).sum(), [x, weight, *metric.tensors().values()])])
    for fast, expected in zip(*results, strict=True):
        torch.testing.assert_close(fast, expected, rtol=1e-4, atol=1e-4)
