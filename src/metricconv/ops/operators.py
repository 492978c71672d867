"""Registration of the compiled backends' operators with torch, and direct calls of them.

A registered operator works with ``torch.compile``, FLOP counters, fake tensors and autocast, but its dispatch takes
longer than many a kernel. Where none of these is active, operators are called directly, as a
``torch.autograd.Function``.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import Parameter

from .. import _compat
from .flops import count_products

__all__ = ["is_traced", "register_backward", "register_convolution", "register_operator"]

_LIBRARY = torch.library.Library("metricconv", "FRAGMENT")
_PLAIN = {Tensor, Parameter, type(None)}


def register_convolution(
    name: str,
    arguments: str,
    *,
    tensors: int,
    gradients: int,
    forward: Callable[..., Tensor],
    forward_fake: Callable[..., Tensor],
    backward: Callable[..., Sequence[Tensor | None]],
    backward_fake: Callable[..., Sequence[Tensor | None]],
    devices: Sequence[str],
    prepare: Callable[..., tuple[Any, ...]] = lambda *args: args,
    autocast: bool = False,
) -> Callable[..., Tensor]:
    """Register ``metricconv::name`` and ``metricconv::name_backward``; return the function that calls them.

    Args:
        arguments: schema of the arguments that both operators share: input, weight, modulation, other tensors, options.
        tensors, gradients: how many of these are tensors, and how many of the tensors have a gradient; they come first.
        forward: (*arguments, bias, channels_last) → the output.
        backward: (*arguments, grad, needs) → the gradients that ``needs`` names. One may be None if it is not needed.
        forward_fake, backward_fake: the same without values: uninitialized tensors of the right shapes.
        devices: dispatch keys of the devices, such as "CPU".
        prepare: applied to the arguments of a direct call, once for the forward and the backward pass.
        autocast: whether autocast casts input, modulation and bias of the operator itself.
    """

    def compute_backward(*args: Any) -> tuple[Tensor, ...]:
        """Return the gradients; an empty tensor where not needed."""
        *_, grad, needs = args
        if grad.numel() == 0:
            return tuple(g.zero_() for g in shape_backward(*args))
        return _needed(backward(*args), grad, needs)

    def shape_backward(*args: Any) -> tuple[Tensor, ...]:
        *_, grad, needs = args
        return _needed(backward_fake(*args), grad, needs)

    def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *shared, bias, _ = inputs
        ctx.save_for_backward(*shared[:tensors])
        ctx.options = shared[tensors:]
        ctx.bias_dtype = None if bias is None else bias.dtype

    def differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        needs = [bool(n) for n in ctx.needs_input_grad[:gradients]]
        found = call_backward(*ctx.saved_tensors, *ctx.options, grad, needs)
        bias = grad.sum((0, *range(2, grad.dim())), dtype=ctx.bias_dtype) if ctx.needs_input_grad[-2] else None
        without = [None] * (tensors - gradients + len(ctx.options))
        return *[g if n else None for g, n in zip(found, needs, strict=True)], *without, bias, None

    results = ", ".join(["Tensor"] * gradients)
    schemas = {
        name: f"({arguments}, Tensor? bias, bool channels_last) -> Tensor",
        f"{name}_backward": f"({arguments}, Tensor grad, bool[] needs) -> ({results})",
    }
    for key, schema in schemas.items():
        _LIBRARY.define(key + schema, tags=[torch.Tag.pt2_compliant_tag])
    operators = [getattr(torch.ops.metricconv, key) for key in schemas]
    for device in devices:
        _LIBRARY.impl(name, forward, device)
        _LIBRARY.impl(f"{name}_backward", compute_backward, device)
        if autocast:
            _LIBRARY.impl(name, _autocast(operators[0].default, device.lower()), f"Autocast{device}")
    torch.library.register_fake(f"metricconv::{name}", forward_fake, lib=_LIBRARY)
    torch.library.register_fake(f"metricconv::{name}_backward", shape_backward, lib=_LIBRARY)
    torch.library.register_autograd(f"metricconv::{name}", differentiate, setup_context=save, lib=_LIBRARY)
    torch.library.register_autograd(f"metricconv::{name}_backward", _raise_on_double_backward, lib=_LIBRARY)
    count_products(*operators)
    call_backward = _backward_call(operators[1].default, compute_backward)
    return _direct_call(operators[0].default, forward, save, differentiate, prepare)


def register_operator(
    name: str,
    compute: Callable[..., Any],
    fake: Callable[..., Any],
    save: Callable[[Any, tuple[Any, ...], Any], None],
    differentiate: Callable[..., Any],
) -> Callable[..., Any]:
    """Register ``metricconv::name``; return the function that calls it.

    Args:
        compute: what the operator computes; its annotations are the schema. The first two arguments are tensors, or
            the first alone.
        fake: the same without values: uninitialized tensors of the right shapes.
        save, differentiate: as for ``torch.library.register_autograd``.
    """
    operator = torch.library.custom_op(f"metricconv::{name}", compute, mutates_args=())
    operator.register_fake(fake)
    operator.register_autograd(differentiate, setup_context=save)
    return _direct_call(operator, compute, save, differentiate)


def register_backward(name: str, compute: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """Register a backward operator ``metricconv::name``, arguments as above; return the function that calls it."""
    operator = torch.library.custom_op(f"metricconv::{name}", compute, mutates_args=())
    operator.register_fake(fake)
    operator.register_autograd(_raise_on_double_backward)
    return _backward_call(operator, compute)


def _direct_call(
    operator: Callable[..., Any],
    compute: Callable[..., Any],
    save: Callable[[Any, tuple[Any, ...], Any], None],
    differentiate: Callable[..., Any],
    prepare: Callable[..., tuple[Any, ...]] = lambda *args: args,
) -> Callable[..., Any]:
    """Return a function that calls a registered operator where it is traced, and otherwise what it computes.

    Args:
        operator: its first two arguments are tensors.
        compute: what it computes.
        save, differentiate: as for ``torch.library.register_autograd``.
        prepare: applied to the arguments of a direct call, once for the forward and the backward pass.
    """

    class DirectCall(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            prepared = prepare(*args)
            result = compute(*prepared)
            save(ctx, prepared, result)
            return result

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return differentiate(ctx, *grads)

    apply = _compat.direct_apply(DirectCall)  # backends do not support transforms of torch.func

    def call(*args: Any) -> Any:
        return operator(*args) if is_traced(*args[:2]) else apply(*args)

    return call


def _backward_call(operator: Callable[..., Any], compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same for a backward operator, which raises an error when it is differentiated itself."""

    def call(*args: Any) -> Any:
        if torch.is_grad_enabled() or _compat.batched_gradients_active() or is_traced(*args[:2]):
            return operator(*args)
        return compute(*args)

    return call


def is_traced(*values: object) -> bool:
    """Return whether operators on these tensors must be registered ones: traced, counted, wrapped or without data."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or _compat.dispatch_mode_active()
        or any(isinstance(value, Tensor) and (value.is_meta or type(value) not in _PLAIN) for value in values)
    )


def _raise_on_double_backward(ctx: Any, *grads: Tensor) -> NoReturn:
    """Raise the error of a second derivative; registered as the derivative of backward operators."""
    raise NotImplementedError(
        "compiled backends have first derivatives only: for a double backward call the operator with "
        'backend="reference"'
    )


def _needed(gradients: Sequence[Tensor | None], grad: Tensor, needs: Sequence[bool]) -> tuple[Tensor, ...]:
    """Return the gradients with an empty tensor in place of those that are not needed."""
    return tuple(g if n and g is not None else grad.new_empty(0) for g, n in zip(gradients, needs, strict=True))


def _autocast(operator: Callable[..., Tensor], device: str) -> Callable[..., Tensor]:
    """Return the operator under autocast: input, modulation and bias in its dtype, the geometry unchanged."""

    def cast(t: Tensor | None) -> Tensor | None:
        return t if t is None or t.dtype == torch.float64 else t.to(torch.get_autocast_dtype(device))

    def call(x: Tensor, weight: Tensor, modulation: Tensor | None, *others: Any) -> Tensor:
        *rest, bias, channels_last = others
        with torch.autocast(device, enabled=False):
            return operator(cast(x), weight, cast(modulation), *rest, cast(bias), channels_last)

    return call
