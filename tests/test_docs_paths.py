"""Every file and package named on the page "How it works" exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "how_it_works.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "metricconv"
# `nn/base.py`, `stencils.py` or `ops/cpu/`.
PATHS = sorted(set(re.findall(r"`([\w/]+(?:\.py|/))`", PAGE)))


def test_every_step_names_its_files():
    steps = re.split(r"^## \d\. ", PAGE, flags=re.MULTILINE)[1:]
    assert len(steps) == 7
    assert all(re.search(r"^Files: ", step, re.MULTILINE) for step in steps)


@pytest.mark.parametrize("path", PATHS)
def test_named_path_exists(path):
    file = (ROOT if path.startswith("tests/") else SOURCE) / path
    assert file.is_dir() if path.endswith("/") else file.is_file()
