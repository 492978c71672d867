"""One call of the operator after argument checks, as every backend receives it."""

import dataclasses
import math

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import _checks
from .._interpolation import PADDING_MODES
from ..supports import Support


@dataclasses.dataclass(frozen=True)
class OutputGrid:
    """The pixels of an output, of the size ``torch.nn.Conv2d`` would give it, and their centres in the input."""

    input_size: tuple[int, ...]
    kernel_size: tuple[int, ...]
    dilation: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    @property
    def size(self) -> tuple[int, ...]:
        """The spatial size of the output."""
        axes = zip(self.input_size, self.kernel_size, self.dilation, self.stride, self.padding, strict=True)
        return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, s, p in axes)

    @property
    def origin(self) -> tuple[float, ...]:
        """The input position at which output 0 is centred: dilation·(k−1)/2 − padding."""
        axes = zip(self.kernel_size, self.dilation, self.padding, strict=True)
        return tuple(d * (k - 1) / 2 - p for k, d, p in axes)

    @property
    def halves(self) -> list[float]:
        """How far, 0 or a half, every centre lies past a whole pixel along each axis."""
        return [o - math.floor(o) for o in self.origin]

    def cells(self, device: torch.device) -> list[Tensor]:
        """Return, along each axis, the input pixel at the centre of every output pixel, or just before it: *out."""
        axes = [
            torch.arange(n, device=device) * s + math.floor(o)
            for n, s, o in zip(self.size, self.stride, self.origin, strict=True)
        ]
        return list(torch.meshgrid(*axes, indexing="ij"))

    def centres(self, like: Tensor) -> Tensor:
        """Return the input position o·stride + origin of every output pixel, (d, *out), in the dtype of ``like``."""
        cells = zip(self.cells(like.device), self.halves, strict=True)
        return torch.stack([cell.to(like.dtype) + half for cell, half in cells])


@dataclasses.dataclass(frozen=True)
class Problem:
    """y(o) = bias + Σ_j w_j · m_j(o) · x(centre(o) + Δ_j(o)), with shapes as in ``support_conv``."""

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
        """Where the output's pixels lie in the input."""
        size = tuple(self.input.shape[2:])
        return OutputGrid(size, self.support.kernel_size, self.support.dilation, self.stride, self.padding)


# Why compiled backends do not support problems that are ``transformed``: they have a backward pass only.
NO_TRANSFORMS = "its kernels have the derivatives of autograd's backward alone, not those of torch.func or forward mode"


def transformed() -> bool:
    """Return whether a transform of torch.func or forward-mode differentiation is active (False while compiling)."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def check(problem: Problem) -> None:
    """Raise an error that names the argument if shapes, devices or dtypes do not fit."""
    x, support, weight = problem.input, problem.support, problem.weight
    dim = support.dim
    for name in ("input", "weight", "bias", "modulation"):
        tensor = getattr(problem, name)
        if tensor is not None or name == "weight":
            _checks.floating(tensor, name)
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"`{name}` is on {tensor.device}, `input` on {x.device}: they must be on the same device")
    _checks.whole(problem.groups, "groups", minimum=1)
    _checks.one_of(problem.padding_mode, PADDING_MODES, "padding_mode")
    if x.dim() != dim + 2:
        raise ValueError(f"`input` must be (B, C, *spatial) with {dim} spatial axes, got shape {tuple(x.shape)}")
    channels = x.shape[1]
    if weight.dim() != dim + 2 or tuple(weight.shape[2:]) != support.kernel_size:
        raise ValueError(
            f"`weight` must be (C_out, C_in/groups, *kernel_size) with the support's kernel size "
            f"{support.kernel_size}, got shape {tuple(weight.shape)}"
        )
    _checks.divisible(channels, problem.groups, "input channels", "groups")
    _checks.divisible(weight.shape[0], problem.groups, "output channels", "groups")
    _checks.divisible(channels, support.groups, "input channels", "metric groups")
    if weight.shape[1] * problem.groups != channels:
        raise ValueError(
            f"`weight` (shape {tuple(weight.shape)}) must have {channels // problem.groups} input channels a group for "
            f"`input` of {channels} channels and `groups` (={problem.groups})"
        )
    if problem.bias is not None and tuple(problem.bias.shape) != (weight.shape[0],):
        raise ValueError(f"`bias` must be ({weight.shape[0]},), got shape {tuple(problem.bias.shape)}")
    out = problem.grid.size
    if any(n < 1 for n in (*x.shape[2:], *out)):
        raise ValueError(
            f"`input` (spatial size {tuple(x.shape[2:])}) is too small for kernel size {support.kernel_size}, dilation "
            f"{support.dilation} and `padding` (={problem.padding}): the output would be {out}"
        )
    if support.stride not in (None, problem.stride) and any(n > 1 for n in support.spatial):
        raise ValueError(f"`stride` (={problem.stride}) must be that of the support, {support.stride}")
    for name, tensor in support.tensors().items():
        _fits(tensor, f"support.{name}", x.shape[0], out)
        if tensor.is_meta != x.is_meta:
            raise ValueError(f"`support.{name}` is on {tensor.device}, `input` on {x.device}: one has no values")
    if problem.modulation is not None:
        m = problem.modulation
        if m.dim() != dim + 3 or m.shape[2] != support.samples or not _broadcasts(m.shape[1], support.groups):
            raise ValueError(
                f"`modulation` must be (B, {support.groups}, {support.samples}, *out), got shape {tuple(m.shape)}"
            )
        _fits(m, "modulation", x.shape[0], out)


def _fits(tensor: Tensor, name: str, batch: int, out: tuple[int, ...]) -> None:
    spatial = tuple(tensor.shape[-len(out) :])
    if not all(_broadcasts(n, size) for n, size in zip((tensor.shape[0], *spatial), (batch, *out), strict=True)):
        raise ValueError(
            f"`{name}` has batch {tensor.shape[0]} and spatial size {spatial}; the output needs batch {batch} (or 1) "
            f"and spatial size {out} (or 1 along an axis)"
        )


def _broadcasts(size: int, to: int) -> bool:
    """Return whether an axis has as many entries as another, or one; by ==, as a compiler's unknown sizes want it."""
    return size == to or size == 1
