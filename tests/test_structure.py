"""The structure of the package: direction of imports, dependencies of the core, public names, length of files."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from isolated import run_python

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "metricconv"
# No package imports from one further down. Private modules beside the packages come before all of them.
ORDER = [
    {"metrics", "io"},
    {"stencils"},
    {"supports"},
    {"ops"},
    {"nn"},
    {"conversion", "filters", "geodesic", "large", "viz"},
    {"metricconv"},  # the public API in __init__
    {"cli", "app"},
]
LEVELS = {name: level for level, names in enumerate(ORDER) for name in names}
CORE = ("_checks", "_compat", "_interpolation", "metrics", "stencils", "supports", "ops", "nn", "conversion")
OPTIONAL_BACKENDS = ("ops/cpu/", "ops/triton/")
PACKAGES = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in SOURCE.rglob("*.py")}
FILES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))
CODE = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("src", "tests", "experiments", "benchmarks", "docs", "examples")
    for path in (ROOT / folder).rglob("*.py")
)


def imports(text: str, package: tuple[str, ...], in_functions: bool = True) -> Iterator[str]:
    """Yield the full name of each import of a file in ``package``, such as "metricconv.nn.base"."""
    nodes = [ast.parse(text)]
    for node in nodes:
        if in_functions or not isinstance(node, ast.FunctionDef):
            nodes.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*start, *(node.module or "").split("."))).strip(".")
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def package_of(name: str) -> str:
    """Return the package that an import belongs to: for our own, the part below metricconv, or the public API."""
    top, _, rest = name.partition(".")
    part = rest.partition(".")[0]
    return part if top == "metricconv" and (part in PACKAGES or part == "__version__") else top


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import metricconv", ["metricconv"]),
        ("import metricconv as mc", ["metricconv"]),
        ("import metricconv.nn.base, torch", ["nn", "torch"]),
        ("from metricconv import Riemannian, stencils", ["metricconv", "stencils"]),
        ("from metricconv import *", ["metricconv"]),
        ("from metricconv.nn import base", ["nn"]),
        ("from .. import _checks, support_conv", ["_checks", "metricconv"]),
        ("from . import base", ["ops"]),
        ("def late():\n    from ..nn.base import AdaptiveConv", ["nn"]),
        ("from torch import nn", ["torch"]),
        ("from metricconv_experiments.results import Results", ["metricconv_experiments"]),
    ],
)
def test_every_import_statement_is_found(text, found):
    assert [package_of(name) for name in imports(text, ("metricconv", "ops"))] == found


def _imported_packages(file: str, in_functions: bool = True) -> set[str]:
    text, package = (SOURCE / file).read_text(encoding="utf-8"), ("metricconv", *Path(file).parts[:-1])
    return {package_of(name) for name in imports(text, package, in_functions)}


def _level(package: str) -> int:
    return -1 if package.startswith("_") else LEVELS[package]


def test_imports_point_in_one_direction():
    upward = set()
    for file in FILES:
        own = file.partition("/")[0].removesuffix(".py")
        others = _imported_packages(file) & {*PACKAGES, "__version__", "metricconv"} - {own}
        if own not in ("__init__", "__main__"):
            upward |= {(file, name) for name in others if _level(name) > _level(own)}
    assert upward == set()


def test_package_imports_neither_experiments_nor_benchmarks():
    other = {"metricconv_experiments", "experiments", "benchmarks", "examples", "tests"}
    assert {file: found for file in FILES if (found := _imported_packages(file) & other)} == {}


def test_core_imports_torch_alone():
    known = {*sys.stdlib_module_names, *PACKAGES, "metricconv", "__version__", "torch"}
    core = [file for file in FILES if file.startswith(CORE) and not file.startswith(OPTIONAL_BACKENDS)]
    found = {file: others for file in core if (others := _imported_packages(file, in_functions=False) - known)}
    assert found in ({}, {"_checks.py": {"numpy"}})  # for annotations


def test_network_trains_where_only_torch_is_installed(tmp_path):
    code = """
import torch
import metricconv as mc

net = mc.convert(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3)))
net(torch.randn(2, 3, 8, 8)).sum().backward()
assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
"""
    missing = ("PIL", "matplotlib", "numba", "numpy", "rich", "scipy", "skimage", "triton", "typer")
    done = run_python("-W", "ignore", "-c", code, folder=tmp_path, missing=missing)
    assert done.returncode == 0, done.stderr


def test_public_modules_list_their_names():
    without = set()
    for file in FILES:
        private = any(part.startswith("_") and part != "__init__.py" for part in Path(file).parts)
        if not private and not file.startswith(OPTIONAL_BACKENDS):
            body = ast.parse((SOURCE / file).read_text(encoding="utf-8")).body
            targets = [ast.unparse(target) for node in body if isinstance(node, ast.Assign) for target in node.targets]
            if "__all__" not in targets:
                without.add(file)
    assert without == set()


def test_files_have_at_most_400_lines():
    lengths = {file: len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in CODE}
    assert {file: n for file, n in lengths.items() if n > 400} == {}
