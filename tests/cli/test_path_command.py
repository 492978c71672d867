"""``metricconv path``: the table, the figure, the printed length and errors."""

import csv
from pathlib import Path

import numpy as np
import pytest

from command_errors import fails
from metricconv.cli.app import run
from metricconv.io import images

pytest.importorskip("numba")


@pytest.fixture
def bend():
    """An image of a bright line from (8, 4) down to (40, 4) and right to (40, 50)."""
    image = np.zeros((48, 56), np.uint8)
    image[8:42, 3:6] = 255
    image[39:42, 3:51] = 255
    images.write(Path("bend.png"), images.ImageData(image))
    images.write(Path("dark.png"), images.ImageData(255 - image))
    return "bend.png"


def table(name):
    with open(name, newline="", encoding="utf-8") as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


@pytest.mark.parametrize(("file", "metric"), [("bend.png", "bright"), ("dark.png", "dark")])
def test_paths_follow_lines(bend, file, metric, capsys):
    given = ["--from", "8,4", "--to", "40,50", "--metric", metric, "--out", "a.svg", "--csv", "a.csv"]
    assert run(["path", file, *given]) == 0
    rows = table("a.csv")
    assert (rows[0]["y"], rows[0]["x"]) == (8, 4) and (rows[-1]["y"], rows[-1]["x"]) == (40, 50)
    distances = [min(abs(row["x"] - 4), abs(row["y"] - 40)) for row in rows]
    assert max(distances) < 3 and sum(distances) / len(distances) < 0.7
    lengths = [row["length"] for row in rows]
    assert lengths == sorted(lengths) and lengths[0] == 0
    out = capsys.readouterr().out
    assert f"length {lengths[-1]:.4f} in the metric" in out and "<svg" in Path("a.svg").read_text(encoding="utf-8")


def test_paths_on_smooth_images_are_straight(photo, capsys):
    assert run(["path", photo, "--from", "3,3", "--to", "33,43", "--metric", "surface", "--contrast", "0"]) == 0
    assert "length 50.0" in capsys.readouterr().out
    assert images.read(Path("photo-path.png")).pixels.std() > 10


def test_paths_are_shorter_along_a_drift_than_against_it(photo, capsys):
    for drift, length in (("0.6,0", 8.0), ("-0.6,0", 32.0), ("0,0.9", 20.0), ("0,0", 20.0)):
        given = ["--from", "5,20", "--to", "25,20", "--metric", "surface", "--contrast", "0"]
        assert run(["path", photo, *given, "--drift", drift, "--force", "--csv", "a.csv"]) == 0
        # Paths across a flow go straight: it is the same everywhere.
        assert table("a.csv")[-1]["length"] == pytest.approx(length, rel=1e-3)


def test_path_to_its_start_has_length_0(photo, capsys):
    assert run(["path", photo, "--from", "3,3", "--to", "3,3"]) == 0
    assert "length 0.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--from", "1"], "--from 1: expected two numbers, Y,X"),
        (["--to", "1,99"], "--to 1,99: outside the image of height 36 and width 48"),
        (["--from", "nan,1"], "--from nan,1: outside the image"),
        (["--drift", "fast"], "--drift fast: expected two numbers, Y,X"),
        (["--drift", "0.6,0.8"], "--drift 0.6,0.8: must have a length of at most 0.99"),
        (["--drift", "nan,0"], "--drift nan,0: must have a length of at most 0.99"),
        (["--out", "a.txt"], "a.txt: cannot write .txt"),
        (["--csv", "a.png"], "--csv a.png: cannot write .png, expected .csv"),
    ],
)
def test_wrong_options_print_one_line(photo, change, words, capsys):
    fails(["path", photo, "--from", "1,1", "--to", "5,5", *change], capsys, words)
    assert [path.name for path in Path().iterdir()] == ["photo.png"]


def test_existing_files_are_kept(photo, capsys):
    Path("a.csv").write_text("mine", encoding="utf-8")
    given = ["path", photo, "--from", "1,1", "--to", "5,5", "--csv", "a.csv"]
    fails(given, capsys, "a.csv")
    assert Path("a.csv").read_text(encoding="utf-8") == "mine"
    assert run([*given, "--force"]) == 0
    assert table("a.csv")[0]["length"] == 0


def test_volumes_are_not_supported(capsys):
    np.save("volume.npy", np.zeros((6, 7, 8)))
    fails(["path", "volume.npy", "--from", "1,1", "--to", "5,5"], capsys, "volumes are not supported")
