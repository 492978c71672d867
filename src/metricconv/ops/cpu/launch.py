"""One call in the terms of kernels: its geometry, the order of taps, the way that suits the number of channels."""

import dataclasses
import math

import numpy as np
from torch import Tensor

from ..problem import OutputGrid
from .blas import gemm_address
from .sampling import BALL, DEFORMABLE, DILATED, GRID, SHIFTED, Geometry

_KINDS = {"grid": GRID, "ball": BALL, "shifted": SHIFTED, "deformable": DEFORMABLE, "dilated": DILATED}

# Rows of channels pay where that many lie side by side: one vector register.
_FEWEST_IN_A_ROW = 8


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of the operator in two dimensions, in the tensors and numbers that engines take."""

    x: Tensor  # [B, C, H, W]
    weight: Tensor  # [C_out, C/groups, k_h, k_w]
    modulation: Tensor | None  # [B, G, P, *out]
    field: Tensor | None  # [B, G, n, *out], n = 2P where each sample has its own vector
    table: Tensor  # [P, 3]: direction and radius, or reference cell and 1, of each sample
    kind: str
    dilation: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int
    padding_mode: str

    @property
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

    def geometry(self) -> Geometry:
        """Return what all pixels share."""
        height, width = self.x.shape[2:]
        (stride_y, stride_x), (origin_y, origin_x) = map(float, self.stride), self.grid.origin
        folds = self.padding_mode in ("reflect", "circular")
        mirrors_y, mirrors_x = (self.padding_mode == "reflect" and n > 1 for n in (height, width))
        return Geometry(
            height, width, self.grid.size[1], stride_y, stride_x, origin_y, origin_x, _KINDS[self.kind], folds,
            mirrors_y, mirrors_x,
        )  # fmt: skip

    def fields(self) -> tuple[np.ndarray, np.ndarray]:
        """Return field [B, G, n, N] and modulation [B, G, P, N], without numbers where there are none."""
        return _pixelwise(self.field, self), _pixelwise(self.modulation, self)


def taps(call: Call) -> np.ndarray:
    """Return the samples in the order in which kernels take them, [P, 5]: the table, the sample's number j and that of
    its direction. Samples in the same direction follow each other: F is computed once for all their radii.
    """
    table = call.table.numpy()
    number = np.arange(len(table))
    if call.kind != "ball":
        return np.column_stack([table, number, number]).astype(table.dtype)
    rounded = table.astype(np.float64).round(14)
    _, direction = np.unique(rounded[:, 0] + 1j * rounded[:, 1], return_inverse=True)
    order = np.argsort(direction, kind="stable")
    return np.column_stack([table, number, direction])[order].astype(table.dtype)


def empty_output(call: Call, channels_last: bool) -> Tensor:
    """Return (B, C_out, *out), not yet written, in the layout of the input."""
    batch, outs, size = call.x.shape[0], call.weight.shape[0], call.grid.size
    if channels_last:
        return call.x.new_empty((batch, *size, outs)).permute(0, 3, 1, 2)
    return call.x.new_empty((batch, outs, *size))


def _pixelwise(field: Tensor | None, call: Call) -> np.ndarray:
    if field is None:
        return call.x.new_empty((call.x.shape[0], call.metric_groups, 0, call.pixels)).numpy()
    return field.flatten(3).contiguous().numpy()
