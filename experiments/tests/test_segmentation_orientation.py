"""Balls along thin structures: directions of centerlines, angles to the long axes of balls, and the command."""

import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from metricconv._files import read_table
from metricconv.metrics import Riemannian
from metricconv.stencils import square_onion
from metricconv.supports import TangentBall
from metricconv_experiments.segmentation import orientation, runs, setting
from metricconv_experiments.segmentation.networks import build
from metricconv_experiments.segmentation.setting import Setting


def line(angle, size=41):
    """Return the mask (1, H, W) of a line of width 3 at an angle from +x towards +y, in degrees."""
    y, x = torch.meshgrid(torch.arange(size) - size // 2, torch.arange(size) - size // 2, indexing="ij")
    turn = math.radians(angle)
    return ((y * math.cos(turn) - x * math.sin(turn)).abs() < 1.6)[None]


@pytest.mark.parametrize("angle", [0, 30, 90, 135])
def test_direction_of_a_line_is_its_angle(angle):
    centerline = orientation.thinned(line(angle))
    cosine, sine = orientation.directions(centerline)[:, :, 20, 20].unbind(1)
    found = math.degrees(math.atan2(sine, cosine)) / 2
    assert abs((found - angle + 90) % 180 - 90) < 4
    assert not orientation.directions(torch.zeros(1, 5, 5, dtype=torch.bool)).any()


@pytest.mark.parametrize(("angle", "turned", "expected"), [(0, 0, 0), (30, 0, 0), (30, 90, 90), (135, 45, 45)])
@pytest.mark.parametrize("stride", [1, 2])
def test_angle_between_balls_and_lines(angle, turned, expected, stride):
    mask = line(angle, 40)
    axis = math.radians(angle + turned)
    along = torch.tensor([math.sin(axis), math.cos(axis)])  # (y, x)
    # Half-axes of 3 pixels along and 1 pixel across.
    matrix = torch.eye(2) - (1 - 1 / 9) * torch.outer(along, along)
    side = 40 // stride
    entries = torch.stack([matrix[0, 0], matrix[0, 1], matrix[1, 1]]).view(1, 1, 3, 1, 1).expand(1, 1, 3, side, side)
    (row,) = orientation.statistics({"layer": TangentBall(Riemannian(entries), square_onion(3))}, mask)
    assert float(row["angle"]) == pytest.approx(expected, abs=6)
    assert float(row["angle_weighted"]) == pytest.approx(expected, abs=6)
    assert float(row["elongation_on"]) == float(row["elongation_off"]) == pytest.approx(3, abs=1e-3)
    assert float(row["radius_on"]) == pytest.approx(stride * math.sqrt(3), abs=1e-3)


def test_command_writes_a_row_for_each_layer_and_a_figure(tmp_path, monkeypatch):
    monkeypatch.setitem(setting.DATASETS, "drive", 2)
    mask = np.concatenate([line(angle, 44).numpy() for angle in (20, 80)])
    gray = (200 * mask + 10).astype(np.uint8)
    arrays = {"gray": gray, "mask": mask, "field": np.ones_like(mask), "thin": mask}
    stored = {f"{half}_{name}": array for half in ("train", "test") for name, array in arrays.items()}
    np.savez_compressed(tmp_path / "drive-segmentation.npz", **stored)
    for method in ("standard", "snake", "metric-randers", "deformable"):
        one = Setting(method=method, images=1)
        runs.save(tmp_path / f"{one.name}.pt", one, build(one))
    arguments = [str(tmp_path), f"--output={tmp_path}", f"--data-root={tmp_path}"]
    outcome = CliRunner().invoke(orientation.app, arguments)
    assert outcome.exit_code == 0, outcome.output
    rows = read_table(tmp_path / "orientation.csv")
    assert [row["method"] for row in rows] == ["deformable"] * 9 + ["metric-randers"] * 9
    assert (tmp_path / "orientation.png").stat().st_size > 10_000
    outcome = CliRunner().invoke(orientation.app, [str(tmp_path / "none")])
    assert "`networks`" in outcome.output + str(outcome.exception)
