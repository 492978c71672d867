"""Imports point one way: no package imports from one further down this list."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "metricconv"
LAYERS = [
    {"_checks", "_interpolation", "_images", "_files", "_options", "_errors", "_torchvision", "__version__"},
    {"metrics", "io"},
    {"stencils"},
    {"supports"},
    {"ops"},
    {"nn"},
    {"convert", "filters", "viz", "large"},
    {"metricconv"},  # the public API in __init__
    {"experiments", "bench"},
    {"cli", "app"},
]
LEVELS = {name: level for level, names in enumerate(LAYERS) for name in names}
FOUND = {path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py")}


def imported(text: str, package: tuple[str, ...]) -> Iterator[str]:
    """Yield the packages that a file imports from, anywhere in it; "metricconv" for the public API."""
    known = {"__version__"} | {name.removesuffix(".py") for name in FOUND}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            names = (*start, *(node.module or "").split(".")) if node.module else start
            if names == ("metricconv",):
                yield from (alias.name if alias.name in known else "metricconv" for alias in node.names)
            elif names[0] == "metricconv":
                yield names[1]
        elif isinstance(node, ast.Import):
            paths = [alias.name.split(".") for alias in node.names]
            yield from (path[min(len(path) - 1, 1)] for path in paths if path[0] == "metricconv")


@pytest.mark.parametrize(
    ("text", "packages"),
    [
        ("import metricconv", ["metricconv"]),
        ("import metricconv as mc", ["metricconv"]),
        ("import metricconv.nn.base, torch", ["nn"]),
        ("from metricconv import Riemannian, stencils", ["metricconv", "stencils"]),
        ("from metricconv import *", ["metricconv"]),
        ("from metricconv.nn import base", ["nn"]),
        ("from .. import _checks, support_conv", ["_checks", "metricconv"]),
        ("from ..nowhere import nothing", ["nowhere"]),
        ("from . import base", ["ops"]),
        ("def late():\n    from ..nn.base import AdaptiveConv", ["nn"]),
        ("from torch import nn", []),
    ],
)
def test_every_import_statement_is_found(text, packages):
    assert list(imported(text, ("metricconv", "ops"))) == packages


@pytest.mark.parametrize("entry", sorted(FOUND))
def test_packages_import_only_from_lower_layers(entry):
    name = entry.removesuffix(".py")
    if name in ("__init__", "__main__"):  # the public API and the entry point
        return
    files = [SOURCE / entry] if entry.endswith(".py") else sorted((SOURCE / entry).rglob("*.py"))
    packages = {path: ("metricconv", *path.relative_to(SOURCE).parts[:-1]) for path in files}
    found = {
        (other, path.name)
        for path in files
        for other in imported(path.read_text(encoding="utf-8"), packages[path])
        if other != name
    }
    assert not {name, *(other for other, _ in found)} - LEVELS.keys()
    assert not [(other, where) for other, where in found if LEVELS[other] > LEVELS[name]]
