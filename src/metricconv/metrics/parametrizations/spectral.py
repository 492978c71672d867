"""Parametrizations of a metric by a frame and eigenvalues."""

import dataclasses
import math
from abc import abstractmethod

import torch
from torch import Tensor

from ... import _checks
from .. import _symmetric
from .._frames import Frame, frame_of
from .base import absolute, check_identity_exists, constants
from .ellipsoid import _TRACE_FLOOR, EllipsoidParametrization

__all__ = ["Spectral", "Spectral6", "Spectral7"]

# Lower bound of the ratio λ' of Spectral7, whose range is centered at 1.
_EIGENVALUE_FLOOR = 0.01


@dataclasses.dataclass(frozen=True)
class Spectral(EllipsoidParametrization):
    """Base class of spectral parametrizations: M = Σ λ_k r_k r_kᵀ for a frame (r_k) and eigenvalues λ_k > 0.

    Channels: those of the frame, those of the eigenvalues, then ω.

    Args:
        dim, eps_omega, detach_factor: as in ``EllipsoidParametrization``.
        frame: representation of the frame. ``"vector"`` (2-D only): a vector r with r_1 = r/|r| and r_2 orthogonal to
            it, and a round ball at r = 0; 2 channels. ``"skew"``: exp(S) for S skew-symmetric, d(d−1)/2 channels.
            ``"givens"``: planar rotations by d(d−1)/2 angles. ``"qr"``: the orthonormal factor of a matrix, d²
            channels. Default: ``"vector"`` in 2-D and ``"qr"`` in higher dimensions, which have no angles that wrap
            around. In 1-D there is no frame.
    """

    frame: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        frame_of(self.frame, self.dim)  # raises if the frame does not support the dimension

    @abstractmethod
    def eigenvalues(self, raw: Tensor) -> Tensor:
        """Return the eigenvalues (B, G, d, *spatial) from their channels."""

    @abstractmethod
    def eigenvalue_identity(self) -> list[float]:
        """Return the raw parameters for which all eigenvalues are 1."""

    @property
    @abstractmethod
    def eigenvalue_channels(self) -> int:
        """The number of channels of the eigenvalues."""

    @property
    def frame_channels(self) -> int:
        """The number of channels of the frame."""
        return len(self._frame.start(self.dim))

    @property
    def matrix_channels(self) -> int:
        """The number of channels of the frame and the eigenvalues."""
        return self.frame_channels + self.eigenvalue_channels

    def matrix(self, raw: Tensor) -> Tensor:
        """Return λ̄ I + Σ (λ_k − λ̄) r_k r_kᵀ, packed: equal to Σ λ_k r_k r_kᵀ, and positive for degenerate frames."""
        axes = self._frame.axes(raw[:, :, : self.frame_channels], self.dim)
        eigenvalues = self.eigenvalues(raw[:, :, self.frame_channels :])
        mean = eigenvalues.mean(2, keepdim=True)
        excesses = (eigenvalues - mean).split(1, 2)
        first, *others = (excess * _symmetric.outer(axis) for excess, axis in zip(excesses, axes, strict=True))
        return sum(others, first) + mean * _symmetric.identity(first)

    def matrix_identity(self) -> list[float]:
        """Return the raw parameters of M = I: the frame of the image axes and eigenvalues 1."""
        return self._frame.start(self.dim) + self.eigenvalue_identity()

    def neutral(self) -> Tensor:
        """Return raw parameters (channels,) of 0, except for the frame of the image axes, in float64."""
        start = self._frame.start(self.dim)
        return constants(start + [0.0] * (self.channels - len(start)))

    @property
    def _frame(self) -> Frame:
        return frame_of(self.frame, self.dim)


@dataclasses.dataclass(frozen=True)
class Spectral6(Spectral):
    """Spectral parametrization with eigenvalues λ_k = μ_k + δ Σ μ_i, μ_k = |raw_k| + ε_L; δ = 10⁻⁴.

    Channels: the frame, d eigenvalues, ω. In 2-D: (r_y, r_x, λ_1, λ_2, ω_y, ω_x). λ_min(M) ≥ ε_L.

    Args:
        dim, eps_omega, detach_factor: as in ``EllipsoidParametrization``.
        frame: representation of the frame (r_k), as in ``Spectral``.
        eps_L: ε_L, in (0, 1), the lower bound of the eigenvalues (default 0.01). Smaller values allow larger balls.

    >>> spectral6 = Spectral6(eps_omega=1)
    >>> metric = spectral6(torch.tensor([0.0, 3.0, 0.24, 0.99]).view(1, 1, 4, 1, 1))
    >>> metric.unit_vectors(torch.eye(2)).flatten(2).view(2, 2).round(decimals=2)  # λ_1 = ¼ along x, λ_2 = 1 along y
    tensor([[1., 0.],
            [0., 2.]])
    """

    eps_L: float = 0.01

    def __post_init__(self) -> None:
        _checks.positive(self.eps_L, "eps_L")
        super().__post_init__()

    @property
    def eigenvalue_channels(self) -> int:
        """The number d of eigenvalues."""
        return self.dim

    def eigenvalues(self, raw: Tensor) -> Tensor:
        """Return μ_k + δ Σ μ_i with μ_k = |raw_k| + ε_L."""
        eigenvalues = absolute(raw) + self.eps_L
        return eigenvalues + _TRACE_FLOOR * eigenvalues.sum(2, keepdim=True)

    def eigenvalue_identity(self) -> list[float]:
        """Return the raw parameters of eigenvalues 1: 1/(1 + dδ) − ε_L."""
        value = 1 / (1 + self.dim * _TRACE_FLOOR) - self.eps_L
        check_identity_exists(value > 0, f"`eps_L` (={self.eps_L})", "below 1")
        return [value] * self.dim

    @property
    def smallest_eigenvalue(self) -> float:
        """The lower bound ε_L on the eigenvalues of M."""
        return self.eps_L


@dataclasses.dataclass(frozen=True)
class Spectral7(Spectral):
    """Spectral parametrization with eigenvalues λ_k = s̃ λ'_k: a bounded scale s̃ times ratios λ'_k around 1.

    λ'_k = ε + 2(1 − ε)σ(raw_k) and s̃ = s_min + σ(s)(s_max − s_min), with ε = 0.01. Channels: the frame, d eigenvalues,
    the scale s, ω. In 2-D: (r_y, r_x, λ_1, λ_2, s, ω_y, ω_x). λ_min(M) ≥ ε s_min.

    Args:
        dim, eps_omega, detach_factor: as in ``EllipsoidParametrization``.
        frame: representation of the frame (r_k), as in ``Spectral``.
        s_min: lower bound of the scale s̃, positive (default 0.1). Smaller values allow larger balls.
        s_max: upper bound of the scale s̃ (default 1.5).

    >>> spectral7 = Spectral7()
    >>> spectral7.channels, round(spectral7.max_reach)
    (7, 63)
    >>> spectral7(spectral7.identity().view(1, 1, 7, 1, 1)).M.flatten().float()
    tensor([1., 0., 1.])
    """

    s_min: float = 0.1
    s_max: float = 1.5

    def __post_init__(self) -> None:
        _checks.positive(self.s_min, "s_min")
        _checks.positive(self.s_max, "s_max")
        if self.s_max < self.s_min:
            raise ValueError(f"`s_max` (={self.s_max!r}) must be at least `s_min` (={self.s_min!r})")
        super().__post_init__()

    @property
    def eigenvalue_channels(self) -> int:
        """The number d + 1 of eigenvalues and their scale."""
        return self.dim + 1

    def eigenvalues(self, raw: Tensor) -> Tensor:
        """Return s̃ λ'_k."""
        unit = torch.sigmoid(raw)
        scale = self.s_min + (self.s_max - self.s_min) * unit[:, :, self.dim :]
        return scale * (_EIGENVALUE_FLOOR + 2 * (1 - _EIGENVALUE_FLOOR) * unit[:, :, : self.dim])

    def eigenvalue_identity(self) -> list[float]:
        """Return the raw parameters of eigenvalues 1: 0 for each axis, and the s for which s̃ = 1."""
        scales = f"`s_min` (={self.s_min}) and `s_max` (={self.s_max})"
        check_identity_exists(self.s_min < 1 < self.s_max, scales, "on either side of 1")
        return [0.0] * self.dim + [math.log((1 - self.s_min) / (self.s_max - 1))]

    @property
    def smallest_eigenvalue(self) -> float:
        """The lower bound ε s_min on the eigenvalues of M."""
        return _EIGENVALUE_FLOOR * self.s_min
