"""The base class of parametrizations: maps from raw parameters to metrics."""

import dataclasses
import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ... import _checks
from .. import _symmetric
from ..base import SMALLEST_NORM
from ..randers import Randers
from ..riemannian import Riemannian

__all__ = ["Parametrization"]

# Raw parameters are clamped to ±this. The Cholesky ball of such parameters is smaller than 1e-4 pixels.
_SATURATION = 1e4
# δ in M = M₀ + δ tr(M₀) I. The ratio of the eigenvalues of M is then at most 1 + 1/δ.
_TRACE_FLOOR = 1e-4
# ε in n = √(‖ω‖² + ε), so that the derivative of n is finite at ω = 0.
_SQUARED_NORM_FLOOR = 1e-6
# Bound on the rounding error of F(u) in float32, relative to ‖u‖_M, at the largest ratio of eigenvalues.
_ROUNDING = 2e-3


@dataclasses.dataclass(frozen=True)
class Parametrization(ABC):
    """Base class of maps from raw parameters to positive metrics: (B, G, channels, *spatial) → metric.

    The last d channels are the raw drift ω. It is scaled to

        ω̃ = (1 − ε_ω) tanh(n/2)/n · ω,   n = √(‖ω‖²_{M⁻¹} + 10⁻⁶),

    which equals the paper's 2(1 − ε_ω)(σ(n) − ½)/n · ω and satisfies ‖ω̃‖_{M⁻¹} < 1 − ε_ω. With ε_ω = 1 there is no
    drift: these channels are absent and the metric is Riemannian. All computations are in float32 or wider.

    A new parametrization is a subclass that defines ``matrix_channels``, ``matrix``, ``matrix_identity`` and
    ``smallest_eigenvalue``.

    Args:
        dim: number d of spatial axes (default 2).
        eps_omega: ε_ω = 1 − the largest asymmetry ‖ω‖_{M⁻¹}, in (0, 1] (default 0.5). At 1 all balls are centered at
            their pixels. Below 0.002, rounding in float32 may violate F > 0 for very anisotropic balls.
        detach_factor: treat the factor of ω as a constant in the backward pass, which stabilizes training (default
            True).
    """

    dim: int = 2
    eps_omega: float = 0.5
    detach_factor: bool = True

    def __post_init__(self) -> None:
        _checks.whole(self.dim, "dim", minimum=1)
        _checks.fraction(self.eps_omega, "eps_omega")
        if self.max_reach > 1 / SMALLEST_NORM:
            raise ValueError(
                f"balls of {self} may reach {self.max_reach:.2g} pixels, more than {1 / SMALLEST_NORM:.0g}: increase "
                "`eps_omega` or the lower bound of the eigenvalues"
            )

    @property
    @abstractmethod
    def matrix_channels(self) -> int:
        """The number of channels of M."""

    @abstractmethod
    def matrix(self, raw: Tensor) -> Tensor:
        """Return M, packed as in ``Riemannian``, from its clamped channels: (B, G, matrix_channels, *spatial)."""

    @abstractmethod
    def matrix_identity(self) -> list[float]:
        """Return the raw parameters for which M = I."""

    @property
    @abstractmethod
    def smallest_eigenvalue(self) -> float:
        """A lower bound on the eigenvalues of M for all finite raw parameters."""

    @property
    def channels(self) -> int:
        """The number of raw parameters per pixel and metric group, including those of the drift."""
        return self.matrix_channels + self._drift_channels

    @property
    def max_asymmetry(self) -> float:
        """The bound 1 − ε_ω on ‖ω‖_{M⁻¹}."""
        return 1 - self.eps_omega

    @property
    def max_reach(self) -> float:
        """A bound on |u| in pixels over all unit balls {u : F(u) ≤ 1}, for all finite raw parameters.

        F(u) ≥ ε_ω ‖u‖_M ≥ ε_ω √λ_min |u|, so |u| ≤ 1/(ε_ω √λ_min), plus a margin for rounding in float32. Samples of a
        stencil with radii up to r reach r times as far; for ``square_onion``, r = √d.
        """
        least = self.eps_omega * math.sqrt(self.smallest_eigenvalue)
        return (1 + _ROUNDING / self.eps_omega) / least if least else math.inf

    def identity(self) -> Tensor:
        """Return raw parameters (channels,) for which M = I and ω = 0, in float64.

        The derivatives by all parameters are nonzero there, except by those of the frame, since a round ball has no
        axes.
        """
        return constants(self.matrix_identity() + [0.0] * self._drift_channels)

    def neutral(self) -> Tensor:
        """Return raw parameters (channels,) of 0, with which the paper's experiments start, in float64."""
        return constants([0.0] * self.channels)

    def __call__(
        self, raw: Tensor, start: Tensor | None = None, gain: Tensor | None = None, radius: float = 1
    ) -> Randers | Riemannian:
        """Return the metric of raw parameters start + gain·raw, in plain PyTorch.

        ``metricconv.ops.parametrize`` computes the same in one kernel on a GPU.

        Args:
            raw: (B, G, channels, *spatial).
            start: (channels,), such as ``identity()``. Default: 0. It is converted to the dtype of ``raw``.
            gain: tensor with one element. Default: 1.
            radius: factor that scales the unit balls (default 1).
        """
        self.check(raw, start, gain)
        radius = _checks.positive(radius, "radius")
        raw = affine(raw, start, gain).clamp(-_SATURATION, _SATURATION)
        M = self.matrix(raw[:, :, : self.matrix_channels])
        drift = self._drift(M, raw[:, :, self.matrix_channels :]) if self._drift_channels else None
        metric = Riemannian(M) if drift is None else Randers(M, drift)
        return metric if radius == 1 else metric.scaled(radius)

    def check(self, raw: Tensor, start: Tensor | None, gain: Tensor | None) -> None:
        """Check the shapes of the arguments of a call."""
        _checks.floating(raw, "raw")
        channels = self.channels
        if raw.dim() != self.dim + 3 or raw.shape[2] != channels or 0 in raw.shape[3:]:
            spatial = f"{self.dim} spatial {'axis' if self.dim == 1 else 'axes'}"
            raise ValueError(f"`raw` must be (B, G, {channels}, *spatial), {spatial}, got {tuple(raw.shape)}")
        if start is not None:
            _checks.same_values(_checks.floating(start, "start"), "start", raw)
            if tuple(start.shape) != (channels,):
                raise ValueError(f"`start` must be ({channels},), got shape {tuple(start.shape)}")
        if gain is not None:
            if _checks.floating(gain, "gain").numel() != 1:
                raise ValueError(f"`gain` must be one number, got shape {tuple(gain.shape)}")
            if gain.is_meta != raw.is_meta:
                raise ValueError(f"`gain` is on {gain.device}, `raw` on {raw.device}: one has no values")

    @property
    def _drift_channels(self) -> int:
        return 0 if self.eps_omega == 1 else self.dim

    def _drift(self, M: Tensor, omega: Tensor) -> Tensor:
        """Return the drift ω̃ of raw ω. The norm is that of M after rounding, so that the bound is satisfied exactly."""
        norm = (_symmetric.inverse_quadratic(M, omega).unsqueeze(2) + _SQUARED_NORM_FLOOR).sqrt()
        factor = self.max_asymmetry * torch.tanh(norm / 2) / norm
        return (factor.detach() if self.detach_factor else factor) * omega


def constants(values: list[float]) -> Tensor:
    """Return a tensor (n,) in float64 on the CPU, independent of the default device and dtype."""
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def affine(raw: Tensor, start: Tensor | None = None, gain: Tensor | None = None) -> Tensor:
    """Return start + gain·raw for raw (B, G, n, *spatial) and start (n,), in float32 or wider."""
    raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
    if gain is not None:
        raw = raw * gain.to(raw.dtype)
    return raw if start is None else raw + start.to(raw).view(-1, *(1,) * (raw.dim() - 3))


def absolute(raw: Tensor) -> Tensor:
    """Return |raw| with derivative 1 at 0, unlike ``torch.abs``, so that a predictor of zeros receives gradients."""
    return torch.where(raw < 0, -raw, raw)


def check_identity_exists(exists: bool, names: str, expected: str) -> None:
    """Raise an error if no raw parameters give M = I."""
    if not exists:
        raise ValueError(f"{names} must be {expected}, otherwise no parameters give M = I")
