"""``metricconv segment``, ``superpixels`` and ``interpolate``: output files and errors."""

from pathlib import Path

import numpy as np
import pytest

from command_errors import fails
from metricconv import geodesic
from metricconv.cli.app import run
from metricconv.io import images
from metricconv.io.image_data import ImageData

pytest.importorskip("numba")


@pytest.fixture
def scribbles():
    labels = np.zeros((36, 48), np.uint8)
    labels[3, 5:40], labels[30:34, 20] = 1, 200
    images.write(Path("scribbles.png"), ImageData(labels))
    return "scribbles.png"


def pixels(name):
    return images.read(Path(name)).pixels


def test_labels_equal_those_of_segment(photo, scribbles, capsys):
    assert run(["segment", photo, scribbles, "labels.png", "--contrast", "50"]) == 0
    image, strokes = images.read(Path(photo)).to_float(), pixels(scribbles).astype(int)
    assert np.array_equal(pixels("labels.png"), geodesic.segment(image, strokes, contrast=50.0, channel_axis=-1))
    assert "2 regions" in capsys.readouterr().out


def test_many_superpixels_are_written_as_16_bits(photo, capsys):
    assert run(["superpixels", photo, "labels.png", "-n", "300", "--iterations", "1"]) == 0
    labels = pixels("labels.png")
    assert labels.dtype == np.uint16 and labels.shape == (36, 48) and labels.min() == 1
    assert f"{labels.max()} regions" in capsys.readouterr().out


def test_interpolated_values_equal_those_of_interpolate(photo):
    rng = np.random.default_rng(0)
    known, values = rng.random((36, 48)) < 0.1, rng.random((36, 48)).astype(np.float32)
    images.write(Path("known.png"), ImageData(known.astype(np.uint8)))
    np.save("values.npy", values)
    assert run(["interpolate", "values.npy", photo, "dense.npy", "--known", "known.png", "-k", "4"]) == 0
    guide = images.read(Path(photo)).to_float()
    expected = geodesic.interpolate(np.where(known, values, np.nan), guide, neighbors=4, guide_channel_axis=-1)
    np.testing.assert_allclose(np.load("dense.npy"), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["segment", "photo.png", "photo.png", "a.png"], "photo.png: expected integers of shape (36, 48) without"),
        (["segment", "photo.png", "empty.npy", "a.png"], "empty.npy: contains no positive label"),
        (["segment", "photo.png", "scribbles.png", "scribbles.png"], "scribbles.png"),
        (["superpixels", "photo.png", "a.png", "-n", "5000"], "--segments 5000: must be at most 1728"),
        (["superpixels", "photo.png", "a.xyz"], "a.xyz"),
        (["interpolate", "small.npy", "photo.png", "a.npy", "--known", "scribbles.png"], "small.npy: has size (3, 4)"),
        (["interpolate", "empty.npy", "photo.png", "a.npy", "--known", "empty.npy"], "empty.npy: is positive nowhere"),
        (["interpolate", "empty.npy", "photo.png", "a.npy", "--known", "photo.png"], "without channels"),
    ],
)
def test_wrong_inputs_print_one_line(photo, scribbles, arguments, words, capsys):
    np.save("empty.npy", np.zeros((36, 48), np.uint8))
    np.save("small.npy", np.zeros((3, 4)))
    before = {path.name for path in Path().iterdir()}
    fails(arguments, capsys, words)
    assert {path.name for path in Path().iterdir()} == before
