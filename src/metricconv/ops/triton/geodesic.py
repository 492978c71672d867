"""Geodesic balls: one kernel traces the rays, and its samples are convolved as those of a deformable support.

The displacements of the samples, two float32 per sample, are stored in between. To bound their memory, a large stencil
is traced and summed a few rays at a time, and traced again in the backward pass.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ...supports import GeodesicBall
from ..operators import register_backward, register_operator
from . import plan
from .bound_kernel import BoundKernel, bind, on_device
from .conv_call import division_factors
from .geodesic_field_kernels import field_adjoint_kernel, field_kernel, smooth_adjoint_kernel, smooth_kernel
from .ray_tables import RayTable
from .trace import trace_backward_kernel, trace_kernel

_BLOCK = 128
_ALIGNMENT = 16  # the number of programs is a multiple of it, for which Triton specializes the kernel


def displacements(ball: GeodesicBall, table: RayTable, dtype: torch.dtype) -> Tensor:
    """Return the displacements of the samples in a table, (B, G, P, 2, H, W), for an image of some dtype."""
    metric, circular = ball.metric, ball.padding_mode == "circular"
    M, *others = (t.flatten(0, 1) for t in metric.tensors().values())  # [F, 3, H, W], and [F, 2, H, W] if there is an ω
    omega = others[0] if others else None
    for _ in range(ball.smooth - 1):  # the last average is computed together with the derivatives
        M, omega = smooth(M, circular), None if omega is None else smooth(omega, circular)
    # A metric that needs gradients is not rounded: they are discontinuous where a sample crosses a pixel.
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in metric.tensors().values())
    rounded = dtype == torch.bfloat16 and not needs_grad
    tensors, spacing = table.kernel_tensors(), [float(s) for s in ball.stride]
    if needs_grad and M.numel() and not torch.compiler.is_compiling():
        counts = (len(table.vectors), len(table.samples), ball.steps)
        launches, _ = _bind_backward(M, *counts, spacing, circular)
        for launch in launches[:1]:
            launch.compile_in_background(grad=M, field=M, grad_field=M, states=M, **_table_tensors(tensors))
    options = (len(table.samples), ball.steps, spacing, circular, ball.smooth > 0, table.ends_only, rounded)
    return trace(M, omega, *tensors, *options).unflatten(0, (metric.batch, metric.groups))


def _padding(circular: bool) -> dict[str, Any]:
    return {"PADDING": "circular" if circular else "border"}


def _smooth(planes: Tensor, circular: bool) -> Tensor:
    """Return planes (F, n, H, W) averaged over 3 × 3 pixels with binomial weights."""
    fields, count, height, width = planes.shape
    planes = _contiguous_planes(planes)
    out = planes.new_empty(planes.shape)
    if out.numel():
        grid, options = (triton.cdiv(height * width, _BLOCK), fields, count), {"height": height, "width": width}
        launch = bind(smooth_kernel, grid, stride=planes.stride(0), **options, **_padding(circular), BLOCK=_BLOCK)
        with on_device(planes):
            launch(source=planes, target=out)
    return out


def _contiguous_planes(t: Tensor) -> Tensor:
    """Return the tensor if its planes are contiguous and adjacent, otherwise a copy."""
    _, _, height, width = t.shape
    return t if t.stride()[1:] == (height * width, width, 1) else t.contiguous()


def _compute_smooth_adjoint(grad: Tensor, circular: bool) -> Tensor:
    grad = grad.contiguous()
    fields, count, height, width = grad.shape
    out = torch.zeros_like(grad)
    if grad.numel():
        grid, options = (triton.cdiv(height * width, _BLOCK), fields, count), {"height": height, "width": width}
        launch = bind(smooth_adjoint_kernel, grid, **options, **_padding(circular), BLOCK=_BLOCK)
        with on_device(grad):
            launch(source=grad, target=out)
    return out


class Field(NamedTuple):
    """The metric field that rays interpolate: see geodesic_field.py."""

    quads: Tensor  # (F, planes, *nodes, 4)
    octets: Tensor | None  # (F, *nodes, 8) of a rounded field


def _compute_field(
    M: Tensor, omega: Tensor | None, spacing: Sequence[float], circular: bool, smoothed: bool, rounded: bool
) -> Field:
    """Return the field of M (F, 3, H, W) and ω (F, 2, H, W)."""
    M, omega = _contiguous_planes(M), None if omega is None else _contiguous_planes(omega)
    fields, _, *size = M.shape
    nodes = _field_size(size, circular)
    field = Field(
        M.new_empty((fields, 1 if rounded else 3, *nodes, 4)),
        M.new_empty((fields, *nodes, 8), dtype=torch.bfloat16) if rounded else None,
    )
    strides = {"M_stride": M.stride(0), "omega_stride": 0 if omega is None else omega.stride(0)}
    grid, options = _node_grid(fields, size, circular), _field_options(size, spacing, circular)
    switches = {"DRIFT": omega is not None, "SMOOTH": smoothed, "ROUNDED": rounded}
    launch = bind(field_kernel, grid, **strides, **switches, **options)
    with on_device(M):
        launch(M=M, omega=omega, field=field.quads, octets=field.octets)
    return field


def _field_adjoint(grad: Tensor, grad_metric: Tensor, spacing: Sequence[float], circular: bool) -> None:
    """Add the gradients of M and ω, given those of a field (F, 3, *nodes, 4), to (F, 3 or 5, H, W)."""
    fields, count, *size = grad_metric.shape
    grid, options = _node_grid(fields, size, circular), _field_options(size, spacing, circular)
    launch = bind(field_adjoint_kernel, grid, DRIFT=count == 5, **options)
    with on_device(grad):
        launch(source=grad_metric, field=grad)


def _node_grid(fields: int, size: Sequence[int], circular: bool) -> tuple[int, int]:
    """Return the grid of a kernel over all nodes."""
    return triton.cdiv(math.prod(_field_size(size, circular)), _BLOCK), fields


def _field_size(size: Sequence[int], circular: bool) -> tuple[int, int]:
    """Return the number of nodes of a field along each axis: those of the image, and a margin."""
    margin = 0 if circular else 2
    return size[0] + margin, size[1] + margin


def _field_options(size: Sequence[int], spacing: Sequence[float], circular: bool) -> dict[str, Any]:
    """Return the arguments that both kernels take."""
    return {
        "height": size[0],
        "width": size[1],
        "scale_y": 0.5 / spacing[0],
        "scale_x": 0.5 / spacing[1],
        "MARGIN": int(not circular),
        **_padding(circular),
        "BLOCK": _BLOCK,
    }


def _trace(
    M: Tensor,
    omega: Tensor | None,
    vectors: Tensor,
    first: Tensor,
    sample: Tensor,
    fraction: Tensor,
    samples: int,
    steps: int,
    spacing: Sequence[float],
    circular: bool,
    smoothed: bool,
    ends_only: bool,
    rounded: bool,
) -> Tensor:
    """Return the displacements of the samples, (F, P, 2, H, W), with both components adjacent in memory."""
    fields, _, height, width = M.shape
    out = (M.new_empty if len(vectors) else M.new_zeros)((fields, samples, height, width, 2))
    if out.numel() and len(vectors):
        quads, octets = _compute_field(M, omega, spacing, circular, smoothed, rounded)
        block = _block(height * width, 2 * _BLOCK)
        grid = (triton.cdiv(height * width, block["BM"]), len(vectors), fields)
        options = _trace_options((height, width), samples, spacing, circular) | block
        launch = bind(trace_kernel, grid, steps=steps, ROUNDED=rounded, ENDS_ONLY=ends_only, **options)
        with on_device(M):
            launch(field=quads, octets=octets, out=out, **_table_tensors((vectors, first, sample, fraction)))
    return out.permute(0, 1, 4, 2, 3)


def _compute_trace_backward(
    grad: Tensor,
    M: Tensor,
    omega: Tensor | None,
    vectors: Tensor,
    first: Tensor,
    sample: Tensor,
    fraction: Tensor,
    samples: int,
    steps: int,
    spacing: Sequence[float],
    circular: bool,
    smoothed: bool,
) -> Tensor:
    """Return the gradients of M and ω, (F, 3 or 5, H, W), tracing the rays again."""
    fields, _, height, width = M.shape
    grad_metric = M.new_zeros((fields, 3 if omega is None else 5, height, width))
    if not grad.numel() or not len(vectors):
        return grad_metric
    field, _ = _compute_field(M, omega, spacing, circular, smoothed, rounded=False)
    sums, grad = torch.zeros_like(field), grad.contiguous()
    launches, state_elements = _bind_backward(M, len(vectors), samples, steps, spacing, circular)
    tensors = {"grad": grad, "field": field, "grad_field": sums, "states": field.new_empty(state_elements)}
    with on_device(field):
        for launch in launches:
            launch(**tensors, **_table_tensors((vectors, first, sample, fraction)))
    _field_adjoint(sums, grad_metric, spacing, circular)
    return _compute_smooth_adjoint(grad_metric, circular) if smoothed else grad_metric


def _bind_backward(
    M: Tensor, rays: int, samples: int, steps: int, spacing: Sequence[float], circular: bool
) -> tuple[list[BoundKernel], int]:
    """Return the launches of the backward kernel, and the number of elements of their buffer of states."""
    fields, _, height, width = M.shape
    block = _block(height * width, _BLOCK)
    options = {"steps": steps, "rays": rays, **_trace_options((height, width), samples, spacing, circular), **block}
    programs = fields * rays * triton.cdiv(height * width, block["BM"])
    limit = max(2 * plan.chunk_bytes() // (steps * 8 * 4 * block["BM"]) // _ALIGNMENT, 1) * _ALIGNMENT
    options |= {"maxnreg": 128}  # four programs per multiprocessor
    launches = [
        bind(trace_backward_kernel, (min(limit, programs - first),), first_program=first, **options)
        for first in range(0, programs, limit)
    ]
    return launches, min(limit, programs) * steps * 8 * block["BM"]


def _table_tensors(table: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Return a ray table's tensors by the kernels' argument names."""
    return dict(zip(("vectors", "first", "sample", "fraction"), table, strict=True))


def _block(pixels: int, limit: int) -> dict[str, int]:
    """Return pixels per program, at most ``limit``, and warps: few for small images, to leave no thread idle."""
    block = min(max(triton.next_power_of_2(pixels), 32), limit)
    return {"BM": block, "num_warps": min(block // 32, 4)}


def _trace_options(size: Sequence[int], samples: int, spacing: Sequence[float], circular: bool) -> dict[str, Any]:
    """Return the options that both kernels take."""
    nodes = _field_size(size, circular)
    return {
        "shape": (*size, *division_factors(size[1])),
        "nodes": nodes,
        "last": tuple((n - 1) * (1 - 2**-23) for n in nodes),
        "density": tuple(1.0 / s for s in spacing),
        "samples": samples,
        "MARGIN": int(not circular),
        **_padding(circular),
    }


def _smooth_fake(planes: Tensor, circular: bool) -> Tensor:
    return planes.new_empty(planes.shape)


def _smooth_adjoint_fake(grad: Tensor, circular: bool) -> Tensor:
    return torch.empty_like(grad, memory_format=torch.contiguous_format)


def _trace_fake(
    M: Tensor, omega: Any, vectors: Any, first: Any, sample: Any, fraction: Any, samples: int, *rest: Any
) -> Tensor:
    fields, _, height, width = M.shape
    return M.new_empty((fields, samples, height, width, 2)).permute(0, 1, 4, 2, 3)


def _trace_backward_fake(grad: Tensor, M: Tensor, omega: Tensor | None, *_: Any) -> Tensor:
    return M.new_empty((M.shape[0], 3 if omega is None else 5, *M.shape[2:]))


def _save_options(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.options = inputs[1:]


def _save_metric(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:6])
    ctx.options = inputs[6:-2]  # the backward pass depends neither on ends_only nor on rounded


def _differentiate_smooth(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return _smooth_adjoint(grad, *ctx.options), None


def _differentiate_trace(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    grad_metric = _trace_backward(grad, *ctx.saved_tensors, *ctx.options)
    return grad_metric[:, :3], grad_metric[:, 3:] if grad_metric.shape[1] > 3 else None, *[None] * 11


_smooth_adjoint = register_backward("smooth_adjoint", _compute_smooth_adjoint, _smooth_adjoint_fake)
_trace_backward = register_backward("trace_backward", _compute_trace_backward, _trace_backward_fake)
smooth = register_operator("smooth", _smooth, _smooth_fake, _save_options, _differentiate_smooth)
trace = register_operator("trace", _trace, _trace_fake, _save_metric, _differentiate_trace)
