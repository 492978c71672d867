"""The fast CPU engine: 1-D and 2-D supports, forward and backward, compiled by numba on the first call.

Numba is imported when the first problem arrives that the engine could compute, not before. Kernels are compiled then,
in a few seconds, and kept on disk for later processes.
"""

import importlib.util
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional

from ...metrics import Randers, Riemannian
from ...stencils import Stencil
from ...supports import Deformable, Dilated, Grid, Shifted, TangentBall
from ...supports.base import lattice
from ..problem import Problem

_INSTALLED = importlib.util.find_spec("numba") is not None
_DTYPES = (torch.float32, torch.float64)
_KINDS = {TangentBall: "ball", Deformable: "deformable", Shifted: "shifted", Dilated: "dilated", Grid: "grid"}

# How many of its first components a 1-D support lacks to be a 2-D one in which nothing happens along y.
_ABSENT = {"M": 2, "omega": 1, "displacement": 1, "shift": 1, "scale": 0}

# Addresses in a plane of the image are 32 bits wide.
_MOST_PIXELS = 2**31

# A stencil's directions and radii in each dtype.
_tables: weakref.WeakKeyDictionary[Stencil, dict[torch.dtype, Tensor]] = weakref.WeakKeyDictionary()


def absence() -> str | None:
    """Return what is missing for the engine to compute anything, or None."""
    if not _INSTALLED:
        return "numba is not installed (pip install 'metricconv[cpu]')"
    try:
        import numba  # noqa: F401
    except ImportError as error:
        return f"numba cannot be imported ({error})"
    return None


def refusal(problem: Problem) -> str | None:
    """Return why the engine cannot compute the problem, or None."""
    x, support = problem.input, problem.support
    if x.device.type != "cpu":
        return f"it computes on the CPU, `input` is on {x.device}"
    missing = absence()
    if missing is not None:
        return missing
    if torch.compiler.is_exporting():
        return "an exported graph runs where its kernels are not"
    if not torch.compiler.is_compiling() and _transformed():
        return "its kernels have the derivatives of autograd's backward alone, not those of torch.func or forward mode"
    if support.dim > 2:
        return f"it knows 1-D and 2-D supports, this one has {support.dim} spatial axes"
    if type(support) not in _KINDS:
        return f"it does not know {type(support).__name__} supports"
    if isinstance(support, TangentBall) and type(support.metric) not in (Riemannian, Randers):
        return f"it does not know {type(support.metric).__name__} metrics"
    if x.dtype not in _DTYPES:
        return f"it knows float32 and float64, `input` is {x.dtype}"
    for name, tensor in support.tensors().items():
        if tensor.dtype != x.dtype:
            return f"it computes all in one dtype, `input` is {x.dtype} and `support.{name}` {tensor.dtype}"
    if x.shape[2:].numel() >= _MOST_PIXELS:
        return f"its images have fewer than 2³¹ pixels, `input` has spatial size {tuple(x.shape[2:])}"
    return None


def run(problem: Problem) -> Tensor:
    """Compute Σ_j w_j m_j x(centre + Δ_j) + bias in the input's dtype and layout: (B, C_out, *out)."""
    from . import library

    x, support, dim = problem.input, problem.support, problem.support.dim
    batch, groups, out = x.shape[0], support.groups, problem.grid.size
    fields = {
        name: t.to(x.device).expand(batch, groups, *t.shape[2:-dim], *out) for name, t in support.tensors().items()
    }
    weight, modulation = problem.weight.to(x.dtype), problem.modulation
    if modulation is not None:
        modulation = modulation.to(x.dtype).expand(batch, groups, support.samples, *out)
    numbers: dict[str, Any] = {"dilation": support.dilation, "stride": problem.stride, "padding": problem.padding}
    if dim == 1:  # an image one pixel high
        x, weight = x.unsqueeze(2), weight.unsqueeze(2)
        modulation = None if modulation is None else modulation.unsqueeze(-2)
        fields = {name: functional.pad(t, (0, 0, _ABSENT[name], 0)).unsqueeze(-2) for name, t in fields.items()}
        one = {"dilation": 1, "stride": 1, "padding": 0}
        numbers = {name: (one[name], *value) for name, value in numbers.items()}
    channels_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    y = library.support_conv(
        x,
        weight,
        modulation,
        _field([t.flatten(2, -3) for t in fields.values()]),
        _table(problem),
        _KINDS[type(support)],
        list(numbers["dilation"]),
        list(numbers["stride"]),
        list(numbers["padding"]),
        problem.groups,
        problem.padding_mode,
        None if problem.bias is None else problem.bias.to(x.dtype),
        channels_last,
    )
    return y.squeeze(2) if dim == 1 else y


def _transformed() -> bool:
    """Return whether torch.func, or forward-mode derivatives, are at work."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def _field(parts: list[Tensor]) -> Tensor | None:
    """Return all numbers of a pixel in one tensor, (B, G, n, *out); no copy where they are in one already."""
    return torch.cat(parts, 2) if len(parts) > 1 else next(iter(parts), None)


def _table(problem: Problem) -> Tensor:
    """Return the direction and radius of each sample, or its cell of the reference grid and 1: (P, 3)."""
    support, x = problem.support, problem.input
    if not isinstance(support, TangentBall):
        spacing = support.spacing if isinstance(support, Grid) else support.dilation
        cells = lattice(support.kernel_size, spacing, like=x).view(-1, support.dim)
        return _columns(cells, torch.ones_like(cells[:, 0]))
    stencil = support.stencil
    if torch.compiler.is_compiling():
        return _columns(stencil.directions, stencil.radii).to(x)
    tables = _tables.setdefault(stencil, {})
    if x.dtype not in tables:
        with torch.inference_mode(False), torch.no_grad():  # it will meet calls that keep it for their backward
            tables[x.dtype] = _columns(stencil.directions, stencil.radii).to(x)
    return tables[x.dtype]


def _columns(points: Tensor, radii: Tensor) -> Tensor:
    columns = [points, radii.unsqueeze(1)]
    if points.shape[1] == 1:
        columns.insert(0, torch.zeros_like(columns[1]))
    return torch.cat(columns, 1)
