"""The demonstration: what it writes, and that metrics win."""

import csv

import pytest
from skimage import io

from metricconv.experiments import demo


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "made by the demo"
    return folder, demo.run(folder, size=48, seed=3)


def test_the_table_has_a_line_for_each_method(written):
    folder, results = written
    with open(folder / "psnr.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["noisy", *demo.METHODS]
    for row, result in zip(rows, results, strict=True):
        assert float(row["psnr"]) == pytest.approx(result.psnr, abs=1e-3)
        assert row["samples"] == ("1" if row["method"] == "noisy" else "121")
        assert (row["seed"], row["size"], row["sigma"]) == ("3", "48", "0.1")
        assert all(row[name] for name in ("seconds", "metricconv", "torch", "scikit-image", "python"))


def test_every_metric_beats_every_fixed_or_random_support(written):
    psnr = {result.method: result.psnr for result in written[1]}
    names = ("gradient metric", "gradient with drift", "edge metric", "edge, geodesic balls")
    metrics = [psnr[name] for name in names]
    others = [value for name, value in psnr.items() if value not in metrics]
    assert len(others) == 4 and min(metrics) > max(others)


def test_the_picture_is_wide_and_nothing_else_is_left_behind(written):
    folder, _ = written
    height, width, _ = io.imread(folder / "comparison.png").shape
    assert width > 1200 and 2 < width / height < 3
    assert sorted(path.name for path in folder.iterdir()) == ["comparison.png", "psnr.csv"]


def test_the_command_prints_the_table_and_repeats_itself(tmp_path, capsys):
    tables = []
    for name in ("first", "second"):
        demo.main(["--output", str(tmp_path / name), "--size", "16"])
        with open(tmp_path / name / "psnr.csv", newline="", encoding="utf-8") as file:
            tables.append([(row["method"], row["psnr"]) for row in csv.DictReader(file)])
    assert tables[0] == tables[1]
    printed = capsys.readouterr().out
    assert all(method in printed for method, _ in tables[0])


def test_a_photograph_too_small_to_show_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`size` \(=8\) must be at least 16"):
        demo.run(tmp_path, size=8)
