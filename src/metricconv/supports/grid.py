"""The support of ordinary, dilated and interpolated convolutions: the same grid everywhere."""

import numbers
from collections.abc import Iterable, Sequence

from torch import Tensor

from .. import _checks
from .base import Support, lattice, reference_kernel


class Grid(Support):
    """The k×k grid of an ordinary convolution.

    Args:
        kernel_size: cells along each axis.
        dilation: whole pixels between cells, as in ``nn.Conv2d``.
        spacing: pixels between samples, if other than ``dilation``: any positive number. Samples then fall between
            pixels and are interpolated, while the output's size stays that of ``dilation``.
        dim: spatial axes, where ``kernel_size`` is one int.

    >>> Grid(3, spacing=0.5).offsets().flatten().tolist()[:6]
    [-0.5, -0.5, -0.5, 0.0, -0.5, 0.5]
    """

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        dilation: int | Sequence[int] = 1,
        spacing: float | Sequence[float] | None = None,
        dim: int = 2,
    ) -> None:
        dim = len(kernel_size) if isinstance(kernel_size, Sequence) else _checks.whole(dim, "dim", minimum=1)
        self.kernel_size, self.dilation = reference_kernel(kernel_size, dilation, dim)
        if spacing is None:
            spacing = self.dilation
        steps = tuple(spacing) if isinstance(spacing, Iterable) else (spacing,) * dim
        real = all(isinstance(s, float | numbers.Real) for s in steps)  # NumPy's numbers too
        if len(steps) != dim or not real or not all(0 < s < float("inf") for s in steps):
            raise ValueError(f"`spacing` (={spacing!r}) must be positive, one number or one for each of {dim} axes")
        self.spacing = tuple(map(float, steps))

    def offsets(self, samples: slice = slice(None)) -> Tensor:
        """Return the grid: (1, 1, P, d, 1, …, 1)."""
        return lattice(self.kernel_size, self.spacing, samples)

    def tensors(self) -> dict[str, Tensor]:
        """A grid has no numbers a pixel."""
        return {}
