"""The comparison of tangent and geodesic balls: what it draws."""

import math

import numpy as np
import pytest
import torch
from skimage import io

from metricconv_experiments import geodesics


def test_command_writes_its_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(geodesics.draw_vessels, "__defaults__", (100,))
    monkeypatch.setattr(geodesics.draw_heat, "__defaults__", (12,))
    geodesics.main(["--output", str(tmp_path / "here")])
    assert sorted(p.name for p in (tmp_path / "here").iterdir()) == ["balls.png", "heat.png", "vessels.png"]
    for name in ("balls.png", "heat.png", "vessels.png"):
        assert io.imread(tmp_path / "here" / name).std() > 10
    assert "vessels.png" in capsys.readouterr().out


def test_descent_ends_at_the_source():
    y, x = torch.meshgrid(torch.arange(20.0).double(), torch.arange(20.0).double(), indexing="ij")
    source = torch.tensor([5.0, 6.0]).double()
    path = geodesics._descend(torch.hypot(y - 5, x - 6), torch.tensor([15.0, 17.0]).double(), source)
    assert torch.equal(path[-1], source)
    straight = math.hypot(10, 11)
    assert torch.linalg.vector_norm(path.diff(dim=0), dim=1).sum() == pytest.approx(straight, rel=0.01)


def test_paths_along_vessels_are_short():
    image = np.ones((30, 30))
    image[:, 14:16] = 0.0
    cost = geodesics.vessel_metric(image).M[0, 0, 0]
    assert cost[15, 14] < 0.1 * cost[15, 3]


def test_unwritable_output_raises_before_drawing(tmp_path, monkeypatch):
    monkeypatch.setattr(geodesics, "photograph", None)
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match=r"error: .*Not a directory"):
        geodesics.main(["--output", str(tmp_path / "file" / "folder")])
