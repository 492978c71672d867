"""One call in the terms of kernels: three axes, its geometry, the order of taps, the image with a ring around it."""

import dataclasses
import functools
import math

import numpy as np
from torch import Tensor

from ..._interpolation import lattice_tolerance
from ..problem import OutputGrid
from .geodesics import Flow
from .products import gemm_address
from .sampling import (
    BALL,
    DEFORMABLE,
    DILATED,
    DIRECTION,
    GEODESIC,
    GRID,
    LENGTH,
    NUMBER,
    RADIUS,
    SHIFTED,
    Geometry,
)

_KINDS = {
    "grid": GRID, "ball": BALL, "geodesic": GEODESIC, "shifted": SHIFTED, "deformable": DEFORMABLE, "dilated": DILATED
}  # fmt: skip

# Rows of channels pay where that many lie side by side: one vector register.
_FEWEST_IN_A_ROW = 8


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of the operator, in the tensors and numbers that its torch.library schema has.

    There are three axes (z, y, x): a plane has one pixel along z, a line along z and y.
    """

    x: Tensor  # [B, C, D, H, W]
    weight: Tensor  # [C_out, C/groups, k_d, k_h, k_w]
    modulation: Tensor | None  # [B, G, P, *out]
    field: Tensor | None  # [B, G, n, *out], with n = d·P where each sample has its vector; geodesics: [B, G, nodes, 12]
    table: Tensor  # [P, d + 1]: direction and radius, or reference cell and 1; geodesics: ray, part, number, length
    kind: str
    dim: int
    dilation: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int
    padding_mode: str
    steps: int  # of geodesics, and the numbers of their field
    nodes: tuple[int, ...]
    spacing: tuple[float, ...]
    circular: bool

    @functools.cached_property
    def grid(self) -> OutputGrid:
        """Where the output's pixels lie in the input."""
        kernel = tuple(self.weight.shape[2:])
        return OutputGrid(tuple(self.x.shape[2:]), kernel, self.dilation, self.stride, self.padding)

    @property
    def metric_groups(self) -> int:
        """The number G of groups of channels that look at the same places."""
        return next((t.shape[1] for t in (self.field, self.modulation) if t is not None), 1)

    @property
    def pixels(self) -> int:
        """The number N of output pixels an image."""
        return math.prod(self.grid.size)

    @property
    def channel_by_channel(self) -> bool:
        """Whether every channel has weights of its own and gives one channel."""
        return self.weight.shape[1] == 1 and self.weight.shape[0] == self.x.shape[1]

    @property
    def span(self) -> int:
        """How many channels side by side share their places and, unless each has its own, their weights."""
        per_metric = self.x.shape[1] // self.metric_groups
        return per_metric if self.channel_by_channel else math.gcd(per_metric, self.weight.shape[1])

    @property
    def in_rows(self) -> bool:
        """Whether samples are gathered as rows of channels."""
        return self.span >= _FEWEST_IN_A_ROW and gemm_address(self.x.dtype) != 0

    def lays_rows(self, channels_last: bool) -> bool:
        """Return whether the output is written in rows of channels, where it is to be handed out so or not."""
        return self.in_rows and (channels_last or self.channel_by_channel)

    @property
    def pitch(self) -> tuple[int, int, int]:
        """How far apart neighbours along each axis are in the image with its ring."""
        height, width = self.x.shape[3:]
        return (height + 2) * (width + 2), width + 2, 1

    @property
    def ringed(self) -> tuple[int, ...]:
        """The size of the image with its ring, which a plane has not along z, but a line has along y."""
        depth, height, width = self.x.shape[2:]
        return depth + 2 * (self.dim == 3), height + 2, width + 2

    def geometry(self, backward: bool) -> Geometry:
        """Return what all pixels share."""
        size, reflects = tuple(self.x.shape[2:]), self.padding_mode == "reflect"
        tolerance = lattice_tolerance(self.x.dtype)
        flow = Flow(self.steps, tuple(self.nodes), tuple(map(float, self.spacing)), self.circular, tolerance)
        return Geometry(
            size,
            self.pitch,
            self.grid.size,
            tuple(self.stride),
            tuple(map(math.floor, self.grid.origin)),
            tuple(map(float, self.grid.halves)),
            3 - self.dim,
            _KINDS[self.kind],
            self.padding_mode in ("reflect", "circular"),
            tuple(reflects and n > 1 for n in size),
            backward,
            tolerance,
            flow,
        )

    def fields(self) -> tuple[np.ndarray, np.ndarray]:
        """Return field [B, G, n, N] and modulation [B, G, P, N], without numbers where there are none."""
        nothing = self.x.new_empty((self.x.shape[0], self.metric_groups, 0, self.pixels))
        field, modulation = (nothing if t is None else t.flatten(3) for t in (self.field, self.modulation))
        return field.contiguous().numpy(), modulation.contiguous().numpy()

    def taps(self) -> np.ndarray:
        """Return the samples in the order in which kernels take them, [P, 7]: direction by direction."""
        table = self.table.numpy()
        return _taps(table.tobytes(), table.dtype, self.kind, self.dim)


@functools.lru_cache(64)
def _taps(table: bytes, dtype: np.dtype, kind: str, dim: int) -> np.ndarray:
    numbers = np.frombuffer(table, dtype).reshape(-1, dim + (3 if kind == "geodesic" else 1))
    taps = np.zeros((len(numbers), 7), dtype)
    taps[:, 3 - dim : RADIUS + 1] = numbers[:, : dim + 1]
    taps[:, NUMBER] = taps[:, DIRECTION] = np.arange(len(numbers))
    if kind == "geodesic":
        taps[:, DIRECTION], taps[:, LENGTH] = numbers[:, dim + 1 :].T
    elif kind == "ball":
        # Directions are unit vectors, so that equal ones differ by rounding only, of float32 at worst.
        _, first, same = np.unique(numbers[:, :dim].round(6), axis=0, return_index=True, return_inverse=True)
        taps[:, DIRECTION] = first[same]
    return taps[np.argsort(taps[:, DIRECTION], kind="stable")]


def empty_output(call: Call, channels_last: bool) -> Tensor:
    """Return (B, C_out, *out), not yet written, in the layout of the input, with as many axes as there are.

    It is no view, which could not be changed in place by an activation that follows, nor always be compiled.
    """
    shape = (call.x.shape[0], call.weight.shape[0], *call.grid.size[3 - call.dim :])
    if not channels_last:
        return call.x.new_empty(shape)
    order = (0, *range(2, len(shape)), 1)  # from the axis of the largest steps to that of steps of 1
    steps = [math.prod(shape[axis] for axis in order[place + 1 :]) for place in range(len(order))]
    return call.x.new_empty_strided(shape, [steps[order.index(axis)] for axis in range(len(shape))])


def solid(call: Call, out: Tensor) -> Tensor:
    """View an output, or its gradient, with three spatial axes."""
    return out.view(*out.shape[:2], *call.grid.size)


def with_ring(call: Call, rows: bool = False) -> Tensor:
    """Return the image with a ring of one pixel, which holds what stands just past its border: (B, C, *spatial).

    A position beyond the ring is brought onto it ("zeros", "border") or into the image ("reflect", "circular"), so that
    kernels never ask whether a corner is inside. Memory is contiguous, or in ``rows`` of channels.
    """
    x = call.x
    if rows:
        image = x.new_empty((x.shape[0], *call.ringed, x.shape[1])).movedim(-1, 1)
    else:
        image = x.new_empty((*x.shape[:2], *call.ringed))
    _inside(call, image).copy_(x)
    for axis in _ringed_axes(call):
        for side, source in _sides(call, image, axis):
            if call.padding_mode == "zeros":
                image.select(axis, side).zero_()
            else:
                image.select(axis, side).copy_(image.select(axis, source))
    return image


def without_ring(call: Call, grad: Tensor) -> Tensor:
    """Return the gradient of the image from that of the image with its ring, which it may overwrite."""
    if call.padding_mode != "zeros":
        for axis in reversed(_ringed_axes(call)):
            for side, source in _sides(call, grad, axis):
                grad.select(axis, source).add_(grad.select(axis, side))
    return _inside(call, grad).contiguous()


def _ringed_axes(call: Call) -> tuple[int, ...]:
    return (2, 3, 4) if call.dim == 3 else (3, 4)


def _inside(call: Call, image: Tensor) -> Tensor:
    return image[:, :, slice(1, -1) if call.dim == 3 else slice(None), 1:-1, 1:-1]


def _sides(call: Call, image: Tensor, axis: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the halo's two indices along an axis, each with the index that it repeats."""
    last = image.shape[axis] - 1
    if call.padding_mode == "circular":
        return (0, last - 1), (last, 1)
    inward = 2 if call.padding_mode == "reflect" and last > 2 else 1  # a single pixel reflects onto itself
    return (0, inward), (last, last - inward)
