"""The base class of metrics, and checks that several metrics need."""

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

# Lower bound of F when a direction is divided by it, so that no sample is farther than 1e6 pixels.
__all__ = ["Metric", "check_positive"]

SMALLEST_NORM = 1e-6


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Metric(ABC):
    """Base class of metrics: a norm F_x at each pixel x of an image, convex and positively homogeneous.

    Metrics are immutable. Each tensor of a metric is (B, G, n, *spatial): B images, G groups of channels, n parameters
    per pixel and d spatial axes. Axes of size 1 other than n broadcast, so a constant metric is (1, 1, n, 1, 1) in 2-D.
    Tensors are float32 or wider; half precision is converted to float32. Vectors are in tensor-axis order, (y, x) in
    2-D, in pixels.

    A new metric is a frozen dataclass with its tensors as fields, and the methods ``norm``, ``dual``, ``is_positive``,
    ``scaled`` and ``bounding_radius``.
    """

    def __post_init__(self) -> None:
        tensors = {name: _checks.floating(value, name) for name, value in self.tensors().items()}
        shapes = {name: tuple(value.shape) for name, value in tensors.items()}
        axes = {len(shape) for shape in shapes.values()}
        names = ", ".join(f"`{name}`" for name in tensors)
        if len(axes) > 1 or min(axes) < 4 or any(n == 0 for shape in shapes.values() for n in shape[3:]):
            raise ValueError(f"{names} must be (B, G, n, *spatial) and have pixels, got {shapes}")
        dtype = functools.reduce(torch.promote_types, (t.dtype for t in tensors.values()), torch.float32)
        first, *others = fields = [shape[:2] + shape[3:] for shape in shapes.values()]
        if all(field == first for field in others) and all(t.dtype == dtype for t in tensors.values()):
            return  # no conversion required
        try:
            batch, groups, *spatial = torch.broadcast_shapes(*fields)
        except RuntimeError:
            raise ValueError(f"{names} must agree in batch, groups and spatial size, got {shapes}") from None
        for name, value in tensors.items():
            object.__setattr__(self, name, value.to(dtype).expand(batch, groups, value.shape[2], *spatial))

    @abstractmethod
    def norm(self, u: Tensor) -> Tensor:
        """Return F(u), (B, G, *spatial).

        Args:
            u: (B, G, d, *spatial); or P vectors per pixel, (B, G, P, d, *spatial), which give (B, G, P, *spatial).
        """

    @abstractmethod
    def dual(self) -> "Metric":
        """Return the dual metric F*(v) = max {vᵀu : F(u) ≤ 1} of covectors."""

    @abstractmethod
    def is_positive(self) -> Tensor:
        """Return where F(u) > 0 for every u ≠ 0: bool (B, G, *spatial)."""

    @abstractmethod
    def scaled(self, radius: float | Sequence[float]) -> Self:
        """Return the metric whose unit balls are larger by a factor ``radius``, a number or one per axis."""

    @property
    @abstractmethod
    def bounding_radius(self) -> Tensor:
        """An upper bound on the length |u| of all u with F(u) ≤ 1, in pixels: (B, G, *spatial)."""

    @property
    def dim(self) -> int:
        """The number d of spatial axes."""
        return self._any().dim() - 3

    @property
    def batch(self) -> int:
        """The number B of images; 1 broadcasts."""
        return self._any().shape[0]

    @property
    def groups(self) -> int:
        """The number G of metric groups; 1 broadcasts."""
        return self._any().shape[1]

    @property
    def spatial(self) -> torch.Size:
        """The spatial size of the field; 1 broadcasts."""
        return self._any().shape[3:]

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self._any().device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the tensors, float32 or wider."""
        return self._any().dtype

    def unit_vectors(self, directions: Tensor) -> Tensor:
        """Return u / F(u), the boundary points of the unit ball in given directions: (B, G, P, d, *spatial).

        Args:
            directions: (P, d), not 0, of any length.
        """
        _checks.same_values(_checks.floating(directions, "directions"), "directions", self._any())
        if directions.dim() != 2 or directions.shape[1] != self.dim:
            raise ValueError(f"`directions` must be (P, {self.dim}), got shape {tuple(directions.shape)}")
        u = directions.to(self._any()).view(1, 1, *directions.shape, *(1,) * self.dim)
        return u / self.norm(u).clamp_min(SMALLEST_NORM).unsqueeze(3)

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the metric with ``function`` applied to each of its tensors."""
        return type(self)(**{name: function(value) for name, value in self.tensors().items()})

    def expand_to(self, size: Sequence[int]) -> Self:
        """Return the metric expanded to an image of the given size, along axes of size 1.

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
            raise ValueError(
                f"`size` (={size!r}) must equal the size {here} of the metric along axes where that is not 1"
            )
        return self.map(lambda t: t.expand(*t.shape[:3], *size))

    @classmethod
    def cat(cls, metrics: Sequence[Self]) -> Self:
        """Return one metric with the images of several metrics of this class, concatenated."""
        if not metrics or any(type(metric) is not cls for metric in metrics):
            kinds = [type(metric).__name__ for metric in metrics]
            raise TypeError(f"`metrics` must be one or more {cls.__name__}, got {kinds}")
        fields = [metric.tensors() for metric in metrics]
        return cls(**{name: torch.cat([f[name] for f in fields]) for name in fields[0]})

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move or convert, with the arguments of ``torch.Tensor.to``."""
        return self.map(lambda t: t.to(*args, **kwargs))

    def detach(self) -> Self:
        """Return the metric detached from the autograd graph."""
        return self.map(Tensor.detach)

    def __getitem__(self, index: Any) -> Self:
        """Return a part of the metric, indexed as a field (B, G, *spatial). Integers keep their axis, with size 1.

        Iteration is over images.

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
        """Return the metric at given positions, (B, G, n, *out).

        Interpolation is multilinear, hence convex: a metric that is positive at its pixels is positive in between.

        Args:
            position: (B, d, *out), in pixels.
            padding_mode: "border" (default), "reflect" or "circular".
        """
        padding_mode = _checks.padding_mode(padding_mode, choices=_interpolation.PADDING_MODES[1:])
        position = _checks.same_values(_checks.floating(position, "position"), "position", self._any())
        position = position.to(torch.promote_types(position.dtype, torch.float32))
        if position.dim() != self.dim + 2 or position.shape[1] != self.dim or 0 in position.shape[2:]:
            raise ValueError(f"`position` must be (B, {self.dim}, *out), not empty, got shape {tuple(position.shape)}")
        if self.batch != position.shape[0] and 1 not in (self.batch, position.shape[0]):
            raise ValueError(
                f"`position` (batch {position.shape[0]}) must have the batch {self.batch} of the metric, or 1"
            )
        batch = self.batch if position.shape[0] == 1 else position.shape[0]
        points = position.movedim(1, -1).expand(batch, *position.shape[2:], self.dim)

        def sample(field: Tensor) -> Tensor:
            field = field.expand(batch, *field.shape[1:])
            return _interpolation.interpolate(field.flatten(1, 2), points, padding_mode).unflatten(1, field.shape[1:3])

        return self.map(sample)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the metric by name."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __repr__(self) -> str:
        """Describe the kind, shape, dtype and device of the metric, without values of tensors."""
        shape = f"batch={self.batch}, groups={self.groups}, spatial={tuple(self.spatial)}"
        return f"{type(self).__name__}({shape}, dtype={self.dtype}, device='{self.device}')"

    def check_vectors(self, u: Tensor, name: str) -> None:
        """Check that vectors are (B, G, d, *spatial) or (B, G, P, d, *spatial)."""
        _checks.same_values(_checks.floating(u, name), name, self._any())
        sizes = zip(u.shape[-self.dim :], self.spatial, strict=False)
        if (
            u.dim() not in (self.dim + 3, self.dim + 4)
            or u.shape[-self.dim - 1] != self.dim
            or any(n != m and n != 1 and m != 1 for n, m in sizes)
        ):
            expected = f"(B, G, {self.dim}, *spatial) with spatial size {tuple(self.spatial)}"
            raise ValueError(f"`{name}` must be {expected}, got shape {tuple(u.shape)}")

    def _any(self) -> Tensor:
        return getattr(self, next(iter(self.__dataclass_fields__)))


@torch.no_grad()
def check_positive(metric: Metric) -> None:
    """Raise a ValueError that names the first pixel at which a metric is not positive. Synchronizes with the device.

    Args:
        metric: any metric.

    >>> from metricconv import Riemannian
    >>> check_positive(Riemannian(torch.tensor([1.0, 2.0, 1.0]).view(1, 1, 3, 1, 1)))
    Traceback (most recent call last):
        ...
    ValueError: `metric` must be positive; it is not at index (0, 0, 0, 0) (1 such of 1 pixels): M = [1.0, 2.0, 1.0]
    """
    _checks.instance_of(metric, Metric, "metric")
    _checks.with_values(metric._any(), "metric")
    bad = ~metric.is_positive()
    if bool(bad.any()):
        b, g, *pixel = index = tuple(bad.nonzero()[0].tolist())
        values = {name: t[(b, g, slice(None), *pixel)].tolist() for name, t in metric.tensors().items()}
        raise ValueError(
            f"`metric` must be positive; it is not at index {index} ({int(bad.sum())} such of {bad.numel()} pixels): "
            + ", ".join(f"{name} = {value}" for name, value in values.items())
        )


def _keep_axis(index: Any, size: int) -> Any:
    """Convert an integer index to a slice of length 1."""
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
    radii = list(radius) if isinstance(radius, Sequence) else [radius] * dim
    if len(radii) != dim:
        raise ValueError(f"`radius` (={radius!r}) must be positive, one number or one for each of {dim} axes")
    return [1 / _checks.positive(r, "radius") for r in radii]


def scaled_covectors(covector: Tensor, radius: float | Sequence[float]) -> Tensor:
    """Return a covector field (B, G, d, *spatial) with each component divided by the radius along its axis."""
    components = covector.unbind(2)
    factors = axis_factors(radius, len(components))
    return torch.stack([x * f for x, f in zip(components, factors, strict=True)], 2)


def positive_field(value: float | Tensor, dim: int, name: str) -> Tensor:
    """Convert a positive number, or a field (B, G, *spatial), to a tensor that broadcasts with such a field."""
    if isinstance(value, Tensor):
        if _checks.floating(value, name).dim() != dim + 2:
            raise ValueError(f"`{name}` must be a number or (B, G, *spatial), got shape {tuple(value.shape)}")
        return value.to(torch.promote_types(value.dtype, torch.float32))
    return torch.full((1, 1, *(1,) * dim), _checks.positive(value, name))


def unit_field(direction: Tensor, name: str) -> Tensor:
    """Normalize a field of vectors (B, G, d, *spatial), in float32 or wider."""
    dim = _checks.floating(direction, name).dim() - 3
    if dim < 1 or direction.shape[2] != dim or not all(direction.shape[3:]):
        raise ValueError(f"`{name}` must be (B, G, d, *spatial), got shape {tuple(direction.shape)}")
    direction = direction.to(torch.promote_types(direction.dtype, torch.float32))
    return direction / torch.linalg.vector_norm(direction, dim=2, keepdim=True).clamp_min(1e-12)


def exponent_field(p: float, dim: int) -> Tensor:
    """Convert an exponent from 1 to infinity to a field of 1/p: (1, 1, 1, 1, …)."""
    return torch.full((1, 1, 1, *(1,) * dim), 1 / check_exponent(p))


def check_exponent(p: object) -> float:
    """Check that p is a number from 1 to infinity, and return it."""
    value = _checks.number(p)
    if not 1 <= value <= math.inf:
        raise ValueError(f"`p` (={p!r}) must be at least 1; infinity is allowed")
    return value
