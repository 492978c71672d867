"""The support of a convolution dilated by its own factor at every pixel."""

from collections.abc import Sequence

from torch import Tensor

from .base import Support, axes_out, check_field, lattice, reference_kernel


class Dilated(Support):
    """A grid scaled about its centre, by another factor at each pixel.

    Args:
        scale: (B, G, 1, *out), multiplies the reference grid.
        kernel_size: cells along each axis of the reference grid.
        dilation: whole pixels between cells of the reference grid.
    """

    def __init__(self, scale: Tensor, kernel_size: int | Sequence[int], dilation: int | Sequence[int] = 1) -> None:
        dim = axes_out(scale, "scale", ("1",))
        self.kernel_size, self.dilation = reference_kernel(kernel_size, dilation, dim)
        self.scale = check_field(scale, "scale", 1, dim)

    def offsets(self, samples: slice = slice(None)) -> Tensor:
        """Return scale · grid: (B, G, P, d, *out)."""
        return self.scale.unsqueeze(3) * lattice(self.kernel_size, self.dilation, samples, like=self.scale)

    def tensors(self) -> dict[str, Tensor]:
        """One number a pixel."""
        return {"scale": self.scale}
