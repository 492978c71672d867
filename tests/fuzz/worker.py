"""A process that runs the cases of one target, so that a crash, a hang or a lack of memory is one case's failure."""

import contextlib
import importlib
import multiprocessing
import os
import sys
import tempfile
import traceback
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

__all__ = ["Verdict", "Worker"]

SECONDS = 60.0  # per case; compiling kernels on first use takes part of it
START_SECONDS = 180.0  # for imports
MEMORY = 2 * 2**30  # address space in bytes per case, beyond what the process has before


class Verdict(NamedTuple):
    """The result of one case: the word it is counted under, and what failed, empty if nothing did."""

    outcome: str
    failure: str = ""


class Worker:
    """Runs cases of a target, module ``fuzz.targets.NAME`` with ``make(seed) -> case`` and ``check(case) -> outcome``.

    ``check`` returns the word that the case is counted under, and raises if a property does not hold. The process is
    started with the first case, and again after a case that ended it.
    """

    def __init__(self, target: str, seconds: float = SECONDS) -> None:
        self.target, self.seconds = target, seconds
        self._process: Any = None
        self._connection: Connection | None = None

    def run(self, seed: int) -> Verdict:
        """Run the case of a seed."""
        try:
            if self._process is None:
                self._start()
            assert self._connection is not None
            self._connection.send(seed)
            if self._connection.poll(self.seconds):
                return Verdict(*self._connection.recv())
            failure = f"takes more than {self.seconds:g} s"
        except (EOFError, ConnectionError):
            self._process.join()
            failure = f"the process ended with exit code {self._process.exitcode}"
        self.close()
        return Verdict("failed", failure)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
        self._process = self._connection = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(self.target, theirs), daemon=True)
        self._process.start()
        theirs.close()
        if not self._connection.poll(START_SECONDS):
            raise TimeoutError(f"target {self.target!r} is not imported after {START_SECONDS:g} s")
        self._connection.recv()


def _serve(target: str, connection: Connection) -> None:
    """Receive seeds, send verdicts."""
    os.environ.update(MPLBACKEND="Agg", OMP_NUM_THREADS="1")
    os.environ.pop("METRICCONV_TRACEBACK", None)
    if target == "triton":
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    module = importlib.import_module(f"fuzz.targets.{target}")
    connection.send("ready")
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(EOFError, KeyboardInterrupt):
        os.chdir(folder)
        while True:
            connection.send(_verdict(module, connection.recv()))


def _verdict(module: Any, seed: int) -> tuple[str, str]:
    case = None
    _limit_memory()
    try:
        case = module.make(seed)
        return module.check(case), ""
    except Exception:
        return "failed", f"{case}\n{traceback.format_exc()}"


def _limit_memory() -> None:
    """Limit the address space of this process, on Linux."""
    if sys.platform != "linux":
        return
    import resource

    with open("/proc/self/statm", encoding="ascii") as status:
        used = int(status.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
