"""Kernels with bound arguments: compilation in the background, names of arguments."""

import importlib
import pkgutil
import threading

import pytest
import torch

from metricconv import _compat
from metricconv.ops import triton as triton_backend
from metricconv.ops.triton.bound_kernel import BoundKernel


class SlowKernel:
    """A kernel that compiles when it is released, and records compilations and launches."""

    def __init__(self, fails: bool) -> None:
        self.fails, self.released, self.events = fails, threading.Event(), []

    def warmup(self, grid: tuple[int, ...], image: object, size: int) -> None:
        assert self.released.wait(10)
        self.events.append(("compiled", threading.current_thread() is threading.main_thread(), image.dtype, size))
        if self.fails:
            raise RuntimeError("does not compile")

    def __getitem__(self, grid: tuple[int, ...]) -> object:
        return lambda **arguments: self.events.append(("launched", grid))


@pytest.mark.parametrize("fails", [False, True])
def test_launch_waits_for_compilation_in_the_background(fails: bool) -> None:
    pytest.importorskip("triton")
    kernel, image = SlowKernel(fails), torch.zeros(3, dtype=torch.float16)
    launch = BoundKernel(kernel, [2], size=5)
    launch.compile_in_background(image=image)
    launch.compile_in_background(image=image)  # has no effect
    assert not kernel.events
    threading.Timer(0.05, kernel.released.set).start()
    launch(image=image)  # if compilation failed, the launch of a real kernel raises the same error
    assert kernel.events == [("compiled", False, torch.float16, 5), ("launched", (2,))]


def test_no_kernel_argument_has_a_name_that_triton_uses_itself() -> None:
    """Triton 3.6 and 3.7 generate a function with the kernel's arguments and these local variables."""
    pytest.importorskip("triton")
    reserved = {"params", "specialization", "options"}
    names = [module.name for module in pkgutil.iter_modules(triton_backend.__path__)]
    members = [vars(importlib.import_module(f"{triton_backend.__name__}.{name}")).values() for name in names]
    kernels = {member.fn.__name__: member for values in members for member in values if hasattr(member, "fn")}
    assert len(kernels) > 20
    clashing = {name for name, kernel in kernels.items() if reserved & set(_compat.triton_argument_names(kernel))}
    assert not {name for name in clashing if name.endswith("_kernel")}
