"""Benchmark of tiles on a cluster of processes."""

import re
from pathlib import Path

import pytest

pytest.importorskip("distributed")
pytest.importorskip("numba")

from benchmarks import tiles
from metricconv._files import read_table


@pytest.mark.slow
def test_rates_are_written_for_each_number_of_workers(tmp_path, capsys):
    arguments = ["--output", str(tmp_path), "--only", "box", "--tile", "32", "--count", "2"]
    tiles.main([*arguments, "--workers", "1", "2"])
    rows = read_table(tmp_path / "tiles.csv")
    assert [(row["op"], row["workers"], row["tiles"]) for row in rows] == [
        ("box_filter", "1", "2"),
        ("box_filter", "2", "4"),
    ]
    for row in rows:
        rate = float(row["tiles_per_second"])
        assert rate > 0 and float(row["megapixels_per_second"]) == pytest.approx(rate * 32**2 / 1e6, rel=0.01, abs=1e-3)
        assert float(row["max_error"]) <= tiles.TOLERANCE
    assert capsys.readouterr().out.count("tiles/s") == 2


def test_wrong_results_are_not_timed(monkeypatch, tmp_path):
    monkeypatch.setattr(tiles, "_filter", lambda source, name: source)
    with pytest.raises(RuntimeError, match=r"^box_filter: error .*, expected at most"):
        tiles.measure("box_filter", 1, 32, 2)


@pytest.mark.parametrize("option", ["--workers", "--tile", "--count"])
def test_options_must_be_positive(option, capsys):
    with pytest.raises(SystemExit):
        tiles.main([option, "0"])
    assert f"{option} (=" in capsys.readouterr().err


def test_guide_shows_the_measured_rates():
    root = Path(tiles.__file__).parents[1]
    guide = (root / "docs/guides/cluster.md").read_text(encoding="utf-8")
    row = re.compile(r"^\| `(\w+)`, [\d × ]+ \| (\d) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", re.MULTILINE)
    rows = read_table(root / "benchmarks/tiles.csv")
    one = {r["op"]: float(r["tiles_per_second"]) for r in rows if r["workers"] == "1"}
    rates = ("op", "workers", "tiles_per_second", "megapixels_per_second")
    expected = [(*(r[key] for key in rates), f"{float(r['tiles_per_second']) / one[r['op']]:.2f}") for r in rows]
    assert sorted(row.findall(guide)) == sorted(expected)
