"""Links between the pixels of an image, along which values flow: a discretization of div(D ∇u)."""

import math
from typing import Protocol

import torch
from torch import Tensor

from .. import ops
from ..metrics import _selling

__all__ = ["CompiledLinks", "Links", "TorchLinks", "make_links"]

# Rows of pixels whose flow one task computes, at least twice the reach of their links.
_BAND = 16


class Links(Protocol):
    """Links from each pixel x to x ± e_i with weight ρ_i(x)/2, where D(x) = Σ_i ρ_i e_i e_iᵀ, ρ ≥ 0.

    The flow along them is the gradient of the energy Σ_x Σ_i ρ_i(x)/4 Σ_± (u(x ± e_i) − u(x))². It is symmetric with
    nonnegative weights, and exact for quadratic functions where D is constant. Links that leave the image are omitted.
    """

    def largest_outflow(self) -> float:
        """Return the largest sum of weights at a pixel. Its inverse bounds the time step."""

    def step(self, values: Tensor, time: float) -> Tensor:
        """Return the values (P, C) after one explicit step."""


def make_links(matrices: Tensor, size: tuple[int, ...]) -> Links:
    """Return the links of an image, compiled by numba where it is installed and the matrices are on the CPU.

    Args:
        matrices: (d(d+1)/2, P), the upper triangle of D of each pixel.
        size: spatial size of the image, with P pixels; d = 2 or 3.
    """
    if matrices.device.type == "cpu" and ops.cpu.missing_dependency() is None:
        return CompiledLinks(matrices, size)
    return TorchLinks(matrices, size)


class TorchLinks:
    """Links in plain PyTorch: ends (2K, P), an address per link, and weights (2K, P)."""

    def __init__(self, matrices: Tensor, size: tuple[int, ...]) -> None:
        weights, directions = _selling.decompose(matrices)
        axes = [torch.arange(n, device=matrices.device) for n in size]
        here = torch.stack(torch.meshgrid(axes, indexing="ij")).flatten(1)
        limit = torch.tensor(size, device=matrices.device).view(-1, 1)
        self_address = torch.arange(here.shape[1], device=matrices.device)
        ends, halves = [], []
        for weight, direction in zip(weights.to(matrices.dtype) / 2, directions, strict=True):
            for sign in (-1, 1):
                there = here + sign * direction
                inside = ((there >= 0) & (there < limit)).all(0)
                address = there[0]
                for n, position in zip(size[1:], there[1:], strict=True):
                    address = address * n + position
                ends.append(torch.where(inside, address, self_address))
                halves.append(torch.where(inside, weight, 0))
        self.ends, self.weights = torch.stack(ends), torch.stack(halves)

    def largest_outflow(self) -> float:
        total = self.weights.sum(0)
        for end, weight in zip(self.ends, self.weights, strict=True):
            total.index_add_(0, end, weight)
        return float(total.max())

    def step(self, values: Tensor, time: float) -> Tensor:
        result = values.clone()
        for end, weight in zip(self.ends, self.weights, strict=True):
            flow = (values[end] - values) * (time * weight).unsqueeze(1)
            result += flow
            result.index_add_(0, end, flow, alpha=-1)
        return result


class CompiledLinks:
    """Links in numba: ends (P, 2K) and weights (P, 2K).

    The flow of a band of rows changes pixels of the adjacent bands, so even bands are computed first, then odd bands.
    """

    def __init__(self, matrices: Tensor, size: tuple[int, ...]) -> None:
        from ..ops.cpu.threads import run_tasks
        from . import _link_kernels

        self._kernels, self._run = _link_kernels, run_tasks
        packed = matrices.t().contiguous().numpy()
        count, pixels = 2 * len(matrices), math.prod(size)
        size = tuple(size)  # numba does not know torch.Size
        self._row = pixels // size[0]
        self.ends = torch.empty(pixels, count, dtype=torch.int32).numpy()
        self.weights = torch.empty(pixels, count, dtype=matrices.dtype).numpy()
        reaches = [0]

        def build(band: tuple[int, int]) -> None:
            reaches.append(_link_kernels.build_links(packed, size, *band, self.ends, self.weights))

        run_tasks(build, self._bands(_BAND, size[0]))
        self._tasks = self._bands(max(_BAND, 2 * max(reaches)), size[0])

    def _bands(self, height: int, rows: int) -> list[tuple[int, int]]:
        return [(start * self._row, min(start + height, rows) * self._row) for start in range(0, rows, height)]

    def largest_outflow(self) -> float:
        return float(self._kernels.largest_outflow(self.ends, self.weights))

    def step(self, values: Tensor, time: float) -> Tensor:
        result = values.clone()
        before, after = values.numpy(), result.numpy()

        def flow(band: tuple[int, int]) -> None:
            self._kernels.flow(before, before.dtype.type(time), *band, self.ends, self.weights, after)

        for tasks in (self._tasks[::2], self._tasks[1::2]):
            self._run(flow, tasks)
        return result
