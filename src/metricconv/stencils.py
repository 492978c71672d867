"""Stencils: sampling patterns of the unit ball, as one direction u_j and one radius s_j per cell of the kernel.

Three patterns, in any dimension d:

- ``polar``: k radii {1/k, …, 1} times k^{d−1} uniformly distributed directions, without the center. In 2-D, rows of the
  kernel are radii and columns are directions.
- ``onion``: cell c of the k^d kernel lies on ring ℓ = max|c_i| and gets radius ℓ/⌊k/2⌋. The cells of a ring are
  distributed uniformly over the sphere, in their original order, so weights of an ordinary convolution keep their
  approximate position.
- ``square_onion``: cell c has its own direction c/|c| and radius |c|/⌊k/2⌋. For the metric M = I/⌊k/2⌋² the samples are
  exactly the k^d grid, including the corners, so that a converted network equals the original.

Directions are in tensor-axis order: in 2-D (y, x) = (sin θ, cos θ), where θ = 0 points right and grows downwards.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import _checks
from .metrics._integration import sphere_directions

__all__ = ["STENCILS", "Stencil", "onion", "polar", "square_onion", "stencil_factory"]

_MAX_SAMPLES = 2**20


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Stencil:
    """A sampling pattern of the unit ball: P directions and radii, in the order of a kernel's cells.

    Supports convert stencils to the dtype of the metric; those of this module are in float64.

    Args:
        directions: unit vectors u_j, (P, d).
        radii: s_j ≥ 0, (P,); 1 is the boundary of the ball.
        kernel_size: shape of the kernel, with P cells in row-major order.

    >>> half = Stencil(torch.tensor([[-1.0], [1.0], [1.0]]), torch.tensor([1.0, 0.0, 1.0]), (3,))
    >>> half
    Stencil(kernel_size=(3,), dtype=torch.float32, device='cpu')
    """

    directions: Tensor
    radii: Tensor
    kernel_size: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("directions", "radii"):
            _checks.floating(getattr(self, name), name)
        dim = len(self.kernel_size) if isinstance(self.kernel_size, Sequence) else 1
        samples = math.prod(_checks.tuple_of(self.kernel_size, dim, "kernel_size", minimum=1))
        if not isinstance(self.kernel_size, tuple):
            raise TypeError(f"`kernel_size` (={self.kernel_size!r}) must be a tuple")
        if self.directions.shape != (samples, len(self.kernel_size)) or self.radii.shape != (samples,):
            raise ValueError(
                f"`directions` and `radii` must be ({samples}, {len(self.kernel_size)}) and ({samples},) for "
                f"`kernel_size` (={self.kernel_size}), got {tuple(self.directions.shape)} and {tuple(self.radii.shape)}"
            )

    def __repr__(self) -> str:
        """Describe the stencil without values of tensors."""
        return f"Stencil(kernel_size={self.kernel_size}, dtype={self.radii.dtype}, device='{self.radii.device}')"

    @property
    def samples(self) -> int:
        """The number P of samples."""
        return self.radii.shape[0]

    @property
    def dim(self) -> int:
        """The number d of spatial axes."""
        return len(self.kernel_size)

    @property
    def requires_grad(self) -> bool:
        """Whether directions or radii require gradients, which only the reference backend computes."""
        return self.directions.requires_grad or self.radii.requires_grad

    def to(self, *args: Any, **kwargs: Any) -> "Stencil":
        """Move or convert, with the arguments of ``torch.Tensor.to``; return the same stencil if nothing changes."""
        directions, radii = self.directions.to(*args, **kwargs), self.radii.to(*args, **kwargs)
        if directions is self.directions and radii is self.radii:
            return self
        return Stencil(directions, radii, self.kernel_size)


def polar(kernel_size: int, dim: int = 2) -> Stencil:
    """Return the stencil of k radii 1/k, …, 1 with k^{d−1} directions each.

    The directions are uniformly spaced angles in 2-D, a Fibonacci spiral on the sphere in 3-D, and a quasi-random
    sequence in higher dimensions. In 1-D there are two directions with k/2 radii each.

    Args:
        kernel_size: k, at least 2; even in 1-D.
        dim: number d of spatial axes (default 2).

    >>> polar(2).radii.tolist()
    [0.5, 0.5, 1.0, 1.0]
    """
    k, dim = _checks.whole(kernel_size, "kernel_size", minimum=2), _checks.whole(dim, "dim", minimum=1)
    _check_samples((k,) * min(dim, 64))
    if dim == 1:
        if k % 2:
            raise ValueError(
                f"`kernel_size` (={k}) must be even for a polar stencil in 1-D, with k/2 samples on either side"
            )
        steps = [t for t in range(-k // 2, k // 2 + 1) if t]
        return _stencil([(math.copysign(1, t),) for t in steps], [abs(t) / (k // 2) for t in steps], (k,))
    circle: list[tuple[float, ...]]
    if dim == 2:
        circle = [(math.sin(2 * math.pi * t / k), math.cos(2 * math.pi * t / k)) for t in range(k)]
    elif dim == 3:
        circle = _fibonacci_sphere(k * k)
    else:
        circle = [tuple(u) for u in sphere_directions(k ** (dim - 1), dim).tolist()]
    radii = [(r + 1) / k for r in range(k) for _ in circle]
    return _stencil(circle * k, radii, (k,) * dim)


def onion(kernel_size: int, dim: int = 2) -> Stencil:
    """Return the stencil of concentric rings: cell c on ring ℓ = max|c_i| has radius ℓ/⌊k/2⌋.

    Its direction is that of (tan(π c_i / 4ℓ))_i: in 2-D the 8ℓ angles 2πt/8ℓ, in 3-D the equiangular cubed sphere,
    which has all symmetries of the cube.

    Args:
        kernel_size: k, odd.
        dim: number d of spatial axes (default 2).

    >>> onion(3).radii.tolist()
    [1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    """
    (half,), dim = _halves(kernel_size, 1), _checks.whole(dim, "dim", minimum=1)
    _check_samples((2 * half + 1,) * min(dim, 64))
    cells = list(itertools.product(range(-half, half + 1), repeat=dim))
    rings = [max(map(abs, c)) for c in cells]
    directions = [
        _unit([math.tan(math.pi * x / (4 * ring)) if ring else 0.0 for x in c])
        for c, ring in zip(cells, rings, strict=True)
    ]
    return _stencil(directions, [ring / max(half, 1) for ring in rings], (2 * half + 1,) * dim)


def square_onion(kernel_size: int | Sequence[int], dim: int = 2, spacing: int | Sequence[int] = 1) -> Stencil:
    """Return the stencil of the kernel's own cells c: direction c/|c| and radius |c|/⌊k/2⌋, up to √d at the corners.

    Args:
        kernel_size: k, odd; an int, or one per axis.
        dim: number d of spatial axes (default 2). It is ignored if ``kernel_size`` is a sequence.
        spacing: distance between cells, an int or one per axis (default 1). Only the ratio between axes matters: radius
            1 is that of the farthest cell along an axis.

    >>> s = square_onion(3)
    >>> (s.radii[:, None] * s.directions).round().int().tolist()[:3]
    [[-1, -1], [-1, 0], [-1, 1]]
    """
    dim = len(kernel_size) if isinstance(kernel_size, Sequence) else _checks.whole(dim, "dim", minimum=1)
    halves = _halves(kernel_size, dim)
    steps = _checks.tuple_of(spacing, dim, "spacing", minimum=1)
    cells = list(itertools.product(*(range(-h * s, h * s + 1, s) for h, s in zip(halves, steps, strict=True))))
    reach = max(max(map(max, cells)), 1)
    return _stencil(
        [_unit(c) for c in cells], [math.hypot(*c) / reach for c in cells], tuple(2 * h + 1 for h in halves)
    )


STENCILS: dict[str, Callable[[int, int], Stencil]] = {"polar": polar, "onion": onion, "square_onion": square_onion}
"""The functions from kernel size and number of spatial axes to a stencil, by name."""


def stencil_factory(stencil: str | Stencil, samples: int) -> Callable[[int], Stencil]:
    """Return the function from a number of spatial axes to a stencil.

    Args:
        stencil: a name in ``STENCILS``; or a stencil, which the function returns.
        samples: kernel size of a stencil given by name.

    >>> stencil_factory("polar", 4)(2).kernel_size
    (4, 4)
    """
    if isinstance(stencil, Stencil):
        return lambda dim: stencil
    if not isinstance(stencil, str):
        raise TypeError(f"`stencil` must be a name or a Stencil, got {type(stencil).__name__}")
    make = STENCILS[_checks.one_of(stencil, STENCILS, "stencil")]
    k = _checks.whole(samples, "samples", minimum=2) if stencil == "polar" else _checks.odd(samples, "samples")
    return lambda dim: make(k, dim)


def _halves(kernel_size: int | Sequence[int], dim: int) -> tuple[int, ...]:
    sizes = _checks.tuple_of(kernel_size, dim, "kernel_size", minimum=1)
    if any(k % 2 == 0 for k in sizes):
        raise ValueError(f"`kernel_size` (={kernel_size!r}) must be odd for an onion stencil, which has a center")
    _check_samples(sizes)
    return tuple(k // 2 for k in sizes)


def _check_samples(kernel_size: Sequence[int]) -> None:
    """Check that a stencil has not too many samples."""
    if math.prod(kernel_size) > _MAX_SAMPLES:
        raise ValueError(f"`kernel_size` and `dim` give a kernel of more than {_MAX_SAMPLES} samples")


def _unit(vector: Sequence[float]) -> tuple[float, ...]:
    """Normalize a vector; 0 becomes the last unit vector, so that F is never evaluated at 0."""
    length = math.hypot(*vector)
    return tuple(x / length for x in vector) if length else (0.0,) * (len(vector) - 1) + (1.0,)


def _fibonacci_sphere(count: int) -> list[tuple[float, ...]]:
    golden = math.pi * (3 - math.sqrt(5))
    heights = [1 - (2 * n + 1) / count for n in range(count)]
    return [
        (z, math.sqrt(1 - z * z) * math.sin(golden * n), math.sqrt(1 - z * z) * math.cos(golden * n))
        for n, z in enumerate(heights)
    ]


def _stencil(directions: Sequence[Sequence[float]], radii: Sequence[float], kernel_size: tuple[int, ...]) -> Stencil:
    # Always on the CPU: on a default device "meta" they would have no values.
    u = torch.tensor(directions, dtype=torch.float64, device="cpu")
    return Stencil(u, torch.tensor(radii, dtype=torch.float64, device="cpu"), kernel_size)
