"""``python -m benchmarks.ptx REF_A REF_B``: which Triton kernels have different PTX in two git refs.

Compiles the kernels of the cases in ``tests/ops/triton`` for compute capabilities 8.0 and 9.0, with the code and the
cases of each ref, and compares the results without names, comments and debug information. Prints the kernels that
changed, appeared or disappeared. The exit status is 1 if any changed. Needs Triton, but no GPU; takes a few minutes.
"""

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_COMPILER = Path(__file__).with_name("ptx_of_checkout.py")


@dataclasses.dataclass(frozen=True)
class Difference:
    """The launches of cases that differ between two refs."""

    equal: int
    changed: list[str]
    appeared: list[str]
    disappeared: list[str]


def main(arguments: list[str] | None = None) -> int:
    """Compare two git refs, print the differences, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ptx", description="Compare the PTX of two git refs.")
    parser.add_argument("refs", nargs=2, metavar="REF", help="commit, tag or branch")
    parser.add_argument("--output", type=Path, help="folder for the PTX of both refs, to diff by other tools")
    options = parser.parse_args(arguments)
    first, second = (compile_ref(ref) for ref in options.refs)
    if options.output is not None:
        for side, kernels in zip("ab", (first, second), strict=True):
            for name, ptx in kernels.items():
                file = options.output / side / (re.sub(r"\W+", "_", name) + ".ptx")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(ptx)
    difference = compare(first, second)
    for title in ("changed", "appeared", "disappeared"):
        for name in getattr(difference, title):
            print(f"{title}: {name}")
    counts = (len(difference.changed), len(difference.appeared), len(difference.disappeared))
    print(f"{difference.equal} equal, {counts[0]} changed, {counts[1]} appeared, {counts[2]} disappeared")
    return int(bool(difference.changed))


def compile_ref(ref: str) -> dict[str, str]:
    """Return the normalized PTX of every launch of every case of a git ref, by "case, capability, launch"."""
    known = ["git", "-C", str(_ROOT), "rev-parse", "--quiet", "--verify", f"{ref}^{{commit}}"]
    if subprocess.run(known, stdout=subprocess.DEVNULL).returncode:
        raise SystemExit(f"REF (={ref!r}) must be a commit, tag or branch of this repository")
    with tempfile.TemporaryDirectory() as folder:
        checkout, output = Path(folder, "checkout"), Path(folder, "ptx.json")
        git = ["git", "-C", str(_ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(checkout), ref], check=True)
        try:
            paths = os.pathsep.join(str(checkout / name) for name in ("src", "tests", "."))
            environment = {**os.environ, "PYTHONPATH": paths, "TRITON_DISABLE_LINE_INFO": "1"}
            # -P: modules beside the script must not shadow those of the checkout.
            command = [sys.executable, "-P", str(_COMPILER), str(output)]
            subprocess.run(command, cwd=checkout, env=environment, check=True)
        finally:
            subprocess.run([*git, "remove", "--force", str(checkout)], check=True)
        found = json.loads(output.read_text())
    return {name: normalize(ptx) for name, ptx in found.items()}


def compare(first: dict[str, str], second: dict[str, str]) -> Difference:
    """Return the names whose normalized PTX differs, and those present on one side only."""
    common = [name for name in first if name in second]
    return Difference(
        equal=sum(first[name] == second[name] for name in common),
        changed=[name for name in common if first[name] != second[name]],
        appeared=[name for name in second if name not in first],
        disappeared=[name for name in first if name not in second],
    )


def normalize(ptx: str) -> str:
    """Return PTX without comments, debug information and blank lines, with functions named by their order.

    Parameters are named after their function, so that their names are normalized too.
    """
    ptx = re.sub(r"//.*", "", ptx)
    ptx = re.sub(r"(?m)^\s*\.section\s+\.debug\w*\s*\{[^}]*\}", "", ptx)
    ptx = re.sub(r"(?m)^\s*\.(?:loc|file)\s.*$", "", ptx)
    ptx = re.sub(r"(?m)^\s*\$L__(?:tmp|func_begin|func_end|info)\w*:\s*$", "", ptx)
    names = re.findall(r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)", ptx)
    for number, name in enumerate(dict.fromkeys(names)):
        ptx = re.sub(rf"(?<![\w$]){re.escape(name)}(?=_param_\d|(?![\w$]))", f"function_{number}", ptx)
    lines = (line.rstrip() for line in ptx.splitlines())
    return "\n".join(line for line in lines if line)


if __name__ == "__main__":
    sys.exit(main())
