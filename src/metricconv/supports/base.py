"""The base class of supports, and checks that several supports need."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import _checks
from ..metrics import Metric
from ..stencils import Stencil

__all__ = ["Support"]


class Support(ABC):
    """Base class of supports Δ_x: the sampling locations around each output pixel, one per cell of a kernel.

    A support deforms the reference kernel given by ``kernel_size`` and ``dilation``. These determine the output size
    and the centers of the output pixels, as in ``torch.nn.Conv2d``. Supports are immutable, and store compact
    parameters from which ``offsets`` computes the sampling locations. Backends may compute some kinds of support from
    their compact parameters. The reference backend computes any support through ``offsets``.

    ``stride`` is the stride of the output for which the support was computed, in input pixels along each axis, or None
    (default) if any stride is possible. Geodesic balls require it, since their rays cross the metric of other output
    pixels. For other supports it only determines where they are drawn, and ``support_conv`` checks it.

    A new support is a subclass with ``kernel_size``, ``dilation``, ``offsets`` and ``tensors``.
    """

    kernel_size: tuple[int, ...]
    dilation: tuple[int, ...]
    stride: tuple[int, ...] | None = None

    @abstractmethod
    def offsets(self, samples: slice | None = None) -> Tensor:
        """Return the displacements from the center of each output pixel to its samples: (B, G, P, d, *out), in pixels.

        Components are in tensor-axis order, (y, x) in 2-D. The axes B, G and *out may have size 1, which broadcasts.

        Args:
            samples: the samples to return. Default: all.
        """

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return the compact parameters by name, each (B, G, n, *out) or (B, G, P, d, *out)."""

    @property
    def dim(self) -> int:
        """The number d of spatial axes."""
        return len(self.kernel_size)

    @property
    def samples(self) -> int:
        """The number P of samples per pixel."""
        return math.prod(self.kernel_size)

    @property
    def batch(self) -> int:
        """The number B of images; 1 broadcasts."""
        return max([1, *(t.shape[0] for t in self.tensors().values())])

    @property
    def groups(self) -> int:
        """The number G of channel groups, each with its own sampling locations; 1 broadcasts."""
        return max([1, *(t.shape[1] for t in self.tensors().values())])

    @property
    def spatial(self) -> torch.Size:
        """The size of the output for which the support was computed; 1 broadcasts."""
        sizes = [t.shape[-self.dim :] for t in self.tensors().values()]
        return torch.Size([max([1, *axis]) for axis in zip(*sizes, strict=True)] or (1,) * self.dim)

    def __repr__(self) -> str:
        """Describe the kind, shape, dtype and device of the support, without values of tensors."""
        parts = [f"kernel_size={self.kernel_size}"]
        parts += [f"dilation={self.dilation}"] if max(self.dilation) > 1 else []
        parts += [f"stride={self.stride}"] if self.stride is not None and max(self.stride) > 1 else []
        parts += [f"{name}={value}" for name, value in self._repr_options().items()]
        for first in list(self.tensors().values())[:1]:
            parts.append(f"batch={self.batch}, groups={self.groups}, spatial={tuple(self.spatial)}")
            parts.append(f"dtype={first.dtype}, device='{first.device}'")
        return f"{type(self).__name__}({', '.join(parts)})"

    def _repr_options(self) -> dict[str, object]:
        """Return further attributes that ``repr`` shows."""
        return {}

    def _set(self, **attributes: object) -> None:
        """Set attributes of a frozen dataclass; for constructors."""
        for name, value in attributes.items():
            object.__setattr__(self, name, value)


def reference_kernel(
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int],
    stride: int | Sequence[int] | None,
    dim: int,
) -> dict[str, tuple[int, ...] | None]:
    """Check the attributes that all supports have, and convert them to tuples."""
    return {
        "kernel_size": _checks.tuple_of(kernel_size, dim, "kernel_size", minimum=1),
        "dilation": _checks.tuple_of(dilation, dim, "dilation", minimum=1),
        "stride": None if stride is None else _checks.tuple_of(stride, dim, "stride", minimum=1),
    }


def check_ball(metric: Metric, stencil: Stencil) -> None:
    """Check that a metric and a stencil have the same number of spatial axes."""
    _checks.instance_of(metric, Metric, "metric")
    _checks.instance_of(stencil, Stencil, "stencil")
    if stencil.dim != metric.dim:
        raise ValueError(f"`stencil` has {stencil.dim} spatial axes, `metric` has {metric.dim}: they must agree")


def kernel_cells(
    kernel_size: Sequence[int], spacing: Sequence[float], samples: slice | None = None, *, like: Tensor | None = None
) -> Tensor:
    """Return the cells of a kernel relative to its center, in row-major order: (1, 1, P, d, 1, …, 1).

    Args:
        kernel_size: cells along each axis.
        spacing: pixels between cells along each axis.
        samples: the cells to return.
        like: tensor that determines dtype and device. Default: float32 on torch's default device.
    """
    dtype, device = (torch.float32, None) if like is None else (like.dtype, like.device)
    axes = [
        (torch.arange(k, dtype=dtype, device=device) - (k - 1) / 2) * step
        for k, step in zip(kernel_size, spacing, strict=True)
    ]
    cells = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, -2)
    return cells[samples or slice(None)].view(1, 1, -1, len(axes), *(1,) * len(axes))


def count_output_axes(value: Tensor, name: str, components: Sequence[str]) -> int:
    """Return the number d of output axes of a parameter field (B, G, *components, *out)."""
    dim = _checks.floating(value, name).dim() - 2 - len(components)
    if dim < 1:
        raise ValueError(f"`{name}` must be (B, G, {', '.join(components)}, *out), got shape {tuple(value.shape)}")
    return dim


def check_field(value: Tensor, name: str, components: int | tuple[int, ...], dim: int) -> Tensor:
    """Check the shape of a parameter field (B, G, *components, *out); return it in float32 or wider."""
    components = (components,) if isinstance(components, int) else components
    if value.dim() != 2 + len(components) + dim or tuple(value.shape[2 : 2 + len(components)]) != components:
        expected = ", ".join(map(str, components))
        raise ValueError(f"`{name}` must be (B, G, {expected}, *out) with {dim} spatial axes, got {tuple(value.shape)}")
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
