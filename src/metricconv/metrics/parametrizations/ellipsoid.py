"""The base class of parametrizations of Riemannian and Randers metrics."""

import dataclasses
import math
from abc import abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ... import _checks
from .. import _symmetric
from ..base import SMALLEST_NORM
from ..randers import Randers
from ..riemannian import Riemannian
from .base import Parametrization, constants

__all__ = ["EllipsoidParametrization"]

# δ in M = M₀ + δ tr(M₀) I. The ratio of the eigenvalues of M is then at most 1 + 1/δ.
_TRACE_FLOOR = 1e-4
# ε in n = √(‖ω‖² + ε), so that the derivative of n is finite at ω = 0.
_SQUARED_NORM_FLOOR = 1e-6
# Bound on the rounding error of F(u) in float32, relative to ‖u‖_M, at the largest ratio of eigenvalues.
_ROUNDING = 2e-3


@dataclasses.dataclass(frozen=True)
class EllipsoidParametrization(Parametrization):
    """Base class of maps from raw parameters to Riemannian and Randers metrics: (B, G, channels, *spatial) → metric.

    The last d channels are the raw drift ω. It is scaled to

        ω̃ = (1 − ε_ω) tanh(n/2)/n · ω,   n = √(‖ω‖²_{M⁻¹} + 10⁻⁶),

    which equals the paper's 2(1 − ε_ω)(σ(n) − ½)/n · ω and satisfies ‖ω̃‖_{M⁻¹} < 1 − ε_ω. With ε_ω = 1 there is no
    drift: these channels are absent and the metric is Riemannian.

    A new parametrization is a subclass that defines ``matrix_channels``, ``matrix``, ``matrix_identity`` and
    ``smallest_eigenvalue``.

    Args:
        dim: number d of spatial axes (default 2).
        eps_omega: ε_ω = 1 − the largest asymmetry ‖ω‖_{M⁻¹}, in (0, 1] (default 0.5). At 1 all balls are centered at
            their pixels. Below 0.002, rounding in float32 may violate F > 0 for very anisotropic balls.
        detach_factor: treat the factor of ω as a constant in the backward pass, which stabilizes training (default
            True).
    """

    eps_omega: float = 0.5
    detach_factor: bool = True

    def __post_init__(self) -> None:
        _checks.fraction(self.eps_omega, "eps_omega")
        super().__post_init__()

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

    def metric(self, raw: Tensor) -> Randers | Riemannian:
        """Return the metric of clamped raw parameters."""
        M = self.matrix(raw[:, :, : self.matrix_channels])
        return Randers(M, self._drift(M, raw[:, :, self.matrix_channels :])) if self._drift_channels else Riemannian(M)

    if TYPE_CHECKING:  # a narrower type than that of the base class

        def __call__(
            self, raw: Tensor, start: Tensor | None = None, gain: Tensor | None = None, radius: float = 1
        ) -> Randers | Riemannian: ...

    @property
    def _reach_limit(self) -> str:
        limit = f"more than {1 / SMALLEST_NORM:.0g}"
        return f"{limit}: increase `eps_omega` or the lower bound of the eigenvalues"

    @property
    def _drift_channels(self) -> int:
        return 0 if self.eps_omega == 1 else self.dim

    def _drift(self, M: Tensor, omega: Tensor) -> Tensor:
        """Return the drift ω̃ of raw ω. The norm is that of M after rounding, so that the bound is satisfied exactly."""
        norm = (_symmetric.inverse_quadratic(M, omega).unsqueeze(2) + _SQUARED_NORM_FLOOR).sqrt()
        factor = self.max_asymmetry * torch.tanh(norm / 2) / norm
        return (factor.detach() if self.detach_factor else factor) * omega
