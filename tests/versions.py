"""Run the library's tests in environments with other versions of Python and torch; add the outcome to a table.

    python tests/versions.py PYTHON …                      # all groups of tests
    python tests/versions.py PYTHON … --only layers files  # some of them

Each PYTHON is the interpreter of an environment with the extras cli, cpu and large, pytest and hypothesis. The groups
are the first tier without the Triton interpreter, geodesic functions, documents and the experiments. A group that the
table contains for the same sources is not run again. `tests/oldest.py` installs the oldest versions.
"""

import argparse
import csv
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests" / "versions.csv"
GROUPS: dict[str, Sequence[str]] = {
    "metrics": ["tests/metrics"],
    "layers": ["tests/nn"],
    "supports": ["tests/supports", "tests/test_stencils.py", "tests/test_interpolation.py"],
    "operator": ["tests/ops", "--ignore=tests/ops/cpu", "--ignore=tests/ops/triton"],
    "cpu": ["tests/ops/cpu"],
    "conversion": ["tests/test_conversion.py", "tests/test_to_conv.py"],
    "filters": [
        "tests/test_denoise.py",
        "tests/test_regression_filter.py",
        *sorted(f"tests/{path.name}" for path in (ROOT / "tests").glob("test_filter*.py")),
    ],
    "arguments": ["tests/test_hostile_arguments.py", "tests/test_properties.py", "tests/test_golden.py"],
    "plots": ["tests/viz"],
    "files": ["tests/cli", "tests/io"],
    "docstrings": ["src/metricconv", "--ignore=src/metricconv/geodesic"],
}
VERSIONS = """
import numpy
from metricconv._files import versions
print(*versions().values(), numpy.__version__)
"""
COLUMNS = ("metricconv", "torch", "python", "numpy", "group", "passed", "failed", "skipped", "seconds", "failures")


def run(python: str, group: str) -> dict[str, str]:
    """Run a group of tests; return the number of tests of each outcome, and the names of those that failed."""
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *GROUPS[group]]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    print(done.stdout[-4000:], done.stderr[-2000:], file=sys.stderr)
    summary = done.stdout.rstrip().rpartition("\n")[2]
    counts = {name: int(n) for n, name in re.findall(r"(\d+) (passed|failed|skipped|error)", summary)}
    seconds = re.search(r" in ([\d.]+)s", summary)
    if seconds is None:
        raise SystemExit(f"{python}: pytest did not finish, see above")
    return {
        "passed": str(counts.get("passed", 0)),
        "failed": str(counts.get("failed", 0) + counts.get("error", 0)),
        "skipped": str(counts.get("skipped", 0)),
        "seconds": seconds[1],
        "failures": " ".join(re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)),
    }


def read() -> list[dict[str, str]]:
    """Return the rows of the table."""
    if not TABLE.exists():
        return []
    with TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(rows: Sequence[dict[str, str]]) -> None:
    """Write the table."""
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="+", metavar="PYTHON", help="interpreter of an environment")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS), help="groups of tests")
    options = parser.parse_args()
    failed = 0
    for python in options.pythons:
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        found = subprocess.run([python, "-c", VERSIONS], capture_output=True, text=True, env=environment, check=True)
        versions = dict(zip(COLUMNS[:4], found.stdout.split(), strict=True))
        for group in options.only:
            key = versions | {"group": group}
            if any(key.items() <= row.items() for row in read()):
                continue
            row = key | run(python, group)
            failed += int(row["failed"])
            others = [
                old for old in read() if not {k: key[k] for k in ("torch", "python", "group")}.items() <= old.items()
            ]
            write([*others, row])
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
