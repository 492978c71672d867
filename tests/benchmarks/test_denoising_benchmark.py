"""Benchmark of ``denoise`` and non-local means."""

import sys

import numpy as np
import pytest

pytest.importorskip("skimage")
pytest.importorskip("numba")

from benchmarks import denoising
from metricconv._files import read_table


def test_rows_of_both_methods_are_written_and_kept(tmp_path, monkeypatch):
    full = denoising.photograph
    monkeypatch.setattr(denoising, "photograph", lambda name: full(name)[:72, :80])
    monkeypatch.setattr(denoising.torch, "set_num_threads", lambda number: None)
    for image in ("gray", "color"):
        monkeypatch.setattr(sys, "argv", ["denoising", "--image", image, "--output", str(tmp_path)])
        denoising.main()
    rows = read_table(tmp_path / "denoising.csv")
    assert [(row["image"], row["method"]) for row in rows] == [
        (image, method) for image in ("gray", "color") for method in ("denoise", "non-local means")
    ]
    for row in rows:
        assert float(row["seconds"]) >= 0 and 20 < float(row["psnr"]) < 40
        assert row["ratio"] == "1.00" or row["method"] == "denoise"


def test_large_photograph_is_smooth_across_its_reflections():
    large = denoising.photograph("large")
    assert large.shape == denoising.LARGE and large.dtype == np.float32
    assert np.abs(np.diff(large[:, 511:513])).max() == np.abs(np.diff(large[:, 510:512])).max()
