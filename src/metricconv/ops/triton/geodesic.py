"""Geodesic balls: rays are traced by one kernel, and their samples fed to the convolution's own kernels.

Between the two stand the samples' displacements, two numbers a sample: memory stays bounded all the same, since a large
stencil is traced and summed a few rays at a time, and traced again in the backward pass.
"""

import functools
import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ...supports import GeodesicBall
from ...supports.geodesic import Rays
from .call import as_multiplication
from .flow import derive_adjoint_kernel, derive_kernel, smooth_adjoint_kernel, smooth_kernel
from .launcher import constants, launch_of, on_device
from .library import refuse
from .shortcut import first_derivative, shortcut
from .trace import trace_backward_kernel, trace_kernel

_BLOCK = 128
# Bytes of displacements, and of a backward pass's states, at a time.
_CHUNK = 2**26


class Plan(NamedTuple):
    """Some rays of a stencil, as the kernels take them: see trace.py."""

    samples: list[int]  # the stencil's numbers of the samples on these rays, and of the centre
    vectors: Tensor
    first: Tensor
    sample: Tensor
    fraction: Tensor
    plain: bool  # each ray has one sample, at its end, and but for that the centre at most


_plans: weakref.WeakKeyDictionary[Rays, dict[Any, list[Plan]]] = weakref.WeakKeyDictionary()


def plans(ball: GeodesicBall, device: torch.device) -> list[Plan]:
    """Cut a ball's rays into runs whose displacements are small enough."""
    pixels = ball.metric.batch * ball.metric.groups * math.prod(ball.metric.spatial)
    most = max(_CHUNK // max(8 * pixels, 1), 1)  # samples at a time
    if torch.compiler.is_compiling():
        return _make_plans(ball.rays, ball.steps, most, device)
    key = (ball.steps, min(most, ball.samples), device)
    make = functools.partial(_make_plans, ball.rays, ball.steps, most, device)
    return constants(_plans.setdefault(ball.rays, {}), key, make, device)


def displacements(ball: GeodesicBall, plan: Plan) -> Tensor:
    """Return the displacements of a plan's samples, (B, G, P, 2, H, W)."""
    metric, circular = ball.metric, ball.padding_mode == "circular"
    M, *others = (t.flatten(0, 1) for t in metric.tensors().values())  # [F, 3, H, W], and [F, 2, H, W] if there is an ω
    omega = others[0] if others else None
    for _ in range(ball.smooth - 1):  # the last average is taken with the derivatives
        M, omega = smooth(M, circular), None if omega is None else smooth(omega, circular)
    spacing = [float(s) for s in ball.stride]
    field = derive(M, omega, ball.smooth > 0, spacing, circular)
    table = (plan.vectors, plan.first, plan.sample, plan.fraction)
    traced = trace(field, *table, len(plan.samples), plan.plain, ball.steps, ball.radius, spacing, circular)
    return traced.unflatten(0, (metric.batch, metric.groups))


def _make_plans(rays: Rays, steps: int, most: int, device: torch.device) -> list[Plan]:
    on_ray: dict[int, list[int]] = {ray: [] for ray in range(len(rays.vectors))}
    for j, (ray, _) in rays.places.items():
        on_ray[ray].append(j)
    count = rays.stencil.radii.numel()
    runs: list[tuple[list[int], list[int]]] = [([], [j for j in range(count) if j not in rays.places])]
    for ray, samples in on_ray.items():
        if runs[-1][0] and len(runs[-1][1]) + len(samples) > most:
            runs.append(([], []))
        runs[-1][0].append(ray)
        runs[-1][1].extend(samples)
    if len(runs) == 1:
        runs = [(runs[0][0], list(range(count)))]
    return [_make_plan(rays, own, samples, steps, device) for own, samples in runs]


def _make_plan(rays: Rays, own: list[int], samples: list[int], steps: int, device: torch.device) -> Plan:
    in_step: list[list[tuple[int, float]]] = [[] for _ in range(len(own) * steps)]
    for number, j in enumerate(samples if own else []):
        ray, part = rays.places.get(j, (own[0], 0.0))  # the centre is where every ray begins
        t = max(min(math.ceil(part * steps), steps), 1) - 1
        in_step[own.index(ray) * steps + t].append((number, part * steps - t))
    flat = [place for places in in_step for place in sorted(places, key=lambda place: place[1])]
    ends = [0]
    for places in in_step:
        ends.append(ends[-1] + len(places))
    return Plan(
        samples,
        rays.vectors[own].float().to(device),
        torch.tensor(ends, dtype=torch.int32, device=device),
        torch.tensor([number for number, _ in flat], dtype=torch.int32, device=device),
        torch.tensor([part for _, part in flat], dtype=torch.float32, device=device),
        sum(j in rays.places for j in samples) == len(own),
    )


def _mode(circular: bool) -> dict[str, Any]:
    return {"MODE": "circular" if circular else "border"}


def _smooth(planes: Tensor, circular: bool) -> Tensor:
    """Average planes (F, n, H, W) over 3 × 3 pixels with binomial weights."""
    fields, count, height, width = planes.shape
    planes = _by_planes(planes)
    out = planes.new_empty(planes.shape)
    if out.numel():
        grid, numbers = (triton.cdiv(height * width, _BLOCK), fields, count), {"height": height, "width": width}
        launch = launch_of(smooth_kernel, grid, stride=planes.stride(0), **numbers, **_mode(circular), BLOCK=_BLOCK)
        with on_device(planes):
            launch(source=planes, target=out)
    return out


def _by_planes(t: Tensor) -> Tensor:
    """Return the tensor itself where its planes lie one after the other, or a copy whose do."""
    _, _, height, width = t.shape
    return t if t.stride()[1:] == (height * width, width, 1) else t.contiguous()


def _compute_smooth_adjoint(grad: Tensor, circular: bool) -> Tensor:
    grad = grad.contiguous()
    fields, count, height, width = grad.shape
    out = torch.zeros_like(grad)
    if grad.numel():
        grid, numbers = (triton.cdiv(height * width, _BLOCK), fields, count), {"height": height, "width": width}
        launch = launch_of(smooth_adjoint_kernel, grid, **numbers, **_mode(circular), BLOCK=_BLOCK)
        with on_device(grad):
            launch(source=grad, target=out)
    return out


def _derive(M: Tensor, omega: Tensor | None, smoothed: bool, spacing: Sequence[float], circular: bool) -> Tensor:
    """Return the field that rays look up, (F, 3, *nodes, 4), from M (F, 3, H, W) and ω (F, 2, H, W)."""
    M, omega = _by_planes(M), None if omega is None else _by_planes(omega)
    field = M.new_empty(_field_size(M, circular))
    if field.numel():
        strides = {"M_stride": M.stride(0), "omega_stride": 0 if omega is None else omega.stride(0)}
        numbers = _derivatives(field, spacing, circular)
        launch = launch_of(derive_kernel, _nodes(field), **strides, DRIFT=omega is not None, SMOOTH=smoothed, **numbers)
        with on_device(M):
            launch(M=M, omega=omega, field=field)
    return field


def _compute_derive_adjoint(grad: Tensor, count: int, spacing: Sequence[float], circular: bool) -> Tensor:
    numbers = grad.new_zeros((grad.shape[0], count, *_pixels(grad, circular)))
    if grad.numel():
        launch = launch_of(
            derive_adjoint_kernel, _nodes(grad), DRIFT=count == 5, **_derivatives(grad, spacing, circular)
        )
        with on_device(grad):
            launch(source=numbers, field=grad.contiguous())
    return numbers


def _nodes(field: Tensor) -> tuple[int, int]:
    """Return the grid of a kernel over all nodes."""
    return triton.cdiv(field.shape[2] * field.shape[3], _BLOCK), len(field)


def _derivatives(field: Tensor, spacing: Sequence[float], circular: bool) -> dict[str, Any]:
    """Return the arguments that both kernels take."""
    height, width = _pixels(field, circular)
    return {
        "height": height,
        "width": width,
        "scale_y": 0.5 / spacing[0],
        "scale_x": 0.5 / spacing[1],
        "MARGIN": int(not circular),
        **_mode(circular),
        "BLOCK": _BLOCK,
    }


def _field_size(numbers: Tensor, circular: bool) -> list[int]:
    fields, _, height, width = numbers.shape
    margin = 0 if circular else 2
    return [fields, 3, height + margin, width + margin, 4]


def _pixels(field: Tensor, circular: bool) -> tuple[int, int]:
    margin = 0 if circular else 2
    return field.shape[2] - margin, field.shape[3] - margin


def _trace(
    field: Tensor,
    vectors: Tensor,
    first: Tensor,
    sample: Tensor,
    fraction: Tensor,
    samples: int,
    plain: bool,
    steps: int,
    radius: float,
    spacing: Sequence[float],
    circular: bool,
) -> Tensor:
    """Return where samples lie, (F, P, 2, H, W), the two numbers of a sample side by side in memory."""
    fields, (height, width) = len(field), _pixels(field, circular)
    out = (field.new_empty if len(vectors) else field.new_zeros)((fields, samples, height, width, 2))
    if out.numel() and len(vectors):
        grid = (triton.cdiv(height * width, 2 * _BLOCK), len(vectors), fields)
        numbers = _rays(field, samples, radius, spacing, circular)
        launch = launch_of(trace_kernel, grid, STEPS=steps, PLAIN=plain, BM=2 * _BLOCK, **numbers)
        with on_device(field):
            launch(field=field, vectors=vectors, first=first, sample=sample, fraction=fraction, out=out)
    return out.permute(0, 1, 4, 2, 3)


def _compute_trace_backward(
    grad: Tensor,
    field: Tensor,
    vectors: Tensor,
    first: Tensor,
    sample: Tensor,
    fraction: Tensor,
    samples: int,
    plain: bool,
    steps: int,
    radius: float,
    spacing: Sequence[float],
    circular: bool,
) -> Tensor:
    fields, (height, width) = len(field), _pixels(field, circular)
    sums, grad = torch.zeros_like(field), grad.contiguous()
    table = {"vectors": vectors, "first": first, "sample": sample, "fraction": fraction}
    numbers = {"steps": steps, "images": fields, **_rays(field, samples, radius, spacing, circular), "BM": _BLOCK}
    states_of_a_ray = steps * 8 * fields * height * width
    most = max(_CHUNK // max(4 * states_of_a_ray, 1), 1)
    for ray in range(0, len(vectors) if grad.numel() else 0, most):
        rays = min(most, len(vectors) - ray)
        grid = (triton.cdiv(height * width, _BLOCK), rays, fields)
        launch = launch_of(trace_backward_kernel, grid, first_ray=ray, **numbers)
        with on_device(field):
            states = field.new_empty(rays * states_of_a_ray)
            launch(grad=grad, field=field, grad_field=sums, states=states, **table)
    return sums


def _rays(field: Tensor, samples: int, radius: float, spacing: Sequence[float], circular: bool) -> dict[str, Any]:
    """Return the numbers that both kernels take."""
    return {
        "shape": (*_pixels(field, circular), *as_multiplication(_pixels(field, circular)[1])),
        "nodes": tuple(field.shape[2:4]),
        "last": tuple((n - 1) * (1 - 2**-23) for n in field.shape[2:4]),
        "density": tuple(1.0 / s for s in spacing),
        "samples": samples,
        "radius": radius,
        "MARGIN": int(not circular),
        **_mode(circular),
    }


_smooth_operator = torch.library.custom_op("metricconv::smooth", _smooth, mutates_args=())
_smooth_adjoint_operator = torch.library.custom_op(
    "metricconv::smooth_adjoint", _compute_smooth_adjoint, mutates_args=()
)
_derive_operator = torch.library.custom_op("metricconv::derive", _derive, mutates_args=())
_adjoint_operator = torch.library.custom_op("metricconv::derive_adjoint", _compute_derive_adjoint, mutates_args=())
_trace_operator = torch.library.custom_op("metricconv::trace", _trace, mutates_args=())
_backward_operator = torch.library.custom_op("metricconv::trace_backward", _compute_trace_backward, mutates_args=())


@_smooth_operator.register_fake
def _(planes: Tensor, circular: bool) -> Tensor:
    return planes.new_empty(planes.shape)


@_smooth_adjoint_operator.register_fake
def _(grad: Tensor, circular: bool) -> Tensor:
    return torch.empty_like(grad, memory_format=torch.contiguous_format)


@_derive_operator.register_fake
def _(M: Tensor, omega: Tensor | None, smoothed: bool, spacing: Sequence[float], circular: bool) -> Tensor:
    return M.new_empty(_field_size(M, circular))


@_adjoint_operator.register_fake
def _(grad: Tensor, count: int, spacing: Sequence[float], circular: bool) -> Tensor:
    return grad.new_empty((grad.shape[0], count, *_pixels(grad, circular)))


@_trace_operator.register_fake
def _(field: Tensor, *rest: Any) -> Tensor:
    fields, (height, width) = len(field), _pixels(field, rest[-1])
    return field.new_empty((fields, rest[4], height, width, 2)).permute(0, 1, 4, 2, 3)


@_backward_operator.register_fake
def _(grad: Tensor, field: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(field)


def _keep_numbers(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.numbers = inputs[1:]


def _keep_metric(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, omega, ctx.smoothed, *ctx.numbers = inputs
    ctx.drifts = omega is not None


def _keep_field(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.numbers = inputs[5:]


def _back_through_smooth(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return _smooth_adjoint(grad, *ctx.numbers), None


def _back_through_derive(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    numbers = _derive_adjoint(grad, 5 if ctx.drifts else 3, *ctx.numbers)
    if ctx.smoothed:
        numbers = _smooth_adjoint(numbers, ctx.numbers[-1])
    return numbers[:, :3], numbers[:, 3:] if ctx.drifts else None, None, None, None


def _back_through_trace(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return _trace_backward(grad, *ctx.saved_tensors, *ctx.numbers), *[None] * 10


_smooth_operator.register_autograd(_back_through_smooth, setup_context=_keep_numbers)
_derive_operator.register_autograd(_back_through_derive, setup_context=_keep_metric)
_trace_operator.register_autograd(_back_through_trace, setup_context=_keep_field)
_smooth_adjoint_operator.register_autograd(refuse, setup_context=_keep_numbers)
_adjoint_operator.register_autograd(refuse, setup_context=_keep_numbers)
_backward_operator.register_autograd(refuse, setup_context=_keep_field)

smooth = shortcut(_smooth_operator, _smooth, _keep_numbers, _back_through_smooth)
derive = shortcut(_derive_operator, _derive, _keep_metric, _back_through_derive)
trace = shortcut(_trace_operator, _trace, _keep_field, _back_through_trace)
_smooth_adjoint = first_derivative(_smooth_adjoint_operator, _compute_smooth_adjoint)
_derive_adjoint = first_derivative(_adjoint_operator, _compute_derive_adjoint)
_trace_backward = first_derivative(_backward_operator, _compute_trace_backward)
