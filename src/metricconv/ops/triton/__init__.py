"""The Triton backend: fused GPU kernels for 1-D and 2-D supports, forward and backward.

Kernels compute sampling locations from the compact parameters of a support: no offsets are stored. Samples are stored
only in wide layers, in an im2col buffer of bounded size. Triton is imported with the first problem that is on a GPU.
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
from ...metrics import AsymmetricQuadratic, Metric, Parametrization, Randers, Riemannian
from ...stencils import Stencil
from ...supports import Deformable, Dilated, GeodesicBall, Grid, Shifted, TangentBall
from ..displacements import Displacements
from ..problem import TRANSFORMS_UNSUPPORTED, Problem, transforms_active
from .device_constants import device_constant

name = "triton"
# Ratios to the reference are those of the tables in benchmarks/.
description = (
    "fused kernels for CUDA devices; on an H200, forward and backward in float32, 18 to 128 times "
    "as fast as the reference"
)

# Triton determines at its import whether kernels run on the device or in its interpreter, on CPU tensors.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_MAX_FIELDS = 65535  # programs along the second and the third axis of a launch
_MAX_NODES = 2**27  # of a geodesic field: twelve values each, 32-bit addresses
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_KINDS = {
    TangentBall: "ball", Deformable: "deformable", Shifted: "shifted", Dilated: "dilated", Grid: "grid",
    Displacements: "deformable",
}  # fmt: skip

_METRICS = {TangentBall: (Riemannian, Randers, AsymmetricQuadratic), GeodesicBall: (Riemannian, Randers)}

# How many components come first when a 1-D support is extended to 2-D; they are 0, so that no sample moves along y.
_ADDED_COMPONENTS = {"M": 2, "omega": 1, "w": 1, "displacement": 1, "shift": 1, "scale": 0}

# Directions and radii of each stencil on each device, so that calls copy nothing from the host.
_stencil_tables: weakref.WeakKeyDictionary[Stencil, dict[torch.device, Tensor]] = weakref.WeakKeyDictionary()


def unsupported_reason(problem: Problem) -> str | None:
    """Return why the backend does not support the problem, or None."""
    x, support = problem.input, problem.support
    reason = _unsupported_device(x)
    if reason is not None:
        return reason
    if support.dim > 2:
        return f"it supports 1 or 2 spatial axes, `support` has {support.dim}"
    if isinstance(support, GeodesicBall):
        reason = _unsupported_geodesics(support)
        if reason is not None:
            return reason
    elif type(support) not in _KINDS:
        return f"it does not support {type(support).__name__} supports"
    if isinstance(support, TangentBall | GeodesicBall) and type(support.metric) not in _METRICS[type(support)]:
        return f"it does not support {type(support.metric).__name__} metrics"
    if isinstance(support, TangentBall | GeodesicBall) and support.stencil.requires_grad:
        return "it does not compute gradients of the stencil"
    tensors = {"input": x, "weight": problem.weight, "bias": problem.bias, "modulation": problem.modulation}
    tensors |= {f"support.{name}": tensor for name, tensor in support.tensors().items()}
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype not in _DTYPES:
            return f"it supports float32, float16 and bfloat16, `{name}` is {tensor.dtype}"
    if max(x.shape[2:]) > FARTHEST:
        return f"its positions reach 2²³ pixels along an axis, `input` has spatial size {tuple(x.shape[2:])}"
    return None


def run(problem: Problem) -> Tensor:
    """Return Σ_j w_j m_j x(center + Δ_j) + bias, accumulated in float32: (B, C_out, *out) in the input's layout."""
    support = problem.support
    if isinstance(support, GeodesicBall):
        return _run_geodesic(problem, support)
    kind, table = _KINDS[type(support)], None
    if isinstance(support, TangentBall):
        table = _table(support.stencil, problem.input.device)
        kind = "one-sided ball" if isinstance(support.metric, AsymmetricQuadratic) else kind
    spacing = support.spacing if isinstance(support, Grid | Displacements) else tuple(map(float, support.dilation))
    return _convolve(problem, kind, support.tensors(), spacing, table)


def _run_geodesic(problem: Problem, ball: GeodesicBall) -> Tensor:
    """Trace the rays of geodesic balls and convolve their samples as a deformable support.

    Large stencils are processed in parts. The sum over each part is rounded to the dtype of the input before the sums
    are added in float32.
    """
    from . import geodesic, ray_tables

    def part(table: ray_tables.RayTable, bias: Tensor | None) -> Tensor:
        weight, modulation = problem.weight, problem.modulation
        if len(table.samples) < ball.samples:
            weight = weight.flatten(2).index_select(2, table.samples).unsqueeze(2)
            modulation = None if modulation is None else modulation.index_select(2, table.samples)
        partial = dataclasses.replace(problem, weight=weight, bias=bias, modulation=modulation)
        displacement = geodesic.displacements(ball, table, problem.input.dtype)
        return _convolve(partial, "deformable", {"displacement": displacement}, (0.0, 0.0))

    first, *others = ray_tables.ray_tables(ball, problem.input)
    y = part(first, problem.bias)
    for table in others:
        y = y.float() + checkpoint(part, table, None, use_reentrant=False, preserve_rng_state=False).float()
    return y.to(problem.input.dtype)


def _convolve(
    problem: Problem, kind: str, fields: dict[str, Tensor], spacing: tuple[float, ...], table: Tensor | None = None
) -> Tensor:
    """Return the convolution over supports of a kind, whose parameters ``fields`` broadcast to (B, G, …, *out)."""
    from . import library

    x, weight, modulation = problem.input, problem.weight, problem.modulation
    support, dim = problem.support, problem.support.dim
    batch, groups, out = x.shape[0], support.groups, problem.grid.size
    fields = {name: _expanded(t.to(x.device), (batch, groups, *t.shape[2:-dim], *out)) for name, t in fields.items()}
    if modulation is not None:
        modulation = _expanded(modulation, (batch, groups, modulation.shape[2], *out))
    geometry: dict[str, Any] = {
        "kernel_size": support.kernel_size,
        "spacing": spacing,
        "dilation": support.dilation,
        "stride": problem.stride,
        "padding": problem.padding,
    }
    if dim == 1:  # an image one pixel high
        x, weight = x.unsqueeze(2), weight.unsqueeze(2)
        modulation = None if modulation is None else modulation.unsqueeze(-2)
        padded = {name: functional.pad(t, (0, 0, _ADDED_COMPONENTS[name], 0)) for name, t in fields.items()}
        fields = {name: t.unsqueeze(-2) for name, t in padded.items()}
        one = {"kernel_size": 1, "spacing": 0.0, "dilation": 1, "stride": 1, "padding": 0}
        geometry = {name: (one[name], *value) for name, value in geometry.items()}
    field, drift, *_ = *fields.values(), None, None
    channels_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    y = library.support_conv(
        x.contiguous(memory_format=torch.channels_last),
        weight,
        modulation,
        field,
        drift,
        table,
        kind,
        *(list(value) for value in geometry.values()),
        problem.groups,
        problem.padding_mode,
        problem.bias,
        channels_last,
    )
    return y.squeeze(2) if dim == 1 else y


def _expanded(field: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return a field expanded to a size, or unchanged if it has that size: views take time, also in backward."""
    return field if field.shape == size else field.expand(size)


def _unsupported_geodesics(ball: GeodesicBall) -> str | None:
    """Return why the backend does not support a geodesic ball, or None."""
    if ball.dim != 2:
        return f"it supports geodesic balls in 2-D, this one has {ball.dim} spatial axes"
    if any(t.dtype != torch.float32 for t in ball.tensors().values()):
        return "it supports geodesic balls of float32 metrics"
    if ball.metric.batch * ball.metric.groups > _MAX_FIELDS:
        return f"it supports geodesic balls in at most {_MAX_FIELDS} images and groups at a time"
    if math.prod(ball.metric.spatial) > _MAX_NODES:
        return f"it supports geodesic balls in images of at most {_MAX_NODES} pixels"
    if torch.are_deterministic_algorithms_enabled():
        return "its gradients of geodesic balls are not deterministic"
    return None


def parametrize(
    parametrization: Parametrization, raw: Tensor, start: Tensor | None, gain: Tensor | None, radius: float
) -> Metric | None:
    """Return ``parametrization(raw, start, gain, radius)`` by one kernel, or None if there is no kernel for it."""
    if torch.compiler.is_compiling() or _unsupported_device(raw) is not None:  # compilers fuse the formula
        return None
    parametrization.check(raw, start, gain)
    from .parametrizations import parametrize as fused

    return fused(parametrization, raw, start, gain, radius)


def conv_with_few_outputs(
    x: Tensor, weight: Tensor, bias: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Tensor | None:
    """Return a convolution with few output channels, or None if torch's is compiled, as fast or required."""
    if x.dim() != 4 or torch.compiler.is_compiling() or _unsupported_device(x) is not None:
        return None
    from .few_outputs_conv import few_outputs_conv as fused

    return fused(x, weight, bias, tuple(stride), tuple(padding), tuple(dilation))


def _unsupported_device(x: Tensor) -> str | None:
    """Return why the kernels do not run on the device of a tensor now, or None."""
    if x.device.type != "cuda" and not (_INTERPRETED and x.device.type == "cpu"):
        return f"it requires a CUDA device, `input` is on {x.device}"
    if transforms_active():
        return TRANSFORMS_UNSUPPORTED
    return _missing_dependency(x.device) if torch.compiler.is_compiling() else _cached_missing_dependency(x.device)


def missing_dependency() -> str | None:
    """Return what the backend lacks on this machine, or None."""
    if not torch.cuda.is_available():
        return "there is no CUDA device, or this torch was built without CUDA"
    return _missing_dependency(torch.device("cuda", torch.cuda.current_device()))


def _missing_dependency(device: torch.device) -> str | None:
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        return f"it requires compute capability 8.0, {device} has {torch.cuda.get_device_capability(device)}"
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"triton cannot be imported ({error})"
    return None


_cached_missing_dependency = functools.cache(_missing_dependency)  # torch.compile does not trace it


def _table(stencil: Stencil, device: torch.device) -> Tensor:
    """Return directions and radii, (P, 3) in float32 on the device."""
    if torch.compiler.is_compiling():
        return _make_table(stencil, device)
    return device_constant(
        _stencil_tables.setdefault(stencil, {}), device, lambda: _make_table(stencil, device), device
    )


def _make_table(stencil: Stencil, device: torch.device) -> Tensor:
    columns = [stencil.directions, stencil.radii.unsqueeze(1)]
    if stencil.dim == 1:
        columns.insert(0, torch.zeros_like(columns[1]))
    return torch.cat(columns, 1).to(torch.float32).to(device)
