"""``metricconv filter --scheduler``: tiles computed by the workers of a dask.distributed cluster."""

import concurrent.futures
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import dask
import distributed
from distributed.client import ClosedClientError
from distributed.scheduler import KilledWorker
from rich.progress import Progress

from .. import __version__
from .._errors import UserError

__all__ = ["Cluster"]

_CONNECT_SECONDS = 10
_POLL_SECONDS = 0.5


class Cluster:
    """A connection to the scheduler at ``address``. Its errors are a ``UserError`` in one line."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __enter__(self) -> "Cluster":
        with contextlib.ExitStack() as stack:
            # distributed also logs the errors that it raises.
            stack.callback(logging.disable, logging.root.manager.disable)
            logging.disable(logging.CRITICAL)
            self.client = stack.enter_context(self._connected())
            self._check_workers()
            self._stack = stack.pop_all()
        return self

    def _connected(self) -> distributed.Client:
        try:
            return distributed.Client(self.address, timeout=_CONNECT_SECONDS)
        except (OSError, TypeError) as error:  # a TypeError for tls without certificates
            raise UserError(f"--scheduler {self.address}: cannot connect ({error})") from error

    def _check_workers(self) -> None:
        """Check that there are workers, and that they and the scheduler have this version of metricconv."""
        try:
            self.client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
        except TimeoutError as error:
            raise UserError(f"--scheduler {self.address}: has no workers") from error
        try:
            versions = {self.client.run_on_scheduler(_version), *self.client.run(_version).values()}
        except Exception as error:  # any error of an import
            raise UserError(f"--scheduler {self.address}: cannot import metricconv there ({error})") from error
        if versions != {__version__}:
            found = ", ".join(sorted(versions))
            raise UserError(f"--scheduler {self.address}: has metricconv {found}, expected {__version__}")

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def computing(self, progress: Progress, description: str) -> Iterator[None]:
        """Compute dask arrays on the cluster, with a progress bar of tasks."""
        bar = _Bar(progress, description)

        def get(graph: Any, keys: Any, **options: Any) -> Any:
            return self._get(graph, keys, bar, **options)

        try:
            with dask.config.set(scheduler=get):
                yield
        finally:
            bar.close()

    def _get(self, graph: Any, keys: Any, bar: "_Bar", **options: Any) -> Any:
        try:
            before = set(self._task_counts())
            futures = self.client.get(graph, keys, sync=False, **options)
            while not self._finished(futures):
                bar.update({name: counts for name, counts in self._task_counts().items() if name not in before})
            return self.client.gather(futures)
        except (concurrent.futures.CancelledError, ClosedClientError) as error:
            raise UserError(f"--scheduler {self.address}: lost the connection to the scheduler") from error
        except KilledWorker as error:
            count = error.allowed_failures + 1
            raise UserError(
                f"--scheduler {self.address}: {count} worker{'s' * (count > 1)} died in the same task, probably out of "
                "memory; use a smaller --tile or workers with more memory"
            ) from error

    def _finished(self, futures: Any) -> bool:
        try:
            distributed.wait(distributed.futures_of(futures), timeout=_POLL_SECONDS)
        except TimeoutError:
            return False
        return True

    def _task_counts(self) -> dict[str, tuple[int, int]]:
        """Return the finished tasks and all tasks of each group, empty if the scheduler does not answer."""
        try:
            counts: dict[str, tuple[int, int]] = self.client.run_on_scheduler(_count_tasks)
        except OSError:
            return {}
        return counts


def _version() -> str:
    """Return the version of metricconv. Runs on the scheduler and the workers."""
    return __version__


def _count_tasks(dask_scheduler: Any) -> dict[str, tuple[int, int]]:
    """Return the finished tasks and all tasks of each group. Runs on the scheduler."""
    unfinished = ("waiting", "queued", "no-worker", "processing")
    counts = {}
    for name, group in dask_scheduler.task_groups.items():
        total = sum(group.states.values())
        counts[name] = total - sum(group.states.get(state, 0) for state in unfinished), total
    return counts


class _Bar:
    """Progress bar of the groups of tasks seen so far."""

    def __init__(self, progress: Progress, description: str) -> None:
        self.progress = progress
        self.task = progress.add_task(description, total=None)
        self.counts: dict[str, tuple[int, int]] = {}

    def update(self, counts: dict[str, tuple[int, int]]) -> None:
        """Show the counts of each group. A group that the scheduler has forgotten is finished."""
        self.counts = {name: (total, total) for name, (_, total) in self.counts.items()} | counts
        finished, total = map(sum, zip(*self.counts.values(), strict=True)) if self.counts else (0, None)
        self.progress.update(self.task, completed=finished, total=total)

    def close(self) -> None:
        self.progress.remove_task(self.task)
