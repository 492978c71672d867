"""The support of a shifted ("entire deformable") convolution."""

from collections.abc import Sequence

from torch import Tensor

from .base import Support, axes_out, check_field, lattice, reference_kernel


class Shifted(Support):
    """A grid moved as a whole, by another vector at each pixel.

    Args:
        shift: (B, G, d, *out), in pixels, (y, x) in 2-D.
        kernel_size: cells along each axis of the reference grid.
        dilation: whole pixels between cells of the reference grid.
    """

    def __init__(self, shift: Tensor, kernel_size: int | Sequence[int], dilation: int | Sequence[int] = 1) -> None:
        dim = axes_out(shift, "shift", ("d",))
        self.kernel_size, self.dilation = reference_kernel(kernel_size, dilation, dim)
        self.shift = check_field(shift, "shift", dim, dim)

    def offsets(self, samples: slice = slice(None)) -> Tensor:
        """Return grid + shift: (B, G, P, d, *out)."""
        return self.shift.unsqueeze(2) + lattice(self.kernel_size, self.dilation, samples, like=self.shift)

    def tensors(self) -> dict[str, Tensor]:
        """One vector a pixel."""
        return {"shift": self.shift}
