"""How the reference ball is sampled: directions u_j and radii s_j, one pair for each cell of the kernel.

Three samplings, in any dimension:

- ``polar``: radii {1/k, …, 1} times evenly spread directions; no centre. Row = radius, column = direction.
- ``onion``: cell c of the k^d kernel lies on ring ℓ = max|c_i| and gets radius ℓ/⌊k/2⌋; the cells of a ring are spread
  evenly over the sphere, in their own order, so the weights of an ordinary convolution keep their meaning.
- ``square_onion``: cell c keeps its own direction c/|c| and radius |c|/⌊k/2⌋. On the metric M = I/⌊k/2⌋² it *is* the
  k^d grid, corners included; it makes a converted network equal to the original.

Directions are in tensor-axis order: in 2-D (y, x) = (sin θ, cos θ), θ = 0 points right and grows downwards.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import _checks


@dataclasses.dataclass(frozen=True, eq=False)
class Stencil:
    """The samples of a reference ball, kept in float64 and rounded where they meet a metric.

    Args:
        directions: unit vectors u_j, (P, d).
        radii: s_j ≥ 0, (P,); 1 is the ball's boundary.
        kernel_size: the shape of the kernel whose cells, row by row, the samples are; P in all.
    """

    directions: Tensor
    radii: Tensor
    kernel_size: tuple[int, ...]

    def __post_init__(self) -> None:
        samples = math.prod(self.kernel_size)
        if self.directions.shape != (samples, len(self.kernel_size)) or self.radii.shape != (samples,):
            raise ValueError(
                f"`directions` and `radii` must be ({samples}, {len(self.kernel_size)}) and ({samples},) for "
                f"`kernel_size` (={self.kernel_size}), got {tuple(self.directions.shape)} and {tuple(self.radii.shape)}"
            )

    @property
    def samples(self) -> int:
        """The number P of samples."""
        return self.radii.shape[0]

    @property
    def dim(self) -> int:
        """The number d of spatial axes."""
        return len(self.kernel_size)

    @property
    def learns(self) -> bool:
        """Whether directions or radii want gradients, which the reference engine alone has."""
        return self.directions.requires_grad or self.radii.requires_grad

    def to(self, *args: Any, **kwargs: Any) -> "Stencil":
        """Move or convert, with the arguments of torch.Tensor.to; return the stencil itself if nothing changes."""
        directions, radii = self.directions.to(*args, **kwargs), self.radii.to(*args, **kwargs)
        if directions is self.directions and radii is self.radii:
            return self
        return Stencil(directions, radii, self.kernel_size)


def polar(kernel_size: int, dim: int = 2) -> Stencil:
    """Sample k = ``kernel_size`` radii and, on each, k^{d−1} directions.

    These are even angles in 2-D, and a Fibonacci spiral on the sphere in 3-D. In 1-D there are two directions only, so
    k must be even: k/2 radii on either side.

    >>> polar(2).radii.tolist()
    [0.5, 0.5, 1.0, 1.0]
    """
    k = _checks.whole(kernel_size, "kernel_size", minimum=2)  # a single direction would be no ball but a shift
    if dim == 1:
        if k % 2:
            raise ValueError(
                f"`kernel_size` (={k}) must be even for a polar stencil in 1-D: as many samples on either side"
            )
        steps = [t for t in range(-k // 2, k // 2 + 1) if t]
        return _stencil([(math.copysign(1, t),) for t in steps], [abs(t) / (k // 2) for t in steps], (k,))
    circle: list[tuple[float, ...]]
    if dim == 2:
        circle = [(math.sin(2 * math.pi * t / k), math.cos(2 * math.pi * t / k)) for t in range(k)]
    elif dim == 3:
        circle = _fibonacci_sphere(k * k)
    else:
        raise ValueError(f"`dim` (={dim}) must be 1, 2 or 3 for a polar stencil")
    radii = [(r + 1) / k for r in range(k) for _ in circle]
    return _stencil(circle * k, radii, (k,) * dim)


def onion(kernel_size: int, dim: int = 2) -> Stencil:
    """Peel the k^d kernel, k = ``kernel_size`` odd, into rings, each spread evenly over a sphere.

    A cell c on ring ℓ gets the direction of (tan(π c_i / 4ℓ))_i: in 2-D the 8ℓ even angles 2πt/8ℓ, in 3-D the
    equiangular cubed sphere, which keeps all symmetries of the cube.

    >>> onion(3).radii.tolist()
    [1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    """
    (half,), dim = _halves(kernel_size, 1), _checks.whole(dim, "dim", minimum=1)
    cells = list(itertools.product(range(-half, half + 1), repeat=dim))
    rings = [max(map(abs, c)) for c in cells]
    directions = [
        _unit([math.tan(math.pi * x / (4 * ring)) if ring else 0.0 for x in c])
        for c, ring in zip(cells, rings, strict=True)
    ]
    return _stencil(directions, [ring / max(half, 1) for ring in rings], (2 * half + 1,) * dim)


def square_onion(kernel_size: int | Sequence[int], dim: int = 2, spacing: int | Sequence[int] = 1) -> Stencil:
    """Let each cell keep its own direction and distance: radius |c| / ⌊k/2⌋, so corners reach √d (k odd, any per axis).

    Where ``kernel_size`` is one int for each axis, these are counted and ``dim`` is not read. Cells may lie farther
    apart along one axis than along another, by ``spacing``; only its proportions matter, as a radius of 1 is the
    farthest cell's along an axis.

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


# By name: (kernel_size, dim) → stencil.
STENCILS: dict[str, Callable[[int, int], Stencil]] = {"polar": polar, "onion": onion, "square_onion": square_onion}


def chosen(stencil: str | Stencil, samples: int) -> Callable[[int], Stencil]:
    """Return how a number of dimensions becomes a stencil: the one of a name, samples^d, or the one that is given."""
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
        raise ValueError(f"`kernel_size` (={kernel_size!r}) must be odd for an onion stencil: it has a centre")
    return tuple(k // 2 for k in sizes)


def _unit(vector: Sequence[float]) -> tuple[float, ...]:
    """Normalise; the centre, whose radius is 0, gets the last axis so that F never sees a zero vector."""
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
    # On the CPU whatever the default device, which may be the meta device, where they would have no values.
    u = torch.tensor(directions, dtype=torch.float64, device="cpu")
    return Stencil(u, torch.tensor(radii, dtype=torch.float64, device="cpu"), kernel_size)
