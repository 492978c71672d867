"""Supports without kernels of their own: computed by displacements on the CPU backend, equal to the reference."""

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor

import metricconv as mc
from metricconv.metrics import gradient_metric
from metricconv.ops import displacements
from metricconv.ops.backends import choose_backend, record_backends
from metricconv.ops.displacements import ByDisplacements
from metricconv.ops.problem import Problem
from shapes import KINDS, make_shape

pytest.importorskip("numba")

KERNELS = [(3, 3), (2, 4), (4, 3), (2, 2), (3,), (4,), (2, 3, 2)]
GEOMETRIES = [(1, 1, 1), (2, 0, 1), (2, 1, 3)]  # stride, padding, dilation


@dataclasses.dataclass(frozen=True, eq=False)
class Rotated(mc.Support):
    """A user's support: the 3×3 grid rotated at each pixel, one angle for all groups."""

    angle: Tensor  # [B, 1, 1, *out]
    kernel_size: tuple[int, ...] = (3, 3)
    dilation: tuple[int, ...] = (1, 1)

    def offsets(self, samples: slice | None = None) -> Tensor:
        y, x = mc.Grid(3).offsets(samples).to(self.angle).unbind(3)
        cos, sin = self.angle.cos(), self.angle.sin()
        return torch.stack([cos * y - sin * x, sin * y + cos * x], 3)

    def tensors(self) -> dict[str, Tensor]:
        return {"angle": self.angle}


def ball(kind: str, kernel: tuple[int, ...], out: list[int], dilation: int, groups: int = 2) -> mc.TangentBall:
    dim = len(kernel)
    samples = torch.Size(kernel).numel()
    directions = torch.nn.functional.normalize(torch.randn(samples, dim).double(), dim=1)
    stencil = mc.stencils.Stencil(directions, 0.1 + torch.rand(samples).double(), kernel)
    metric = make_shape(kind, dim, 2, groups, out).map(lambda t: t.clone().requires_grad_())
    return mc.TangentBall(metric, stencil, dilation)


def assert_equal_to_reference(support: mc.Support, x: Tensor, weight: Tensor, **options: object) -> None:
    """Assert that outputs and all gradients of the CPU backend equal those of the reference."""
    inputs = [x, weight, *support.tensors().values()]
    modulation = options.get("modulation")
    inputs += [modulation] if isinstance(modulation, Tensor) else []
    results = []
    for backend in ("cpu", "reference"):
        y = mc.support_conv(x, support, weight, backend=backend, **options)  # type: ignore[arg-type]
        slope = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
        results.append([y, *torch.autograd.grad((y * slope).sum(), inputs)])
    for fast, expected in zip(*results, strict=True):
        torch.testing.assert_close(fast, expected)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("stride", "padding", "dilation"), GEOMETRIES)
@pytest.mark.parametrize("chunk", [2**22, 64])
def test_outputs_and_gradients_equal_reference(kernel, stride, padding, dilation, chunk, monkeypatch):
    monkeypatch.setattr(displacements, "_CHUNK_ELEMENTS", chunk)
    size = (14, 13, 12)[: len(kernel)]
    out = [(n + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(size, kernel, strict=True)]
    support = ball("half_space", kernel, out, dilation)
    x, weight = torch.randn(2, 4, *size).double().requires_grad_(), torch.randn(6, 2, *kernel).double().requires_grad_()
    modulation = torch.rand(2, 1, support.samples, *out).double().requires_grad_()
    options = {"stride": stride, "padding": padding, "groups": 2, "modulation": modulation}
    assert_equal_to_reference(support, x, weight, bias=torch.randn(6).double(), **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding_mode", ["zeros", "reflect"])
def test_every_family_equals_reference(kind, padding_mode):
    support = ball(kind, (3, 3), [6, 7], 1)
    x, weight = torch.randn(2, 16, 6, 7).double().requires_grad_(), torch.randn(4, 16, 3, 3).double().requires_grad_()
    assert_equal_to_reference(support, x, weight, padding=1, padding_mode=padding_mode)


def test_support_of_a_user_equals_reference():
    support = Rotated(torch.randn(1, 1, 1, 5, 6).double().requires_grad_())
    x, weight = torch.randn(2, 4, 5, 6).double().requires_grad_(), torch.randn(2, 4, 3, 3).double().requires_grad_()
    assert_equal_to_reference(support, x, weight, padding=1)


def test_stencils_that_require_gradients_and_volumes_of_geodesics_equal_reference():
    directions = torch.randn(27, 3).double()
    stencil = mc.stencils.Stencil(directions, torch.rand(27).double().requires_grad_(), (3, 3, 3))
    x, weight = (
        torch.randn(1, 1, 5, 6, 4).double().requires_grad_(),
        torch.randn(1, 1, 3, 3, 3).double().requires_grad_(),
    )
    metric = gradient_metric(torch.rand(1, 1, 5, 6, 4).double(), alpha=2.0)
    for kind in (mc.TangentBall, mc.GeodesicBall):
        support = kind(metric.map(lambda t: t.clone().requires_grad_()), stencil)
        assert_equal_to_reference(support, x, weight, padding=1)


def test_auto_selects_the_cpu_backend_and_names_it():
    with record_backends() as names:
        layer = mc.nn.MetricConv2d(2, 2, 3, metric=make_shape("box", 2, dtype=torch.float32))
        layer(torch.randn(1, 2, 6, 6)).sum().backward()
    assert names == {"cpu"}


def test_dedicated_kernels_are_preferred():
    for metric in (mc.Riemannian, mc.Randers, mc.AsymmetricQuadratic):
        support = mc.TangentBall(metric.isotropic(1.0), mc.stencils.onion(3))
        x, weight = torch.zeros(1, 1, 5, 5), torch.zeros(1, 1, 3, 3)
        problem = Problem(x, support, weight, None, (1, 1), (1, 1), 1, None, "zeros")
        assert not isinstance(choose_backend(problem), ByDisplacements)


def test_other_dtypes_fall_back_to_reference():
    with record_backends() as names:
        mc.support_conv(
            torch.zeros(1, 1, 5, 5).double(),
            mc.TangentBall(make_shape("box", dtype=torch.float32), mc.stencils.onion(3)),
            torch.zeros(1, 1, 3, 3).double(),
        )
    assert names == {"reference"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once_per_chunk(dtype, monkeypatch):
    support = mc.TangentBall(make_shape("half_space", 2, 1, 1, (5, 6), dtype=torch.float32), mc.stencils.onion(3))
    x, weight = torch.randn(1, 3, 5, 6).to(dtype), torch.randn(2, 3, 3, 3).to(dtype)
    expected = mc.support_conv(x, support, weight, padding=1, backend="reference")
    for chunk in (2**22, 8):
        monkeypatch.setattr(displacements, "_CHUNK_ELEMENTS", chunk)
        y = mc.support_conv(x, support, weight, padding=1, backend="cpu")
        assert y.dtype == dtype
        torch.testing.assert_close(y, expected, rtol=3e-2, atol=3e-2)


def test_chunks_cover_all_samples_and_bound_the_memory(monkeypatch):
    support = ball("box", (3, 3), [6, 7], 1)
    problem = Problem(torch.zeros(2, 2, 6, 7), support, torch.zeros(1, 2, 3, 3), None, (1, 1), (1, 1), 1, None, "zeros")
    monkeypatch.setattr(displacements, "_CHUNK_ELEMENTS", 2 * 2 * 2 * 6 * 7 * 4)
    chunks = displacements._chunks(problem)
    assert [s.stop - s.start for s in chunks] == [4, 4, 1]
    assert list(itertools.chain(*(range(9)[s] for s in chunks))) == list(range(9))


def test_layer_of_a_family_compiles():
    layer = mc.nn.MetricConv2d(2, 2, 3, padding=1, metric=make_shape("asymmetric", dtype=torch.float32))
    x = torch.randn(1, 2, 6, 6)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(layer, backend="eager", fullgraph=True)(x), layer(x))
