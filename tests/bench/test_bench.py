"""The GPU's benchmark: it refuses without one, checks before it times, and makes its table and plot from the CSV."""

import csv
import dataclasses
import os
import subprocess
from pathlib import Path

import pytest
import torch

from metricconv._files import read_table
from metricconv.bench import first, gpu, report
from metricconv.bench.__main__ import main
from metricconv.bench.cases import SHAPES, Contender, Shape, contenders
from metricconv.bench.correctness import cut, errors
from metricconv.bench.gpu import COLUMNS, _row
from metricconv.bench.rows import Rows
from metricconv.bench.timing import Timing

TINY = Shape("dense", 2, 4, 7, 6, 3, metric_groups=2)


def ours() -> list[Contender]:
    rivals = ("cudnn", "torchvision")
    return [c for c in contenders(TINY) if not c.name.startswith(rivals) and c.dtype == torch.float32]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to time")
def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path):
    with pytest.raises(SystemExit, match=r"torch.cuda.is_available\(\) is False"):
        main(["--output", str(tmp_path), "--device", "cuda"])
    assert not list(tmp_path.iterdir())


def test_an_output_that_is_no_folder_is_said_before_anything_is_timed(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SystemExit):
        main(["--output", str(tmp_path / "file"), "--device", "cpu"])
    assert "must be a folder" in capsys.readouterr().err and (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to compile for")
def test_first_calls_are_made_in_other_processes_and_their_failures_are_said(capsys):
    gpu._compile_ahead([(SHAPES[0], contender) for contender in contenders(SHAPES[0])], [])
    said = capsys.readouterr().out
    assert "failed at their first call" in said and "CUDA" in said  # and not that nothing could be sent there


@pytest.mark.parametrize("contender", ours(), ids=lambda c: c.name)
def test_every_contender_of_ours_passes_the_gate_in_float32(contender):
    found = errors(contender, TINY, "cpu")
    assert set(found) >= {"output", "x", "weight"} and max(found.values()) < 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gate_takes_the_way_that_is_timed(shape, dtype):
    pytest.importorskip("triton")
    from metricconv.ops.triton import tiles
    from metricconv.ops.triton.call import Call
    from metricconv.ops.triton.launch import images_by_columns

    def way(shape):
        x = torch.empty(shape.batch, shape.channels, shape.height, shape.width, dtype=dtype, device="meta")
        weight = x.new_empty(shape.channels, shape.channels // shape.groups, shape.kernel, shape.kernel)
        k, p = [shape.kernel] * 2, [shape.kernel // 2] * 2
        call = Call(x, weight, None, None, None, None, "grid", k, [1.0, 1.0], [1, 1], [1, 1], p, shape.groups, "zeros")
        tiled = tiles.forward(tiles.contraction(call.channels()), "ball", call.shape(), call.channels(), 2, True)
        return images_by_columns(call) > 0, tiled["TW"]

    assert way(cut(shape)) == way(shape)


def test_the_gate_sees_a_wrong_gradient():
    wrong = Contender(
        "wrong", torch.float32, False, lambda shape, device: {}, lambda shape, t: t["x"] * t["weight"].detach().sum()
    )
    with pytest.raises(RuntimeError):  # the weight has no gradient at all
        errors(wrong, TINY, "cpu")
    bent = Contender(
        "bent",
        torch.float32,
        False,
        lambda shape, device: {},
        lambda shape, t: t["x"] * t["weight"].sum() + (t["x"] * (t["x"].dtype == torch.float32)).square(),
    )
    assert max(errors(bent, TINY, "cpu").values()) > 0.1


def test_the_gate_sees_an_output_that_is_wrong_only_without_gradients():
    def call(shape, t):
        return t["x"] * t["weight"].sum() * (1.0 if torch.is_grad_enabled() or t["x"].dtype == torch.float64 else 1.5)

    found = errors(Contender("hasty", torch.float32, False, lambda shape, device: {}, call), TINY, "cpu")
    assert found["output"] < 1e-5 and found["output alone"] > 0.1


def test_the_largest_kernel_runs_without_its_rival():
    (largest,) = [s for s in SHAPES if s.kernel == 121]
    assert not any(c.name.startswith("torchvision") for c in contenders(largest))


def test_table_and_plot_come_from_the_csv(tmp_path):
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
    rows.append(other[1])  # shapes and regimes measured in two parts
    rows.append(_row("broken", "(1,2,3,4) k3", "dense", "float32", "check", "", None, "0.5 is too large") | versions)
    path = tmp_path / "gpu.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)
    report.write(path)
    text = (tmp_path / "gpu.md").read_text()
    assert "| cudnn conv2d | bfloat16 | 1.000 (0.50×) | 1.000 (0.50×) | 3.0 | 3.0 |" in text
    assert text.index("| (1,2,3,4) k3 | cudnn conv2d |") < text.index("| (5,6,7,8) k3 |") < text.index("| iteration,")
    assert "broken float32 on (1,2,3,4) k3: 0.5 is too large" in text
    assert (tmp_path / "gpu.png").stat().st_size > 5000


def test_some_rows_measured_again_replace_their_own_and_leave_the_others(tmp_path):
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


@pytest.mark.parametrize("layer", [dataclasses.replace(layer, dtype="float32") for layer in first.LAYERS], ids=str)
def test_first_calls_are_those_of_layers_that_learn(layer):
    small = dataclasses.replace(layer, size=(1, min(layer.size[1], 4), 6, 5))
    forward, both = first.first_call(small, "cpu")
    assert 0 < forward < both


def test_a_first_call_finds_no_kernels(monkeypatch):
    seen = {}

    def run(command, env, **options):
        seen.update(command=command, cache=Path(env["TRITON_CACHE_DIR"]), empty=not os.listdir(env["TRITON_CACHE_DIR"]))
        return subprocess.CompletedProcess(command, 0, "12.5 30.0\n")

    monkeypatch.setattr(subprocess, "run", run)
    rows = list(gpu._first_rows(first.LAYERS[1]))
    assert seen["command"][1:] == ["-m", "metricconv.bench.first", "1"] and seen["empty"] and not seen["cache"].exists()
    assert [(row["mode"], row["p50_ms"], row["peak_mb"]) for row in rows] == [
        ("fwd", "12.5000", ""),
        ("fwd+bwd", "30.0000", ""),
    ]
    assert set(rows[0]) <= set(COLUMNS) and "12.500" in report.table(rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU on which it would not fail")
def test_a_first_call_that_fails_leaves_a_row_that_says_why():
    (row,) = gpu._first_rows(first.LAYERS[3])
    assert row["mode"] == "check" and "p50_ms" not in row and "cuda" in row["max_error"].lower()
