"""What `make dist` builds: the wheel holds the package alone and works without the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import metricconv as mc

pytestmark = pytest.mark.slow

build = pytest.importorskip("build")
ROOT = Path(__file__).parents[1]
USE = """
import pathlib, sys
import metricconv as mc, torch
assert pathlib.Path(mc.__file__).is_relative_to(sys.argv[1]), mc.__file__
layer = mc.nn.MetricConv2d(2, 3, 3, padding=1, backend="reference")
layer(torch.rand(1, 2, 8, 8)).sum().backward()
print(mc.__version__)
"""


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def test_wheel_contains_the_package_alone(distributions):
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"metricconv-{mc.__version__}.dist-info/METADATA").decode()
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources
    assert "metricconv/py.typed" in names
    assert {name.split("/")[0] for name in names} == {
        "metricconv",
        "_metricconv_command.py",
        f"metricconv-{mc.__version__}.dist-info",
    }
    assert "Requires-Dist: torch>=2.11\n" in metadata


def test_descriptions_are_valid_for_the_package_index(distributions):
    pytest.importorskip("twine")
    files = [str(path) for path in distributions.iterdir()]
    command = [sys.executable, "-m", "twine", "check", "--strict", *files]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert len(files) == 2


def test_installed_wheel_works_without_the_checkout(distributions, tmp_path):
    (wheel,) = distributions.glob("*.whl")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path), str(wheel)]
    subprocess.run(command, check=True, capture_output=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PYTHONPATH"] = str(tmp_path)
    command = [sys.executable, "-c", USE, str(tmp_path)]
    used = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert used.stdout.strip() == mc.__version__, used.stderr
    version = [sys.executable, "-m", "metricconv", "--version"]
    printed = subprocess.run(version, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert printed.stdout.strip() == mc.__version__, printed.stderr
