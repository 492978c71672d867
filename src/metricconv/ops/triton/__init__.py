"""The fused GPU engine: 1-D and 2-D supports on CUDA, forward and backward, without offset maps or column buffers.

Triton is imported when the first problem arrives that the engine could compute, not before.
"""

import os
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...metrics import Metric, Parametrisation, Randers, Riemannian
from ...metrics.parametrise import FUSED
from ...stencils import Stencil
from ...supports import Deformable, Dilated, Grid, Shifted, TangentBall
from ..problem import Problem

# Triton decides at its import whether kernels run on the device or in its interpreter, on CPU tensors.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_KINDS = {TangentBall: "ball", Deformable: "deformable", Shifted: "shifted", Dilated: "dilated", Grid: "grid"}

# How many of its first components a 1-D support lacks to be a 2-D one in which nothing happens along y.
_ABSENT = {"M": 2, "omega": 1, "displacement": 1, "shift": 1, "scale": 0}

# A stencil's directions and radii on each device, so that a call copies nothing from the host.
_tables: weakref.WeakKeyDictionary[Stencil, dict[torch.device, Tensor]] = weakref.WeakKeyDictionary()


def refusal(problem: Problem) -> str | None:
    """Return why the kernels cannot compute the problem, or None."""
    x, support = problem.input, problem.support
    missing = _missing(x)
    if missing is not None:
        return missing
    if support.dim > 2:
        return f"its kernels know 1-D and 2-D supports, this one has {support.dim} spatial axes"
    if type(support) not in _KINDS:
        return f"its kernels do not know {type(support).__name__} supports"
    if isinstance(support, TangentBall) and type(support.metric) not in (Riemannian, Randers):
        return f"its kernels do not know {type(support.metric).__name__} metrics"
    tensors = {"input": x, "weight": problem.weight, "bias": problem.bias, "modulation": problem.modulation}
    tensors |= {f"support.{name}": tensor for name, tensor in support.tensors().items()}
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype not in _DTYPES:
            return f"its kernels know float32, float16 and bfloat16, `{name}` is {tensor.dtype}"
    return None


def run(problem: Problem) -> Tensor:
    """Compute Σ_j w_j m_j x(centre + Δ_j) + bias, with sums in float32: (B, C_out, *out) in the input's layout."""
    from . import library

    x, support, dim = problem.input, problem.support, problem.support.dim
    batch, groups, out = x.shape[0], support.groups, problem.grid.size
    fields = {
        name: t.to(x.device).expand(batch, groups, *t.shape[2:-dim], *out) for name, t in support.tensors().items()
    }
    weight, modulation = problem.weight.to(x.dtype), problem.modulation
    if modulation is not None:
        modulation = modulation.expand(batch, groups, support.samples, *out)
    numbers: dict[str, Any] = {
        "spacing": support.spacing if isinstance(support, Grid) else tuple(map(float, support.dilation)),
        "dilation": support.dilation,
        "stride": problem.stride,
        "padding": problem.padding,
    }
    table = _table(support.stencil, x.device) if isinstance(support, TangentBall) else None
    if dim == 1:  # an image one pixel high
        x, weight = x.unsqueeze(2), weight.unsqueeze(2)
        modulation = None if modulation is None else modulation.unsqueeze(-2)
        fields = {name: functional.pad(t, (0, 0, _ABSENT[name], 0)).unsqueeze(-2) for name, t in fields.items()}
        one = {"spacing": 1.0, "dilation": 1, "stride": 1, "padding": 0}
        numbers = {name: (one[name], *value) for name, value in numbers.items()}
    channels_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    y = library.support_conv(
        x.contiguous(memory_format=torch.channels_last),
        weight.contiguous(memory_format=torch.channels_last),
        modulation,
        next((t for name, t in fields.items() if name != "omega"), None),
        fields.get("omega"),
        table,
        _KINDS[type(support)],
        list(numbers["spacing"]),
        list(numbers["dilation"]),
        list(numbers["stride"]),
        list(numbers["padding"]),
        problem.groups,
        problem.padding_mode,
        None if problem.bias is None else problem.bias.to(x.dtype),
        channels_last,
    )
    return y.squeeze(2) if dim == 1 else y


def parametrise(parametrisation: Parametrisation, raw: Tensor) -> Metric | None:
    """Return the metric of raw numbers by one kernel, or None where there is no kernel for it."""
    if _missing(raw) is not None:
        return None
    from .parametrise import parametrise as fused

    return fused(parametrisation, raw)


FUSED.append(parametrise)


def _missing(x: Tensor) -> str | None:
    """Return what the kernels lack to run where ``x`` is, or None."""
    if x.device.type != "cuda" and not (_INTERPRETED and x.device.type == "cpu"):
        return f"its kernels need a CUDA device, `input` is on {x.device}"
    if x.is_cuda and torch.cuda.get_device_capability(x.device) < (8, 0):
        return f"its kernels need compute capability 8.0, {x.device} has {torch.cuda.get_device_capability(x.device)}"
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"triton cannot be imported ({error})"
    return None


def _table(stencil: Stencil, device: torch.device) -> Tensor:
    """Return directions and radii, (P, 3) in float32 on the device."""
    if torch.compiler.is_compiling():
        return _make_table(stencil, device)
    tables = _tables.setdefault(stencil, {})
    if device not in tables:
        with torch.inference_mode(False), torch.no_grad():  # it will meet calls that keep it for their backward
            tables[device] = _make_table(stencil, device)
    return tables[device]


def _make_table(stencil: Stencil, device: torch.device) -> Tensor:
    columns = [stencil.directions, stencil.radii.unsqueeze(1)]
    if stencil.dim == 1:
        columns.insert(0, torch.zeros_like(columns[1]))
    return torch.cat(columns, 1).to(torch.float32).to(device)
