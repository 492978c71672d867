"""Precision of the CPU backend: float32 and float64 natively, half precision in float32."""

import dataclasses

import pytest
import torch

import metricconv as mc
from ops.cases import Case, outcome, relative

pytest.importorskip("numba")
CASES = {
    "few channels": Case(batch=1, channels=(2, 2), size=(3, 4), modulated=True),
    "many channels": Case(batch=1, channels=(8, 2), size=(3, 3), kernel=(1, 3), padding=(0, 1), modulated=True),
    "deformable": Case("deformable", "reflect", batch=1, channels=(2, 2), size=(3, 4), kernel=(1, 3), padding=(0, 1)),
    "volume": Case(batch=1, channels=(1, 1), size=(3, 3, 3), kernel=(3, 1, 1), padding=(1, 0, 0)),
    "one-sided": Case("asymmetric", batch=1, channels=(2, 2), size=(3, 4)),
    "geodesic": Case("geodesic", batch=1, channels=(1, 1), size=(4, 4)),
    "geodesic, circular": Case(
        "geodesic", "circular", batch=1, channels=(8, 2), size=(4, 4), kernel=(1, 3), padding=(0, 1)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_gradcheck_in_float64(name: str) -> None:
    tensors, run = CASES[name].make()
    leaves = [t.double().requires_grad_() for t in tensors.values()]

    def y(*values: torch.Tensor) -> torch.Tensor:
        return run(dict(zip(tensors, values, strict=True)), backend="cpu")

    torch.autograd.gradcheck(y, leaves, atol=1e-6, rtol=1e-4)


def test_geodesic_samples_have_float64_precision() -> None:
    x = torch.rand(1, 1, 12, 13, dtype=torch.float64)
    support = mc.GeodesicBall(mc.metrics.edge_metric(x), mc.stencils.polar(7))
    weight = torch.rand(1, 1, 7, 7, dtype=torch.float64)
    result, expected = (mc.support_conv(x, support, weight, padding=3, backend=name) for name in ("cpu", "reference"))
    torch.testing.assert_close(result, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("channels", [(3, 4), (16, 4)])
def test_half_precision_is_computed_in_float32_and_rounded(dtype, channels) -> None:
    tensors, run = dataclasses.replace(Case(channels=channels, modulated=True), dtype=dtype).make()
    y = run(tensors, backend="cpu")
    assert y.dtype == dtype
    wide = {name: t.float() for name, t in tensors.items()}
    assert torch.equal(y, run(wide, backend="cpu").to(dtype))
    found, expected = outcome(run, tensors, backend="cpu"), outcome(run, tensors, backend="reference")
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert relative(found[name], value) < torch.finfo(dtype).eps, name


def test_autocast_gives_half_precision() -> None:
    layer = mc.nn.MetricConv2d(8, 4, 3, padding=1, backend="cpu")
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(torch.randn(1, 8, 6, 6))
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_support_in_another_dtype_falls_back_to_reference() -> None:
    support = mc.Shifted(torch.randn(1, 1, 2, 5, 5, dtype=torch.float64), 3)
    x, weight = torch.randn(1, 2, 5, 5), torch.randn(2, 2, 3, 3)
    with pytest.raises(ValueError, match=r"`support.shift` is torch.float64 and `input` torch.float32"):
        mc.support_conv(x, support, weight, padding=1, backend="cpu")
    y = mc.support_conv(x, support, weight, padding=1)
    assert torch.equal(y, mc.support_conv(x, support, weight, padding=1, backend="reference"))
