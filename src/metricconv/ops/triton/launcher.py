"""Launches at little cost to the host: all that does not change from call to call is found out once."""

import functools
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

Constants = TypeVar("Constants")

# Where kernels are compiled that will be called later: Triton's passes leave Python's lock to others.
_compilers = ThreadPoolExecutor(thread_name_prefix="metricconv-compile")


class Launch:
    """A kernel with all its arguments but the tensors.

    Triton compiles it when it is first called, and whenever a tensor's type or alignment is new; then the compiled
    kernel is called as it is, without what Triton does to find it, which takes longer than many a kernel runs.

    Args:
        kernel: of Triton.
        grid: how many programs, along one to three axes.
        numbers: the other arguments, and Triton's options.
    """

    def __init__(self, kernel: Any, grid: Sequence[int], **numbers: Any) -> None:
        self.kernel, self.grid, self.numbers = kernel, tuple(grid), numbers
        self.compiled: dict[tuple[Any, ...], Any] = {}
        self.compiling: Future[None] | None = None

    def ahead(self, **alike: Tensor) -> None:
        """Begin to compile, in another thread, for aligned tensors typed as these; the first call waits for it."""
        if self.compiled or self.compiling is not None:
            return
        from triton.runtime import MockTensor

        def compile_now(device: torch.cuda.device, tensors: dict[str, Any]) -> None:
            with device:
                self.kernel.warmup(grid=self.grid, **tensors, **self.numbers)

        device = on_device(next(iter(alike.values())))
        self.compiling = _compilers.submit(compile_now, device, {n: MockTensor(t.dtype) for n, t in alike.items()})

    def __call__(self, **tensors: Tensor | None) -> None:
        """Launch with these tensors, all of the kernel's, on the current device."""
        given = [None if t is None else (t.device.index, t.dtype, t.data_ptr() % 16) for t in tensors.values()]
        key = (*tensors, *given)
        if key in self.compiled:
            call, arguments, places = self.compiled[key]
            arguments = arguments.copy()
            for place, tensor in zip(places, tensors.values(), strict=True):
                arguments[place] = tensor
            call(*arguments)
            return
        if self.compiling is not None:
            self.compiling.exception()  # what failed there fails here again, where it is seen
        kernel = self.kernel[self.grid](**tensors, **self.numbers)
        if kernel is not None:  # Triton's interpreter compiles nothing
            names = list(inspect.signature(self.kernel.fn).parameters)
            arguments = [self.numbers.get(name) for name in names]
            full = (*self.grid, 1, 1)[:3]
            self.compiled[key] = kernel[full], arguments, [names.index(name) for name in tensors]


@functools.lru_cache(maxsize=4096)
def launch_of(kernel: Any, grid: tuple[int, ...], **numbers: Any) -> Launch:
    """Return the launch of a kernel with these numbers, made once."""
    return Launch(kernel, grid, **numbers)


def on_device(x: Tensor) -> torch.cuda.device:
    """Make the tensor's device the current one: a launch goes there."""
    return torch.cuda.device(x.device if x.is_cuda else -1)


# Constants that graphs read, which hold no references: they must outlive whatever they were made for.
_read_by_graphs: dict[int, Any] = {}


def constants(known: dict[Any, Constants], key: Any, make: Callable[[], Constants], device: torch.device) -> Constants:
    """Return what ``make`` puts on a device, made once, ready for all streams; kept for good where a graph reads it.

    What is made while a graph is captured has no values before the graph is replayed: that is the graph's own.
    """
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if key not in known:
        if capturing:
            return make()
        with torch.inference_mode(False), torch.no_grad():  # it will meet calls that keep it for their backward
            known[key] = make()
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
    if capturing:
        _read_by_graphs[id(known[key])] = known[key]
    return known[key]
