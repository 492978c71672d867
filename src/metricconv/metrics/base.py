"""What every metric is: a value that tells, at each pixel, how long a step is."""

import dataclasses
import functools
import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from .. import _checks, _interpolation

# F is never taken smaller than this when a direction is divided by it: no sample is farther than 1e6 pixels.
SMALLEST_NORM = 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class Metric(ABC):
    """A field of norms F_x on the tangent spaces of an image, positively homogeneous and convex.

    Every tensor of a metric is (B, G, n, *spatial): B images, G groups of channels, n numbers a pixel and d spatial
    axes. Vectors are in tensor-axis order, (y, x) in 2-D, in pixels. A size of 1 along any axis but n broadcasts, so a
    constant metric is (1, 1, n, 1, 1). Numbers are float32 or wider: half precision is widened on entry.

    A new family of metrics is one subclass: its tensors as dataclass fields, ``norm``, ``dual``, ``is_positive``,
    ``scaled`` and ``bounding_radius``.
    """

    def __post_init__(self) -> None:
        tensors = {name: _checks.floating(value, name) for name, value in self.tensors().items()}
        shapes = {name: tuple(value.shape) for name, value in tensors.items()}
        axes = {len(shape) for shape in shapes.values()}
        if len(axes) > 1 or min(axes) < 4:
            raise ValueError(f"a metric's tensors must be (B, G, n, *spatial) with as many axes each, got {shapes}")
        dtype = functools.reduce(torch.promote_types, (t.dtype for t in tensors.values()), torch.float32)
        first, *others = fields = [shape[:2] + shape[3:] for shape in shapes.values()]
        if all(field == first for field in others) and all(t.dtype == dtype for t in tensors.values()):
            return  # nothing to widen or to spread
        try:
            batch, groups, *spatial = torch.broadcast_shapes(*fields)
        except RuntimeError:
            raise ValueError(f"a metric's tensors must agree in batch, groups and spatial size, got {shapes}") from None
        for name, value in tensors.items():
            object.__setattr__(self, name, value.to(dtype).expand(batch, groups, value.shape[2], *spatial))

    @abstractmethod
    def norm(self, u: Tensor) -> Tensor:
        """Return F(u) for u (B, G, d, *spatial): (B, G, *spatial); or for P vectors a pixel, (B, G, P, d, *spatial)."""

    @abstractmethod
    def dual(self) -> "Metric":
        """Return the metric of F*(v) = max {vᵀu : F(u) ≤ 1}, which measures covectors."""

    @abstractmethod
    def is_positive(self) -> Tensor:
        """Return where F(u) > 0 for every u ≠ 0: bool (B, G, *spatial)."""

    @abstractmethod
    def scaled(self, radius: float | Sequence[float]) -> Self:
        """Return the metric whose unit balls are ``radius`` times as large, along every axis or each by its own."""

    @property
    @abstractmethod
    def bounding_radius(self) -> Tensor:
        """An upper bound, in pixels, on the length of any u with F(u) ≤ 1: (B, G, *spatial)."""

    @property
    def dim(self) -> int:
        """The number d of spatial axes."""
        return self._any().dim() - 3

    @property
    def batch(self) -> int:
        """The number B of images (1 broadcasts)."""
        return self._any().shape[0]

    @property
    def groups(self) -> int:
        """The number G of metric groups (1 broadcasts)."""
        return self._any().shape[1]

    @property
    def spatial(self) -> torch.Size:
        """The size of the field of pixels (1 broadcasts)."""
        return self._any().shape[3:]

    @property
    def device(self) -> torch.device:
        """Where the numbers are."""
        return self._any().device

    @property
    def dtype(self) -> torch.dtype:
        """The numbers' type, float32 or wider."""
        return self._any().dtype

    def unit_vectors(self, directions: Tensor) -> Tensor:
        """Return y = u / F(u), the points of the unit circle in the directions (P, d): (B, G, P, d, *spatial)."""
        if directions.dim() != 2 or directions.shape[1] != self.dim:
            raise ValueError(f"`directions` must be (P, {self.dim}), got shape {tuple(directions.shape)}")
        u = directions.to(self._any()).view(1, 1, *directions.shape, *(1,) * self.dim)
        return u / self.norm(u).clamp_min(SMALLEST_NORM).unsqueeze(3)

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the metric with ``function`` applied to each of its tensors."""
        return type(self)(**{name: function(value) for name, value in self.tensors().items()})

    def expand_to(self, size: Sequence[int]) -> Self:
        """Return the metric at every pixel of an image of this size: where it has one pixel along an axis, that one.

        >>> import metricconv as mc
        >>> mc.Riemannian.isotropic(2.0).expand_to((4, 5)).spatial
        torch.Size([4, 5])
        """
        here = tuple(self.spatial)
        whole = isinstance(size, Sequence) and all(isinstance(m, numbers.Integral | torch.SymInt) for m in size)
        if (
            not whole
            or len(size) != len(here)
            or any(m < 0 or (n != m and n != 1) for n, m in zip(here, size, strict=True))
        ):
            raise ValueError(f"`size` (={size!r}) must be the metric's {here}, along axes where that is not 1")
        return self.map(lambda t: t.expand(*t.shape[:3], *size))

    @classmethod
    def cat(cls, metrics: Sequence[Self]) -> Self:
        """Return one metric for all the images of several of this class, in their order."""
        if not metrics or any(type(metric) is not cls for metric in metrics):
            kinds = [type(metric).__name__ for metric in metrics]
            raise TypeError(f"`metrics` must be one {cls.__name__} or more, got {kinds}")
        fields = [metric.tensors() for metric in metrics]
        return cls(**{name: torch.cat([f[name] for f in fields]) for name in fields[0]})

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move or convert, with the arguments of torch.Tensor.to."""
        return self.map(lambda t: t.to(*args, **kwargs))

    def detach(self) -> Self:
        """Cut from the autograd graph."""
        return self.map(Tensor.detach)

    def __getitem__(self, index: Any) -> Self:
        """Slice as a field (B, G, *spatial); an integer keeps its axis, so the result is a field again.

        Iterating over a metric goes over its images.

        >>> from metricconv import Riemannian
        >>> Riemannian(torch.ones(4, 1, 3, 8, 8))[1, :, 2:5].spatial
        torch.Size([3, 8])
        """
        index = index if isinstance(index, tuple) else (index,)
        sizes = (self.batch, self.groups, *self.spatial)
        dots = next((n for n, i in enumerate(index) if i is Ellipsis), len(index))
        missing = len(sizes) - len(index[:dots]) - len(index[dots + 1 :])
        if missing < 0:
            raise IndexError(f"a metric has {len(sizes)} axes (B, G, *spatial), got {len(index)} indices")
        full = (*index[:dots], *(slice(None),) * missing, *index[dots + 1 :])
        kept = [_keep_axis(i, size) for i, size in zip(full, sizes, strict=True)]
        return self.map(lambda t: t[(*kept[:2], slice(None), *kept[2:])])

    def at(self, position: Tensor, padding_mode: str = "border") -> Self:
        """Read the field between pixels: position (B, d, *out), in pixels.

        Interpolation is multilinear and so convex: a field that is positive at its pixels is positive between them.
        """
        _checks.one_of(padding_mode, _interpolation.PADDING_MODES[1:], "padding_mode")
        if position.dim() != self.dim + 2 or position.shape[1] != self.dim:
            raise ValueError(f"`position` must be (B, {self.dim}, *out), got shape {tuple(position.shape)}")
        if self.batch != position.shape[0] and 1 not in (self.batch, position.shape[0]):
            raise ValueError(f"`position` (batch {position.shape[0]}) must have the metric's batch {self.batch}, or 1")
        batch = self.batch if position.shape[0] == 1 else position.shape[0]
        where = position.movedim(1, -1).expand(batch, *position.shape[2:], self.dim)

        def read(field: Tensor) -> Tensor:
            field = field.expand(batch, *field.shape[1:])
            return _interpolation.interpolate(field.flatten(1, 2), where, padding_mode).unflatten(1, field.shape[1:3])

        return self.map(read)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that make the metric, by name."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def _any(self) -> Tensor:
        return getattr(self, next(iter(self.__dataclass_fields__)))


def _keep_axis(index: Any, size: int) -> Any:
    """Turn an integer index into the slice of that one place."""
    if not _checks.is_whole(index):
        return index
    index = int(index)
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of range for an axis of size {size}")
    return slice(index % size, index % size + 1)


def ball_volume(dim: int) -> float:
    """Return the volume of the Euclidean unit ball: 2, π, 4π/3, …"""
    return math.pi ** (dim / 2) / math.gamma(dim / 2 + 1)


def axis_factors(radius: float | Sequence[float], dim: int) -> list[float]:
    """Return 1/radius along each axis."""
    radii = [float(radius)] * dim if isinstance(radius, float | numbers.Real) else [float(r) for r in radius]
    if len(radii) != dim or not all(0 < r < math.inf for r in radii):
        raise ValueError(f"`radius` (={radius!r}) must be positive, one number or one for each of {dim} axes")
    return [1 / r for r in radii]


def positive_field(value: float | Tensor, dim: int, name: str) -> Tensor:
    """Turn a positive number, or a field (B, G, *spatial) of them, into a tensor that broadcasts as such a field."""
    if isinstance(value, Tensor):
        if value.dim() != dim + 2:
            raise ValueError(f"`{name}` must be a number or (B, G, *spatial), got shape {tuple(value.shape)}")
        return value.to(torch.promote_types(_checks.floating(value, name).dtype, torch.float32))
    return torch.full((1, 1, *(1,) * dim), _checks.positive(value, name))
