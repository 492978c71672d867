"""Training steps as CUDA graphs, which removes the overhead of kernel launches from Python."""

import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import _checks

__all__ = ["capture"]


def capture(model: nn.Module, *inputs: Tensor) -> None:
    """Make a model replay CUDA graphs of its forward and backward pass in training mode.

    For small images, launching a layer's kernels from Python takes longer than running them; a graph is one launch.
    Call this function in the same autocast context as the training step, then train as before on batches of the same
    shapes. Evaluation mode is unaffected. The warm-up steps do not change the state of the model, such as the running
    statistics of batch normalization. Copies of the model have no graphs. A model that was moved to another device and
    back must be captured again.

    Args:
        model: a model in training mode, without hooks, whose parameters are on the GPU.
        *inputs: inputs of one training step.
    """
    _checks.instance_of(model, nn.Module, "model")
    for x in inputs:
        _checks.instance_of(x, Tensor, "inputs")
    devices = {str(t.device) for t in (*inputs, *model.parameters())}
    if not inputs or not all(device.startswith("cuda") for device in devices):
        found = f"{len(inputs)} inputs and tensors on {', '.join(sorted(devices))}"
        raise ValueError(f"`capture` needs a model and inputs on a GPU, got {found}")
    if not model.training:
        raise ValueError("`model` is in evaluation mode: `capture` records training steps, so call model.train() first")
    if isinstance(model.forward, Replay):
        del model.forward
    before = {name: value.clone() for name, value in model.state_dict().items()}
    dtype, enabled = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")
    try:
        with torch.autocast("cuda", dtype, enabled=enabled, cache_enabled=False), warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="The AccumulateGrad node's stream"
            )  # torch captures on a side stream
            torch.cuda.make_graphed_callables(model, inputs)
    finally:
        model.load_state_dict(before)
    model.forward = Replay(model, model.forward, inputs)


class Replay:
    """The forward pass of a captured model.

    A graph reads and writes the memory addresses that tensors had at its capture. Training steps therefore raise an
    error if parameters have moved, or if inputs have other shapes, which torch might broadcast.

    Args:
        model: the captured model.
        forward: its forward pass from torch: the graphs in training mode, the original otherwise.
        inputs: the inputs of the capture.
    """

    def __init__(self, model: nn.Module, forward: Callable[..., Any], inputs: tuple[Tensor, ...]) -> None:
        self.model, self.forward = model, forward
        self.addresses = [(parameter, parameter.data_ptr()) for parameter in model.parameters()]
        self.signature = _signature(inputs)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Return the output of the model."""
        if self.model.training:
            if any(parameter.data_ptr() != address for parameter, address in self.addresses):
                raise RuntimeError("the model was moved after it was captured: call `capture` again")
            if _signature(inputs) != self.signature:
                raise ValueError(
                    f"`inputs` must be {self.signature}, as at the capture, got {_signature(inputs)}: drop incomplete "
                    "batches"
                )
        return self.forward(*inputs, **options)

    def __reduce__(self) -> tuple[Any, ...]:  # copies and pickles have no graphs
        return _plain_forward, (self.model,)


def _plain_forward(model: nn.Module) -> Callable[..., Any]:
    return types.MethodType(type(model).forward, model)


def _signature(inputs: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return [(tuple(x.shape), x.dtype) if isinstance(x, Tensor) else (x,) for x in inputs]
