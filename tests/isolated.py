"""Runs Python in a process of its own, where conftest.py has no effect and chosen packages cannot be imported."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
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
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (packages, SOURCE))), "MPLBACKEND": "Agg"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
