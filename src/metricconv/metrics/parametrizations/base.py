"""The base class of parametrizations: maps from raw parameters to metrics."""

import dataclasses
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ... import _checks
from ..base import SMALLEST_NORM, Metric

__all__ = ["Parametrization"]

# Raw parameters are clamped to ±this. The Cholesky ball of such parameters is smaller than 1e-4 pixels.
_SATURATION = 1e4


@dataclasses.dataclass(frozen=True)
class Parametrization(ABC):
    """Base class of maps from raw parameters to positive metrics: (B, G, channels, *spatial) → metric.

    All finite raw parameters give a positive metric, balls within ``max_reach`` and finite derivatives. Computations
    are in float32 or wider.

    A new parametrization is a subclass that defines ``channels``, ``identity``, ``max_reach`` and ``metric``; for the
    metrics ``Riemannian`` and ``Randers``, one of ``EllipsoidParametrization``.

    Args:
        dim: number d of spatial axes (default 2).
    """

    dim: int = 2

    def __post_init__(self) -> None:
        _checks.whole(self.dim, "dim", minimum=1)
        if self.max_reach > 1 / SMALLEST_NORM:
            raise ValueError(f"balls of {self} may reach {self.max_reach:.2g} pixels, {self._reach_limit}")

    @property
    @abstractmethod
    def channels(self) -> int:
        """The number of raw parameters per pixel and metric group."""

    @property
    @abstractmethod
    def max_reach(self) -> float:
        """A bound on |u| in pixels over all unit balls {u : F(u) ≤ 1}, for all finite raw parameters."""

    @abstractmethod
    def identity(self) -> Tensor:
        """Return the raw parameters (channels,) with which layers start, in float64.

        The unit ball has extent 1 along the axes of the image. It is round unless a fixed exponent prevents it.
        """

    def neutral(self) -> Tensor:
        """Return raw parameters (channels,) of 0, with which the paper's experiments start, in float64."""
        return constants([0.0] * self.channels)

    @abstractmethod
    def metric(self, raw: Tensor) -> Metric:
        """Return the metric of raw parameters (B, G, channels, *spatial), which are float32 or wider and clamped."""

    def __call__(
        self, raw: Tensor, start: Tensor | None = None, gain: Tensor | None = None, radius: float = 1
    ) -> Metric:
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
        metric = self.metric(affine(raw, start, gain).clamp(-_SATURATION, _SATURATION))
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
    def _reach_limit(self) -> str:
        """The end of the error message if the reach is too large."""
        return f"more than {1 / SMALLEST_NORM:.0g}"


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
