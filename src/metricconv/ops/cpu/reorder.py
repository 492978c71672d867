"""The two orders of columns: samples first, as kernels gather them, and channels first, as in the weights."""

import numpy as np
from torch import Tensor

from .jit import kernel
from .threads import run_tasks

# Values that one task reorders: fewer are not worth a thread.
_TASK_VALUES = 2**17


def samples_first(source: Tensor, order: np.ndarray) -> Tensor:
    """Return [n, P, C] from [n, C, P]; sample k of the result is sample order[k] of the source."""
    return _reordered(_to_samples_first, source, order)


def channels_first(source: Tensor, order: np.ndarray) -> Tensor:
    """Return [n, C, P] from [n, P, C], the inverse of ``samples_first``."""
    return _reordered(_to_channels_first, source, order)


def _reordered(kernel: object, source: Tensor, order: np.ndarray) -> Tensor:
    source = source.contiguous()
    target = source.new_empty(source.shape[0], source.shape[2], source.shape[1])
    count = min(max(source.numel() // _TASK_VALUES, 1), source.shape[0])
    edges = [source.shape[0] * n // count for n in range(count + 1)]
    arrays = source.numpy(), order, target.numpy()
    run_tasks(lambda n: kernel(*arrays, edges[n], edges[n + 1]), range(count))  # type: ignore[operator]
    return target


@kernel
def _to_samples_first(source, order, target, start, stop):
    _, channels, samples = source.shape
    a, b = source.reshape(-1), target.reshape(-1)
    for n in range(start, stop):
        first = n * channels * samples
        for k in range(samples):
            read, write = np.uint64(first + order[k]), np.uint64(first + k * channels)
            for c in range(np.uint64(channels)):
                b[write + c] = a[read + c * np.uint64(samples)]


@kernel
def _to_channels_first(source, order, target, start, stop):
    _, samples, channels = source.shape
    a, b = source.reshape(-1), target.reshape(-1)
    for n in range(start, stop):
        first = n * channels * samples
        for k in range(samples):
            read, write = np.uint64(first + k * channels), np.uint64(first + order[k])
            for c in range(np.uint64(channels)):
                b[write + c * np.uint64(samples)] = a[read + c]
