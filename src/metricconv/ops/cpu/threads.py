"""Tasks distributed over torch's own threads, with a single-threaded BLAS in each.

A second thread pool would compete with torch's for the cores, since idle OpenMP threads keep spinning. So tasks run on
torch's OpenMP team where that library can be found, otherwise on Python threads (kernels release the GIL). Numba's
threads would be a second pool too, and they abort the process when two Python threads use them at the same time.

A forked child has no OpenMP team, but waits for the one of its parent: any parallel region in it would hang, also of
torch itself. If the team was in use before the fork, the child computes on one thread.
"""

import os
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

from ... import _compat

Task = TypeVar("Task")

_team_used = False
_team_lost = False  # in a forked child of a process that used the team


def run_tasks(work: Callable[[Task], object], tasks: Iterable[Task]) -> None:
    """Call ``work`` on each task, on up to torch.get_num_threads() threads including the caller's.

    BLAS uses one thread inside a task, whatever torch's setting: tasks already run in parallel, and the rounding of a
    matrix product must not depend on the number of threads.
    """
    pending = list(tasks)
    queue = iter(pending)  # advanced under the GIL: no task runs twice
    errors: list[BaseException] = []

    def body(_: object = None) -> None:
        before = _compat.set_blas_threads(1)
        try:
            for task in queue:
                work(task)
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)
        finally:
            _compat.set_blas_threads(before)

    count = 1 if _team_lost else min(torch.get_num_threads(), len(pending))
    if count < 2:
        body()
    else:
        _run_on_threads(body, count)
    if errors:
        raise errors[0]


def _run_on_threads(body: Callable[..., None], count: int) -> None:
    """Call ``body`` on ``count`` threads at the same time, and wait for all of them."""
    global _team_used
    _team_used = True
    if _compat.run_on_openmp_team(body, count):
        return
    workers = [threading.Thread(target=body) for _ in range(count - 1)]
    for worker in workers:
        worker.start()
    body()
    for worker in workers:
        worker.join()


def _after_fork_in_child() -> None:
    """Use one thread in a forked child that has lost the team of its parent, in torch's own functions too."""
    global _team_lost
    if _team_used:
        _team_lost = True
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork_in_child)
