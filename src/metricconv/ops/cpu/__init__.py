"""The fast CPU engine: every support but the heat flow's, forward and backward, compiled by numba on the first call.

float32 and float64 are computed as they are, half precision in float32 and rounded at the end, as by the reference.
Results do not depend on the number of threads, which is torch's. Geodesic balls of volumes, and what asks for more than
first derivatives, are left to the reference.

Numba is imported when the first problem arrives that the engine could compute, not before. Kernels are compiled then,
in a few seconds, and kept on disk for later processes.
"""

import importlib.util
import math
from typing import Any

import torch
from torch import Tensor

from ..._interpolation import FARTHEST
from ...metrics import Randers, Riemannian
from ...metrics.flow import FlowField, smoothed
from ...supports import Deformable, Dilated, GeodesicBall, Grid, Shifted, TangentBall
from ...supports.base import lattice
from ..problem import NO_TRANSFORMS, Problem, transformed

_INSTALLED = importlib.util.find_spec("numba") is not None
_KINDS = {
    TangentBall: "ball", GeodesicBall: "geodesic", Deformable: "deformable", Shifted: "shifted", Dilated: "dilated",
    Grid: "grid",
}  # fmt: skip

# Addresses in an image are 32 bits wide.
_MOST_PIXELS = 2**31


def absence() -> str | None:
    """Return what is missing for the engine to compute anything, or None."""
    if not _INSTALLED:
        return "numba is not installed"
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
        return f"{missing} (pip install 'metricconv[cpu]')"
    if torch.compiler.is_exporting():
        return "an exported graph runs where its kernels are not"
    if transformed():
        return NO_TRANSFORMS
    if support.dim > 3:
        return f"it knows supports with 1 to 3 spatial axes, this one has {support.dim}"
    if type(support) not in _KINDS:
        return f"it does not know {type(support).__name__} supports"
    if isinstance(support, TangentBall | GeodesicBall) and type(support.metric) not in (Riemannian, Randers):
        return f"it does not know {type(support.metric).__name__} metrics"
    if isinstance(support, GeodesicBall) and (support.dim != 2 or not support.rays.places):
        size = support.kernel_size
        return f"it knows geodesic balls in the plane, with more than their centre; this one has kernel size {size}"
    if isinstance(support, TangentBall | GeodesicBall) and support.stencil.learns:
        return "it has no gradients for a stencil"
    for name, tensor in support.tensors().items():
        if tensor.dtype != _computed(x):
            return f"it computes all in one dtype, `support.{name}` is {tensor.dtype} and `input` {x.dtype}"
    if math.prod([n + 2 for n in (1, *x.shape[2:])[-max(support.dim, 2) :]]) >= _MOST_PIXELS:  # with a ring around them
        return f"its images have fewer than 2³¹ pixels, `input` has spatial size {tuple(x.shape[2:])}"
    if max(x.shape[2:]) > FARTHEST:
        return f"its positions reach 2²³ pixels along an axis, `input` has spatial size {tuple(x.shape[2:])}"
    return None


def run(problem: Problem) -> Tensor:
    """Compute Σ_j w_j m_j x(centre + Δ_j) + bias in float32 or wider: (B, C_out, *out), in the input's layout."""
    from . import library

    x, support, dim, dtype = problem.input, problem.support, problem.support.dim, _computed(problem.input)
    batch, groups, out = x.shape[0], support.groups, problem.grid.size
    channels_last = dim > 1 and x.stride(1) == 1 and not x.is_contiguous()
    modulation = problem.modulation
    if modulation is not None:
        modulation = modulation.to(dtype).expand(batch, groups, support.samples, *out)
    field: Tensor | None
    flow: Any
    if isinstance(support, GeodesicBall):
        field, *flow = _geodesic_field(support, batch, out)
    else:
        parts = [t.expand(batch, groups, *t.shape[2:-dim], *out) for t in support.tensors().values()]
        field, *flow = _joined(parts, dim), 0, (0, 0), (1.0, 1.0), False
    return library.support_conv(
        _solid(x.to(dtype), dim),
        _solid(problem.weight.to(x.dtype).to(dtype), dim),
        modulation if modulation is None else _solid(modulation, dim),
        field,
        _table(problem).to(dtype),
        _KINDS[type(support)],
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


def _computed(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _solid(t: Tensor, dim: int) -> Tensor:
    """Give a tensor (…, *spatial) three spatial axes, the absent ones first."""
    return t.reshape(*t.shape[:-dim], *(1,) * (3 - dim), *t.shape[-dim:])


def _joined(parts: list[Tensor], dim: int) -> Tensor | None:
    """Return all numbers of a pixel in one tensor, (B, G, n, *out); no copy where they are in one already."""
    if not parts:
        return None
    flat = [_solid(part.flatten(2, -dim - 1), dim) for part in parts]
    return torch.cat(flat, 2) if len(flat) > 1 else flat[0]


def _geodesic_field(
    support: GeodesicBall, batch: int, out: tuple[int, ...]
) -> tuple[Tensor, int, tuple[int, ...], tuple[float, ...], bool]:
    """Return the field that geodesics look up, (B, G, nodes, 12), their steps, the nodes along each axis and how far
    these are apart, and whether it starts anew past its border.
    """
    full = support.metric.map(lambda t: t.expand(batch, support.groups, t.shape[2], *out))
    tensors = smoothed(full, support.smooth, padding_mode=support.padding_mode).tensors()
    M, omega = tensors["M"], tensors.get("omega")
    metric = Randers(M, M.new_zeros(()).expand(*M.shape[:2], 2, *out) if omega is None else omega)
    field = FlowField.of(metric, support.stride, support.padding_mode)
    circular = field.padding_mode == "circular"
    table = field.table.view(batch, support.groups, *field.size, field.table.shape[1])
    if circular:  # the first nodes again, after the last
        table = torch.cat([table, table[:, :, :1]], 2)
        table = torch.cat([table, table[:, :, :, :1]], 3)
    return table.flatten(2, 3), support.steps, tuple(table.shape[2:4]), field.spacing, circular


def _table(problem: Problem) -> Tensor:
    """Return what each sample is, (P, d + 1): its direction and radius, or its cell of the reference grid and 1.

    Of a geodesic ball (P, d + 3): the ray's direction, the part of it at which the sample lies, and the ray's number
    and length.
    """
    support, x = problem.support, problem.input
    if isinstance(support, GeodesicBall):
        places = [support.rays.places.get(j, (0, 0.0)) for j in range(support.samples)]
        ray, part = zip(*places, strict=True)
        vectors = support.rays.vectors.to(x.device)[list(ray)]
        *direction, length = vectors.unbind(1)
        return torch.stack([*direction, vectors.new_tensor(part), vectors.new_tensor(ray), length], 1)
    if isinstance(support, TangentBall):
        stencil = support.stencil
        return torch.cat([stencil.directions, stencil.radii.unsqueeze(1)], 1).to(x.device)
    spacing = support.spacing if isinstance(support, Grid) else support.dilation
    cells = lattice(support.kernel_size, spacing, like=x.to(_computed(x))).view(-1, support.dim)
    return torch.cat([cells, torch.ones_like(cells[:, :1])], 1)
