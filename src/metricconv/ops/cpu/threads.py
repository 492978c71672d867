"""Tasks shared out among torch's own threads, as many as it may use, each with a BLAS of its own.

A second pool of threads would fight torch's for the cores: those wait for their next task awake. So where torch's
OpenMP can be found, its team is called; else threads of Python do, as kernels run without its lock. Numba's threads
would be a second pool too, and they abort a process in which two threads of Python compute at the same time.
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


def share(work: Callable[[Task], object], tasks: Iterable[Task]) -> None:
    """Do the work of each task on the next free of torch.get_num_threads() threads, the caller's among them.

    Matrix products inside a task take one thread, whatever torch is set to: the tasks are what runs side by side, and
    a product's rounding does not depend on how many do.
    """
    listed = list(tasks)
    queue = iter(listed)  # its steps are taken under Python's lock: no task is done twice
    errors: list[BaseException] = []

    def body(_: object = None) -> None:
        before = set_blas_threads(1)
        try:
            for task in queue:
                work(task)
        except BaseException as error:  # to be raised by the caller, whichever thread met it
            errors.append(error)
        finally:
            set_blas_threads(before)

    count = min(torch.get_num_threads(), len(listed))
    if count < 2:
        body()
    else:
        _side_by_side(body, count)
    if errors:
        raise errors[0]


def _side_by_side(body: Callable[..., None], count: int) -> None:
    """Call ``body`` on so many threads at the same time, and wait."""
    openmp = _openmp()
    if openmp is not None:
        openmp.GOMP_parallel(_BODY(body), None, count, 0)
        return
    helpers = [threading.Thread(target=body) for _ in range(count - 1)]
    for helper in helpers:
        helper.start()
    body()
    for helper in helpers:
        helper.join()


@functools.cache
def _openmp() -> Any:
    """Return the OpenMP library that torch has loaded; None where it cannot be seen or lacks GNU's entry."""
    try:
        loaded = re.findall(r"\S+/lib(?:gomp|iomp5|omp)\b\S*\.so\S*", Path("/proc/self/maps").read_text())
        ours = sorted(set(loaded), key=lambda path: "torch" not in path)
        library = ctypes.CDLL(ours[0])
        library.GOMP_parallel.argtypes = [_BODY, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        library.GOMP_parallel.restype = None
    except (OSError, IndexError, AttributeError):
        return None
    return library
