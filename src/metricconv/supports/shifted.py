"""The support of a shifted ("entire deformable") convolution."""

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from .base import Support, check_field, count_output_axes, kernel_cells, reference_kernel

__all__ = ["Shifted"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Shifted(Support):
    """A grid translated by one vector per pixel: Δ_j = c_j + shift.

    Args:
        shift: translations in pixels, (B, G, d, *out), (y, x) in 2-D.
        kernel_size: cells of the reference grid along each axis.
        dilation: pixels between cells of the reference grid (default 1).
        stride: stride of the output, as in ``Support``.

    >>> import torch
    >>> Shifted(torch.full((1, 1, 2, 4, 4), 0.5), 3).offsets()[0, 0, :, :, 0, 0].tolist()[:2]
    [[-0.5, -0.5], [-0.5, 0.5]]
    """

    shift: Tensor
    kernel_size: tuple[int, ...]
    dilation: tuple[int, ...]
    stride: tuple[int, ...] | None = None

    def __init__(
        self,
        shift: Tensor,
        kernel_size: int | Sequence[int],
        dilation: int | Sequence[int] = 1,
        *,
        stride: int | Sequence[int] | None = None,
    ) -> None:
        dim = count_output_axes(shift, "shift", ("d",))
        self._set(**reference_kernel(kernel_size, dilation, stride, dim), shift=check_field(shift, "shift", dim, dim))

    def offsets(self, samples: slice | None = None) -> Tensor:
        """Return grid + shift: (B, G, P, d, *out)."""
        return self.shift.unsqueeze(2) + kernel_cells(self.kernel_size, self.dilation, samples, like=self.shift)

    def tensors(self) -> dict[str, Tensor]:
        """Return the translations, one vector per pixel."""
        return {"shift": self.shift}
