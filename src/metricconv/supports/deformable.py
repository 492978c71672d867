"""The support of a deformable convolution, and the layout of its offsets in torchvision."""

import math
from collections.abc import Sequence

from torch import Tensor

from .. import _checks
from .base import Support, axes_out, check_field, lattice, reference_kernel


class Deformable(Support):
    """A grid each of whose cells moves by its own vector, at each pixel.

    Args:
        displacement: (B, G, P, d, *out), in pixels, (y, x) in 2-D: what is added to the reference grid.
        kernel_size: cells along each axis of the reference grid; P in all.
        dilation: whole pixels between cells of the reference grid.
    """

    def __init__(
        self, displacement: Tensor, kernel_size: int | Sequence[int], dilation: int | Sequence[int] = 1
    ) -> None:
        dim = axes_out(displacement, "displacement", ("P", "d"))
        self.kernel_size, self.dilation = reference_kernel(kernel_size, dilation, dim)
        self.displacement = check_field(displacement, "displacement", (self.samples, dim), dim)

    def offsets(self, samples: slice = slice(None)) -> Tensor:
        """Return grid + displacement: (B, G, P, d, *out)."""
        grid = lattice(self.kernel_size, self.dilation, samples, like=self.displacement)
        return self.displacement[:, :, samples] + grid

    def tensors(self) -> dict[str, Tensor]:
        """P vectors a pixel."""
        return {"displacement": self.displacement}


def from_torchvision_offsets(
    offset: Tensor, kernel_size: int | Sequence[int], dilation: int | Sequence[int] = 1
) -> Deformable:
    """Read offsets as ``torchvision.ops.deform_conv2d`` takes them: (B, 2·G·k_h·k_w, H, W).

    torchvision orders the channels by group, then cell, then (y, x).
    """
    kernel, _ = reference_kernel(kernel_size, dilation, 2)
    samples = math.prod(kernel)
    if _checks.floating(offset, "offset").dim() != 4 or offset.shape[1] % (2 * samples) or not offset.shape[1]:
        raise ValueError(
            f"`offset` must be (B, 2·G·{samples}, H, W) for `kernel_size` (={kernel}), got {tuple(offset.shape)}"
        )
    return Deformable(offset.unflatten(1, (-1, samples, 2)), kernel, dilation)


def to_torchvision_offsets(support: Support) -> Tensor:
    """Write any 2-D support as offsets for ``torchvision.ops.deform_conv2d``: (B, 2·G·k_h·k_w, H, W).

    The reference grid is taken away, as torchvision adds it again.
    """
    _checks.instance_of(support, Support, "support")
    if support.dim != 2:
        raise ValueError(f"`support` must be 2-D for torchvision's layout, got {support.dim} spatial axes")
    offsets = support.offsets()
    return (offsets - lattice(support.kernel_size, support.dilation, like=offsets)).flatten(1, 3)
