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

from ...stencils import Stencil
from ...supports import GeodesicBall, Rays
from .call import as_multiplication
from .flow import derive_adjoint_kernel, derive_kernel, smooth_adjoint_kernel, smooth_kernel
from .launcher import Launch, constants, launch_of, on_device
from .library import refuse
from .shortcut import first_derivative, shortcut
from .trace import trace_backward_kernel, trace_kernel

_BLOCK = 128
# Bytes of displacements held at a time (or as many as the image takes, if that is more); of a backward pass's states,
# twice as many: a launch then fills a GPU several times over.
_CHUNK = 2**24
_EVEN = 16  # programs of a launch are so many times a whole number: Triton compiles for that


class Plan(NamedTuple):
    """Some rays of a stencil, as the kernels take them: see trace.py."""

    samples: Tensor  # the stencil's numbers of the samples on these rays, and of the centre
    vectors: Tensor
    first: Tensor
    sample: Tensor
    fraction: Tensor
    plain: bool  # each ray has one sample, at its end, and but for that the centre at most


_plans: weakref.WeakKeyDictionary[Stencil, dict[Any, list[Plan]]] = weakref.WeakKeyDictionary()


def plans(ball: GeodesicBall, image: Tensor) -> list[Plan]:
    """Cut a ball's rays into runs whose displacements are small enough, or smaller than the image."""
    device, pixels = image.device, ball.metric.batch * ball.metric.groups * math.prod(ball.metric.spatial)
    room = max(_CHUNK, image.numel() * image.element_size())
    most = max(room // max(8 * pixels, 1), 1)  # samples at a time
    if torch.compiler.is_compiling():
        return _make_plans(ball.rays, ball.steps, most, device)
    key = (ball.steps, min(most, ball.samples), device)
    make = functools.partial(_make_plans, ball.rays, ball.steps, most, device)
    return constants(_plans.setdefault(ball.stencil, {}), key, make, device)


def displacements(ball: GeodesicBall, plan: Plan, dtype: torch.dtype) -> Tensor:
    """Return the displacements of a plan's samples in an image of some dtype, (B, G, P, 2, H, W)."""
    metric, circular = ball.metric, ball.padding_mode == "circular"
    M, *others = (t.flatten(0, 1) for t in metric.tensors().values())  # [F, 3, H, W], and [F, 2, H, W] if there is an ω
    omega = others[0] if others else None
    for _ in range(ball.smooth - 1):  # the last average is taken with the derivatives
        M, omega = smooth(M, circular), None if omega is None else smooth(omega, circular)
    # A metric that learns is not rounded: its gradient jumps where a sample leaves a pixel for the next.
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in metric.tensors().values())
    rounded = dtype == torch.bfloat16 and not learns
    table, spacing = (plan.vectors, plan.first, plan.sample, plan.fraction), [float(s) for s in ball.stride]
    if learns and M.numel() and not torch.compiler.is_compiling():
        rays = (len(plan.vectors), len(plan.samples), ball.steps)
        launches, _ = _plan_backward(M, *rays, spacing, circular)
        for launch in launches[:1]:
            launch.ahead(grad=M, field=M, grad_field=M, states=M, **_named(table))
    numbers = (len(plan.samples), ball.steps, spacing, circular, ball.smooth > 0, plan.plain, rounded)
    return shoot(M, omega, *table, *numbers).unflatten(0, (metric.batch, metric.groups))


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
        torch.tensor(samples, device=device),
        rays.vectors[own].float().to(device),
        torch.tensor(ends, dtype=torch.int32, device=device),
        torch.tensor([number for number, _ in flat], dtype=torch.int64, device=device),  # times an image's size
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


class Field(NamedTuple):
    """What rays look up: see flow.py."""

    quads: Tensor  # (F, planes, *nodes, 4)
    octets: Tensor | None  # (F, *nodes, 8) of a rounded field


def _derive(
    M: Tensor, omega: Tensor | None, spacing: Sequence[float], circular: bool, smoothed: bool, rounded: bool
) -> Field:
    """Return the field of M (F, 3, H, W) and ω (F, 2, H, W)."""
    M, omega = _by_planes(M), None if omega is None else _by_planes(omega)
    fields, _, *size = M.shape
    nodes = _nodes(size, circular)
    field = Field(
        M.new_empty((fields, 1 if rounded else 3, *nodes, 4)),
        M.new_empty((fields, *nodes, 8), dtype=torch.bfloat16) if rounded else None,
    )
    strides = {"M_stride": M.stride(0), "omega_stride": 0 if omega is None else omega.stride(0)}
    grid, numbers = _over_nodes(fields, size, circular), _derivatives(size, spacing, circular)
    how = {"DRIFT": omega is not None, "SMOOTH": smoothed, "ROUNDED": rounded}
    launch = launch_of(derive_kernel, grid, **strides, **how, **numbers)
    with on_device(M):
        launch(M=M, omega=omega, field=field.quads, octets=field.octets)
    return field


def _derive_adjoint(grad: Tensor, into: Tensor, spacing: Sequence[float], circular: bool) -> None:
    """Add what gradients of a field (F, 3, *nodes, 4) say about M and ω to (F, 3 or 5, H, W)."""
    fields, count, *size = into.shape
    grid, numbers = _over_nodes(fields, size, circular), _derivatives(size, spacing, circular)
    launch = launch_of(derive_adjoint_kernel, grid, DRIFT=count == 5, **numbers)
    with on_device(grad):
        launch(source=into, field=grad)


def _over_nodes(fields: int, size: Sequence[int], circular: bool) -> tuple[int, int]:
    """Return the grid of a kernel over all nodes."""
    return triton.cdiv(math.prod(_nodes(size, circular)), _BLOCK), fields


def _nodes(size: Sequence[int], circular: bool) -> tuple[int, int]:
    """Return the size of a field: an image's own, and a margin."""
    margin = 0 if circular else 2
    return size[0] + margin, size[1] + margin


def _derivatives(size: Sequence[int], spacing: Sequence[float], circular: bool) -> dict[str, Any]:
    """Return the arguments that both kernels take."""
    return {
        "height": size[0],
        "width": size[1],
        "scale_y": 0.5 / spacing[0],
        "scale_x": 0.5 / spacing[1],
        "MARGIN": int(not circular),
        **_mode(circular),
        "BLOCK": _BLOCK,
    }


def _shoot(
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
    plain: bool,
    rounded: bool,
) -> Tensor:
    """Return where samples lie, (F, P, 2, H, W), the two numbers of a sample side by side in memory."""
    fields, _, height, width = M.shape
    out = (M.new_empty if len(vectors) else M.new_zeros)((fields, samples, height, width, 2))
    if out.numel() and len(vectors):
        quads, octets = _derive(M, omega, spacing, circular, smoothed, rounded)
        block = _block(height * width, 2 * _BLOCK)
        grid = (triton.cdiv(height * width, block["BM"]), len(vectors), fields)
        numbers = _rays((height, width), samples, spacing, circular) | block
        launch = launch_of(trace_kernel, grid, steps=steps, ROUNDED=rounded, PLAIN=plain, **numbers)
        with on_device(M):
            launch(field=quads, octets=octets, out=out, **_named((vectors, first, sample, fraction)))
    return out.permute(0, 1, 4, 2, 3)


def _compute_shoot_backward(
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
    """Return the gradients of M and ω, (F, 3 or 5, H, W): rays are shot again, then walked backwards."""
    fields, _, height, width = M.shape
    to_metric = M.new_zeros((fields, 3 if omega is None else 5, height, width))
    if not grad.numel() or not len(vectors):
        return to_metric
    field, _ = _derive(M, omega, spacing, circular, smoothed, rounded=False)
    sums, grad = torch.zeros_like(field), grad.contiguous()
    launches, room = _plan_backward(M, len(vectors), samples, steps, spacing, circular)
    tensors = {"grad": grad, "field": field, "grad_field": sums, "states": field.new_empty(room)}
    with on_device(field):
        for launch in launches:
            launch(**tensors, **_named((vectors, first, sample, fraction)))
    _derive_adjoint(sums, to_metric, spacing, circular)
    return _compute_smooth_adjoint(to_metric, circular) if smoothed else to_metric


def _plan_backward(
    M: Tensor, rays: int, samples: int, steps: int, spacing: Sequence[float], circular: bool
) -> tuple[list[Launch], int]:
    """Return the launches that walk backwards along all rays, one after the other, and how many numbers they keep."""
    fields, _, height, width = M.shape
    block = _block(height * width, _BLOCK)
    numbers = {"steps": steps, "rays": rays, **_rays((height, width), samples, spacing, circular), **block}
    programs = fields * rays * triton.cdiv(height * width, block["BM"])
    most = max(2 * _CHUNK // (steps * 8 * 4 * block["BM"]) // _EVEN, 1) * _EVEN
    numbers |= {"maxnreg": 128}  # so that four programs share a multiprocessor
    launches = [
        launch_of(trace_backward_kernel, (min(most, programs - first),), first_program=first, **numbers)
        for first in range(0, programs, most)
    ]
    return launches, min(most, programs) * steps * 8 * block["BM"]


def _named(table: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Return a plan's tensors by the kernels' names."""
    return dict(zip(("vectors", "first", "sample", "fraction"), table, strict=True))


def _block(pixels: int, most: int) -> dict[str, int]:
    """Return how many pixels a program takes, ``most`` at most, and its warps: small images would leave lanes idle."""
    block = min(max(triton.next_power_of_2(pixels), 32), most)
    return {"BM": block, "num_warps": min(block // 32, 4)}


def _rays(size: Sequence[int], samples: int, spacing: Sequence[float], circular: bool) -> dict[str, Any]:
    """Return the numbers that both kernels take."""
    nodes = _nodes(size, circular)
    return {
        "shape": (*size, *as_multiplication(size[1])),
        "nodes": nodes,
        "last": tuple((n - 1) * (1 - 2**-23) for n in nodes),
        "density": tuple(1.0 / s for s in spacing),
        "samples": samples,
        "MARGIN": int(not circular),
        **_mode(circular),
    }


_smooth_operator = torch.library.custom_op("metricconv::smooth", _smooth, mutates_args=())
_smooth_adjoint_operator = torch.library.custom_op(
    "metricconv::smooth_adjoint", _compute_smooth_adjoint, mutates_args=()
)
_shoot_operator = torch.library.custom_op("metricconv::shoot", _shoot, mutates_args=())
_backward_operator = torch.library.custom_op("metricconv::shoot_backward", _compute_shoot_backward, mutates_args=())


@_smooth_operator.register_fake
def _(planes: Tensor, circular: bool) -> Tensor:
    return planes.new_empty(planes.shape)


@_smooth_adjoint_operator.register_fake
def _(grad: Tensor, circular: bool) -> Tensor:
    return torch.empty_like(grad, memory_format=torch.contiguous_format)


@_shoot_operator.register_fake
def _(M: Tensor, omega: Any, vectors: Any, first: Any, sample: Any, fraction: Any, samples: int, *rest: Any) -> Tensor:
    fields, _, height, width = M.shape
    return M.new_empty((fields, samples, height, width, 2)).permute(0, 1, 4, 2, 3)


@_backward_operator.register_fake
def _(grad: Tensor, M: Tensor, omega: Tensor | None, *_: Any) -> Tensor:
    return M.new_empty((M.shape[0], 3 if omega is None else 5, *M.shape[2:]))


def _keep_numbers(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.numbers = inputs[1:]


def _keep_metric(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:6])
    ctx.numbers = inputs[6:-2]  # a backward pass has one way of its own, and no field that is rounded


def _back_through_smooth(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return _smooth_adjoint(grad, *ctx.numbers), None


def _back_through_shoot(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    to_metric = _shoot_backward(grad, *ctx.saved_tensors, *ctx.numbers)
    return to_metric[:, :3], to_metric[:, 3:] if to_metric.shape[1] > 3 else None, *[None] * 11


_smooth_operator.register_autograd(_back_through_smooth, setup_context=_keep_numbers)
_shoot_operator.register_autograd(_back_through_shoot, setup_context=_keep_metric)
_smooth_adjoint_operator.register_autograd(refuse, setup_context=_keep_numbers)
_backward_operator.register_autograd(refuse, setup_context=_keep_numbers)

smooth = shortcut(_smooth_operator, _smooth, _keep_numbers, _back_through_smooth)
shoot = shortcut(_shoot_operator, _shoot, _keep_metric, _back_through_shoot)
_smooth_adjoint = first_derivative(_smooth_adjoint_operator, _compute_smooth_adjoint)
_shoot_backward = first_derivative(_backward_operator, _compute_shoot_backward)
