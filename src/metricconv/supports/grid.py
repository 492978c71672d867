"""The support of ordinary, dilated and interpolated convolutions: the same grid at each pixel."""

import dataclasses
from collections.abc import Iterable, Sequence

from torch import Tensor

from .. import _checks
from .base import Support, kernel_cells, reference_kernel

__all__ = ["Grid"]

# Upper bound of the spacing, in pixels.
_LONGEST = 1e9


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Grid(Support):
    """The regular grid of an ordinary convolution: Δ_j = spacing · c_j for the cells c_j of the kernel.

    Args:
        kernel_size: cells along each axis.
        dilation: pixels between cells, as in ``nn.Conv2d`` (default 1).
        spacing: pixels between samples, positive. Default: ``dilation``. Samples at non-integer positions are
            interpolated; the output size is determined by ``dilation``.
        dim: number of spatial axes if ``kernel_size`` is an int (default 2).
        stride: stride of the output, as in ``Support``.

    >>> Grid(3, spacing=0.5).offsets().flatten().tolist()[:6]
    [-0.5, -0.5, -0.5, 0.0, -0.5, 0.5]
    """

    kernel_size: tuple[int, ...]
    dilation: tuple[int, ...]
    spacing: tuple[float, ...]
    stride: tuple[int, ...] | None = None

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        dilation: int | Sequence[int] = 1,
        spacing: float | Sequence[float] | None = None,
        dim: int = 2,
        *,
        stride: int | Sequence[int] | None = None,
    ) -> None:
        dim = len(kernel_size) if isinstance(kernel_size, Sequence) else _checks.whole(dim, "dim", minimum=1)
        self._set(**reference_kernel(kernel_size, dilation, stride, dim))
        if spacing is None:
            spacing = self.dilation
        single = not isinstance(spacing, Iterable) or getattr(spacing, "ndim", 1) == 0
        steps = (spacing,) * dim if single else tuple(spacing)  # type: ignore[arg-type]
        if len(steps) != dim or not all(0 < _checks.number(s) <= _LONGEST for s in steps):
            raise ValueError(
                f"`spacing` (={spacing!r}) must be positive, one number or one for each of {dim} axes, "
                f"at most {_LONGEST:.0e}"
            )
        self._set(spacing=tuple(map(_checks.number, steps)))

    def offsets(self, samples: slice | None = None) -> Tensor:
        """Return the grid: (1, 1, P, d, 1, …, 1)."""
        return kernel_cells(self.kernel_size, self.spacing, samples)

    def tensors(self) -> dict[str, Tensor]:
        """Return an empty dict: a grid has no parameters per pixel."""
        return {}

    def _repr_options(self) -> dict[str, object]:
        return {} if self.spacing == self.dilation else {"spacing": self.spacing}
