"""Training steps as CUDA graphs, so that the GPU does not wait for Python."""

import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import _checks


def capture(model: nn.Module, *inputs: Tensor) -> None:
    """Make a model replay CUDA graphs of its forward and backward pass while it trains, on inputs like these.

    On small images Python takes longer to launch a layer's kernels than the GPU to run them; a graph is launched at
    once. Call it as the training step calls the model, under the same autocast; then train as before, on batches of
    these very shapes. In evaluation mode the model is what it was, and so is its state: what trial steps do to batch
    normalisation is undone. Copies of the model have no graphs. A model that has been moved to another device and back
    must be captured again.

    Args:
        model: in training mode, with no hooks, its parameters on the GPU.
        *inputs: of one training step.
    """
    _checks.instance_of(model, nn.Module, "model")
    for x in inputs:
        _checks.instance_of(x, Tensor, "inputs")
    devices = {str(t.device) for t in (*inputs, *model.parameters())}
    if not inputs or not all(device.startswith("cuda") for device in devices):
        found = f"{len(inputs)} inputs and tensors on {', '.join(sorted(devices))}"
        raise ValueError(f"`capture` needs a model and inputs on a GPU, got {found}")
    if not model.training:
        raise ValueError("`model` is in evaluation mode: `capture` keeps training steps, so call model.train() first")
    if isinstance(model.forward, Replay):
        del model.forward
    before = {name: value.clone() for name, value in model.state_dict().items()}
    dtype, enabled = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")
    try:
        with torch.autocast("cuda", dtype, enabled=enabled, cache_enabled=False), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream")  # torch captures on its own
            torch.cuda.make_graphed_callables(model, inputs)
    finally:
        model.load_state_dict(before)
    model.forward = Replay(model, model.forward, inputs)


class Replay:
    """The forward pass of a captured model.

    A graph reads and writes where tensors were when it was captured, whatever is there now. So training steps are
    refused when the parameters are elsewhere, or when inputs are of other shapes, which torch might broadcast.

    Args:
        model: that was captured.
        forward: what torch made of its forward pass: the graphs in training mode, itself otherwise.
        inputs: that it was captured with.
    """

    def __init__(self, model: nn.Module, forward: Callable[..., Any], inputs: tuple[Tensor, ...]) -> None:
        self.model, self.forward = model, forward
        self.places = [(parameter, parameter.data_ptr()) for parameter in model.parameters()]
        self.kinds = _kinds(inputs)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Return what the model makes of inputs."""
        if self.model.training:
            if any(parameter.data_ptr() != place for parameter, place in self.places):
                raise RuntimeError("the model was moved after it was captured: call `capture` again")
            if _kinds(inputs) != self.kinds:
                raise ValueError(
                    f"`inputs` were {self.kinds} when the model was captured, got {_kinds(inputs)}: leave out a batch "
                    "that is not full"
                )
        return self.forward(*inputs, **options)

    def __reduce__(self) -> tuple[Any, ...]:  # for copies and files, which have no graphs
        return _plain_forward, (self.model,)


def _plain_forward(model: nn.Module) -> Callable[..., Any]:
    return types.MethodType(type(model).forward, model)


def _kinds(inputs: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return [(tuple(x.shape), x.dtype) if isinstance(x, Tensor) else (x,) for x in inputs]
