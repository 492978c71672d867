"""Run the library's first tier of tests with the oldest supported versions of its dependencies, and log the outcome.

    python tests/oldest.py --log outputs/oldest.log                    # in a new virtual environment
    python tests/oldest.py --log oldest.log --python /path/to/python   # in an environment that exists

A new environment has the lower bounds that pyproject.toml states, and otherwise the newest versions that go with them;
installing it downloads torch. An existing one must have pytest and hypothesis: tests that need other packages of the
test extra are skipped where these are missing. Further arguments go to pytest.
"""

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).parents[1]
# The releases made for torch 2.11. torchvision requires its torch, but a CPU build of torch requires no Triton.
RELEASED_WITH_TORCH = {"torchvision": "0.26", "triton": "3.6"}
VERSIONS = """
import importlib.metadata, platform
from metricconv._files import versions
print("metricconv", versions()["metricconv"], "on Python", platform.python_version(), "on", platform.platform())
for name in {names}:
    try:
        print(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        print(name, "is not installed")
"""


def requirements() -> list[str]:
    """Return the requirements of the package and of all its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return sorted({r for group in groups for r in group if not r.startswith("metricconv[")})


def lower_bounds() -> Iterator[str]:
    """Yield a constraint "name==version.*" for each requirement with a lower bound."""
    for requirement in requirements():
        if found := re.match(r"([\w.-]+)(?:\[.*?\])?>=([\d.]+)", requirement):
            yield f"{found[1]}=={found[2] if '.' in found[2] else found[2] + '.0'}.*"
    yield from (f"{name}=={version}.*" for name, version in RELEASED_WITH_TORCH.items())


def create_environment(folder: Path, log: TextIO) -> Path:
    """Install the package with the lower bounds; return the environment's Python."""
    venv.create(folder, with_pip=True, clear=True)
    python = folder / "bin" / "python"
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(lower_bounds()) + "\n", encoding="utf-8")
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if run([*install, "--constraint", str(constraints), "--editable", f"{ROOT}[test]"], log):
        raise SystemExit("the oldest versions could not be installed, see the log")
    return python


def run(command: list[str], log: TextIO) -> int:
    """Run a command in the repository, its output printed and logged; return its exit status."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    print("$", *command, file=log)
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as process:
        for line in process.stdout:
            for stream in (sys.stdout, log):
                print(line, end="", file=stream, flush=True)
    return process.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, required=True, help="file that the output is written to")
    parser.add_argument("--python", help="Python of an existing environment; none is created")
    parser.add_argument(
        "--environment", type=Path, default=ROOT / "outputs" / "oldest", help="folder of the new environment"
    )
    options, arguments = parser.parse_known_args()
    if options.python and shutil.which(options.python) is None:
        parser.error(f"--python (={options.python!r}) must be a Python executable")
    options.log.parent.mkdir(parents=True, exist_ok=True)
    with options.log.open("w", encoding="utf-8") as log:
        print(datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), file=log)
        python = options.python or str(create_environment(options.environment, log))
        names = [re.match(r"[\w.-]+", requirement)[0] for requirement in requirements()]
        run([python, "-c", VERSIONS.format(names=names)], log)
        parallel = subprocess.run([python, "-c", "import xdist"], capture_output=True).returncode == 0
        workers = ["-n", "2", "--dist", "worksteal"] if parallel else []
        return run([python, "-m", "pytest", "tests", "src/metricconv", *workers, *arguments], log)


if __name__ == "__main__":
    sys.exit(main())
