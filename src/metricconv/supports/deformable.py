"""The support of a deformable convolution, and conversion of its offsets from and to torchvision's layout."""

import dataclasses
import math
from collections.abc import Sequence

from torch import Tensor

from .. import _checks
from .base import Support, check_field, count_output_axes, kernel_cells, reference_kernel

__all__ = ["Deformable", "from_torchvision_offsets", "to_torchvision_offsets"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Deformable(Support):
    """A grid whose cells are displaced independently at each pixel: Δ_j = c_j + displacement_j.

    Args:
        displacement: displacements in pixels, (B, G, P, d, *out), (y, x) in 2-D.
        kernel_size: cells of the reference grid along each axis, P in total.
        dilation: pixels between cells of the reference grid (default 1).
        stride: stride of the output, as in ``Support``.

    >>> import torch
    >>> Deformable(torch.zeros(1, 1, 9, 2, 4, 4), 3)
    Deformable(kernel_size=(3, 3), batch=1, groups=1, spatial=(4, 4), dtype=torch.float32, device='cpu')
    """

    displacement: Tensor
    kernel_size: tuple[int, ...]
    dilation: tuple[int, ...]
    stride: tuple[int, ...] | None = None

    def __init__(
        self,
        displacement: Tensor,
        kernel_size: int | Sequence[int],
        dilation: int | Sequence[int] = 1,
        *,
        stride: int | Sequence[int] | None = None,
    ) -> None:
        dim = count_output_axes(displacement, "displacement", ("P", "d"))
        self._set(**reference_kernel(kernel_size, dilation, stride, dim))
        self._set(displacement=check_field(displacement, "displacement", (self.samples, dim), dim))

    def offsets(self, samples: slice | None = None) -> Tensor:
        """Return grid + displacement: (B, G, P, d, *out)."""
        grid = kernel_cells(self.kernel_size, self.dilation, samples, like=self.displacement)
        return self.displacement[:, :, samples or slice(None)] + grid

    def tensors(self) -> dict[str, Tensor]:
        """Return the displacements, P vectors per pixel."""
        return {"displacement": self.displacement}


def from_torchvision_offsets(
    offset: Tensor, kernel_size: int | Sequence[int], dilation: int | Sequence[int] = 1
) -> Deformable:
    """Return the support of offsets in the layout of ``torchvision.ops.deform_conv2d``.

    Args:
        offset: (B, 2·G·k_h·k_w, H, W). The channels are ordered by group, then cell, then (y, x).
        kernel_size: cells of the kernel along each axis.
        dilation: as in ``deform_conv2d`` (default 1).

    >>> import torch
    >>> from_torchvision_offsets(torch.zeros(1, 18, 4, 4), 3).displacement.shape
    torch.Size([1, 1, 9, 2, 4, 4])
    """
    kernel = _checks.tuple_of(kernel_size, 2, "kernel_size", minimum=1)
    samples = math.prod(kernel)
    if _checks.floating(offset, "offset").dim() != 4 or offset.shape[1] % (2 * samples) or not offset.shape[1]:
        raise ValueError(
            f"`offset` must be (B, 2·G·{samples}, H, W) for `kernel_size` (={kernel}), got {tuple(offset.shape)}"
        )
    return Deformable(offset.unflatten(1, (-1, samples, 2)), kernel, dilation)


def to_torchvision_offsets(support: Support) -> Tensor:
    """Return the offsets of a 2-D support in the layout of ``torchvision.ops.deform_conv2d``: (B, 2·G·k_h·k_w, H, W).

    They are relative to the reference grid, which torchvision adds.

    Args:
        support: any 2-D support.

    >>> import torch
    >>> from metricconv import Shifted
    >>> to_torchvision_offsets(Shifted(torch.full((1, 1, 2, 4, 4), 0.5), 3)).shape
    torch.Size([1, 18, 4, 4])
    """
    _checks.instance_of(support, Support, "support")
    if support.dim != 2:
        raise ValueError(f"`support` must have 2 spatial axes for torchvision's layout, got {support.dim}")
    offsets = support.offsets()
    return (offsets - kernel_cells(support.kernel_size, support.dilation, like=offsets)).flatten(1, 3)
