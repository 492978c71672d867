"""The arguments with which the operator of the CPU backend is called."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(function) == "metricconv.support_conv_cpu.default":
            self.calls.append(args)
        return function(*args, **kwargs or {})


def recorded_call(run: Callable[..., torch.Tensor], tensors: dict[str, torch.Tensor]) -> tuple[Any, ...]:
    """Return the arguments of the operator when a case runs on the CPU backend."""
    with _Recorder() as recorder:
        run(tensors, backend="cpu")
    (call,) = recorder.calls
    return call
