"""Data flows one way: no room imports from one to its right."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "metricconv"
ROOMS = [
    {"_checks", "_interpolation", "_images", "_files", "_options", "_errors", "_torchvision", "__version__"},
    {"metrics", "io"},
    {"stencils"},
    {"supports"},
    {"ops"},
    {"nn"},
    {"convert", "filters", "viz", "large"},
    {"metricconv"},  # the whole, as its __init__ gathers it from the rooms above
    {"experiments", "bench"},
    {"cli", "app"},
]
LEVELS = {name: level for level, rooms in enumerate(ROOMS) for name in rooms}
FOUND = {path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py")}


def imported(text: str, package: tuple[str, ...]) -> Iterator[str]:
    """Yield the rooms that a file of a package imports from, anywhere in it; "metricconv" for the whole."""
    known = {"__version__"} | {room.removesuffix(".py") for room in FOUND}
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
    ("text", "rooms"),
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
def test_every_way_to_import_is_seen(text, rooms):
    assert list(imported(text, ("metricconv", "ops"))) == rooms


@pytest.mark.parametrize("room", sorted(FOUND))
def test_a_room_imports_from_those_to_its_left_alone(room):
    name = room.removesuffix(".py")
    if name in ("__init__", "__main__"):  # the public surface, and the way in
        return
    files = [SOURCE / room] if room.endswith(".py") else sorted((SOURCE / room).rglob("*.py"))
    packages = {path: ("metricconv", *path.relative_to(SOURCE).parts[:-1]) for path in files}
    found = {
        (other, path.name)
        for path in files
        for other in imported(path.read_text(encoding="utf-8"), packages[path])
        if other != name
    }
    assert not {name, *(other for other, _ in found)} - LEVELS.keys()
    assert not [(other, where) for other, where in found if LEVELS[other] > LEVELS[name]]
