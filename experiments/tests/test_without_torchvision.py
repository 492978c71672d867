"""Experiments that need no torchvision run where it cannot be imported; the others print what to install."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import metricconv_experiments
from isolated import BROKEN, importers, run_python
from metricconv._torchvision import TorchvisionError
from metricconv_experiments.classification import datasets, networks

pytestmark = pytest.mark.slow
ADVICE = f"install the build that matches torch {torch.__version__}, see https://pytorch.org/get-started"
PACKAGE = Path(metricconv_experiments.__file__).parent
REPRODUCE = ("-c", "from metricconv_experiments.commands import app; app()")


def test_denoise_image_runs_without_torchvision(tmp_path):
    skimage = pytest.importorskip("skimage")
    skimage.io.imsave(tmp_path / "photo.png", skimage.data.camera()[96:120, 256:280])
    smallest = ["--k", "3", "--sigma", "0.1", "--method", "utb 0.1", "--rate", "paper", "--iterations", "1"]
    command = ["denoise-image", "--image", "photo.png", *smallest, "--accelerator", "cpu"]
    done = run_python(*REPRODUCE, *command, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "wrote image.csv" in done.stdout and (tmp_path / "outputs/denoising/image.csv").exists()


def test_help_of_every_experiment_runs_without_torchvision(tmp_path):
    code = (
        "import typer\n"
        "from metricconv_experiments.commands import app\n"
        "commands = typer.main.get_command(app).commands\n"
        "for name in commands:\n"
        "    app([name, '--help'], standalone_mode=False)\n"
        "print(len(commands), 'commands')\n"
    )
    done = run_python("-c", code, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(re.findall(r"(\d+) commands", done.stdout)[-1]) >= 9


def test_every_module_can_be_imported_without_torchvision(tmp_path):
    code = (
        "import importlib, pkgutil, sys\n"
        "import metricconv_experiments\n"
        "for module in pkgutil.walk_packages(metricconv_experiments.__path__, 'metricconv_experiments.'):\n"
        "    importlib.import_module(module.name)\n"
        "assert 'lightning' in sys.modules and 'torchvision' not in sys.modules\n"
    )
    done = run_python("-c", code, folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_classify_prints_what_to_install(tmp_path):
    halves = {"train": 60000, "test": 10000}
    images = {f"{half}_x": np.zeros((count, 28, 28, 1), np.uint8) for half, count in halves.items()}
    labels = {f"{half}_y": np.zeros(count, np.int64) for half, count in halves.items()}
    np.savez_compressed(tmp_path / "mnist.npz", **images, **labels)
    smallest = ["--train-images", "8", "--batch", "4", "--epochs", "1", "--accelerator", "cpu"]
    command = ["classify", "--dataset", "mnist", "--data-root", ".", *smallest]
    done = run_python(*REPRODUCE, *command, folder=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == f"error: torchvision cannot be imported ({BROKEN}): {ADVICE}"


@pytest.mark.parametrize(
    "use",
    [
        lambda folder: networks.NETWORKS["resnet18"](10),
        lambda folder: networks.read_pretrained(Path("torchvision"), "resnet18"),
        lambda folder: datasets.load("cifar10", folder),
        lambda folder: datasets.load("cifar100", folder, download=True),
    ],
    ids=["model", "pretrained", "dataset", "download"],
)
def test_using_a_missing_torchvision_raises_what_to_install(use, tmp_path, monkeypatch):
    for name in {"torchvision", *(name for name in sys.modules if name.startswith("torchvision."))}:
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(TorchvisionError, match=re.escape(ADVICE)):
        use(tmp_path)


def test_datasets_with_own_readers_need_no_torchvision(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "import_torchvision", None)
    monkeypatch.setattr(datasets, "SHAPES", {})
    arrays = {"train_x": np.zeros((3, 8, 8, 1), np.uint8), "test_x": np.zeros((2, 8, 8, 1), np.uint8)}
    labels = {"train_y": np.zeros(3, np.int64), "test_y": np.zeros(2, np.int64)}
    np.savez(tmp_path / "cifar10.npz", **arrays, **labels)
    assert len(datasets.load("cifar10", tmp_path).train_y) == 3


def test_torchvision_is_imported_only_by_the_modules_that_need_it():
    assert not importers(PACKAGE, r"(torchvision|timm)(\..*)?")  # import_torchvision is the only way
    found = importers(PACKAGE, r"(.*\.)?_torchvision(\.import_torchvision)?")
    assert found == {"classification/datasets.py", "classification/networks.py"}


def test_lightning_and_torchmetrics_are_imported_in_one_place():
    assert importers(PACKAGE, r"(lightning\w*|pytorch_lightning|torchmetrics)(\..*)?") == {"_lightning.py"}
