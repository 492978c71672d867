"""The tests are collected where optional packages are not installed; those that need one are skipped."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from optional_packages import OPTIONAL

# A pytest plugin: Python finds none of the packages, as where they are not installed.
PLUGIN = """
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {packages} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""


@pytest.mark.slow
@pytest.mark.parametrize("missing", [OPTIONAL, ("matplotlib",), ("lightning", "torchvision")], ids=len)
def test_tests_are_collected_without_optional_packages(missing, tmp_path):
    (tmp_path / "without_packages.py").write_text(PLUGIN.format(packages=set(missing)), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-p", "without_packages", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, "--collect-only", "-q"],
        cwd=Path(__file__).parents[1],
        env=environment | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert int(re.findall(r"(\d+)/\d+ tests collected", done.stdout)[-1]) > 2000
