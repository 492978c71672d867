"""What the commands are made of: noise, datasets, layers as published and as ours, the paper's numbers."""

import dataclasses
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import skimage
import torch
from PIL import Image
from skimage.filters import gaussian
from torch import nn

from metricconv.experiments import data
from metricconv.experiments.denoising import heuristic, image, layers, pictures, published, tables
from metricconv.experiments.denoising.commands import read_config
from metricconv.experiments.denoising.published import Setting
from metricconv.experiments.results import Results
from metricconv.experiments.training import parameters
from metricconv.nn.predictor import Predictor

THE_PAPERS = {"seed": 42, "pixels": pictures.CAMERAMAN_PIXELS[:12], "precision": "32-true"}
CAMERAMAN = Path(os.environ.get("METRICCONV_DATA", "")) / "cameraman256.png"


def test_noise_is_the_same_for_a_seed_and_each_draw_is_another():
    clean = torch.full((64, 64), 0.5)
    first, second = pictures.add_noise(clean, 0.1, 42, draws=2)
    assert torch.equal(first, pictures.add_noise(clean, 0.1, 42)[0]) and not torch.equal(first, second)
    assert first.sub(clean).std().item() == pytest.approx(0.1, rel=0.05)
    (stored,) = pictures.add_noise(clean, 1.0, 0, stored=True)
    assert stored.min() == 0 and stored.max() == 1
    torch.testing.assert_close(stored * 255, (stored * 255).round())


def test_the_splits_are_those_of_the_folders(root):
    train, test = pictures.splits("bsds300", root)
    assert (len(train), len(test)) == (6, 4)
    assert pictures.load(test, (8, 9)).shape == (4, 1, 8, 9)
    with pytest.raises(ValueError, match="`dataset` \\(='cifar'\\)"):
        pictures.splits("cifar", root)


def test_voc_is_read_where_it_is_present(root, tmp_path):
    folder = tmp_path / "VOCdevkit/VOC2012"
    (folder / "ImageSets/Segmentation").mkdir(parents=True)
    for part, names in (("train", "a b"), ("val", "c")):
        (folder / f"ImageSets/Segmentation/{part}.txt").write_text("\n".join(names.split()))
    train, test = pictures.splits("voc2012", tmp_path)
    assert [path.name for path in train + test] == ["a.jpg", "b.jpg", "c.jpg"]


def test_a_folder_of_other_pictures_is_no_dataset(root, tmp_path, monkeypatch):
    folder = tmp_path / "BSDS300"
    shutil.copytree(root / "BSDS300", folder)
    with monkeypatch.context() as patch:
        patch.setattr(pictures, "_COUNTS", {"bsds300": (200, 100), "voc2012": (1464, 1449)})
        said = f"{folder} has 6 pictures to train on and 4 to test on, not the 200 and 100 of BSDS300"
        with pytest.raises(data.MissingData, match=said):
            pictures.splits("bsds300", tmp_path)
    assert pictures.splits("bsds300", tmp_path)
    shutil.copy(folder / "train/1.jpg", folder / "train/2.jpg")  # as many, but others
    with pytest.raises(data.MissingData, match="has as many pictures as BSDS300, but not the same"):
        pictures.splits("bsds300", tmp_path)


def test_another_picture_is_not_taken_for_cameraman(root, tmp_path):
    assert pictures.read_cameraman(root).shape == (24, 20)
    Image.open(root / "BSDS300/test/7.jpg").save(tmp_path / "cameraman256.png")
    with pytest.raises(data.MissingData, match="is not the paper's cameraman"):
        pictures.read_cameraman(tmp_path)


def test_a_split_without_pictures_is_missing_data(tmp_path):
    (tmp_path / "BSDS300").mkdir()
    with pytest.raises(data.MissingData, match="0 pictures to train on"):
        pictures.splits("bsds300", tmp_path)


def test_downloads_are_verified(root, tmp_path, monkeypatch):
    """With file URLs in place of the datasets' homes."""
    monkeypatch.delenv("METRICCONV_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with tarfile.open(tmp_path / "bsds.tgz", "w:gz") as archive:
        archive.add(root / "BSDS300", "BSDS300/images")
    homes = {"01.png": root / "cameraman256.png", "BSDS300-images.tgz": tmp_path / "bsds.tgz"}

    def from_disk(url, timeout):
        return io.BytesIO(homes[url.rpartition("/")[2]].read_bytes())

    monkeypatch.setattr(data.urllib.request, "urlopen", from_disk)

    def pixels_digest(grey):
        assert not (tmp_path / "root/cameraman256.png").exists()  # not before it is verified
        return data.pixels_digest(grey)

    monkeypatch.setattr(pictures, "pixels_digest", pixels_digest)
    with monkeypatch.context() as patch:
        for name in ("CAMERAMAN_PIXELS", "_BSDS300_FILES"):
            patch.setattr(pictures, name, "another")
        for dataset in (pictures.CAMERAMAN, pictures.BSDS300):
            with pytest.raises(ValueError, match="what was downloaded"):
                data.find(dataset, tmp_path / "root", download=True)
    assert list((tmp_path / "root").iterdir()) == []
    for dataset in (pictures.CAMERAMAN, pictures.BSDS300):
        data.find(dataset, tmp_path / "root", download=True)
    assert [len(part) for part in pictures.splits("bsds300", tmp_path / "root")] == [6, 4]


def test_the_published_tables_are_read_column_by_column():
    assert published.IMAGE_MSE[Setting("utb", 0.1, "fixed", 5, 0.3)] == 8.10e-3
    assert published.IMAGE_RATE[Setting("deformable", None, "fixed", 121, 0.5)] == 4.9e8
    assert published.IMAGE_GAP[Setting("utb", 0.9, "fixed", 11, 0.1)] == 0.5
    assert published.DATASET_MSE["bsds300"][Setting("utb", 0.9, "learnt", 31, 0.5)] == 3.79e-3
    assert published.DATASET_RATE["voc2012"][Setting("utb", 0.1, "fixed", 5, 0.1)] == 12
    assert published.DATASET_GAP["bsds300"][Setting("deformable", None, "fixed", 5, 0.1)] == 0.28
    assert len(published.IMAGE_MSE) == 45 and len(published.DATASET_MSE["bsds300"]) == 54


def test_free_metrics_start_at_the_heuristic_one():
    noisy = torch.rand(1, 1, 9, 8)
    start = image.FreeMetric(noisy, 3, eps_omega=0.1)()
    expected = heuristic.gradient_metric(noisy, 0.1, 10.0, padding_mode="zeros").M
    torch.testing.assert_close(start.metric.M, expected, rtol=0.1, atol=0.02)  # ε_L = 0.01 is added to L
    assert start.metric.omega.abs().max() == 0


@pytest.mark.parametrize("method", ["utb", "deformable"])
@pytest.mark.parametrize("weights", ["fixed", "learnt"])
def test_published_layers_have_the_published_numbers_of_parameters(method, weights):
    layer = layers.published_layer(method, 0.1, weights, 5)
    head = 5 * 26 if method == "utb" else 50 * 26
    assert parameters(layer) == head + (25 if weights == "learnt" else 0)
    assert torch.allclose(layer.weight, torch.tensor(1 / 25)) and layer.bias is None


def test_the_head_of_a_large_deformable_layer_is_a_convolution():
    head = layers.published_layer("deformable", None, "fixed", 13).predictor
    assert isinstance(head, layers.ProductPredictor)
    nn.init.normal_(head.weight)
    x = torch.randn(2, 1, 16, 15)
    ordinary = Predictor.forward(head, x)
    torch.testing.assert_close(head(x), ordinary, rtol=1e-4, atol=1e-4)
    found, expected = (torch.autograd.grad(y.sin().sum(), head.parameters()) for y in (head(x), ordinary))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def test_our_layers_start_as_means_and_learn():
    x = torch.rand(2, 1, 12, 12)
    box = nn.functional.avg_pool2d(nn.functional.pad(x, (1,) * 4, "reflect"), 3, 1)
    for method in layers.OURS:
        layer = layers.our_layer(method, 3)
        y = layer(x)
        y.square().mean().backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in layer.parameters())
        if method in ("standard", "deformable", "deformable deep"):
            torch.testing.assert_close(y, box)
        elif method != "two plain layers":
            torch.testing.assert_close(layer(torch.ones_like(x)), torch.ones_like(x))
            assert all(p.grad.abs().sum() > 0 for p in (layer.predictor.weight, layer.predictor.bias))
    with pytest.raises(ValueError, match="`method` \\(='magic'\\)"):
        layers.our_layer("magic", 3)


def test_deep_heads_have_about_as_many_parameters_as_deformable_layers():
    budget = parameters(layers.our_layer("deformable", 5))
    for method in ("utb deep", "ugb deep", "two plain layers"):
        assert parameters(layers.our_layer(method, 5)) == pytest.approx(budget, rel=0.06)


def test_tuning_never_looks_at_the_image_that_is_denoised(monkeypatch):
    seen = []
    monkeypatch.setattr(heuristic, "photograph", lambda name, size: seen.append(name) or torch.rand(size, size).numpy())
    tunable = heuristic.Tunable("toy", "context", heuristic._gaussian, {"sigma": (0.5, 20.0)})
    monkeypatch.setattr(heuristic, "TUNABLE", {"toy": tunable})
    assert heuristic.tuned_toml(0.1, 0, "zeros").startswith('[tuned."0.1"]\ntoy = { sigma = ')
    assert tuple(seen) == heuristic.TUNED_ON and "cameraman" not in heuristic.TUNED_ON


def test_non_local_means_are_told_the_noise(monkeypatch):
    """When tuned and when shown; at a σ that no knobs were tuned at, that σ."""
    told = []
    rival = skimage.restoration.denoise_nl_means
    monkeypatch.setattr(
        skimage.restoration,
        "denoise_nl_means",
        lambda *images, **knobs: told.append(knobs["sigma"]) or rival(*images, **knobs),
    )
    tunable = heuristic.TUNABLE["non_local_means"]
    monkeypatch.setattr(heuristic, "TUNABLE", {"non_local_means": dataclasses.replace(tunable, grid={"h": (0.1, 0.2)})})
    knobs = heuristic.tune(0.3, 0, "zeros", size=32)
    assert told == [0.3] * 6
    (method,) = heuristic.tuned_methods(knobs, 0.25, "zeros")
    method.apply(np.zeros((16, 16), np.float32))
    assert told[6:] == [0.25] and method.setting == f"sigma=0.25 h={knobs['non_local_means']['h']:g}"


def test_the_packaged_knobs_of_non_local_means_are_inside_their_grid():
    grid = heuristic.TUNABLE["non_local_means"].grid["h"]
    chosen = {sigma: knobs["non_local_means"]["h"] for sigma, knobs in read_config("heuristic", None)["tuned"].items()}
    assert set(chosen) == {"0.1", "0.3", "0.5"} and set(chosen.values()) <= set(grid[1:-1])


def test_filters_and_pages_do_without_lightning():
    rooms = ", ".join(f"metricconv.experiments.denoising.{name}" for name in ("commands", "heuristic", "report"))
    code = f"import sys, {rooms}; sys.exit('lightning' in sys.modules or 'torchvision' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=120).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not CAMERAMAN.exists(), reason="needs cameraman256.png in METRICCONV_DATA")
def test_filters_land_on_the_released_codes_numbers(tmp_path):
    clean = torch.from_numpy(data.open_grey(CAMERAMAN))
    config = {"sigma": 0.1, "seed": 42, "padding_mode": "zeros", "tuned": {}}
    results = Results(tmp_path / "heuristic.csv", tables.HEURISTIC_KEY, tables.HEURISTIC_VALUES)
    heuristic.run(results, tmp_path, "cameraman", clean, config)
    compared = [row for row in results.rows if row["released_psnr"]]
    assert len(compared) == 13
    for row in compared:
        if not row["method"].startswith(("UGB", "random")):
            assert float(row["psnr"]) == pytest.approx(float(row["released_psnr"]), abs=0.02), row["method"]


@pytest.mark.slow
@pytest.mark.skipif(not CAMERAMAN.exists(), reason="needs cameraman256.png in METRICCONV_DATA")
@pytest.mark.parametrize(("name", "sigma"), [("utb 0.1", 0.1), ("utb 0.9", 0.1), ("utb 0.1", 0.3)])
def test_locations_learnt_on_cameraman_are_within_three_percent_of_the_papers_error(name, sigma):
    clean = torch.from_numpy(data.open_grey(CAMERAMAN))
    (setting,) = image.settings("cameraman", [name], [5], [sigma], ["paper"], iterations=100, **THE_PAPERS)
    values = image.learn(setting, clean, accelerator="cpu").values
    assert values["test_mse"] == pytest.approx(values["paper_mse"], rel=0.03)


def test_a_bilateral_filter_for_which_all_colours_are_alike_is_a_gaussian():
    image = np.random.default_rng(0).normal(size=(20, 30)).astype(np.float32)
    found = heuristic._bilateral(image, "zeros", 0.1, sigma_color=1e6, sigma_spatial=1.5)
    np.testing.assert_allclose(found, gaussian(image, sigma=1.5, truncate=3), atol=1e-2)
    steep = heuristic._bilateral(image, "zeros", 0.1, sigma_color=1e-6, sigma_spatial=1.5)
    np.testing.assert_allclose(steep, image, atol=1e-6)
