"""Kernels with bound arguments, launched with little overhead on the host."""

import functools
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from ... import _compat

# Kernels for the backward pass are compiled in the background: Triton releases Python's lock in its passes.
_compilers = ThreadPoolExecutor(thread_name_prefix="metricconv-compile")


class BoundKernel:
    """A Triton kernel and its grid, with all arguments bound except the tensors.

    Triton compiles the kernel on the first call, and again for tensors of other dtypes or alignments. Later calls
    launch the compiled kernel directly. Triton's own lookup of it takes longer than many kernels run.

    Args:
        kernel: the Triton kernel.
        grid: number of programs along one to three axes.
        options: all arguments that are no tensors, and Triton's launch options.
    """

    def __init__(self, kernel: Any, grid: Sequence[int], **options: Any) -> None:
        self.kernel, self.grid, self.options = kernel, tuple(grid), options
        self._compiled: dict[tuple[Any, ...], Any] = {}
        self._compiling: Future[None] | None = None

    def compile_in_background(self, **examples: Tensor) -> None:
        """Start to compile in another thread, for aligned tensors with the dtypes of the examples."""
        if self._compiled or self._compiling is not None:
            return

        def compile_now(device: torch.cuda.device, tensors: dict[str, Any]) -> None:
            with device:
                self.kernel.warmup(grid=self.grid, **tensors, **self.options)

        device = on_device(next(iter(examples.values())))
        tensors = {name: _compat.triton_mock_tensor(t.dtype) for name, t in examples.items()}
        self._compiling = _compilers.submit(compile_now, device, tensors)

    def __call__(self, **tensors: Tensor | None) -> None:
        """Launch the kernel on the current device with these tensors, which are all of its tensors."""
        types = [None if t is None else (t.device.index, t.dtype, t.data_ptr() % 16) for t in tensors.values()]
        key = (*tensors, *types)
        if key in self._compiled:
            launch, arguments, positions = self._compiled[key]
            arguments = arguments.copy()
            for position, tensor in zip(positions, tensors.values(), strict=True):
                arguments[position] = tensor
            launch(*arguments)
            return
        if self._compiling is not None:
            self._compiling.exception()  # waits; an error is raised again by the launch below
        compiled = self.kernel[self.grid](**tensors, **self.options)
        if compiled is not None:  # the interpreter compiles nothing
            names = _compat.triton_argument_names(self.kernel)
            arguments = [self.options.get(name) for name in names]
            full_grid = (*self.grid, 1, 1)[:3]
            self._compiled[key] = (
                _compat.triton_runner(compiled, full_grid),
                arguments,
                [names.index(name) for name in tensors],
            )


@functools.lru_cache(maxsize=4096)
def bind(kernel: Any, grid: tuple[int, ...], **options: Any) -> BoundKernel:
    """Return the kernel with bound arguments: the same object for the same arguments."""
    return BoundKernel(kernel, grid, **options)


def on_device(x: Tensor) -> torch.cuda.device:
    """Return a context in which the tensor's device is the current one, to which kernels are launched."""
    return torch.cuda.device(x.device if x.is_cuda else -1)
