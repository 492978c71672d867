"""``python -m fuzz``: run targets for minutes or hours, and print a table of the outcomes."""

import argparse
import contextlib
import platform
import sys
import threading
from pathlib import Path

import torch

import metricconv as mc
from fuzz.runner import CASES, run, table


def main() -> int:
    """Run the targets and return 1 if a case failed."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Run random cases; report those that fail.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"{', '.join(CASES)}. Default: all.")
    parser.add_argument("--hours", type=float, help="Time for all targets together. Default: 0.05, three minutes.")
    parser.add_argument("--cases", type=int, help="Number of cases per target, instead of a time.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the first case; the next has the next seed.")
    parser.add_argument("--jobs", type=int, default=1, help="Targets that run at the same time.")
    parser.add_argument("--log", type=Path, help="File to which all that is printed is appended.")
    options = parser.parse_args()
    unknown = set(options.targets) - set(CASES)
    if unknown or options.jobs < 1 or (options.hours is not None and options.cases is not None):
        parser.error(
            f"unknown targets {', '.join(unknown)}" if unknown else "--jobs below 1, or both --hours and --cases"
        )
    hours = 0.05 if options.hours is None else options.hours
    lock = threading.Lock()
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(options.log.open("a", encoding="utf-8")) if options.log else None

        def log(text: str) -> None:
            with lock:
                for target in filter(None, (sys.stdout, file)):
                    print(text, file=target, flush=True)

        log(f"metricconv {mc.__version__}, torch {torch.__version__}, Python {platform.python_version()}")
        log(f"first seed {options.seed}")
        results = run(
            options.targets or CASES,
            options.seed,
            options.cases,
            None if options.cases is not None else 3600 * hours,
            options.jobs,
            log,
        )
        log(table(results))
    return int(any(counts.failures for counts in results))


if __name__ == "__main__":
    sys.exit(main())
