"""The support of a convolution with one dilation factor per pixel."""

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from .base import Support, check_field, count_output_axes, kernel_cells, reference_kernel

__all__ = ["Dilated"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dilated(Support):
    """A grid scaled about its center by one factor per pixel: Δ_j = scale · c_j.

    Args:
        scale: factors, (B, G, 1, *out).
        kernel_size: cells of the reference grid along each axis.
        dilation: pixels between cells of the reference grid (default 1).
        stride: stride of the output, as in ``Support``.

    >>> import torch
    >>> Dilated(torch.full((1, 1, 1, 4, 4), 1.5), 3).offsets()[0, 0, :, :, 0, 0].tolist()[:2]
    [[-1.5, -1.5], [-1.5, 0.0]]
    """

    scale: Tensor
    kernel_size: tuple[int, ...]
    dilation: tuple[int, ...]
    stride: tuple[int, ...] | None = None

    def __init__(
        self,
        scale: Tensor,
        kernel_size: int | Sequence[int],
        dilation: int | Sequence[int] = 1,
        *,
        stride: int | Sequence[int] | None = None,
    ) -> None:
        dim = count_output_axes(scale, "scale", ("1",))
        self._set(**reference_kernel(kernel_size, dilation, stride, dim), scale=check_field(scale, "scale", 1, dim))

    def offsets(self, samples: slice | None = None) -> Tensor:
        """Return scale · grid: (B, G, P, d, *out)."""
        return self.scale.unsqueeze(3) * kernel_cells(self.kernel_size, self.dilation, samples, like=self.scale)

    def tensors(self) -> dict[str, Tensor]:
        """Return the factors, one per pixel."""
        return {"scale": self.scale}
