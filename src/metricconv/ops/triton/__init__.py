"""The fused GPU engine: 1-D and 2-D supports on CUDA, forward and backward, without offset maps.

Nor are there columns of samples, but for a bounded number in wide layers: see launch.py and backward.py.
Triton is imported when the first problem arrives that the engine could compute, not before.
"""

import dataclasses
import functools
import math
import os
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ..._interpolation import FARTHEST
from ...metrics import Metric, Parametrization, Randers, Riemannian
from ...metrics.parametrizations import FUSED
from ...stencils import Stencil
from ...supports import Deformable, Dilated, GeodesicBall, Grid, Shifted, TangentBall
from ..problem import NO_TRANSFORMS, Problem, transformed
from .launcher import constants

# Triton decides at its import whether kernels run on the device or in its interpreter, on CPU tensors.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_MOST_FIELDS = 65535  # programs along the second and the third axis of a launch
_MOST_NODES = 2**27  # which rays find, twelve numbers each, by 32 bits
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_KINDS = {TangentBall: "ball", Deformable: "deformable", Shifted: "shifted", Dilated: "dilated", Grid: "grid"}

# How many of its first components a 1-D support lacks to be a 2-D one in which nothing happens along y.
_ABSENT = {"M": 2, "omega": 1, "displacement": 1, "shift": 1, "scale": 0}

# A stencil's directions and radii on each device, so that a call copies nothing from the host.
_tables: weakref.WeakKeyDictionary[Stencil, dict[torch.device, Tensor]] = weakref.WeakKeyDictionary()


def unsupported_reason(problem: Problem) -> str | None:
    """Return why the kernels cannot compute the problem, or None."""
    x, support = problem.input, problem.support
    missing = _missing(x)
    if missing is not None:
        return missing
    if support.dim > 2:
        return f"its kernels know 1-D and 2-D supports, this one has {support.dim} spatial axes"
    if isinstance(support, GeodesicBall):
        why = _no_geodesics(support)
        if why is not None:
            return why
    elif type(support) not in _KINDS:
        return f"its kernels do not know {type(support).__name__} supports"
    if isinstance(support, TangentBall | GeodesicBall) and type(support.metric) not in (Riemannian, Randers):
        return f"its kernels do not know {type(support.metric).__name__} metrics"
    if isinstance(support, TangentBall | GeodesicBall) and support.stencil.learns:
        return "its kernels have no gradients for a stencil"
    tensors = {"input": x, "weight": problem.weight, "bias": problem.bias, "modulation": problem.modulation}
    tensors |= {f"support.{name}": tensor for name, tensor in support.tensors().items()}
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype not in _DTYPES:
            return f"its kernels know float32, float16 and bfloat16, `{name}` is {tensor.dtype}"
    if max(x.shape[2:]) > FARTHEST:
        return f"its positions reach 2²³ pixels along an axis, `input` has spatial size {tuple(x.shape[2:])}"
    return None


def run(problem: Problem) -> Tensor:
    """Compute Σ_j w_j m_j x(centre + Δ_j) + bias, with sums in float32: (B, C_out, *out) in the input's layout."""
    support = problem.support
    if isinstance(support, GeodesicBall):
        return _run_geodesic(problem, support)
    table = _table(support.stencil, problem.input.device) if isinstance(support, TangentBall) else None
    spacing = support.spacing if isinstance(support, Grid) else tuple(map(float, support.dilation))
    return _convolve(problem, _KINDS[type(support)], support.tensors(), spacing, table)


def _run_geodesic(problem: Problem, ball: GeodesicBall) -> Tensor:
    """Trace the rays, some at a time, and sum over their samples as over a deformable support's.

    The sum over each part of a large stencil is rounded to the image's dtype before they are added in float32.
    """
    from . import geodesic

    def part(plan: geodesic.Plan, bias: Tensor | None) -> Tensor:
        chosen, modulation = problem.weight, problem.modulation
        if len(plan.samples) < ball.samples:
            chosen = chosen.flatten(2).index_select(2, plan.samples).unsqueeze(2)
            modulation = None if modulation is None else modulation.index_select(2, plan.samples)
        some = dataclasses.replace(problem, weight=chosen, bias=bias, modulation=modulation)
        displacement = geodesic.displacements(ball, plan, problem.input.dtype)
        return _convolve(some, "deformable", {"displacement": displacement}, (0.0, 0.0))

    first, *others = geodesic.plans(ball, problem.input)
    y = part(first, problem.bias)
    for plan in others:
        y = y.float() + checkpoint(part, plan, None, use_reentrant=False, preserve_rng_state=False).float()
    return y.to(problem.input.dtype)


def _convolve(
    problem: Problem, kind: str, fields: dict[str, Tensor], spacing: tuple[float, ...], table: Tensor | None = None
) -> Tensor:
    """Launch the kernels of a kind, whose fields are (B, G, …, *out) or broadcast to it."""
    from . import library

    x, weight, modulation = problem.input, problem.weight, problem.modulation
    support, dim = problem.support, problem.support.dim
    batch, groups, out = x.shape[0], support.groups, problem.grid.size
    fields = {name: _over(t.to(x.device), (batch, groups, *t.shape[2:-dim], *out)) for name, t in fields.items()}
    if modulation is not None:
        modulation = _over(modulation, (batch, groups, modulation.shape[2], *out))
    numbers: dict[str, Any] = {
        "kernel_size": support.kernel_size,
        "spacing": spacing,
        "dilation": support.dilation,
        "stride": problem.stride,
        "padding": problem.padding,
    }
    if dim == 1:  # an image one pixel high
        x, weight = x.unsqueeze(2), weight.unsqueeze(2)
        modulation = None if modulation is None else modulation.unsqueeze(-2)
        fields = {name: functional.pad(t, (0, 0, _ABSENT[name], 0)).unsqueeze(-2) for name, t in fields.items()}
        one = {"kernel_size": 1, "spacing": 0.0, "dilation": 1, "stride": 1, "padding": 0}
        numbers = {name: (one[name], *value) for name, value in numbers.items()}
    channels_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    y = library.support_conv(
        x.contiguous(memory_format=torch.channels_last),
        weight,
        modulation,
        next((t for name, t in fields.items() if name != "omega"), None),
        fields.get("omega"),
        table,
        kind,
        *(list(value) for value in numbers.values()),
        problem.groups,
        problem.padding_mode,
        problem.bias,
        channels_last,
    )
    return y.squeeze(2) if dim == 1 else y


def _over(field: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return a field at all pixels, no view of it where it is there already: views cost time, back too."""
    return field if field.shape == size else field.expand(size)


def _no_geodesics(ball: GeodesicBall) -> str | None:
    """Return why the kernels cannot trace a ball's rays, or None."""
    if ball.dim != 2:
        return f"its kernels trace geodesics in 2-D, this ball has {ball.dim} spatial axes"
    if any(t.dtype != torch.float32 for t in ball.tensors().values()):
        return "its kernels trace geodesics of float32 metrics"
    if ball.metric.batch * ball.metric.groups > _MOST_FIELDS:
        return f"its kernels trace geodesics of at most {_MOST_FIELDS} images and groups at a time"
    if math.prod(ball.metric.spatial) > _MOST_NODES:
        return f"its kernels trace geodesics in images of at most {_MOST_NODES} pixels"
    if torch.are_deterministic_algorithms_enabled():
        return "its kernels add the gradients of geodesics in no fixed order"
    return None


def parametrize(
    parametrization: Parametrization, raw: Tensor, start: Tensor | None, gain: Tensor | None, radius: float
) -> Metric | None:
    """Return the metric of raw numbers by one kernel, or None where there is no kernel for it."""
    if _missing(raw) is not None:
        return None
    from .parametrizations import parametrize as fused

    return fused(parametrization, raw, start, gain, radius)


FUSED.append(parametrize)


def narrow_conv(
    x: Tensor, weight: Tensor, bias: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Tensor | None:
    """Return a convolution with few outputs, or None where torch's own is as fast, or compiled, or needed."""
    if x.dim() != 4 or torch.compiler.is_compiling() or _missing(x) is not None:
        return None
    from .narrow import narrow_conv as fused

    return fused(x, weight, bias, tuple(stride), tuple(padding), tuple(dilation))


def _missing(x: Tensor) -> str | None:
    """Return what the kernels lack to run where ``x`` is, or None."""
    if x.device.type != "cuda" and not (_INTERPRETED and x.device.type == "cpu"):
        return f"its kernels need a CUDA device, `input` is on {x.device}"
    if transformed():
        return NO_TRANSFORMS
    return _missing_dependency(x.device) if torch.compiler.is_compiling() else _cached_missing_dependency(x.device)


def missing_dependency() -> str | None:
    """Return what the kernels lack to run on this machine, or None."""
    if not torch.cuda.is_available():
        return "there is no CUDA device, or this torch was built without CUDA"
    return _missing_dependency(torch.device("cuda", torch.cuda.current_device()))


def _missing_dependency(device: torch.device) -> str | None:
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        return f"its kernels need compute capability 8.0, {device} has {torch.cuda.get_device_capability(device)}"
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"triton cannot be imported ({error})"
    return None


_cached_missing_dependency = functools.cache(_missing_dependency)  # which a compiler cannot look into


def _table(stencil: Stencil, device: torch.device) -> Tensor:
    """Return directions and radii, (P, 3) in float32 on the device."""
    if torch.compiler.is_compiling():
        return _make_table(stencil, device)
    return constants(_tables.setdefault(stencil, {}), device, lambda: _make_table(stencil, device), device)


def _make_table(stencil: Stencil, device: torch.device) -> Tensor:
    columns = [stencil.directions, stencil.radii.unsqueeze(1)]
    if stencil.dim == 1:
        columns.insert(0, torch.zeros_like(columns[1]))
    return torch.cat(columns, 1).to(torch.float32).to(device)
