"""Data flows one way: no room imports from one to its right."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "metricconv"
ROOMS = [
    {"_checks", "_interpolation", "_images", "_files", "_knobs", "__version__"},
    {"metrics"},
    {"stencils"},
    {"supports"},
    {"ops"},
    {"nn"},
    {"convert", "filters", "viz", "large"},
    {"experiments", "bench"},
    {"cli", "app"},
]
LEVELS = {name: level for level, rooms in enumerate(ROOMS) for name in rooms}


def imported(path: Path) -> Iterator[str]:
    """Yield the rooms that a file imports from, anywhere in it."""
    package = ("metricconv", *path.relative_to(SOURCE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            names = (*start, *(node.module or "").split(".")) if node.module else start
            if names[:1] == ("metricconv",):
                yield from [names[1]] if len(names) > 1 else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("metricconv."))


@pytest.mark.parametrize("room", sorted({p.relative_to(SOURCE).parts[0] for p in SOURCE.rglob("*.py")}))
def test_a_room_imports_from_those_to_its_left_alone(room):
    name = room.removesuffix(".py")
    if name in ("__init__", "__main__"):  # the public surface, and the way in
        return
    files = [SOURCE / room] if room.endswith(".py") else sorted((SOURCE / room).rglob("*.py"))
    found = {(other, path.name) for path in files for other in imported(path) if other != name}
    assert not [(other, where) for other, where in found if LEVELS[other] > LEVELS[name]]
    assert not {other for other, _ in found} - LEVELS.keys()
