"""The arguments of one operator call as the kernels take them: three axes, shared constants, the order of samples."""

import dataclasses
import functools
import math

import numpy as np
from torch import Tensor

from ... import _compat
from ..._interpolation import lattice_tolerance
from ..problem import OutputGrid
from .geodesics import FlowSettings
from .sampling import (
    BALL,
    DEFORMABLE,
    DILATED,
    DIRECTION,
    GEODESIC,
    GRID,
    INDEX,
    LENGTH,
    RADIUS,
    SHIFTED,
    Geometry,
)

_KINDS = {
    "grid": GRID, "ball": BALL, "one-sided ball": BALL, "geodesic": GEODESIC, "shifted": SHIFTED,
    "deformable": DEFORMABLE, "dilated": DILATED,
}  # fmt: skip

# The im2col buffer pays off if so many consecutive channels are copied at once: one vector register.
_MIN_RUN_LENGTH = 8

# On small maps, columns of all images are multiplied at once by torch: with at most so many pixels per output channel,
# tasks would take longer to copy the weights and to add their gradients than one product for all pixels.
_MIN_BLOCK_OUTPUTS, _MAX_PIXELS_PER_OUTPUT = 64, 8


@dataclasses.dataclass(frozen=True)
class CpuArguments:
    """The arguments of one operator call, in the order of its torch.library schema.

    There are always three axes (z, y, x): a 2-D image has size 1 along z, a 1-D signal along z and y.
    """

    x: Tensor  # [B, C, D, H, W]
    weight: Tensor  # [C_out, C/groups, k_d, k_h, k_w]
    modulation: Tensor | None  # [B, G, P, *out]
    params: Tensor | None  # [B, G, n, *out], n = d·P if every sample has a vector; geodesics: [B, G, nodes, 12]
    stencil: Tensor  # [P, d + 1]: direction, radius, or reference cell, 1; geodesics: see cpu._stencil
    kind: str
    dim: int
    dilation: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int
    padding_mode: str
    steps: int  # per geodesic; the fields below describe the table of nodes
    nodes: tuple[int, ...]
    spacing: tuple[float, ...]
    circular: bool

    @functools.cached_property
    def grid(self) -> OutputGrid:
        """The positions of the output pixels in the input."""
        kernel = tuple(self.weight.shape[2:])
        return OutputGrid(tuple(self.x.shape[2:]), kernel, self.dilation, self.stride, self.padding)

    @property
    def metric_groups(self) -> int:
        """The number G of channel groups that share sampling locations."""
        return next((t.shape[1] for t in (self.params, self.modulation) if t is not None), 1)

    @property
    def pixels(self) -> int:
        """The number N of output pixels per image."""
        return math.prod(self.grid.size)

    @property
    def depthwise(self) -> bool:
        """Whether each input channel has its own weights and gives one output channel."""
        return self.weight.shape[1] == 1 and self.weight.shape[0] == self.x.shape[1]

    @property
    def run_length(self) -> int:
        """The number of consecutive channels that share sampling locations and, unless depthwise, a weight group."""
        per_metric = self.x.shape[1] // self.metric_groups
        return per_metric if self.depthwise else math.gcd(per_metric, self.weight.shape[1])

    @property
    def uses_columns(self) -> bool:
        """Whether samples are gathered into an im2col buffer (many_channels.py)."""
        return self.run_length >= _MIN_RUN_LENGTH and _compat.gemm_address(self.x.dtype) != 0

    @property
    def uses_blocks(self) -> bool:
        """Whether the columns are multiplied by torch, block by block (blocks.py)."""
        outputs, pixels = self.weight.shape[0], self.x.shape[0] * self.pixels
        wide = self.uses_columns and self.groups == 1 and outputs >= _MIN_BLOCK_OUTPUTS
        return wide and pixels <= _MAX_PIXELS_PER_OUTPUT * outputs

    def writes_channels_last(self, channels_last: bool) -> bool:
        """Return whether kernels write the output channels-last; ``channels_last`` is the layout of the result."""
        return self.uses_columns and (channels_last or self.depthwise)

    @property
    def pitch(self) -> tuple[int, int, int]:
        """The distance in memory between neighbors along each axis, in the image with its halo."""
        height, width = self.x.shape[3:]
        return (height + 2) * (width + 2), width + 2, 1

    @property
    def size_with_halo(self) -> tuple[int, ...]:
        """The spatial size of the image with its halo; no halo along z in 2-D, but one along y in 1-D."""
        depth, height, width = self.x.shape[2:]
        return depth + 2 * (self.dim == 3), height + 2, width + 2

    def geometry(self, backward: bool) -> Geometry:
        """Return the constants that all pixels share."""
        size, reflects = tuple(self.x.shape[2:]), self.padding_mode == "reflect"
        folds = reflects or self.padding_mode == "circular"
        tolerance = lattice_tolerance(self.x.dtype)
        flow = (
            FlowSettings(self.steps, tuple(self.nodes), tuple(map(float, self.spacing)), self.circular, tolerance)
            if self.kind == "geodesic"
            else ()
        )
        return Geometry(
            size,
            self.pitch,
            self.grid.size,
            tuple(self.stride),
            tuple(map(math.floor, self.grid.origin)),
            tuple(map(float, self.grid.halves)),
            3 - self.dim,
            _KINDS[self.kind],
            self.kind == "one-sided ball",
            folds,
            tuple(reflects and n > 1 for n in size) if folds else (),
            (True,) if self.dim == 3 else (),
            backward,
            tolerance,
            flow,
        )

    def params_and_modulation(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the support parameters [B, G, n, N] and the modulation [B, G, P, N]; empty arrays where absent."""
        empty = self.x.new_empty((self.x.shape[0], self.metric_groups, 0, self.pixels))
        params, modulation = (empty if t is None else t.flatten(3) for t in (self.params, self.modulation))
        return params.contiguous().numpy(), modulation.contiguous().numpy()

    def stencil_rows(self) -> np.ndarray:
        """Return one row per sample, [P, 7], sorted by direction: the order in which kernels process samples."""
        stencil = self.stencil.numpy()
        return _stencil_rows(stencil.tobytes(), stencil.dtype, self.kind, self.dim)


@functools.lru_cache(64)
def _stencil_rows(stencil: bytes, dtype: np.dtype, kind: str, dim: int) -> np.ndarray:
    values = np.frombuffer(stencil, dtype).reshape(-1, dim + (3 if kind == "geodesic" else 1))
    rows = np.zeros((len(values), 7), dtype)
    rows[:, 3 - dim : RADIUS + 1] = values[:, : dim + 1]
    rows[:, INDEX] = rows[:, DIRECTION] = np.arange(len(values))
    if kind == "geodesic":
        rows[:, DIRECTION], rows[:, LENGTH] = values[:, dim + 1 :].T
    elif _KINDS[kind] == BALL:
        # Directions are unit vectors: equal ones differ by rounding errors, at most those of float32.
        _, first, same = np.unique(values[:, :dim].round(6), axis=0, return_index=True, return_inverse=True)
        rows[:, DIRECTION] = first[same]
    return rows[np.argsort(rows[:, DIRECTION], kind="stable")]


def new_output(args: CpuArguments, channels_last: bool) -> Tensor:
    """Return an uninitialized output (B, C_out, *out) in the memory layout of the input.

    It is a tensor of its own, not a view: in-place activations and torch.compile do not accept a view everywhere.
    """
    shape = (args.x.shape[0], args.weight.shape[0], *args.grid.size[3 - args.dim :])
    if not channels_last:
        return args.x.new_empty(shape)
    order = (0, *range(2, len(shape)), 1)  # axes by decreasing stride
    strides = [math.prod(shape[axis] for axis in order[position + 1 :]) for position in range(len(order))]
    return args.x.new_empty_strided(shape, [strides[order.index(axis)] for axis in range(len(shape))])


def view_3d(args: CpuArguments, out: Tensor) -> Tensor:
    """View an output, or its gradient, with three spatial axes."""
    return out.view(*out.shape[:2], *args.grid.size)
