"""Tasks distributed over torch's own threads, with a single-threaded BLAS in each.

A second thread pool would compete with torch's for the cores, since idle OpenMP threads keep spinning. So tasks run on
torch's OpenMP team where that library can be found, otherwise on Python threads (kernels release the GIL). Numba's
threads would be a second pool too, and they abort the process when two Python threads use them at the same time.
"""

import ctypes
import functools
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch

from .products import set_blas_threads

Task = TypeVar("Task")

_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def run_tasks(work: Callable[[Task], object], tasks: Iterable[Task]) -> None:
    """Call ``work`` on each task, on up to torch.get_num_threads() threads including the caller's.

    BLAS uses one thread inside a task, whatever torch's setting: tasks already run in parallel, and the rounding of a
    matrix product must not depend on the number of threads.
    """
    pending = list(tasks)
    queue = iter(pending)  # advanced under the GIL: no task runs twice
    errors: list[BaseException] = []

    def body(_: object = None) -> None:
        before = set_blas_threads(1)
        try:
            for task in queue:
                work(task)
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)
        finally:
            set_blas_threads(before)

    count = min(torch.get_num_threads(), len(pending))
    if count < 2:
        body()
    else:
        _run_on_threads(body, count)
    if errors:
        raise errors[0]


def _run_on_threads(body: Callable[..., None], count: int) -> None:
    """Call ``body`` on ``count`` threads at the same time, and wait for all of them."""
    openmp = _openmp()
    if openmp is not None:
        openmp.GOMP_parallel(_BODY(body), None, count, 0)
        return
    workers = [threading.Thread(target=body) for _ in range(count - 1)]
    for worker in workers:
        worker.start()
    body()
    for worker in workers:
        worker.join()


@functools.cache
def _openmp() -> Any:
    """Return the OpenMP library that torch has loaded, or None if it is not found or lacks GOMP_parallel."""
    try:
        loaded = re.findall(r"\S+/lib(?:gomp|iomp5|omp)\b\S*\.so\S*", Path("/proc/self/maps").read_text())
        ours = sorted(set(loaded), key=lambda path: "torch" not in path)
        library = ctypes.CDLL(ours[0])
        library.GOMP_parallel.argtypes = [_BODY, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        library.GOMP_parallel.restype = None
    except (OSError, IndexError, AttributeError):
        return None
    return library
