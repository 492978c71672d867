"""The fast solver on tensors: one task per field on torch's threads, and its derivative."""

import dataclasses
import itertools
import warnings
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..metrics import Metric
from ..ops.cpu.threads import run_tasks
from . import _adjoint, _marching, _nearest, _selling
from ._problem import pitches

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
        keeps_stencils: whether the solutions keep the stencils, as they do where gradients are required.
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
    keeps_stencils: bool = False

    @property
    def pitches(self) -> tuple[int, ...]:
        """The distance in memory of neighbors along each axis."""
        return pitches(self.spatial)


@dataclasses.dataclass
class FieldSolution:
    """The stencils of one field, see _selling.py, and its solution, see _marching.py."""

    metric: Array  # (P, K)
    drift: Array  # (P, d), or (0, d)
    domain: Array  # (P,), or (0,)
    offsets: Array
    nodes: Array
    flags: Array
    distance: Array
    choice: Array
    label: Array
    keeps_choice: bool
    visits: int = 0
    positive: bool = True

    @classmethod
    def empty(cls, metric: Array, drift: Array, settings: Settings, field: int, needs_gradient: bool) -> Self:
        """Return a field before it is solved."""
        pixels, count = metric.shape
        columns = 1 + (3 if len(drift) else 2) * count
        columns += columns == 7  # 64 bytes, a line of the cache
        return cls(
            metric=metric,
            drift=drift,
            domain=np.zeros(0, np.bool_) if settings.domain is None else settings.domain[field],
            offsets=np.empty((pixels, count), np.int32),
            nodes=torch.empty(pixels, columns, dtype=torch.float64).numpy(),  # aligned to 64 bytes
            flags=np.empty(pixels, np.uint32),
            distance=np.full(pixels, np.inf),
            choice=np.zeros(pixels, np.uint32),
            label=np.full(pixels if settings.wants_labels else 0, -1, np.int32),
            keeps_choice=needs_gradient or settings.keeps_stencils,
        )

    def build(self, settings: Settings, begin: int, end: int) -> None:
        """Build the stencils of some pixels."""
        bad = _selling.build_stencils(
            self.metric, self.drift, self.domain, settings.spatial, begin, end, self.offsets, self.nodes, self.flags,
        )  # fmt: skip
        if bad >= 0:
            self.positive = False

    def march(self, values: Array, settings: Settings) -> None:
        """Compute distances from the stencils."""
        start, readers = _selling.build_readers(self.offsets, self.flags, settings.pitches)
        self.visits = _marching.march(
            self.metric, self.drift, settings.pitches, self.offsets, self.nodes, self.flags, start, readers,
            settings.seeds, values, settings.labels, settings.targets, settings.limit, settings.order == 2,
            settings.tolerance, _MOST_VISITS * len(self.flags), self.keeps_choice,
            self.distance, self.choice, self.label,
        )  # fmt: skip

    def march_nearest(self, values: Array, settings: Settings, k: int) -> tuple[Array, Array]:
        """Return the distances and labels (P, k) of the k nearest sources."""
        start, readers = _selling.build_readers(self.offsets, self.flags, settings.pitches)
        distance, label = np.full((len(self.flags), k), np.inf), np.full((len(self.flags), k), -1, np.int32)
        self.visits = _nearest.march_nearest(
            self.metric, self.drift, settings.pitches, self.offsets, self.weights, self.drifts, self.flags, start,
            readers, settings.seeds, values, settings.labels, settings.limit, settings.tolerance,
            _MOST_VISITS * k * len(self.flags), distance, label,
        )  # fmt: skip
        return distance, label

    @property
    def weights(self) -> Array:
        """The weights ρ_i, (P, K)."""
        count = self.offsets.shape[1]
        return self.nodes[:, 1 + count : 1 + 2 * count]

    @property
    def drifts(self) -> Array:
        """The products ωᵀe_i, (P, K), or (0, K)."""
        count = self.offsets.shape[1]
        return self.nodes[: len(self.drift), -count:]

    def drop_stencils(self) -> None:
        """Release the memory of the stencils."""
        self.metric = self.drift = self.offsets = self.nodes = self.flags = np.zeros(0)


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
    if not all(solution is not None and solution.positive for solution in solutions):
        return distance, None
    _check_visits(max(solution.visits for solution in solutions), _MOST_VISITS * pixels)
    return distance, solutions


def solve_nearest(metric: Metric, values: Tensor, settings: Settings, k: int) -> tuple[Tensor, Tensor] | None:
    """Return distances and labels (F, P, k) of the k nearest sources, or None if the metric is not positive."""
    M = _array(metric.tensors()["M"].flatten(3).movedim(2, -1).flatten(0, 1).double())
    omega = metric.tensors().get("omega")
    drift = np.zeros((len(M), 0, metric.dim))
    if omega is not None:
        drift = _array(omega.flatten(3).movedim(2, -1).flatten(0, 1).double())
    found: list[tuple[Array, Array] | None] = [None] * len(M)
    visits = [0] * len(M)

    def work(field: int) -> None:
        solution = FieldSolution.empty(M[field], drift[field], settings, field, False)
        solution.build(settings, 0, M.shape[1])
        if solution.positive:
            found[field] = solution.march_nearest(_array(values[field].double()), settings, k)
            visits[field] = solution.visits

    run_tasks(work, range(len(M)))
    solved = [pair for pair in found if pair is not None]
    if len(solved) < len(M):
        return None
    _check_visits(max(visits), _MOST_VISITS * k * M.shape[1])
    distance, label = (torch.from_numpy(np.stack([pair[i] for pair in solved])) for i in range(2))
    return distance.to(metric.dtype), label.long()


def _check_visits(visits: int, most: int) -> None:
    """Warn if the solver stopped at the bound of acceptances."""
    if visits >= most:
        warnings.warn(
            f"distances may be too long: pixels were accepted more than {_MOST_VISITS} times on average. The drift of "
            "`metric` is close to its limit; a larger `tolerance` converges sooner",
            RuntimeWarning,
            stacklevel=5,
        )


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
        M_array, value_array = _array(M.double()), _array(values.double())
        omega_array = None if omega is None else _array(omega.double())

        count = torch.get_num_threads()
        for first in range(0, fields, count):  # few fields at a time, since stencils take more memory than distances
            chunk = range(first, min(first + count, fields))
            for field in chunk:
                drift = np.zeros((0, dim)) if omega_array is None else omega_array[field]
                solutions[field] = FieldSolution.empty(M_array[field], drift, settings, field, needs_gradient)
            bounds = np.linspace(0, M.shape[1], (count if len(chunk) < count else 1) + 1).astype(int)
            parts = [(field, *part) for field in chunk for part in itertools.pairwise(bounds)]
            run_tasks(lambda part: solutions[part[0]].build(settings, part[1], part[2]), parts)
            if not all(solutions[field].positive for field in chunk):
                break
            run_tasks(lambda field: solutions[field].march(value_array[field], settings), chunk)
            if not needs_gradient and not settings.keeps_stencils:
                for field in chunk:
                    solutions[field].drop_stencils()
        solved = [s for s in solutions if s is not None]
        distance = torch.from_numpy(np.stack([s.distance for s in solved])).to(M.dtype)
        if needs_gradient:
            ctx.settings, ctx.solutions, ctx.values = settings, list(solutions), value_array
            ctx.dtypes = M.dtype, values.dtype
        return distance

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        solutions, settings = ctx.solutions, ctx.settings
        grads = _array(grad).astype(np.float64)
        by_metric = [np.zeros(s.metric.shape) for s in solutions]
        by_drift = [np.zeros(s.drift.shape) for s in solutions]
        by_seed = np.zeros(ctx.values.shape)

        def work(field: int) -> None:
            s = solutions[field]
            gradient = grads[field].copy()
            _adjoint.propagate(
                s.metric, s.drift, settings.pitches, s.offsets, s.weights, s.drifts, s.distance, s.choice, gradient,
                by_metric[field], by_drift[field],
            )  # fmt: skip
            _adjoint.seed_gradients(settings.seeds, ctx.values[field], s.distance, s.choice, gradient, by_seed[field])

        run_tasks(work, range(len(solutions)))
        dtype, value_dtype = ctx.dtypes
        omega = torch.from_numpy(np.stack(by_drift)).to(dtype) if ctx.needs_input_grad[1] else None
        return (
            torch.from_numpy(np.stack(by_metric)).to(dtype), omega, torch.from_numpy(by_seed).to(value_dtype),
            None, None,
        )  # fmt: skip


def _array(tensor: Tensor) -> Array:
    """Return a tensor as a contiguous array."""
    return np.ascontiguousarray(tensor.detach().numpy())
