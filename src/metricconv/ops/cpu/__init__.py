"""The CPU backend: numba kernels for the forward and the backward pass of all built-in supports.

float32 and float64 are computed in their own precision, half precision in float32 and rounded at the end, as by the
reference. Results do not depend on the number of threads, which is torch's, except for the rounding of torch's matrix
products in wide layers on small maps. The reference computes geodesic balls in volumes and derivatives beyond the
first.

Numba is imported when the backend is first considered for a problem. Kernels are compiled on their first call, within 4
to 8 seconds for each of the forward and the backward pass, and cached on disk.

How a call proceeds: ``run`` (here) → library.py (torch operators) → partition.py (tasks for threads) → layouts.py
(arrays) → few_channels.py or many_channels.py (kernels), which share sampling.py and what it imports. Wide layers on
small maps proceed from library.py to blocks.py and its kernels in many_channels.py.

=============== =====================================================================================================
task            what one thread computes at a time: whole images, or one pixel range of an image
pixel range     consecutive output pixels of one image, in row-major order
strip           at most 512 pixels of a range, the length of the innermost loops
tile            pixels times samples that fit in the im2col buffer (many channels only)
block           images or pixels whose columns are multiplied by torch at once (blocks.py)
columns         the im2col buffer: the samples of a tile or block, all channels of a group side by side
sample          one of the P sampling locations of a pixel, with index j in the kernel; also the value there
stencil         table with one row per sample: reference cell or direction, radius, index, …
support         per-pixel parameters of the sampling locations, ``params``: metric, offsets, shift or dilation; for
parameters      geodesic balls the field, a table of nodes
halo            one pixel around the image that holds the values past the border
address         index of a pixel in the image with its halo, channels not counted; the distance between neighbors along
                an axis is its pitch
cell            the 2, 4 or 8 pixels (corners) around a sample, named by its lower corner, the first in memory
upper weight    interpolation weight of the upper corner along an axis; the lower corner has 1 minus it
slice           z-slice of a volume; a sample is interpolated in two of them
gain            factor of a sample: its modulation, or 1
run             consecutive channels that share sampling locations and a weight group
=============== =====================================================================================================
"""

import importlib.util
import math
from typing import Any

import torch
from torch import Tensor

from ... import _compat
from ..._interpolation import FARTHEST
from ...metrics import AsymmetricQuadratic, Metric, Parametrization, Randers, Riemannian, Spectral7
from ...metrics.flow import FlowField, smoothed
from ...supports import Deformable, Dilated, GeodesicBall, Grid, Shifted, Support, TangentBall
from ...supports.base import kernel_cells
from ..displacements import Displacements
from ..operators import is_traced
from ..problem import TRANSFORMS_UNSUPPORTED, Problem, transforms_active

name = "cpu"
# Ratios to the reference are those of the tables in benchmarks/.
description = (
    "kernels for CPUs, compiled by numba on the first call and cached for later processes; on two threads, forward + "
    "backward of tangent balls, 6 to 18 times as fast as the reference"
)

_INSTALLED = importlib.util.find_spec("numba") is not None
_KINDS = {
    TangentBall: "ball", GeodesicBall: "geodesic", Deformable: "deformable", Shifted: "shifted", Dilated: "dilated",
    Grid: "grid", Displacements: "deformable",
}  # fmt: skip

_METRICS = {TangentBall: (Riemannian, Randers, AsymmetricQuadratic), GeodesicBall: (Riemannian, Randers)}

# Addresses are 32-bit integers.
_MAX_PIXELS = 2**31


def missing_dependency() -> str | None:
    """Return what the backend lacks on this machine and how to obtain it, or None."""
    if not _INSTALLED:
        return "numba is not installed (pip install 'metricconv[cpu]')"
    try:
        import numba  # noqa: F401
    except ImportError as error:
        return f"numba cannot be imported ({error}; pip install 'metricconv[cpu]')"
    return None


def unsupported_reason(problem: Problem) -> str | None:
    """Return why the backend does not support the problem, or None."""
    x, support = problem.input, problem.support
    if x.device.type != "cpu":
        return f"it computes on the CPU, `input` is on {x.device}"
    missing = missing_dependency()
    if missing is not None:
        return missing
    if _compat.exporting():
        return "exported graphs cannot contain its kernels"
    if transforms_active():
        return TRANSFORMS_UNSUPPORTED
    if support.dim > 3:
        return f"it supports 1 to 3 spatial axes, `support` has {support.dim}"
    if type(support) not in _KINDS:
        return f"it does not support {type(support).__name__} supports"
    if isinstance(support, TangentBall | GeodesicBall) and type(support.metric) not in _METRICS[type(support)]:
        return f"it does not support {type(support.metric).__name__} metrics"
    if isinstance(support, GeodesicBall) and (support.dim != 2 or not support.rays.positions):
        size = support.kernel_size
        return f"it supports 2-D geodesic balls with more than one sample, this one has kernel size {size}"
    if isinstance(support, TangentBall | GeodesicBall) and support.stencil.requires_grad:
        return "it does not compute gradients of the stencil"
    for name, tensor in support.tensors().items():
        if tensor.dtype != _compute_dtype(x):
            return f"it requires one dtype, `support.{name}` is {tensor.dtype} and `input` {x.dtype}"
    if math.prod([n + 2 for n in (1, *x.shape[2:])[-max(support.dim, 2) :]]) >= _MAX_PIXELS:  # with the halo
        return f"its images have fewer than 2³¹ pixels, `input` has spatial size {tuple(x.shape[2:])}"
    if max(x.shape[2:]) > FARTHEST:
        return f"its positions reach 2²³ pixels along an axis, `input` has spatial size {tuple(x.shape[2:])}"
    return None


def run(problem: Problem) -> Tensor:
    """Return Σ_j w_j m_j x(center + Δ_j) + bias, (B, C_out, *out), in the input's memory layout and dtype."""
    from . import library

    x, support, dim, dtype = problem.input, problem.support, problem.support.dim, _compute_dtype(problem.input)
    batch, groups, out = x.shape[0], support.groups, problem.grid.size
    channels_last = dim > 1 and x.stride(1) == 1 and not x.is_contiguous()
    modulation = problem.modulation
    if modulation is not None:
        modulation = modulation.to(dtype).expand(batch, groups, support.samples, *out)
    params: Tensor | None
    flow: Any
    if isinstance(support, GeodesicBall):
        params, *flow = _geodesic_field(support, batch, out)
    else:
        parts = [t.expand(batch, groups, *t.shape[2:-dim], *out) for t in support.tensors().values()]
        params, *flow = _concatenated(parts, dim), 0, (0, 0), (1.0, 1.0), False
    return library.support_conv(
        _to_3d(x.to(dtype), dim),
        _to_3d(problem.weight.to(x.dtype).to(dtype), dim),
        modulation if modulation is None else _to_3d(modulation, dim),
        params,
        _stencil(problem).to(dtype),
        "one-sided ball" if _is_one_sided(support) else _KINDS[type(support)],
        dim,
        [1] * (3 - dim) + list(support.dilation),
        [1] * (3 - dim) + list(problem.stride),
        [0] * (3 - dim) + list(problem.padding),
        problem.groups,
        problem.padding_mode,
        *flow,
        None if problem.bias is None else problem.bias.to(dtype),
        channels_last,
    ).to(x.dtype)


def parametrize(
    parametrization: Parametrization, raw: Tensor, start: Tensor | None, gain: Tensor | None, radius: float
) -> Metric | None:
    """Return ``parametrization(raw, start, gain, radius)`` by one kernel, or None if there is no kernel for it."""
    if type(parametrization) is not Spectral7 or parametrization.dim != 2 or parametrization.eps_omega == 1:
        return None
    if parametrization.frame not in (None, "vector") or raw.dtype != torch.float32:
        return None
    if raw.device.type != "cpu" or start is None or gain is None or start.requires_grad or gain.requires_grad:
        return None
    if missing_dependency() is not None or is_traced(raw, start) or transforms_active() or raw.numel() == 0:
        return None
    parametrization.check(raw, start, gain)
    from .parametrizations import spectral7

    return spectral7(parametrization, raw, start.to(raw.dtype), float(gain), radius)


def _is_one_sided(support: Support) -> bool:
    """Return whether the drift of a ball is one-sided: see tangent_ball.py."""
    return isinstance(support, TangentBall) and isinstance(support.metric, AsymmetricQuadratic)


def _compute_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _to_3d(t: Tensor, dim: int) -> Tensor:
    """View a tensor (…, *spatial) with three spatial axes; missing ones come first with size 1."""
    return t.reshape(*t.shape[:-dim], *(1,) * (3 - dim), *t.shape[-dim:])


def _concatenated(parts: list[Tensor], dim: int) -> Tensor | None:
    """Return the support parameters in one tensor, (B, G, n, *out); a single tensor is not copied."""
    if not parts:
        return None
    flat = [_to_3d(part.flatten(2, -dim - 1), dim) for part in parts]
    return torch.cat(flat, 2) if len(flat) > 1 else flat[0]


def _geodesic_field(
    support: GeodesicBall, batch: int, out: tuple[int, ...]
) -> tuple[Tensor, int, tuple[int, ...], tuple[float, ...], bool]:
    """Return the field of the geodesics, (B, G, nodes, 12), and its description.

    The latter is the steps per geodesic, the nodes along each axis, their spacing, and whether the field is circular.
    """
    full = support.metric.map(lambda t: t.expand(batch, support.groups, t.shape[2], *out))
    tensors = smoothed(full, support.smooth, padding_mode=support.padding_mode).tensors()
    M, omega = tensors["M"], tensors.get("omega")
    metric = Randers(M, M.new_zeros(()).expand(*M.shape[:2], 2, *out) if omega is None else omega)
    field = FlowField.of(metric, support.stride, support.padding_mode)
    circular = field.padding_mode == "circular"
    table = field.table.view(batch, support.groups, *field.size, field.table.shape[1])
    if circular:  # repeat the first nodes after the last
        table = torch.cat([table, table[:, :, :1]], 2)
        table = torch.cat([table, table[:, :, :, :1]], 3)
    return table.flatten(2, 3), support.steps, tuple(table.shape[2:4]), field.spacing, circular


def _stencil(problem: Problem) -> Tensor:
    """Return one row per sample, (P, d + 1): its direction and radius, or its cell of the reference grid and 1.

    For a geodesic ball (P, d + 3): the direction of its ray, its position on the ray as a fraction of the length, and
    the index and the length of the ray.
    """
    support, x = problem.support, problem.input
    if isinstance(support, GeodesicBall):
        samples = [support.rays.positions.get(j, (0, 0.0)) for j in range(support.samples)]
        ray, fraction = zip(*samples, strict=True)
        vectors = support.rays.vectors.to(x.device)[list(ray)]
        *direction, length = vectors.unbind(1)
        return torch.stack([*direction, vectors.new_tensor(fraction), vectors.new_tensor(ray), length], 1)
    if isinstance(support, TangentBall):
        stencil = support.stencil
        return torch.cat([stencil.directions, stencil.radii.unsqueeze(1)], 1).to(x.device)
    spacing = support.spacing if isinstance(support, Grid | Displacements) else support.dilation
    cells = kernel_cells(support.kernel_size, spacing, like=x.to(_compute_dtype(x))).view(-1, support.dim)
    return torch.cat([cells, torch.ones_like(cells[:, :1])], 1)
