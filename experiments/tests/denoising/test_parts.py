"""What the commands are made of: noise, datasets, layers as published and as ours, the paper's numbers."""

import dataclasses
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib

import numpy as np
import pytest
import skimage
import torch
from PIL import Image
from skimage.filters import gaussian
from torch import nn

from metricconv.nn.predictor import Predictor
from metricconv_experiments import data
from metricconv_experiments.denoising import heuristic, image, inputs, layers, published, tables
from metricconv_experiments.denoising.commands import read_config
from metricconv_experiments.denoising.published import PublishedKey
from metricconv_experiments.results import Results
from metricconv_experiments.training import count_parameters

PAPER = {"seed": 42, "pixels": inputs.CAMERAMAN_PIXELS[:12], "precision": "32-true"}


def test_noise_depends_on_seed_and_draw():
    clean = torch.full((64, 64), 0.5)
    first, second = inputs.add_noise(clean, 0.1, 42, draws=2)
    assert torch.equal(first, inputs.add_noise(clean, 0.1, 42)[0]) and not torch.equal(first, second)
    assert first.sub(clean).std().item() == pytest.approx(0.1, rel=0.05)
    (stored,) = inputs.add_noise(clean, 1.0, 0, stored=True)
    assert stored.min() == 0 and stored.max() == 1
    torch.testing.assert_close(stored * 255, (stored * 255).round())


def test_the_splits_are_those_of_the_folders(root):
    train, test = inputs.splits("bsds300", root)
    assert (len(train), len(test)) == (6, 4)
    assert inputs.load(test, (8, 9)).shape == (4, 1, 8, 9)
    with pytest.raises(ValueError, match="`dataset` \\(='cifar'\\)"):
        inputs.splits("cifar", root)


def test_voc_is_read_where_it_is_present(root, tmp_path):
    folder = tmp_path / "VOCdevkit/VOC2012"
    (folder / "ImageSets/Segmentation").mkdir(parents=True)
    for part, names in (("train", "a b"), ("val", "c")):
        (folder / f"ImageSets/Segmentation/{part}.txt").write_text("\n".join(names.split()))
    train, test = inputs.splits("voc2012", tmp_path)
    assert [path.name for path in train + test] == ["a.jpg", "b.jpg", "c.jpg"]


def test_folder_with_other_images_raises(root, tmp_path, monkeypatch):
    folder = tmp_path / "BSDS300"
    shutil.copytree(root / "BSDS300", folder)
    with monkeypatch.context() as patch:
        patch.setattr(inputs, "_COUNTS", {"bsds300": (200, 100), "voc2012": (1464, 1449)})
        message = f"{folder} has 6 training and 4 test images, expected 200 and 100 for BSDS300"
        with pytest.raises(data.MissingData, match=message):
            inputs.splits("bsds300", tmp_path)
    assert inputs.splits("bsds300", tmp_path)
    shutil.copy(folder / "train/1.jpg", folder / "train/2.jpg")  # as many, but others
    with pytest.raises(data.MissingData, match="contains other images than BSDS300"):
        inputs.splits("bsds300", tmp_path)


def test_other_image_named_cameraman_raises(root, tmp_path):
    assert inputs.read_cameraman(root).shape == (24, 20)
    Image.open(root / "BSDS300/test/7.jpg").save(tmp_path / "cameraman256.png")
    with pytest.raises(data.MissingData, match="is not the paper's cameraman"):
        inputs.read_cameraman(tmp_path)


def test_split_without_images_raises(tmp_path):
    (tmp_path / "BSDS300").mkdir()
    with pytest.raises(data.MissingData, match="0 training and"):
        inputs.splits("bsds300", tmp_path)


def test_downloads_are_verified(root, tmp_path, monkeypatch):
    """With file URLs instead of the public addresses."""
    monkeypatch.delenv("METRICCONV_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with tarfile.open(tmp_path / "bsds.tgz", "w:gz") as archive:
        archive.add(root / "BSDS300", "BSDS300/images")
    homes = {"01.png": root / "cameraman256.png", "BSDS300-images.tgz": tmp_path / "bsds.tgz"}

    def from_disk(url, timeout):
        return io.BytesIO(homes[url.rpartition("/")[2]].read_bytes())

    monkeypatch.setattr(data.urllib.request, "urlopen", from_disk)

    def pixels_digest(gray):
        assert not (tmp_path / "root/cameraman256.png").exists()  # not before it is verified
        return data.pixels_digest(gray)

    monkeypatch.setattr(inputs, "pixels_digest", pixels_digest)
    with monkeypatch.context() as patch:
        for name in ("CAMERAMAN_PIXELS", "_BSDS300_FILES"):
            patch.setattr(inputs, name, "another")
        for dataset in (inputs.CAMERAMAN, inputs.BSDS300):
            with pytest.raises(ValueError, match="downloaded for"):
                data.find(dataset, tmp_path / "root", download=True)
    assert list((tmp_path / "root").iterdir()) == []
    for dataset in (inputs.CAMERAMAN, inputs.BSDS300):
        data.find(dataset, tmp_path / "root", download=True)
    assert [len(part) for part in inputs.splits("bsds300", tmp_path / "root")] == [6, 4]


def test_the_published_tables_are_read_column_by_column():
    assert published.IMAGE_MSE[PublishedKey("utb", 0.1, "fixed", 5, 0.3)] == 8.10e-3
    assert published.IMAGE_RATE[PublishedKey("deformable", None, "fixed", 121, 0.5)] == 4.9e8
    assert published.IMAGE_GAP[PublishedKey("utb", 0.9, "fixed", 11, 0.1)] == 0.5
    assert published.DATASET_MSE["bsds300"][PublishedKey("utb", 0.9, "learnt", 31, 0.5)] == 3.79e-3
    assert published.DATASET_RATE["voc2012"][PublishedKey("utb", 0.1, "fixed", 5, 0.1)] == 12
    assert published.DATASET_GAP["bsds300"][PublishedKey("deformable", None, "fixed", 5, 0.1)] == 0.28
    assert len(published.IMAGE_MSE) == 45 and len(published.DATASET_MSE["bsds300"]) == 54


def test_free_metrics_are_initially_the_gradient_metric():
    noisy = torch.rand(1, 1, 9, 8)
    start = image.FreeMetric(noisy, 3, eps_omega=0.1)()
    expected = heuristic.gradient_metric(noisy, 0.1, 10.0, padding_mode="zeros").M
    torch.testing.assert_close(start.metric.M, expected, rtol=0.1, atol=0.02)  # ε_L = 0.01 is added to L
    assert start.metric.omega.abs().max() == 0


@pytest.mark.parametrize("method", ["utb", "deformable"])
@pytest.mark.parametrize("weights", ["fixed", "learnt"])
def test_published_layers_have_the_published_numbers_of_parameters(method, weights):
    layer = layers.published_layer(method, 0.1, weights, 5)
    predictor = 5 * 26 if method == "utb" else 50 * 26
    assert count_parameters(layer) == predictor + (25 if weights == "learnt" else 0)
    assert torch.allclose(layer.weight, torch.tensor(1 / 25)) and layer.bias is None


def test_product_predictor_equals_a_convolution():
    predictor = layers.published_layer("deformable", None, "fixed", 13).predictor
    assert isinstance(predictor, layers.ProductPredictor)
    nn.init.normal_(predictor.weight)
    x = torch.randn(2, 1, 16, 15)
    convolved = Predictor.forward(predictor, x)
    torch.testing.assert_close(predictor(x), convolved, rtol=1e-4, atol=1e-4)
    found, expected = (torch.autograd.grad(y.sin().sum(), predictor.parameters()) for y in (predictor(x), convolved))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def test_our_layers_are_initially_means_and_train():
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


def test_identity_of_our_layers_is_kept_when_the_device_changes():
    layer = layers.our_layer("utb", 5)
    before = layer.identity.clone()
    assert before.any() and torch.equal(layer.to("cpu").double().float().identity, before)


def test_deep_predictors_have_about_as_many_parameters_as_deformable_layers():
    budget = count_parameters(layers.our_layer("deformable", 5))
    for method in ("utb deep", "ugb deep", "two plain layers"):
        assert count_parameters(layers.our_layer(method, 5)) == pytest.approx(budget, rel=0.06)


def test_tuning_does_not_use_the_denoised_image(monkeypatch):
    seen = []
    monkeypatch.setattr(heuristic, "photograph", lambda name, size: seen.append(name) or torch.rand(size, size).numpy())
    tunable = heuristic.Tunable("toy", "context", heuristic._gaussian, {"sigma": (0.5, 20.0)})
    monkeypatch.setattr(heuristic, "TUNABLE", {"toy": tunable})
    assert heuristic.tuned_toml(0.1, 0, "zeros").startswith('[tuned."0.1"]\ntoy = { sigma = ')
    assert tuple(seen) == heuristic.TUNED_ON and "cameraman" not in heuristic.TUNED_ON


def test_non_local_means_use_the_true_sigma(monkeypatch):
    """When tuned and when shown; at a σ that no parameters were tuned at, that σ."""
    sigmas = []
    non_local_means = skimage.restoration.denoise_nl_means
    monkeypatch.setattr(
        skimage.restoration,
        "denoise_nl_means",
        lambda *images, **parameters: sigmas.append(parameters["sigma"]) or non_local_means(*images, **parameters),
    )
    tunable = heuristic.TUNABLE["non_local_means"]
    monkeypatch.setattr(
        heuristic, "TUNABLE", {"non_local_means": dataclasses.replace(tunable, ranges={"h": (0.1, 0.2)})}
    )
    monkeypatch.setattr(heuristic, "TRIALS_PER_ROUND", 2)
    parameters = heuristic.tune(0.3, 0, "zeros", size=32)
    assert sigmas == [0.3] * 18  # three images, three rounds of two trials
    (method,) = heuristic.tuned_methods(parameters, 0.25, "zeros")
    method.apply(np.zeros((16, 16), np.float32))
    assert sigmas[18:] == [0.25] and method.parameters_text == f"sigma=0.25 h={parameters['non_local_means']['h']:g}"


@pytest.mark.parametrize("name", heuristic.TUNABLE)
def test_tuning_finds_an_optimum_in_the_same_number_of_trials_for_every_filter(name):
    tunable, trials = heuristic.TUNABLE[name], []
    optimum = {key: low * (high / low) ** 0.37 for key, (low, high) in tunable.ranges.items()}

    def score(parameters):
        trials.append(tuple(parameters.values()))
        return -sum(abs(np.log(value / optimum[key])) for key, value in parameters.items())

    best = tunable.tune(score)
    assert len(trials) == heuristic.ROUNDS * heuristic.TRIALS_PER_ROUND == 192
    assert tunable.at_edge(best) == []
    for key, (low, high) in tunable.ranges.items():
        assert abs(np.log(best[key] / optimum[key])) < 0.1 * np.log(high / low)
        assert all(0.999 * low <= trial[list(best).index(key)] <= 1.001 * high for trial in trials)


@pytest.mark.parametrize("name", heuristic.TUNABLE)
def test_packaged_parameters_are_not_at_the_edge_of_their_ranges(name):
    tuned = read_config("heuristic", None)["tuned"]
    assert set(tuned) == {"0.1", "0.3", "0.5"}
    for parameters in tuned.values():
        assert heuristic.TUNABLE[name].at_edge(parameters[name]) == []


def test_values_at_the_edge_of_a_range_are_reported(monkeypatch):
    tunable = heuristic.Tunable("toy", "context", heuristic._gaussian, {"sigma": (0.5, 20), "truncate": (3, 5)})
    assert tunable.at_edge({"sigma": 1, "truncate": 4}) == []
    assert tunable.at_edge({"sigma": 20, "truncate": 2}) == ["sigma", "truncate"]
    monkeypatch.setattr(heuristic, "TUNABLE", {"toy": tunable})
    monkeypatch.setattr(heuristic, "tune", lambda *_: {"toy": {"sigma": 0.5, "truncate": 4}})
    toml = heuristic.tuned_toml(0.1, 0, "zeros")
    assert toml.endswith("toy = { sigma = 0.5, truncate = 4.0 } # at the edge of the range: sigma")
    assert tomllib.loads(toml) == {"tuned": {"0.1": {"toy": {"sigma": 0.5, "truncate": 4.0}}}}


def test_filters_and_pages_do_not_import_lightning():
    modules = ", ".join(f"metricconv_experiments.denoising.{name}" for name in ("commands", "heuristic", "report"))
    code = f"import sys, {modules}; sys.exit('lightning' in sys.modules or 'torchvision' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=120).returncode == 0


@pytest.fixture(scope="module")
def camera():
    """scikit-image's camera, of the size of the paper's cameraman, which is not distributed."""
    pixels = torch.from_numpy(skimage.data.camera()).float().div(255)
    return pixels.unflatten(1, (256, 2)).unflatten(0, (256, 2)).mean((1, 3))


# PSNR in dB by method, and by the image of which the metric is computed.
HEURISTIC_PSNR = {
    ("noisy", ""): 19.948,
    ("box 11 × 11", ""): 20.397,
    ("box 5 × 5", ""): 23.208,
    ("box 3 × 3", ""): 24.927,
    ("interpolated 5 × 5", ""): 23.754,
    ("dilated by 3", ""): 16.636,
    ("random deformable", ""): 19.656,
    ("UTB, ε_ω = 1", "noisy"): 26.532,
    ("UTB, ε_ω = 1", "smoothed"): 27.102,
    ("UTB, ε_ω = 0.5", "noisy"): 26.477,
    ("UTB, ε_ω = 0.5", "smoothed"): 27.033,
    ("UTB, ε_ω = 0.1", "noisy"): 26.181,
    ("UTB, ε_ω = 0.1", "smoothed"): 26.631,
    ("UGB, ε_ω = 1", "noisy"): 26.527,
    ("UGB, ε_ω = 1", "smoothed"): 26.658,
    ("UGB, ε_ω = 0.5", "noisy"): 26.522,
    ("UGB, ε_ω = 0.5", "smoothed"): 26.609,
    ("UGB, ε_ω = 0.1", "noisy"): 26.501,
    ("UGB, ε_ω = 0.1", "smoothed"): 26.494,
}


def test_psnr_of_filters_equals_stored_one(camera, tmp_path):
    config = {"sigma": 0.1, "seed": 42, "padding_mode": "zeros", "tuned": {}}
    results = Results(tmp_path / "heuristic.csv", tables.HEURISTIC_KEY, tables.HEURISTIC_VALUES)
    heuristic.run(results, tmp_path, "camera", camera, config)
    found = {(row["method"], row["gradient"]): float(row["psnr"]) for row in results.rows}
    assert found == pytest.approx(HEURISTIC_PSNR, abs=0.02)


@pytest.mark.parametrize(
    ("name", "sigma", "mse"), [("utb 0.1", 0.1, 1.4921e-3), ("utb 0.9", 0.1, 1.5142e-3), ("utb 0.1", 0.3, 7.5669e-3)]
)
def test_error_with_learned_locations_equals_stored_one(camera, name, sigma, mse):
    (setting,) = image.settings("camera", [name], [5], [sigma], ["paper"], iterations=20, **PAPER)
    assert image.learn(setting, camera, accelerator="cpu").values["test_mse"] == pytest.approx(mse, rel=0.01)


def test_bilateral_filter_with_large_sigma_color_is_gaussian():
    image = np.random.default_rng(0).normal(size=(20, 30)).astype(np.float32)
    found = heuristic._bilateral(image, "zeros", 0.1, sigma_color=1e6, sigma_spatial=1.5)
    np.testing.assert_allclose(found, gaussian(image, sigma=1.5, truncate=3), atol=1e-2)
    steep = heuristic._bilateral(image, "zeros", 0.1, sigma_color=1e-6, sigma_spatial=1.5)
    np.testing.assert_allclose(steep, image, atol=1e-6)
