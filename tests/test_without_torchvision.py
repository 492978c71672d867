"""Commands that need no torchvision run where it cannot be imported; the others say in one line what to install."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from isolated import BROKEN, SOURCE, run_python
from metricconv._torchvision import TorchvisionError, import_torchvision
from metricconv.cli import doctor
from metricconv.experiments.classification import datasets, networks

# The modules that use torchvision: its datasets, its models, its operator as a baseline, and the check of `doctor`.
ALLOWED = {
    "app/networks.py",
    "bench/cases.py",
    "bench/training.py",
    "cli/doctor.py",
    "experiments/classification/datasets.py",
    "experiments/classification/networks.py",
}
ADVICE = f"install the build that matches torch {torch.__version__}, see https://pytorch.org/get-started"


@pytest.fixture
def photo(tmp_path) -> str:
    skimage = pytest.importorskip("skimage")
    skimage.io.imsave(tmp_path / "photo.png", skimage.data.camera()[96:120, 256:280])
    return "photo.png"


def test_reproduce_denoise_image_runs_without_torchvision(photo, tmp_path):
    smallest = ["--k", "3", "--sigma", "0.1", "--method", "utb 0.1", "--rate", "paper", "--iterations", "1"]
    command = ["reproduce", "denoise-image", "--image", photo, *smallest, "--accelerator", "cpu"]
    done = run_python("-m", "metricconv", *command, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "wrote image.csv" in done.stdout and (tmp_path / "outputs/denoising/image.csv").exists()


def test_help_of_every_command_runs_without_torchvision(tmp_path):
    code = """
        import typer
        from metricconv.cli import mounts
        from metricconv.cli.app import app, run

        def names(app):
            command = typer.main.get_command(app)
            return getattr(command, "commands", [command.name])

        reproduced = [name for module in mounts.EXPERIMENTS for name in names(mounts.load(module, "").app)]
        commands = [[], *([name] for name in names(app)), *(["reproduce", name] for name in reproduced)]
        for command in commands:
            code = run([*command, "--help"])
            assert code == 0, (command, code)
        print(len(commands), "commands")
    """
    done = run_python("-c", _dedented(code), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(re.findall(r"(\d+) commands", done.stdout)[-1]) >= 18


def test_every_module_can_be_imported_without_torchvision(tmp_path):
    code = """
        import importlib, pkgutil, sys
        import metricconv

        for module in pkgutil.walk_packages(metricconv.__path__, "metricconv."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        assert "lightning" in sys.modules and "torchvision" not in sys.modules
    """
    done = run_python("-c", _dedented(code), folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_classify_says_in_one_line_what_to_install(tmp_path):
    halves = {"train": 60000, "test": 10000}
    images = {f"{half}_x": np.zeros((count, 28, 28, 1), np.uint8) for half, count in halves.items()}
    labels = {f"{half}_y": np.zeros(count, np.int64) for half, count in halves.items()}
    np.savez_compressed(tmp_path / "mnist.npz", **images, **labels)
    smallest = ["--train-images", "8", "--batch", "4", "--epochs", "1", "--accelerator", "cpu"]
    command = ["reproduce", "classify", "--dataset", "mnist", "--data-root", ".", *smallest]
    done = run_python("-m", "metricconv", *command, folder=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == f"error: torchvision cannot be imported ({BROKEN}): {ADVICE}"


def test_explore_says_in_one_line_what_to_install(tmp_path):
    torch.save(
        {"conv.weight": torch.ones(2, 2, 3, 3), "conv.predictor.weight": torch.ones(7, 2, 3, 3)}, tmp_path / "net.pt"
    )
    command = ["-m", "metricconv", "explore", "--no-browser", "--checkpoint", "net.pt"]
    done = run_python(*command, folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip() == f"error: torchvision cannot be imported ({BROKEN}): {ADVICE}"


@pytest.fixture
def no_torchvision(monkeypatch) -> None:
    for name in {"torchvision", *(name for name in sys.modules if name.startswith("torchvision."))}:
        monkeypatch.setitem(sys.modules, name, None)


def test_doctor_says_what_to_install(no_torchvision):
    assert ADVICE in str(doctor.lack("experiments", ["torchvision"]))


@pytest.mark.parametrize(
    "use",
    [
        lambda folder: import_torchvision(),
        lambda folder: networks.NETWORKS["resnet18"](10),
        lambda folder: networks.read_pretrained(Path("torchvision"), "resnet18"),
        lambda folder: datasets.load("cifar10", folder),
        lambda folder: datasets.load("cifar100", folder, download=True),
    ],
    ids=["import", "model", "pretrained", "dataset", "download"],
)
def test_using_a_missing_torchvision_raises_what_to_install(use, tmp_path, no_torchvision):
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


def _imported(path: Path) -> Iterator[str]:
    """Yield the full names of what a source file imports, such as "torch.nn" or "..errors.in_one_line"."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (f"{node.module}." if node.module else "")
            yield from (module + alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (str(argument.value) for argument in node.args if isinstance(argument, ast.Constant))


def _importers(pattern: str) -> set[str]:
    """Return the source files, relative to the package, that import something whose full name matches."""
    package = SOURCE / "metricconv"
    paths = [path for path in package.rglob("*.py") if any(re.fullmatch(pattern, name) for name in _imported(path))]
    return {path.relative_to(package).as_posix() for path in paths}


def test_torchvision_is_imported_only_by_the_modules_that_need_it():
    assert not _importers(r"(torchvision|timm)(\..*)?")  # import_torchvision is the only way
    assert _importers(r"(.*\.)?_torchvision(\.import_torchvision)?") == ALLOWED


def test_lightning_and_torchmetrics_are_imported_in_one_place():
    assert _importers(r"(lightning\w*|pytorch_lightning|torchmetrics)(\..*)?") == {"experiments/_lightning.py"}


def _dedented(code: str) -> str:
    return re.sub(r"^ {8}", "", code, flags=re.MULTILINE)
