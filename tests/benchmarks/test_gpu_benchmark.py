"""Benchmarks on a GPU: correctness check, CSV, table and plot."""

import csv
import dataclasses
import os
import subprocess
from pathlib import Path

import pytest
import torch

from benchmarks import first_call, gpu, gpu_report
from benchmarks.__main__ import main
from benchmarks.cases import SHAPES, Implementation, Shape, gpu_implementations
from benchmarks.correctness import cut, errors
from benchmarks.gpu import COLUMNS, _row
from benchmarks.rows import Rows
from benchmarks.timing import Timing
from metricconv._files import read_table

TINY = Shape("dense", 2, 4, 7, 6, 3, metric_groups=2)


def ours() -> list[Implementation]:
    baselines = ("cudnn", "torchvision")
    return [c for c in gpu_implementations(TINY) if not c.name.startswith(baselines) and c.dtype == torch.float32]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without GPU")
def test_missing_gpu_is_reported_before_writing(tmp_path):
    with pytest.raises(SystemExit, match=r"torch.cuda.is_available\(\) is False"):
        main(["--output", str(tmp_path), "--device", "cuda"])
    assert not list(tmp_path.iterdir())


def test_output_must_be_a_folder(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SystemExit):
        main(["--output", str(tmp_path / "file"), "--device", "cpu"])
    assert "must be a folder" in capsys.readouterr().err and (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without GPU")
def test_errors_of_parallel_compilation_are_printed(capsys):
    gpu._compile_ahead([(SHAPES[0], one) for one in gpu_implementations(SHAPES[0])], [])
    printed = capsys.readouterr().out
    assert "failed at their first call" in printed and "CUDA" in printed  # not a pickling error


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ours(), ids=lambda c: c.name)
def test_implementations_are_correct_in_float32(implementation):
    found = errors(implementation, TINY, "cpu")
    assert set(found) >= {"output", "x", "weight"} and max(found.values()) < 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_check_uses_the_kernels_that_are_timed(shape, dtype):
    pytest.importorskip("triton")
    from metricconv.ops.triton import tiles
    from metricconv.ops.triton.conv_call import ConvCall

    def kernels(shape):
        x = torch.empty(shape.batch, shape.channels, shape.height, shape.width, dtype=dtype, device="meta")
        weight = x.new_empty(shape.channels, shape.channels // shape.groups, shape.kernel, shape.kernel)
        k, p = [shape.kernel] * 2, [shape.kernel // 2] * 2
        call = ConvCall(
            x, weight, None, None, None, None, "grid", k, [1.0, 1.0], [1, 1], [1, 1], p, shape.groups, "zeros"
        )
        tile = tiles.forward_tile(call.plan.contraction, "ball", call.dims(), call.channels(), 2, True)
        return call.plan.im2col_images > 0, tile["TW"]

    assert kernels(cut(shape)) == kernels(shape)


def test_check_detects_wrong_gradients():
    wrong = Implementation(
        "wrong", torch.float32, False, lambda shape, device: {}, lambda shape, t: t["x"] * t["weight"].detach().sum()
    )
    with pytest.raises(RuntimeError):  # the weight has no gradient at all
        errors(wrong, TINY, "cpu")
    wrong_gradient = Implementation(
        "wrong_gradient",
        torch.float32,
        False,
        lambda shape, device: {},
        lambda shape, t: t["x"] * t["weight"].sum() + (t["x"] * (t["x"].dtype == torch.float32)).square(),
    )
    assert max(errors(wrong_gradient, TINY, "cpu").values()) > 0.1


def test_check_detects_outputs_wrong_only_without_gradients():
    def call(shape, t):
        return t["x"] * t["weight"].sum() * (1.0 if torch.is_grad_enabled() or t["x"].dtype == torch.float64 else 1.5)

    found = errors(Implementation("wrong", torch.float32, False, lambda shape, device: {}, call), TINY, "cpu")
    assert found["output"] < 1e-5 and found["output without gradients"] > 0.1


def test_largest_kernel_is_not_compared_with_torchvision():
    (largest,) = [s for s in SHAPES if s.kernel == 121]
    assert not any(c.name.startswith("torchvision") for c in gpu_implementations(largest))


def test_table_and_plot_are_written_from_csv(tmp_path):
    pytest.importorskip("matplotlib")
    versions = {"gpu": "a GPU", "torch": "2", "triton": "3", "date": "2026-01-01"}
    rows = [
        _row("metric", "(1,2,3,4) k3", "dense", "bfloat16", mode, "graph", Timing(1.0, 2.0, 3.0, 4.0)) | versions
        for mode in ("fwd", "fwd+bwd")
    ]
    rows += [
        _row("cudnn conv2d", "(1,2,3,4) k3", "dense", "bfloat16", mode, "graph", Timing(0.5, 1.0, 2.0, 3.0)) | versions
        for mode in ("fwd", "fwd+bwd")
    ]
    other = [row | {"shape": "(5,6,7,8) k3"} for row in rows[:2]]
    rows[2:2] = [other[0], other[1] | {"shape": "iteration", "regime": "training"}]
    rows.append(other[1])  # rows of a shape need not be adjacent
    rows.append(_row("broken", "(1,2,3,4) k3", "dense", "float32", "check", "", None, "0.5 is too large") | versions)
    path = tmp_path / "gpu.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)
    gpu_report.write(path)
    text = (tmp_path / "gpu.md").read_text()
    assert "| cudnn conv2d | bfloat16 | 1.000 (0.50×) | 1.000 (0.50×) | 3.0 | 3.0 |" in text
    assert text.index("| (1,2,3,4) k3 | cudnn conv2d |") < text.index("| (5,6,7,8) k3 |") < text.index("| iteration,")
    assert "broken float32 on (1,2,3,4) k3: 0.5 is too large" in text
    assert (tmp_path / "gpu.png").stat().st_size > 5000


def test_rows_measured_again_are_replaced(tmp_path):
    path, columns = tmp_path / "gpu.csv", ["op", "mode", "p50_ms"]
    whole = Rows(path, columns, ("op", "mode"), only="")
    for op, time in (("ours", "2"), ("theirs", "3")):
        whole.add({"op": op, "mode": "fwd", "p50_ms": time})
    some = Rows(path, columns, ("op", "mode"), only="ours")
    with pytest.raises(SystemExit, match="ours"):
        some.written()
    some.add({"op": "ours", "mode": "fwd", "p50_ms": "1"})
    some.add({"op": "ours", "mode": "fwd+bwd", "p50_ms": "4"})
    assert [(row["op"], row["p50_ms"]) for row in read_table(some.written())] == [
        ("ours", "1"), ("theirs", "3"), ("ours", "4"),
    ]  # fmt: skip


@pytest.mark.parametrize("layer", [dataclasses.replace(layer, dtype="float32") for layer in first_call.LAYERS], ids=str)
def test_first_call_runs_forward_and_backward(layer):
    small = dataclasses.replace(layer, size=(1, min(layer.size[1], 4), 6, 5))
    forward, both = first_call.first_call(small, "cpu")
    assert 0 < forward < both


def test_first_call_uses_an_empty_kernel_cache(monkeypatch):
    call = {}

    def run(command, env, **options):
        call.update(command=command, cache=Path(env["TRITON_CACHE_DIR"]), empty=not os.listdir(env["TRITON_CACHE_DIR"]))
        return subprocess.CompletedProcess(command, 0, "12.5 30.0\n")

    monkeypatch.setattr(subprocess, "run", run)
    rows = list(gpu._first_rows(first_call.LAYERS[1]))
    assert call["command"][1:] == ["-m", "benchmarks.first_call", "1"] and call["empty"] and not call["cache"].exists()
    assert [(row["mode"], row["p50_ms"], row["peak_mb"]) for row in rows] == [
        ("fwd", "12.5000", ""),
        ("fwd+bwd", "30.0000", ""),
    ]
    assert set(rows[0]) <= set(COLUMNS) and "12.500" in gpu_report.table(rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without GPU")
def test_failed_first_call_is_a_row_with_its_error():
    (row,) = gpu._first_rows(first_call.LAYERS[3])
    assert row["mode"] == "check" and "p50_ms" not in row and "cuda" in row["max_error"].lower()
