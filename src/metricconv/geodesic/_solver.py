"""The fast solver on tensors: one task per field on torch's threads, and its derivative."""

import dataclasses
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..metrics import Metric
from ..ops.cpu.threads import run_tasks
from . import _adjoint, _marching, _selling

# Acceptances per pixel, on average, after which the solver stops with a warning.
_MOST_VISITS = 200
# Entries of reverse stencils hold an address in 28 bits.
_MOST_PIXELS = 2**28

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is computed: of distances (F, P) of F fields with P pixels.

    Args:
        spatial: size of the image.
        seeds: (S,), pixels with given values.
        labels: (S,), labels of the seeds.
        domain: (F, P), False at walls; or None.
        targets: pixels after which to stop; may be empty.
        limit: distance after which to stop.
        order: 1 or 2.
        tolerance: decrease below which pixels are not accepted again, relative to a step.
        wants_labels: whether to return labels.
    """

    spatial: tuple[int, ...]
    seeds: Array
    labels: Array
    domain: Array | None
    targets: Array
    limit: float
    order: int
    tolerance: float
    wants_labels: bool = False

    @property
    def pitches(self) -> Array:
        """The distance in memory of neighbors along each axis."""
        return np.array([int(np.prod(self.spatial[k + 1 :])) for k in range(len(self.spatial))], np.int64)


@dataclasses.dataclass
class FieldSolution:
    """The stencils of one field, and the arrays of ``_marching.march``."""

    metric: Array
    drift: Array
    offsets: Array
    weights: Array
    drifts: Array
    flags: Array
    distance: Array
    choice: Array
    stamp: Array
    label: Array
    visits: int


def solve(metric: Metric, values: Tensor, settings: Settings) -> tuple[Tensor, list[FieldSolution] | None]:
    """Return distances (F, P), differentiable by the metric and by the seeds' ``values`` (F, S), and the solutions.

    Instead of the solutions None is returned if the metric is not positive.
    """
    fields = metric.batch * metric.groups
    M = metric.tensors()["M"].flatten(3).movedim(2, -1).flatten(0, 1).contiguous()  # [F, P, K]
    omega = metric.tensors().get("omega")
    omega = None if omega is None else omega.flatten(3).movedim(2, -1).flatten(0, 1).contiguous()  # [F, P, d]
    pixels = M.shape[1]
    if pixels >= _MOST_PIXELS:
        raise ValueError(f"`metric` must have fewer than 2²⁸ pixels, got spatial size {settings.spatial}")
    solutions: list[FieldSolution] = [None] * fields  # type: ignore[list-item]
    distance = _Distance.apply(M, omega, values, settings, solutions)
    if any(solution.visits < 0 for solution in solutions):
        return distance, None
    if any(solution.visits >= _MOST_VISITS * pixels for solution in solutions):
        warnings.warn(
            f"distances may be too long: pixels were accepted more than {_MOST_VISITS} times on average. The drift of "
            "`metric` is close to its limit; a larger `tolerance` converges sooner",
            RuntimeWarning,
            stacklevel=4,
        )
    return distance, solutions


class _Distance(torch.autograd.Function):
    """The distances of all fields."""

    @staticmethod
    def forward(
        ctx: Any,
        M: Tensor,
        omega: Tensor | None,
        values: Tensor,
        settings: Settings,
        solutions: list[FieldSolution],
    ) -> Tensor:
        fields = len(M)
        needs_gradient = any(ctx.needs_input_grad[:3])
        dim = len(settings.spatial)
        M_array, value_array = _array(M), _array(values).astype(np.float64)
        omega_array = None if omega is None else _array(omega)

        def work(field: int) -> None:
            drift = np.zeros((0, dim), M_array.dtype) if omega_array is None else omega_array[field]
            solutions[field] = _march(M_array[field], drift, value_array[field], settings, field, needs_gradient)

        run_tasks(work, range(fields))
        distance = torch.from_numpy(np.stack([solution.distance for solution in solutions])).to(M.dtype)
        if needs_gradient:
            ctx.settings, ctx.solutions, ctx.values = settings, list(solutions), value_array
            ctx.dtypes = M.dtype, values.dtype
        return distance

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        solutions, settings = ctx.solutions, ctx.settings
        grads = _array(grad).astype(np.float64)
        shape = np.array(settings.spatial, np.int64)
        by_metric = [np.zeros(s.metric.shape) for s in solutions]
        by_drift = [np.zeros(s.drift.shape) for s in solutions]
        by_seed = np.zeros(ctx.values.shape)

        def work(field: int) -> None:
            s = solutions[field]
            gradient = grads[field].copy()
            _adjoint.propagate(
                s.metric, s.drift, shape, settings.pitches, s.offsets, s.weights, s.drifts, s.distance, s.choice,
                s.stamp, s.visits, gradient, by_metric[field], by_drift[field],
            )  # fmt: skip
            _adjoint.seed_gradients(settings.seeds, ctx.values[field], s.distance, s.choice, gradient, by_seed[field])

        run_tasks(work, range(len(solutions)))
        dtype, value_dtype = ctx.dtypes
        omega = torch.from_numpy(np.stack(by_drift)).to(dtype) if ctx.needs_input_grad[1] else None
        return (
            torch.from_numpy(np.stack(by_metric)).to(dtype), omega, torch.from_numpy(by_seed).to(value_dtype),
            None, None,
        )  # fmt: skip


def _march(
    metric: Array, drift: Array, values: Array, settings: Settings, field: int, needs_gradient: bool
) -> FieldSolution:
    """Solve one field."""
    pixels, count = metric.shape
    shape = np.array(settings.spatial, np.int64)
    domain = np.zeros(0, np.bool_) if settings.domain is None else settings.domain[field]
    offsets, weights = np.empty((pixels, count), np.int32), np.empty((pixels, count), metric.dtype)
    drifts = np.zeros((pixels if len(drift) else 0, count), metric.dtype)
    flags = np.empty(pixels, np.uint32)
    distance, choice = np.full(pixels, np.inf), np.zeros(pixels, np.uint32)
    stamp = np.full(pixels if needs_gradient else 0, -1, np.int32)
    label = np.full(pixels if settings.wants_labels else 0, -1, np.int32)
    solution = FieldSolution(metric, drift, offsets, weights, drifts, flags, distance, choice, stamp, label, 0)
    bad = _selling.build_stencils(metric, drift, domain, shape, 0, pixels, offsets, weights, drifts, flags)
    if bad >= 0:
        solution.visits = -1
        return solution
    start, readers = _selling.build_readers(offsets, flags, settings.pitches)
    solution.visits = _marching.march(
        metric, drift, settings.pitches, offsets, weights, drifts, flags, start, readers, settings.seeds, values,
        settings.labels, settings.targets, settings.limit, settings.order == 2, settings.tolerance,
        _MOST_VISITS * pixels, np.full(pixels, np.inf), distance, choice, stamp, label,
    )  # fmt: skip
    return solution


def _array(tensor: Tensor) -> Array:
    """Return a tensor as a contiguous array."""
    return np.ascontiguousarray(tensor.detach().numpy())
