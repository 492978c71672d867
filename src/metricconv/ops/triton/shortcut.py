"""Operators called directly where nothing traces them: torch's registry costs more than many a kernel runs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

_PLAIN = (Tensor, Parameter)


def traced(x: Tensor) -> bool:
    """Return whether a call must go through the registered operator: compiled, exported, counted, without data."""
    return (
        torch.compiler.is_compiling()
        or type(x) not in _PLAIN
        or x.device.type == "meta"
        or torch._C._len_torch_dispatch_stack() > 0
    )


def shortcut(
    operator: Callable[..., Any],
    compute: Callable[..., Any],
    keep: Callable[[Any, tuple[Any, ...], Any], None],
    differentiate: Callable[..., Any],
    prepare: Callable[..., tuple[Any, ...]] = lambda *args: args,
) -> Callable[..., Any]:
    """Return a function that calls a registered operator where it is traced, and otherwise what it stands for.

    Args:
        operator: as registered; its first argument is a tensor.
        compute: what it computes.
        keep, differentiate: as for ``torch.library.register_autograd``.
        prepare: what is done with its arguments first, once for the forward and the backward pass.
    """

    class Shortcut(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            prepared = prepare(*args)
            result = compute(*prepared)
            keep(ctx, prepared, result)
            return result

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return differentiate(ctx, *grads)

    # Function.apply looks for transforms of torch.func, which engines refuse, and then calls this.
    apply = super(torch.autograd.Function, Shortcut).apply

    def call(*args: Any) -> Any:
        return operator(*args) if traced(args[0]) else apply(*args)

    return call


def first_derivative(operator: Callable[..., Any], compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same for a backward operator; where a graph of it is wanted, the operator, which refuses."""

    def call(*args: Any) -> Any:
        return operator(*args) if torch.is_grad_enabled() or traced(args[0]) else compute(*args)

    return call
