"""One call of the operator after argument checks, as every backend receives it."""

import dataclasses
import math

import torch
from torch import Tensor

from .. import _checks, _compat
from ..supports import Support

__all__ = [
    "OutputGrid",
    "Problem",
    "TRANSFORMS_UNSUPPORTED",
    "check",
    "check_broadcast",
    "check_output_size",
    "support_tensors",
    "transforms_active",
]


@dataclasses.dataclass(frozen=True)
class OutputGrid:
    """The pixels of an output, whose size is that of ``torch.nn.Conv2d``, and their centers in the input."""

    input_size: tuple[int, ...]
    kernel_size: tuple[int, ...]
    dilation: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    @property
    def size(self) -> tuple[int, ...]:
        """The spatial size of the output."""
        axes = zip(self.input_size, self.kernel_size, self.dilation, self.stride, self.padding, strict=True)
        return tuple([(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, s, p in axes])

    @property
    def origin(self) -> tuple[float, ...]:
        """The input position of the center of output pixel 0: dilation·(k−1)/2 − padding."""
        axes = zip(self.kernel_size, self.dilation, self.padding, strict=True)
        return tuple([d * (k - 1) / 2 - p for k, d, p in axes])

    @property
    def halves(self) -> list[float]:
        """The fractional part of all centers along each axis, 0 or a half."""
        return [o - math.floor(o) for o in self.origin]

    def cells(self, device: torch.device) -> list[Tensor]:
        """Return, along each axis, the input pixel at or just before the center of every output pixel: *out."""
        axes = [
            torch.arange(n, device=device) * s + math.floor(o)
            for n, s, o in zip(self.size, self.stride, self.origin, strict=True)
        ]
        return list(torch.meshgrid(*axes, indexing="ij"))

    def centers(self, like: Tensor) -> Tensor:
        """Return the input position o·stride + origin of every output pixel, (d, *out), in the dtype of ``like``."""
        cells = zip(self.cells(like.device), self.halves, strict=True)
        return torch.stack([cell.to(like.dtype) + half for cell, half in cells])


@dataclasses.dataclass(frozen=True)
class Problem:
    """A call of the operator y(o) = bias + Σ_j w_j · m_j(o) · x(center(o) + Δ_j(o)), shapes as in ``support_conv``."""

    input: Tensor  # [B, C_in, *spatial]
    support: Support
    weight: Tensor  # [C_out, C_in / groups, *kernel_size]
    bias: Tensor | None  # [C_out]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int
    modulation: Tensor | None  # [B, G, P, *out]
    padding_mode: str

    @property
    def grid(self) -> OutputGrid:
        """The output pixels and their centers in the input."""
        size = tuple(self.input.shape[2:])
        return OutputGrid(size, self.support.kernel_size, self.support.dilation, self.stride, self.padding)


# Why compiled backends do not support problems while ``transforms_active()``.
TRANSFORMS_UNSUPPORTED = "it supports autograd's backward pass, not torch.func or forward-mode differentiation"


def transforms_active() -> bool:
    """Return whether torch.func or forward-mode differentiation is active; False while torch.compile traces."""
    if torch.compiler.is_compiling():
        return False
    return _compat.functorch_active() or _compat.forward_mode_active()


def check(problem: Problem) -> None:
    """Raise an error that names the argument if shapes, devices or dtypes do not fit."""
    _check_tensors(problem)
    _checks.whole(problem.groups, "groups", minimum=1)
    _check_channels(problem)
    _check_sizes(problem)


def _check_tensors(problem: Problem) -> None:
    x, dim = problem.input, problem.support.dim
    tensors = {
        "weight": _checks.floating(problem.weight, "weight"),
        "bias": problem.bias,
        "modulation": problem.modulation,
    }
    for name, tensor in tensors.items():
        if tensor is not None and _checks.floating(tensor, name).device != x.device:
            raise ValueError(f"`{name}` is on {tensor.device}, `input` on {x.device}: they must be on the same device")
    if x.dim() != dim + 2:
        raise ValueError(f"`input` must be (B, C, *spatial) with {dim} spatial axes, got shape {tuple(x.shape)}")


def _check_channels(problem: Problem) -> None:
    support, weight, channels = problem.support, problem.weight, problem.input.shape[1]
    if weight.dim() != support.dim + 2 or tuple(weight.shape[2:]) != support.kernel_size:
        raise ValueError(
            f"`weight` must be (C_out, C_in/groups, *kernel_size) with the support's kernel size "
            f"{support.kernel_size}, got shape {tuple(weight.shape)}"
        )
    _checks.divisible(channels, problem.groups, "input channels", "groups")
    _checks.divisible(weight.shape[0], problem.groups, "output channels", "groups")
    _checks.divisible(channels, support.groups, "input channels", "metric groups")
    if weight.shape[1] * problem.groups != channels:
        raise ValueError(
            f"`weight` (shape {tuple(weight.shape)}) must have {channels // problem.groups} input channels per group "
            f"for `input` with {channels} channels and `groups` (={problem.groups})"
        )
    if problem.bias is not None and tuple(problem.bias.shape) != (weight.shape[0],):
        raise ValueError(f"`bias` must be ({weight.shape[0]},), got shape {tuple(problem.bias.shape)}")


def _check_sizes(problem: Problem) -> None:
    x, support, m = problem.input, problem.support, problem.modulation
    check_output_size(problem.grid)
    out = problem.grid.size
    if support.stride not in (None, problem.stride) and any(n > 1 for n in support.spatial):
        raise ValueError(f"`stride` (={problem.stride}) must be that of the support, {support.stride}")
    for name, tensor in support_tensors(support).items():
        check_broadcast(tensor, name, x.shape[0], out)
        if tensor.is_meta != x.is_meta:
            raise ValueError(f"`{name}` is on {tensor.device}, `input` on {x.device}: one has no values")
    if m is not None:
        if m.dim() != support.dim + 3 or m.shape[2] != support.samples or not _broadcasts(m.shape[1], support.groups):
            raise ValueError(
                f"`modulation` must be (B, {support.groups}, {support.samples}, *out), got shape {tuple(m.shape)}"
            )
        check_broadcast(m, "modulation", x.shape[0], out)


def support_tensors(support: Support) -> dict[str, Tensor]:
    """Return the parameters of a support by the names that errors use; those of balls belong to their metric."""
    owner = "metric" if hasattr(support, "metric") else "support"
    return {f"{owner}.{name}": tensor for name, tensor in support.tensors().items()}


def check_output_size(grid: OutputGrid) -> None:
    """Check that neither the input nor the output is empty."""
    if any([n < 1 for n in (*grid.input_size, *grid.size)]):
        raise ValueError(
            f"`input` (spatial size {grid.input_size}) is too small for kernel size {grid.kernel_size}, dilation "
            f"{grid.dilation} and `padding` (={grid.padding}): the output would be {grid.size}"
        )


def check_broadcast(tensor: Tensor, name: str, batch: int, out: tuple[int, ...]) -> None:
    """Check that a tensor (B, …, *out) broadcasts to the batch and the size of the output."""
    spatial = tuple(tensor.shape[-len(out) :])
    for size, expected in zip((tensor.shape[0], *spatial), (batch, *out), strict=True):
        if not _broadcasts(size, expected):
            raise ValueError(
                f"`{name}` has batch {tensor.shape[0]} and spatial size {spatial}; the output needs batch {batch} (or "
                f"1) and spatial size {out} (or 1 along an axis)"
            )


def _broadcasts(size: int, to: int) -> bool:
    """Return whether an axis has a given size or size 1; torch.compile traces ``==`` of dynamic sizes, not ``in``."""
    return size == to or size == 1
