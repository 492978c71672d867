"""Runs the targets for a number of cases or for some time, and counts the outcomes."""

import collections
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from fuzz.worker import SECONDS, Worker

__all__ = ["CASES", "Counts", "command", "run", "run_target", "table"]

# The targets, and how many cases of each the second tier of the tests runs.
CASES = {"files": 500, "options": 60, "api": 200, "raw": 300, "backends": 100, "triton": 4}


@dataclasses.dataclass
class Counts:
    """The outcomes of a target's cases; failures by seed."""

    target: str
    outcomes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    failures: dict[int, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0


def command(target: str, seed: int) -> str:
    """Return the command that runs one case alone, in the root of the repository."""
    return f"PYTHONPATH=src:tests python -m fuzz {target} --seed {seed} --cases 1"


def run_target(
    target: str,
    seed: int = 0,
    cases: int | None = None,
    seconds: float | None = None,
    log: Callable[[str], None] = print,
    limit: float = SECONDS,
) -> Counts:
    """Run the cases of ``seed``, ``seed`` + 1, …: ``cases`` of them, or for ``seconds``.

    Args:
        log: receives each failure, and the counts every ten minutes.
        limit: seconds that one case may take.
    """
    counts, worker, start = Counts(target), Worker(target, limit), time.monotonic()
    reported = start
    try:
        for current in itertools.count(seed) if cases is None else range(seed, seed + cases):
            outcome, failure = worker.run(current)
            counts.outcomes[outcome] += 1
            counts.seconds = time.monotonic() - start
            if failure:
                counts.failures[current] = failure
                log(f"FAILED {target}, seed {current}\n{failure.strip()}\nAlone: {command(target, current)}\n")
            if time.monotonic() - reported > 600:
                reported = time.monotonic()
                log(table([counts]))
            if seconds is not None and counts.seconds >= seconds:
                break
    finally:
        worker.close()
    return counts


def run(
    targets: Iterable[str],
    seed: int,
    cases: int | None,
    seconds: float | None,
    jobs: int,
    log: Callable[[str], None] = print,
) -> list[Counts]:
    """Run several targets, ``jobs`` at once, for ``seconds`` in all or ``cases`` each."""
    targets = list(targets)
    jobs = min(jobs, len(targets))
    share = None if seconds is None else seconds * jobs / len(targets)
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda target: run_target(target, seed, cases, share, log), targets))


def table(results: Iterable[Counts]) -> str:
    """Return the counts as a Markdown table."""
    lines = ["| target | cases | failed | outcomes | seconds |", "|---|---:|---:|---|---:|"]
    for counts in results:
        words = ", ".join(f"{n} {word}" for word, n in sorted(counts.outcomes.items()) if word != "failed")
        cases, failed = counts.outcomes.total(), len(counts.failures)
        lines.append(f"| {counts.target} | {cases} | {failed} | {words} | {counts.seconds:.0f} |")
    return "\n".join(lines)
