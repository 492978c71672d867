"""What every support is: a value that tells where each output pixel looks."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from .. import _checks
from ..metrics import Metric
from ..stencils import Stencil


class Support(ABC):
    """The samples Δ_x around each output pixel, one for each cell of a kernel.

    A support deforms a reference kernel, given by ``kernel_size`` and ``dilation``: these fix the output's size and
    each pixel's centre, exactly as for ``torch.nn.Conv2d``. It holds only its compact parameters; the offsets follow
    from them. Engines may read the parameters of the kinds they know; any support works through ``offsets``.

    ``stride`` is None, the default, where a support suits outputs of any stride. Otherwise it suits that one alone, in
    input pixels along each axis. Geodesic balls have one, as they look at the metric of other output pixels and must
    know how far away these lie; and a strided layer tells its own to its supports (``placed``), so that they can be
    drawn where they looked.

    A new support is one subclass: ``kernel_size``, ``dilation``, ``offsets``, and ``tensors`` so that it is checked.
    """

    kernel_size: tuple[int, ...]
    dilation: tuple[int, ...]
    stride: tuple[int, ...] | None = None

    @abstractmethod
    def offsets(self, samples: slice = slice(None)) -> Tensor:
        """Return the displacements from a pixel's centre to (some of) its samples: (B, G, P, d, *out), in pixels.

        Components are in tensor-axis order, (y, x) in 2-D. Axes B, G and *out may be 1, which broadcasts.
        """

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return the compact parameters by name, each (B, G, n, *out) or (B, G, P, d, *out)."""

    def with_stride(self, stride: tuple[int, ...]) -> Self:
        """Return the support for outputs that lie so far apart in the input; one that knows its stride, as it is."""
        if self.stride is not None or max(stride) == 1:
            return self
        placed = copy.copy(self)
        placed.stride = stride
        return placed

    @property
    def dim(self) -> int:
        """The number d of spatial axes."""
        return len(self.kernel_size)

    @property
    def samples(self) -> int:
        """The number P of samples a pixel."""
        return math.prod(self.kernel_size)

    @property
    def batch(self) -> int:
        """The number B of images (1 broadcasts)."""
        return max([1, *(t.shape[0] for t in self.tensors().values())])

    @property
    def groups(self) -> int:
        """The number G of groups of channels that look at the same places (1 broadcasts)."""
        return max([1, *(t.shape[1] for t in self.tensors().values())])

    @property
    def spatial(self) -> torch.Size:
        """The size of the output the support was made for (1 broadcasts)."""
        sizes = [t.shape[-self.dim :] for t in self.tensors().values()]
        return torch.Size([max([1, *axis]) for axis in zip(*sizes, strict=True)] or (1,) * self.dim)


def reference_kernel(
    kernel_size: int | Sequence[int], dilation: int | Sequence[int], dim: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Check the reference kernel that a support deforms."""
    return (
        _checks.tuple_of(kernel_size, dim, "kernel_size", minimum=1),
        _checks.tuple_of(dilation, dim, "dilation", minimum=1),
    )


def check_ball(metric: Metric, stencil: Stencil) -> None:
    """Refuse a metric and a stencil that make no ball."""
    _checks.instance_of(metric, Metric, "metric")
    _checks.instance_of(stencil, Stencil, "stencil")
    if stencil.dim != metric.dim:
        raise ValueError(f"`stencil` has {stencil.dim} spatial axes, `metric` has {metric.dim}: they must agree")


def lattice(
    kernel_size: Sequence[int], spacing: Sequence[float], samples: slice = slice(None), *, like: Tensor | None = None
) -> Tensor:
    """Return the centred grid of the kernel's cells, row by row: (1, 1, P, d, 1, …, 1)."""
    dtype, device = (torch.float32, None) if like is None else (like.dtype, like.device)
    axes = [
        (torch.arange(k, dtype=dtype, device=device) - (k - 1) / 2) * step
        for k, step in zip(kernel_size, spacing, strict=True)
    ]
    cells = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, -2)
    return cells[samples].view(1, 1, -1, len(axes), *(1,) * len(axes))


def axes_out(value: Tensor, name: str, components: Sequence[str]) -> int:
    """Return the number d of axes *out of a parameter field (B, G, *components, *out)."""
    dim = _checks.floating(value, name).dim() - 2 - len(components)
    if dim < 1:
        raise ValueError(f"`{name}` must be (B, G, {', '.join(components)}, *out), got shape {tuple(value.shape)}")
    return dim


def check_field(value: Tensor, name: str, components: int | tuple[int, ...], dim: int) -> Tensor:
    """Check a parameter field (B, G, *components, *out) and widen half precision."""
    components = (components,) if isinstance(components, int) else components
    if value.dim() != 2 + len(components) + dim or tuple(value.shape[2 : 2 + len(components)]) != components:
        expected = ", ".join(map(str, components))
        raise ValueError(f"`{name}` must be (B, G, {expected}, *out) with {dim} axes out, got {tuple(value.shape)}")
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
