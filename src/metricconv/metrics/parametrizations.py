"""From raw numbers, such as the output of a convolution, to a metric that is positive whatever they are.

Three ways to write the matrix M, each followed by d numbers for the drift ω:

- ``Cholesky``: M = LLᵀ from the d(d+1)/2 entries of L (the paper's 5 numbers in 2-D).
- ``Spectral6``: M from a frame and d eigenvalues (6 numbers in 2-D).
- ``Spectral7``: the same, with the scale of the eigenvalues apart and bounded (7 numbers in 2-D).

Every finite input, float32's largest numbers included, gives a metric with F > 0 and ‖ω‖_{M⁻¹} ≤ 1 − ε_ω, a ball of
bounded reach and finite derivatives. For that, what the paper leaves free is bounded: raw numbers count up to ±10⁴, and
the eigenvalues of M keep within a ratio of 10⁴ (balls at most 100 times as long as wide), far enough from what float32
cannot tell from a singular matrix.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from .. import _checks
from . import _symmetric
from ._frames import Frame, frame_of
from .base import SMALLEST_NORM, Metric
from .randers import Randers
from .riemannian import Riemannian

# Raw numbers beyond ±this are read as this: a Cholesky ball is by then smaller than 1e-4 pixels.
_SATURATION = 1e4
# δ in M = M₀ + δ tr(M₀) I. The ratio of M's eigenvalues is then at most 1 + 1/δ.
_TRACE_FLOOR = 1e-4
# The least λ' of Spectral7; it is 1 in the middle.
_EIGENVALUE_FLOOR = 0.01
# ε in n = √(‖ω‖² + ε): the derivative of the norm is finite at ω = 0.
_SQUARED_NORM_FLOOR = 1e-6
# What float32 may take from F(u), as a part of ‖u‖_M, at the largest ratio of eigenvalues.
_ROUNDING = 2e-3


@dataclasses.dataclass(frozen=True)
class Parametrization(ABC):
    """A map from raw numbers, any, to a metric, positive: (B, G, channels, *spatial) → ``Randers`` or ``Riemannian``.

    The last d channels are the raw drift ω. It is shortened to

        ω̃ = (1 − ε_ω) tanh(n/2)/n · ω,   n = √(‖ω‖²_{M⁻¹} + 10⁻⁶),

    which is the paper's 2(1 − ε_ω)(σ(n) − ½)/n · ω and has ‖ω̃‖_{M⁻¹} < 1 − ε_ω. With ε_ω = 1 there is no drift: these
    channels are absent and the metric is Riemannian. The maths is done in float32 or wider.

    A new parametrization is one subclass: how M is made, and the least eigenvalue it can have.

    Args:
        dim: the number d of spatial axes.
        eps_omega: in (0, 1], the part of ‖u‖_M that the drift leaves to F(u); 1 keeps every ball centred on its pixel.
            Below 0.002 it is no more than float32's rounding, which may then undo F > 0 for the thinnest balls.
        detach_factor: take the factor that shortens ω for a constant when differentiating, which steadies training.
    """

    dim: int = 2
    eps_omega: float = 0.5
    detach_factor: bool = True

    def __post_init__(self) -> None:
        _checks.whole(self.dim, "dim", minimum=1)
        _checks.share(self.eps_omega, "eps_omega")
        if self.max_reach > 1 / SMALLEST_NORM:
            raise ValueError(
                f"{self} lets samples lie {self.max_reach:.2g} pixels away, farther than {1 / SMALLEST_NORM:.0g}: "
                "raise `eps_omega`, or what bounds the eigenvalues from below"
            )

    @property
    @abstractmethod
    def matrix_channels(self) -> int:
        """How many raw numbers M takes."""

    @abstractmethod
    def matrix(self, raw: Tensor) -> Tensor:
        """Return M, packed as ``Riemannian`` wants it, from its own channels, saturated: (B, G, matrix_channels, …)."""

    @abstractmethod
    def matrix_identity(self) -> list[float]:
        """Return the raw numbers for which M = I."""

    @property
    @abstractmethod
    def smallest_eigenvalue(self) -> float:
        """A lower bound on the eigenvalues of M for every raw input."""

    @property
    def channels(self) -> int:
        """How many raw numbers a pixel and metric group takes, drift included."""
        return self.matrix_channels + self._drift_channels

    @property
    def max_asymmetry(self) -> float:
        """The bound 1 − ε_ω on ‖ω‖_{M⁻¹}."""
        return 1 - self.eps_omega

    @property
    def max_reach(self) -> float:
        """The distance, in pixels, that no point of any unit ball {u : F(u) ≤ 1} exceeds, whatever the raw input.

        F(u) ≥ ε_ω ‖u‖_M ≥ ε_ω √λ_min |u|, so |u| ≤ 1/(ε_ω √λ_min); a little is added for float32's rounding. A stencil
        whose radii go up to r reaches r times as far: the square onion's corners, √d times.
        """
        return (1 + _ROUNDING / self.eps_omega) / (self.eps_omega * math.sqrt(self.smallest_eigenvalue))

    def identity(self) -> Tensor:
        """Return raw numbers (channels,) for which M = I and ω = 0, where every number that can matter has a slope.

        They are in float64. Given as ``start``, they are rounded to the dtype of the numbers that they are added to.
        """
        return constants(self.matrix_identity() + [0.0] * self._drift_channels)

    def neutral(self) -> Tensor:
        """Return the raw numbers (channels,) of a silent head: zeros, where the paper's experiments start."""
        return constants([0.0] * self.channels)

    def __call__(
        self, raw: Tensor, start: Tensor | None = None, gain: Tensor | None = None, radius: float = 1
    ) -> Metric:
        """Return the metric of raw numbers, in one kernel where an engine has it.

        Args:
            raw: (B, G, channels, *spatial).
            start: (channels,), what is added to them.
            gain: one number, what they are multiplied with before that.
            radius: the unit balls are made so many times as large.
        """
        self._check(raw, start, gain)
        if not torch.compiler.is_compiling():  # a compiler fuses the formulas by itself
            for fused in FUSED:
                metric = fused(self, raw, start, gain, radius)
                if metric is not None:
                    return metric
        return self._formula(raw, start, gain, radius)

    def formula(
        self, raw: Tensor, start: Tensor | None = None, gain: Tensor | None = None, radius: float = 1
    ) -> Randers | Riemannian:
        """Return the same in plain PyTorch, with derivatives of any order."""
        self._check(raw, start, gain)
        return self._formula(raw, start, gain, radius)

    def _formula(self, raw: Tensor, start: Tensor | None, gain: Tensor | None, radius: float) -> Randers | Riemannian:
        raw = affine(raw, start, gain).clamp(-_SATURATION, _SATURATION)
        M = self.matrix(raw[:, :, : self.matrix_channels])
        drift = self._drift(M, raw[:, :, self.matrix_channels :]) if self._drift_channels else None
        metric = Riemannian(M) if drift is None else Randers(M, drift)
        return metric if radius == 1 else metric.scaled(radius)

    def _check(self, raw: Tensor, start: Tensor | None, gain: Tensor | None) -> None:
        _checks.floating(raw, "raw")
        if raw.dim() != self.dim + 3 or raw.shape[2] != self.channels:
            spatial = f"{self.dim} spatial {'axis' if self.dim == 1 else 'axes'}"
            raise ValueError(f"`raw` must be (B, G, {self.channels}, *spatial), {spatial}, got {tuple(raw.shape)}")
        if start is not None and tuple(start.shape) != (self.channels,):
            raise ValueError(f"`start` must be ({self.channels},), got shape {tuple(start.shape)}")
        if gain is not None and gain.numel() != 1:
            raise ValueError(f"`gain` must be one number, got shape {tuple(gain.shape)}")

    @property
    def _drift_channels(self) -> int:
        return 0 if self.eps_omega == 1 else self.dim

    def _drift(self, M: Tensor, omega: Tensor) -> Tensor:
        """Shorten ω by its norm in M⁻¹, taken of M as rounded: so its rounding cannot break the bound."""
        norm = (_symmetric.inverse_quadratic(M, omega).unsqueeze(2) + _SQUARED_NORM_FLOOR).sqrt()
        factor = self.max_asymmetry * torch.tanh(norm / 2) / norm
        return (factor.detach() if self.detach_factor else factor) * omega


@dataclasses.dataclass(frozen=True)
class Cholesky(Parametrization):
    """M = LLᵀ + δ tr(LLᵀ) I, from L's lower triangle, with |L_ii| + ε_L on its diagonal; δ = 10⁻⁴.

    Channels: L row by row, then ω. In 2-D: (L_yy, L_xy, L_xx, ω_y, ω_x).

    Without the second term balls have no largest size: that of L = (1 0 ; t 1) reaches about t pixels. With it, for
    λ_1 ≤ … ≤ λ_d the eigenvalues of LLᵀ, the inequality of the means and det LLᵀ ≥ ε_L^{2d} give

        λ_min(M) ≥ λ_1 + δ(λ_2 + … + λ_d) ≥ d (δ^{d−1} λ_1⋯λ_d)^{1/d} ≥ d δ^{1−1/d} ε_L².

    Args:
        dim, eps_omega, detach_factor: as in ``Parametrization``.
        eps_L: ε_L, in (0, 1): the least entry on the diagonal of L. Balls grow as it falls.

    >>> five = Cholesky()
    >>> metric = five(torch.tensor([0.99, 0.0, 0.49, 0.0, 0.0]).view(1, 1, 5, 1, 1))
    >>> metric.unit_vectors(torch.eye(2)).flatten(2).view(2, 2).round(decimals=2)  # 1 px along y, 2 px along x
    tensor([[1., 0.],
            [0., 2.]])
    """

    eps_omega: float = 0.1
    detach_factor: bool = False
    eps_L: float = 0.01

    def __post_init__(self) -> None:
        _checks.positive(self.eps_L, "eps_L")
        super().__post_init__()

    @property
    def matrix_channels(self) -> int:
        """d(d+1)/2."""
        return len(_symmetric.pairs(self.dim))

    def matrix(self, raw: Tensor) -> Tensor:
        """Return LLᵀ + δ tr(LLᵀ) I."""
        rows = [row.unbind(2) for row in raw.split([i + 1 for i in range(self.dim)], 2)]
        rows = [(*row[:-1], _magnitude(row[-1]) + self.eps_L) for row in rows]
        products = [_symmetric.sum_of_products(rows[i], rows[j][: i + 1]) for i, j in _symmetric.pairs(self.dim)]
        trace = sum(entry.square() for row in rows for entry in row)
        floors = [_TRACE_FLOOR * trace if i == j else 0 for i, j in _symmetric.pairs(self.dim)]
        return torch.stack([product + floor for product, floor in zip(products, floors, strict=True)], 2)

    def matrix_identity(self) -> list[float]:
        """Return L_ii = (1 + dδ)^{−1/2} − ε_L, and 0 below the diagonal."""
        diagonal = (1 + self.dim * _TRACE_FLOOR) ** -0.5 - self.eps_L
        _check_reaches_identity(diagonal > 0, f"`eps_L` (={self.eps_L})", "below 1")
        return [diagonal if i == j else 0.0 for i in range(self.dim) for j in range(i + 1)]

    @property
    def smallest_eigenvalue(self) -> float:
        """d δ^{1−1/d} ε_L²."""
        return self.dim * _TRACE_FLOOR ** (1 - 1 / self.dim) * self.eps_L**2


@dataclasses.dataclass(frozen=True)
class Spectral(Parametrization):
    """M = Σ λ_k r_k r_kᵀ, from a frame (r_k) and eigenvalues λ_k > 0, to be said by a subclass.

    Channels: the frame's, the eigenvalues', then ω.

    Args:
        frame: how the frame is written. ``"vector"`` (2-D only): a vector r, so that r_1 = r/|r| and r_2 is across it,
            with a round ball at r = 0; 2 numbers. ``"skew"``: exp(S) for S skew-symmetric, d(d−1)/2 numbers.
            ``"givens"``: planar rotations, d(d−1)/2 angles. ``"qr"``: the orthonormal factor of any matrix, d² numbers.
            By default ``"vector"`` in 2-D and ``"qr"`` beyond: neither jumps where an angle would wrap around. In 1-D
            there is nothing to rotate, and no frame.
    """

    frame: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        frame_of(self.frame, self.dim)  # refuses a frame that does not suit

    @abstractmethod
    def eigenvalues(self, raw: Tensor) -> Tensor:
        """Return the eigenvalues (B, G, d, *spatial) from their own channels."""

    @abstractmethod
    def eigenvalue_identity(self) -> list[float]:
        """Return the raw numbers for which each eigenvalue is 1."""

    @property
    @abstractmethod
    def eigenvalue_channels(self) -> int:
        """How many raw numbers the eigenvalues take."""

    @property
    def frame_channels(self) -> int:
        """How many raw numbers the frame takes."""
        return len(self._frame.start(self.dim))

    @property
    def matrix_channels(self) -> int:
        """The frame's numbers and the eigenvalues'."""
        return self.frame_channels + self.eigenvalue_channels

    def matrix(self, raw: Tensor) -> Tensor:
        """Return λ̄ I + Σ (λ_k − λ̄) r_k r_kᵀ: the same, and positive where the frame is degenerate."""
        axes = self._frame.axes(raw[:, :, : self.frame_channels], self.dim)
        eigenvalues = self.eigenvalues(raw[:, :, self.frame_channels :])
        mean = eigenvalues.mean(2, keepdim=True)
        excesses = (eigenvalues - mean).split(1, 2)
        first, *others = (excess * _symmetric.outer(axis) for excess, axis in zip(excesses, axes, strict=True))
        return sum(others, first) + mean * _symmetric.identity(first)

    def matrix_identity(self) -> list[float]:
        """Return the frame of the image's axes and unit eigenvalues."""
        return self._frame.start(self.dim) + self.eigenvalue_identity()

    def neutral(self) -> Tensor:
        """Return zeros but for the frame, which has no slope there."""
        start = self._frame.start(self.dim)
        return constants(start + [0.0] * (self.channels - len(start)))

    @property
    def _frame(self) -> Frame:
        return frame_of(self.frame, self.dim)


@dataclasses.dataclass(frozen=True)
class Spectral6(Spectral):
    """Eigenvalues λ_k = μ_k + δ Σ μ_i, with μ_k = |raw_k| + ε_L ; δ = 10⁻⁴.

    Channels: the frame, d eigenvalues, ω. In 2-D: (r_y, r_x, λ_1, λ_2, ω_y, ω_x). λ_min(M) ≥ ε_L.

    Args:
        dim, eps_omega, detach_factor: as in ``Parametrization``.
        frame: how (r_k) is written, as in ``Spectral``.
        eps_L: ε_L, in (0, 1): the least eigenvalue. Balls grow as it falls.

    >>> six = Spectral6(eps_omega=1)
    >>> metric = six(torch.tensor([0.0, 3.0, 0.24, 0.99]).view(1, 1, 4, 1, 1))
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
        """One an axis."""
        return self.dim

    def eigenvalues(self, raw: Tensor) -> Tensor:
        """Return |raw_k| + ε_L, plus δ times their sum."""
        eigenvalues = _magnitude(raw) + self.eps_L
        return eigenvalues + _TRACE_FLOOR * eigenvalues.sum(2, keepdim=True)

    def eigenvalue_identity(self) -> list[float]:
        """Return 1/(1 + dδ) − ε_L for each axis."""
        value = 1 / (1 + self.dim * _TRACE_FLOOR) - self.eps_L
        _check_reaches_identity(value > 0, f"`eps_L` (={self.eps_L})", "below 1")
        return [value] * self.dim

    @property
    def smallest_eigenvalue(self) -> float:
        """ε_L."""
        return self.eps_L


@dataclasses.dataclass(frozen=True)
class Spectral7(Spectral):
    """Eigenvalues λ_k = s̃ λ'_k, with λ' = ε + 2(1 − ε)σ(raw_k) around 1 and s̃ in [s_min, s_max].

    s̃ = s_min + σ(s)(s_max − s_min), and ε = 0.01. Channels: the frame, d eigenvalues, the scale s, ω. In 2-D:
    (r_y, r_x, λ_1, λ_2, s, ω_y, ω_x). λ_min(M) ≥ ε s_min.

    Args:
        dim, eps_omega, detach_factor: as in ``Parametrization``.
        frame: how (r_k) is written, as in ``Spectral``.
        s_min: the least scale of the eigenvalues; balls grow as it falls.
        s_max: the largest.

    >>> seven = Spectral7()
    >>> seven.channels, round(seven.max_reach)
    (7, 63)
    >>> seven(seven.identity().view(1, 1, 7, 1, 1)).M.flatten().float()
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
        """One an axis, and their scale."""
        return self.dim + 1

    def eigenvalues(self, raw: Tensor) -> Tensor:
        """Return s̃ λ'_k."""
        unit = torch.sigmoid(raw)
        scale = self.s_min + (self.s_max - self.s_min) * unit[:, :, self.dim :]
        return scale * (_EIGENVALUE_FLOOR + 2 * (1 - _EIGENVALUE_FLOOR) * unit[:, :, : self.dim])

    def eigenvalue_identity(self) -> list[float]:
        """Return 0 for each axis, and the s for which s̃ = 1."""
        scales = f"`s_min` (={self.s_min}) and `s_max` (={self.s_max})"
        _check_reaches_identity(self.s_min < 1 < self.s_max, scales, "on either side of 1")
        return [0.0] * self.dim + [math.log((1 - self.s_min) / (self.s_max - 1))]

    @property
    def smallest_eigenvalue(self) -> float:
        """ε s_min."""
        return _EIGENVALUE_FLOOR * self.s_min


# Engines that turn raw numbers into a metric in one kernel; each returns None for what it does not compute.
FUSED: list[Callable[[Parametrization, Tensor, Tensor | None, Tensor | None, float], Metric | None]] = []

PARAMETRIZATIONS: dict[str, type[Parametrization]] = {
    "cholesky": Cholesky,
    "spectral6": Spectral6,
    "spectral7": Spectral7,
}


def constants(numbers: list[float]) -> Tensor:
    """Return numbers (n,) in float64 on the CPU, whatever the default device and dtype."""
    return torch.tensor(numbers, dtype=torch.float64, device="cpu")


def affine(raw: Tensor, start: Tensor | None = None, gain: Tensor | None = None) -> Tensor:
    """Return start + gain·raw for raw (B, G, n, *spatial) and start (n,), in float32 or wider."""
    raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
    if gain is not None:
        raw = raw * gain.to(raw.dtype)
    return raw if start is None else raw + start.to(raw).view(-1, *(1,) * (raw.dim() - 3))


def _magnitude(raw: Tensor) -> Tensor:
    """Return |raw|, with slope 1 at 0 where torch's has none: a head that predicts zeros can still learn."""
    return torch.where(raw < 0, -raw, raw)


def _check_reaches_identity(reached: bool, names: str, expected: str) -> None:
    if not reached:
        raise ValueError(f"{names} must be {expected} for M = I to be among the metrics")
