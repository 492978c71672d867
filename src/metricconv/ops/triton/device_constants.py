"""Tensors that a device needs for many calls, such as a stencil's directions: made once, safe to use in CUDA graphs."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Constant = TypeVar("Constant")

# Constants that CUDA graphs read. A graph holds no references, so they must outlive the objects they were made for.
_read_by_graphs: dict[int, Any] = {}


def device_constant(
    cache: dict[Any, Constant], key: Any, make: Callable[[], Constant], device: torch.device
) -> Constant:
    """Return ``cache[key]``, made on first use: valid on all streams, and never freed if a CUDA graph reads it.

    While a graph is captured, new constants are not cached: they have no values before the graph is replayed.
    """
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if key not in cache:
        if capturing:
            return make()
        with torch.inference_mode(False), torch.no_grad():  # autograd may save the constant in a later call
            cache[key] = make()
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
    if capturing:
        _read_by_graphs[id(cache[key])] = cache[key]
    return cache[key]
