"""Benchmarks on a CPU: correctness check, CSV, table and plot."""

import dataclasses

import pytest
import torch

from benchmarks import cpu, cpu_report
from benchmarks.__main__ import main
from metricconv._files import read_table, write_table
from metricconv.ops import cpu as backend

pytest.importorskip("numba")
TINY = [
    dataclasses.replace(cpu.DENSE, batch=1, channels=16, height=6, width=5),
    dataclasses.replace(cpu.FEW, height=9, width=8, kernel=3),
]


@pytest.fixture
def _tiny(monkeypatch):
    monkeypatch.setattr(cpu, "DENSE", TINY[0])
    monkeypatch.setattr(cpu, "FEW", TINY[1])
    monkeypatch.setattr(cpu, "LARGE", [])
    monkeypatch.setattr(cpu, "PHOTOGRAPH", (40, 30, 3))
    measure = cpu._measure
    monkeypatch.setattr(cpu, "_measure", lambda calls: measure(calls, seconds=0.0, most=2))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("shape", TINY, ids=str)
def test_implementations_agree_with_reference(shape):
    found = {c.name: cpu._largest_error(shape, c) for c in cpu.cpu_implementations(shape)}
    assert len(found) == 5 and max(found.values()) < 1e-3


def test_check_detects_wrong_gradients():
    right = next(c for c in cpu.cpu_implementations(TINY[1]) if c.name == "metric")
    wrong = dataclasses.replace(right, call=lambda shape, t: cpu._metric_conv(shape, {**t, "M": t["M"] * 1.01}))
    assert cpu._largest_error(TINY[1], wrong) > 1e-3


@pytest.mark.slow
@pytest.mark.usefixtures("_tiny")
def test_csv_table_and_plot_are_named_by_the_processor(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    pytest.importorskip("rich")
    main(["--output", str(tmp_path), "--device", "cpu"])
    (table,) = tmp_path.glob("*.csv")
    rows = read_table(table)
    assert {(r["op"], r["mode"]) for r in rows} >= {("torch conv2d", "fwd"), ("geodesic", "fwd+bwd")}
    assert all(float(r["p50_ms"]) > 0 and float(r["peak_mb"]) >= 0 and r["cpu"] and r["threads"] == "2" for r in rows)
    assert any(r["op"] == "tangent_filter" and r["shape"] == "30×40×3 k11" for r in rows)
    assert "| (1,1,9,8) k3 | grid_sample |" in table.with_suffix(".md").read_text(encoding="utf-8")
    assert table.with_suffix(".png").stat().st_size > 5000
    assert "photograph" in capsys.readouterr().out  # its progress


def test_table_shows_ratios_to_metric_convolution(tmp_path):
    common = {"shape": "(1,2,3,4) k3", "cpu": "a CPU", "threads": "2", "torch": "2", "numba": "0", "date": "2026-01-01"}
    times = {("torch conv2d", "fwd"): "1.0", ("metric", "fwd"): "2.0", ("metric", "fwd+bwd"): "8.0"}
    rows = [common | {"op": op, "mode": mode, "p50_ms": t, "peak_mb": "3.0"} for (op, mode), t in times.items()]
    rows.append(common | {"op": "broken", "mode": "check", "max_error": "0.5"})
    write_table(tmp_path / "cpu.csv", rows, cpu.COLUMNS)
    text = cpu_report.table(read_table(tmp_path / "cpu.csv"))
    assert "| (1,2,3,4) k3 | torch conv2d | 1.00 (0.50×) |  | 3.0 |  |" in text
    assert "| (1,2,3,4) k3 | metric | 2.00 (1.00×) | 8.00 (1.00×) | 3.0 | 3.0 |" in text
    assert "broken on (1,2,3,4) k3: error 0.5, not timed" in text


def test_missing_numba_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(backend, "_INSTALLED", False)
    with pytest.raises(SystemExit, match="numba is not installed"):
        main(["--output", str(tmp_path), "--device", "cpu"])
    assert not list(tmp_path.iterdir())


def test_quantiles_of_three_times():
    assert [cpu._times([9.0, 1.0, 5.0], 0.0)[f"p{q}_ms"] for q in (20, 50, 80)] == ["1.000", "5.000", "9.000"]
