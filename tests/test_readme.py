"""What the README shows works as it stands there."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_snippet_runs():
    pytest.importorskip("torchvision")
    (snippet,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(snippet, names)
    assert names["y"].shape == (2, 1000)
    assert len(names["seen"]) == 12


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "benchmarks/README.md", "results/README.md"])
def test_every_file_it_points_to_is_there(name):
    page = README.parent / name
    links = re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text())
    assert links and all((page.parent / link).exists() for link in links)
