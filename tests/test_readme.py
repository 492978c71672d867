"""The snippets and commands of the README run in the environments of `make demo` and `make test`; links exist."""

import re
import shlex
from pathlib import Path

import pytest

import metricconv as mc
from isolated import run_python

README = Path(__file__).parents[1] / "README.md"
# Packages that `make test` installs, but not `make demo`, which only installs the extra `images`.
BEYOND_DEMO = ("dask", "gradio", "imagecodecs", "lightning", "timm", "torchmetrics", "torchvision", "typer", "zarr")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "unusable", [{"broken": ["torchvision"]}, {"broken": [], "missing": BEYOND_DEMO}], ids=["make test", "make demo"]
)
def test_python_snippets_run_without_torchvision(unusable, tmp_path):
    (snippet,) = _blocks("python")
    checks = "assert y.shape == (2, 128, 128, 128)\nassert len(seen) == 2\n"
    done = run_python("-c", snippet + checks, folder=tmp_path, **unusable)
    assert done.returncode == 0, done.stderr


def test_quick_commands_run_without_torchvision(tmp_path):
    pytest.importorskip("imagecodecs")
    skimage = pytest.importorskip("skimage")
    skimage.io.imsave(tmp_path / "photo.png", skimage.data.camera()[96:120, 256:280])
    lines = [shlex.split(line[2:], comments=True) for block in _blocks("console") for line in block.splitlines()]
    quick = {line[1]: line[1:] for line in lines if line[:2] in (["metricconv", "filter"], ["metricconv", "doctor"])}
    assert len(quick) == 2
    for command in quick.values():
        done = run_python("-m", "metricconv", *command, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "smooth.png").exists()


def test_conversion_of_a_torchvision_network_works_as_printed():
    torchvision = pytest.importorskip("torchvision")
    (call,) = re.findall(r"`(mc\.convert\(torchvision.*?\))`", README.read_text(encoding="utf-8"))
    net = eval(call, {"mc": mc, "torchvision": torchvision})
    assert len(list(mc.nn.adaptive_layers(net))) == 12


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "benchmarks/README.md", "results/README.md"])
def test_relative_links_exist(name):
    page = README.parent / name
    links = re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text())
    assert links and all((page.parent / link).exists() for link in links)
