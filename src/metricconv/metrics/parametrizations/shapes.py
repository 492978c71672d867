"""Parametrizations of metrics whose unit balls are not ellipsoids."""

import dataclasses
import math

import torch
from torch import Tensor

from ... import _checks
from .._frames import bounded_rotation
from .._symmetric import planes
from ..asymmetric import AsymmetricQuadratic
from ..base import check_exponent
from ..half_space import HalfSpaceGauge, covering_cosine, half_space_normals
from ..orthant import OrthantNorm
from .base import Parametrization, constants
from .spectral import Spectral7

__all__ = ["Asymmetric", "HalfSpace", "Orthant"]

# δ in w = r/(|r|² + δ²)^{1/4}. At the identity r = δ, and F differs from the round norm by less than this.
_LEAST_COMPRESSION = 1e-6
# Bound on the reach relative to that without rounding errors of float32.
_ROUNDING = 1 + 1e-3


@dataclasses.dataclass(frozen=True)
class Asymmetric(Parametrization):
    """Two half-ellipsoids, ``AsymmetricQuadratic``: M as in ``Spectral7`` and w = r / √|r| for d channels r.

    So (wᵀu)₊² is proportional to |r|, and the side towards r is shorter by √(1 + |r|) for M = I. Unlike w, r has
    nonzero derivatives at the identity, where it is 10⁻⁶ along the last axis.

    Channels: the frame, d eigenvalues and their scale, r. In 2-D: (r_y, r_x, λ_1, λ_2, s, r_y, r_x).

    Args:
        dim, frame, s_min, s_max: as in ``Spectral7``.

    >>> asymmetric = Asymmetric()
    >>> metric = asymmetric(
    ...     asymmetric.identity().view(1, 1, 7, 1, 1) + torch.tensor([0, 0, 0, 0, 0, 0, 3.0]).view(7, 1, 1)
    ... )
    >>> metric.unit_vectors(torch.tensor([[0.0, 1.0], [0.0, -1.0]]).double())[0, 0, :, 1].flatten().float()
    tensor([ 0.5000, -1.0000])
    """

    frame: str | None = None
    s_min: float = 0.1
    s_max: float = 1.5

    @property
    def ellipsoid(self) -> Spectral7:
        """The parametrization of M."""
        return Spectral7(self.dim, 1.0, frame=self.frame, s_min=self.s_min, s_max=self.s_max)

    @property
    def channels(self) -> int:
        """The number of channels of M and of r."""
        return self.ellipsoid.channels + self.dim

    @property
    def max_reach(self) -> float:
        """The reach of the balls of M, which contain the unit balls."""
        return self.ellipsoid.max_reach

    def identity(self) -> Tensor:
        """Return raw parameters (channels,) for which M = I and |w|² < 10⁻⁶, in float64."""
        return torch.cat([self.ellipsoid.identity(), constants([0.0] * (self.dim - 1) + [_LEAST_COMPRESSION])])

    def neutral(self) -> Tensor:
        """Return raw parameters (channels,) of 0, except for the frame of the image axes and r, in float64."""
        return torch.cat([self.ellipsoid.neutral(), constants([0.0] * (self.dim - 1) + [_LEAST_COMPRESSION])])

    def metric(self, raw: Tensor) -> AsymmetricQuadratic:
        """Return the metric of clamped raw parameters."""
        matrix, r = raw.tensor_split([self.ellipsoid.channels], 2)
        w = r * (r.square().sum(2, keepdim=True) + _LEAST_COMPRESSION**2).pow(-0.25)
        return AsymmetricQuadratic(self.ellipsoid.matrix(matrix), w)


@dataclasses.dataclass(frozen=True)
class Orthant(Parametrization):
    """A box with 2d extents in a rotated frame, ``OrthantNorm``, whose exponent is predicted too, or fixed.

    Rotations are by less than 75° in each plane, extents a_k = e^{t tanh(raw/t)} with t = log(max_extent), and
    1/p = σ(raw): p = 2 at raw = 0, diamonds for large raw, boxes for small.

    Channels: d(d−1)/2 rotations, a_1, …, a_d, b_1, …, b_d, and 1/p unless ``p`` is given. In 2-D:
    (rotation, a_y, a_x, b_y, b_x, 1/p).

    Args:
        dim: number d of spatial axes (default 2).
        p: exponent, from 1 to infinity. Default: None, predicted.
        max_extent: bound on the extents and their inverses, above 1 (default 16).

    >>> orthant = Orthant()
    >>> orthant.channels, Orthant(p=float("inf")).channels
    (6, 5)
    """

    p: float | None = None
    max_extent: float = 16.0

    def __post_init__(self) -> None:
        _check_options(self.p, self.max_extent)
        super().__post_init__()

    @property
    def channels(self) -> int:
        """The number of channels of the rotation, the extents and 1/p."""
        return len(planes(self.dim)) + 2 * self.dim + (self.p is None)

    @property
    def max_reach(self) -> float:
        """The distance of the farthest corner, √d times the largest extent."""
        return _ROUNDING * math.sqrt(self.dim) * self.max_extent

    def identity(self) -> Tensor:
        """Return raw parameters (channels,) of 0, for which all extents are 1, in float64."""
        return self.neutral()

    def metric(self, raw: Tensor) -> OrthantNorm:
        """Return the metric of clamped raw parameters."""
        rotation, extents, exponent = raw.tensor_split([len(planes(self.dim)), len(planes(self.dim)) + 2 * self.dim], 2)
        frame = bounded_rotation(rotation, self.dim)
        return OrthantNorm(frame, _bounded_exp(extents, self.max_extent), _inverse_p(self.p, exponent, raw))


@dataclasses.dataclass(frozen=True)
class HalfSpace(Parametrization):
    """A polytope with fixed normals and rounded corners, ``HalfSpaceGauge``, whose exponent is predicted too, or fixed.

    Extents are h_k = h e^{t tanh(raw/t)} with t = log(max_extent) and the h for which the ball at raw = 0 is round with
    radius 1, if p = 2 there. 1/p = σ(raw): p = 2 at raw = 0, polytopes for small raw.

    Channels: K extents, and 1/p unless ``p`` is given. In 2-D: those of angles 0°, 45°, …, 315°, and 1/p.

    Args:
        dim: number d of spatial axes (default 2).
        p: exponent, from 1 to infinity. Default: None, predicted.
        max_extent: bound on h_k/h and its inverse, above 1 (default 16).
        half_spaces: K, even, as in ``half_space_normals``. Default: 3^d − 1.

    >>> half_space = HalfSpace()
    >>> metric = half_space(torch.zeros(1, 1, 9, 1, 1))
    >>> metric.norm(torch.tensor([0.6, 0.8]).view(1, 1, 2, 1, 1)).item()
    1.0
    """

    p: float | None = None
    max_extent: float = 16.0
    half_spaces: int | None = None

    def __post_init__(self) -> None:
        _check_options(self.p, self.max_extent)
        _checks.whole(self.dim, "dim", minimum=1)
        if self.half_spaces is not None:
            _checks.whole(self.half_spaces, "half_spaces", minimum=2)
        half_space_normals(self._count, self.dim)  # raises if there are no such normals
        if self._count % 2:
            raise ValueError(f"`half_spaces` (={self.half_spaces}) must be even, so that the identity is a round ball")
        super().__post_init__()

    @property
    def channels(self) -> int:
        """The number of channels of the extents and 1/p."""
        return self._count + (self.p is None)

    @property
    def max_reach(self) -> float:
        """The largest extent divided by the smallest cosine of an angle to a normal."""
        return _ROUNDING * self._round_extent * self.max_extent / covering_cosine(self._count, self.dim)

    def identity(self) -> Tensor:
        """Return raw parameters (channels,) of 0, for which all extents are equal, in float64."""
        return self.neutral()

    def metric(self, raw: Tensor) -> HalfSpaceGauge:
        """Return the metric of clamped raw parameters."""
        extents, exponent = raw.tensor_split([self._count], 2)
        sizes = self._round_extent * _bounded_exp(extents, self.max_extent)
        return HalfSpaceGauge(sizes, _inverse_p(self.p, exponent, raw))

    @property
    def _count(self) -> int:
        return 3**self.dim - 1 if self.half_spaces is None else self.half_spaces

    @property
    def _round_extent(self) -> float:
        """h for which Σ (n_kᵀu)₊² / h² = |u|²."""
        return math.sqrt(self._count / (2 * self.dim))


def _check_options(p: float | None, max_extent: float) -> None:
    if p is not None:
        check_exponent(p)
    if not _checks.positive(max_extent, "max_extent") > 1:
        raise ValueError(f"`max_extent` (={max_extent!r}) must be above 1")


def _bounded_exp(raw: Tensor, bound: float) -> Tensor:
    """Return e^raw, bounded smoothly by ``bound`` and its inverse."""
    largest = math.log(bound)
    return torch.exp(largest * torch.tanh(raw / largest))


def _inverse_p(p: float | None, raw: Tensor, like: Tensor) -> Tensor:
    """Return 1/p of a fixed exponent, or of its channel."""
    if p is None:
        return torch.sigmoid(raw)
    return like.new_full((1, 1, 1, *(1,) * (like.dim() - 3)), 1 / p)
