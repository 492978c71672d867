"""Wide layers, whose columns are multiplied by torch in blocks, agree with the reference for any size of blocks."""

import pytest
import torch

from ops.cases import Case, check, relative
from ops.cpu.recorded import recorded_call

pytest.importorskip("numba")
from metricconv import _compat
from metricconv.ops.cpu import blocks, matrix_product
from metricconv.ops.cpu.arguments import CpuArguments, new_output, view_3d
from metricconv.ops.cpu.reorder import channels_first, samples_first
from metricconv.ops.cpu.tiling import DEFAULT, Tiling

SMALL = Tiling(tasks=3, min_range_pixels=3, block_values=1, min_block_rows=7, min_task_values=1, tile_values=1)
CASES = {
    "fewer pixels than outputs": Case(channels=(16, 64), batch=3, size=(4, 3), modulated=True),
    "one pixel": Case(channels=(10, 64), batch=2, size=(1, 1)),
    "more pixels than outputs": Case(channels=(16, 64), batch=2, size=(9, 8), metric_groups=2, modulated=True),
    "samples in the order of their directions": Case(channels=(8, 64), kernel=(5, 5), padding=2, size=(9, 9)),
    "the same, fewer pixels": Case(channels=(8, 64), batch=1, kernel=(5, 5), padding=2, size=(4, 4)),
    "strided, channels-last": Case(channels=(16, 64), stride=2, size=(17, 19), layout="channels_last"),
    "reflected": Case("deformable", mode="reflect", channels=(16, 64), size=(8, 9), radius=4.0),
    "circular, on pixels": Case("shifted", mode="circular", channels=(16, 64), size=(8, 9), whole=1.0),
    "geodesic": Case("geodesic", channels=(16, 64), size=(9, 8)),
    "volume": Case("deformable", channels=(8, 64), size=(3, 4, 5), kernel=(3, 1, 3), padding=(1, 0, 1)),
    "signal": Case("riemannian", channels=(8, 64), size=(17,), kernel=(3,)),
    "double precision": Case("grid", channels=(16, 64), dtype=torch.float64),
}

# Kernels are compiled again for double precision.
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name == "double precision" else name for name in CASES]


def computed(args: CpuArguments, bias: torch.Tensor | None, tiling: Tiling) -> list[torch.Tensor]:
    """Return the output and the gradients that exist, for a fixed gradient of the output."""
    out = new_output(args, False)
    blocks.forward(args, view_3d(args, out), bias, tiling)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(7)).to(out)
    needs = (True, True, args.modulation is not None, args.params is not None)
    return [out, *(g for g in blocks.backward(args, view_3d(args, grad), needs, tiling) if g is not None)]


@pytest.mark.parametrize("name", NAMES)
def test_small_blocks_give_the_default_result(name: str) -> None:
    tensors, run = CASES[name].make()
    *shared, bias, _ = recorded_call(run, tensors)
    args = CpuArguments(*shared)
    assert args.uses_blocks
    for found, expected in zip(computed(args, bias, SMALL), computed(args, bias, DEFAULT), strict=True):
        assert relative(found, expected) <= 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_blocks_agree_with_reference(name: str) -> None:
    check(CASES[name], 1e-4, backend="cpu")


def test_unneeded_gradients_are_skipped() -> None:
    tensors, run = CASES["more pixels than outputs"].make()
    args = CpuArguments(*recorded_call(run, tensors)[:-2])
    grad = torch.randn(new_output(args, False).shape)
    everything = blocks.backward(args, view_3d(args, grad), (True, True, True, True))
    for position in range(4):
        needs = tuple(n == position for n in range(4))
        some = blocks.backward(args, view_3d(args, grad), needs)  # type: ignore[arg-type]
        assert [g is not None for g in some] == list(needs)
        assert relative(some[position], everything[position]) <= 1e-6  # type: ignore[arg-type]


def test_orders_of_columns_are_inverse() -> None:
    order = torch.randperm(7).numpy()
    source = torch.randn(5, 3, 7)
    moved = samples_first(source, order)
    torch.testing.assert_close(moved, source[:, :, order].transpose(1, 2).contiguous(), rtol=0, atol=0)
    torch.testing.assert_close(channels_first(moved, order), source, rtol=0, atol=0)


@pytest.mark.parametrize("library", ["onednn", "blas"])
def test_product_accepts_any_strides(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if library == "onednn":
        product = _compat.onednn_linear()
        if product is None:
            pytest.skip("this torch has no oneDNN")
    else:
        product = torch.nn.functional.linear
    monkeypatch.setattr(matrix_product, "fastest_product", lambda dtype: product)
    a, b, bias = torch.randn(5, 9), torch.randn(7, 9), torch.randn(7)
    for first in (a, a.t().contiguous().t(), a[:1]):
        for second in (b, b.t().contiguous().t()):
            torch.testing.assert_close(matrix_product.multiply(first, second, bias), first @ second.t() + bias)
            torch.testing.assert_close(matrix_product.multiply(first, second), first @ second.t())


def test_blas_is_chosen_where_it_is_much_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = object()
    monkeypatch.setattr(_compat, "onednn_linear", lambda: slow)
    choose = matrix_product.fastest_product.__wrapped__
    for blas_time, expected in ((1.0, torch.nn.functional.linear), (9.0, slow)):
        times = {slow: 10.0, torch.nn.functional.linear: blas_time}
        monkeypatch.setattr(matrix_product, "_milliseconds", lambda product, a, b, times=times: times[product])
        assert choose(torch.float32) is expected


def test_weights_stay_resizable() -> None:
    """NumPy must not export the storage of a parameter: sharded training resizes it."""
    for name in ("fewer pixels than outputs", "more pixels than outputs"):
        tensors, run = CASES[name].make()
        run(tensors, backend="cpu")
        tensors["weight"].untyped_storage().resize_(0)
