"""Run Python in a separate process in which chosen packages cannot be imported; list the imports of source files."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
EXPERIMENTS = Path(__file__).parents[1] / "experiments" / "src"
# What PyPI's CUDA build of torchvision raises beside a CPU build of torch.
BROKEN = "operator torchvision::nms does not exist"


def run_python(
    *arguments: str, folder: Path, broken: Iterable[str] = ("torchvision",), missing: Iterable[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run Python in ``folder``; importing packages that are ``broken`` or ``missing`` raises the error of that case."""
    errors = {name: f"RuntimeError({BROKEN!r})" for name in broken}
    errors |= {name: f"ModuleNotFoundError({f'No module named {name!r}'!r}, name={name!r})" for name in missing}
    packages = folder / "unusable packages"
    for name, error in errors.items():
        (packages / name).mkdir(parents=True, exist_ok=True)
        (packages / name / "__init__.py").write_text(f"raise {error}\n", encoding="utf-8")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (packages, SOURCE, EXPERIMENTS))),
        "MPLBACKEND": "Agg",
    }
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def imported_names(path: Path) -> Iterator[str]:
    """Yield the full names of what a source file imports, such as "torch.nn" or "..errors.in_one_line"."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (f"{node.module}." if node.module else "")
            yield from (module + alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (str(argument.value) for argument in node.args if isinstance(argument, ast.Constant))


def importers(package: Path, pattern: str) -> set[str]:
    """Return the source files, relative to the package, that import something whose full name matches."""
    paths = [
        path for path in package.rglob("*.py") if any(re.fullmatch(pattern, name) for name in imported_names(path))
    ]
    return {path.relative_to(package).as_posix() for path in paths}
