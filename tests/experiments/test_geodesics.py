"""The comparison of tangent and geodesic balls: what it writes, and that geodesic balls denoise better."""

import csv
import math

import numpy as np
import pytest
import torch
from skimage import io

from metricconv.experiments import geodesics


def test_the_command_writes_two_pictures_and_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(geodesics.denoise, "__defaults__", (256, 0, ("coins", "moon")))
    monkeypatch.setattr(geodesics.draw_vessels, "__defaults__", (100,))
    geodesics.main(["--output", str(tmp_path / "here"), "--size", "48", "--seed", "2"])
    assert sorted(p.name for p in (tmp_path / "here").iterdir()) == ["balls.png", "denoising.csv", "vessels.png"]
    for name in ("balls.png", "vessels.png"):
        assert io.imread(tmp_path / "here" / name).std() > 10
    with open(tmp_path / "here" / "denoising.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(r["image"], r["method"]) for r in rows[:4]] == [
        ("coins", "noisy"),
        ("coins", "tangent"),
        ("coins", "geodesic"),
        ("moon", "noisy"),
    ]
    assert all(row["size"] == "48" and row["seed"] == "2" and row["torch"] for row in rows)
    assert (rows[1]["iota"], rows[0]["iota"], rows[0]["samples"]) == (str(geodesics.KNOBS["tangent"].iota), "", "1")
    assert "mean" in capsys.readouterr().out


def test_tuning_takes_the_best_of_its_grid(monkeypatch):
    good, bad = geodesics.Knobs(0.03, 15.0, 1.5), geodesics.Knobs(50.0, 1.0, 1.5)  # balls of 0.1 px leave the noise
    monkeypatch.setattr(geodesics, "GRID", [bad, good])
    assert geodesics.tune(size=32) == {"tangent": good, "geodesic": good}


def test_the_way_down_ends_at_the_source():
    y, x = torch.meshgrid(torch.arange(20.0).double(), torch.arange(20.0).double(), indexing="ij")
    source = torch.tensor([5.0, 6.0]).double()
    path = geodesics._descend(torch.hypot(y - 5, x - 6), torch.tensor([15.0, 17.0]).double(), source)
    assert torch.equal(path[-1], source)
    straight = math.hypot(10, 11)
    assert torch.linalg.vector_norm(path.diff(dim=0), dim=1).sum() == pytest.approx(straight, rel=0.01)


def test_vessels_are_short_ways():
    image = np.ones((30, 30))
    image[:, 14:16] = 0.0
    cost = geodesics.vessel_metric(image).M[0, 0, 0]
    assert cost[15, 14] < 0.1 * cost[15, 3]


@pytest.mark.slow
def test_geodesic_balls_denoise_at_least_a_fifth_of_a_decibel_better():
    mean = geodesics._means(geodesics.denoise())
    assert mean["geodesic"] > mean["tangent"] + 0.2
