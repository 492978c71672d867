"""Metric convolutions: the support is the unit ball of a metric that is predicted, computed or given."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from .. import _checks
from ..metrics import PARAMETRIZATIONS, Metric, Parametrization
from ..metrics.flow import metric_padding
from ..ops.problem import OutputGrid
from ..stencils import STENCILS, Stencil, square_onion
from ..supports import GeodesicBall, Rays, Support, TangentBall
from .base import AdaptiveConv


class MetricConv(AdaptiveConv):
    """A convolution over the unit balls of a metric: predictor (x → metric) + stencil + weights.

    Args:
        *args, **options: see ``AdaptiveConv``: those of ``nn.Conv2d``, then ``metric_groups``, ``learn_weight``,
            ``modulation``, ``init`` and ``backend``.
        parametrization: how predicted numbers become a metric: "cholesky", "spectral6", "spectral7", or a
            ``Parametrization`` of your own.
        eps_omega: 1 − the largest asymmetry, in (0, 1]. At 1 balls are centred (Riemannian) and no drift is predicted.
        stencil: how a ball is sampled: "square_onion" (default: the identity metric is the ordinary grid), "onion",
            "polar", or a ``Stencil``.
        radius: the balls' radius in pixels where the predicted M is the identity. By default the reach of the ordinary
            kernel, dilation·⌊k/2⌋; with ``init="paper"``, 1.
        metric: a metric instead of a predictor: a ``Metric``, or a callable from the input to one. Given on the grid
            of the input, it is read at the centres of the output's pixels. One of the input's size is taken for that
            even where a strided output has the same size. It is the user's: neither in ``state_dict`` nor among the
            parameters.
        ball: "tangent", of the metric at each pixel alone, or "geodesic", of the metric as it changes around it. They
            start alike, as the identity metric is the same everywhere.
        steps: of the integrator along each ray of a geodesic ball; see ``GeodesicBall``.
        smooth: how many times the metric is smoothed before geodesic balls are found; see ``GeodesicBall``.

    >>> conv = MetricConv2d(16, 32, 3, padding=1)
    >>> conv(torch.randn(2, 16, 8, 8)).shape
    torch.Size([2, 32, 8, 8])
    """

    def __init__(
        self,
        *args: Any,
        parametrization: str | Parametrization = "spectral7",
        eps_omega: float | None = None,
        stencil: str | Stencil = "square_onion",
        radius: float | None = None,
        metric: Metric | Callable[[Tensor], Metric] | None = None,
        ball: str = "tangent",
        steps: int | None = None,
        smooth: int = 1,
        device: torch.device | str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, device=device, **options)
        self.stencil = self._stencil(stencil)
        self._stencil_name = stencil if isinstance(stencil, str) else "given"
        self.ball = _checks.one_of(ball, ("tangent", "geodesic"), "ball")
        if steps is not None and ball == "tangent":
            raise ValueError(f"`steps` (={steps!r}) are those of geodesics: they need ball='geodesic'")
        if smooth != 1 and ball == "tangent":
            raise ValueError(f"`smooth` (={smooth!r}) is for geodesics: it needs ball='geodesic'")
        self.rays = Rays.of(self.stencil) if ball == "geodesic" else None
        self.steps = steps if steps is None else _checks.whole(steps, "steps", minimum=1)
        self.smooth = _checks.whole(smooth, "smooth", minimum=0)
        paper = self.init == "paper"
        reach = max(d * (k // 2) for d, k in zip(self.dilation, self.kernel_size, strict=True))
        self.radius = float(1 if paper else max(reach, 1)) if radius is None else _checks.positive(radius, "radius")
        if metric is not None and not isinstance(metric, Metric) and not callable(metric):
            raise TypeError(f"`metric` must be a Metric or a function of the input, got {type(metric).__name__}")
        self.metric: Metric | Callable[[Tensor], Metric] | None = metric
        self.parametrization: Parametrization | None = None
        if metric is None:
            self.parametrization = self._parametrization(parametrization, eps_omega)
            self.add_predictor(self.parametrization.neutral() if paper else self.parametrization.identity())
        else:
            for name, value, usual in (
                ("modulation", self.modulation, False),
                ("metric_groups", self.metric_groups, 1),
                ("parametrization", parametrization, "spectral7"),
                ("eps_omega", eps_omega, None),
                ("radius", radius, None),
            ):
                if value != usual:
                    raise ValueError(f"`{name}` (={value}) is of predicted metrics: it cannot go with a given `metric`")
        self.follow_weights()

    def make_support(self, predicted: Tensor) -> TangentBall | GeodesicBall:
        """Return the unit balls of the predicted metric."""
        assert self.parametrization is not None
        read = self.parametrization.formula if self.backend == "reference" else self.parametrization
        return self._balls(read(predicted, self.identity, self.geometry_gain, self.radius))

    def predict_support(self, x: Tensor) -> tuple[Support, Tensor | None]:
        """Return the unit balls at each output pixel, and the modulation if there is one."""
        if self.metric is None:
            return super().predict_support(x)
        self.check_input(x)
        return self._balls(self._given(x)).with_stride(self.stride), None

    def extra_repr(self) -> str:
        """Describe the layer in a printed model."""
        if self.metric is None:
            text = f"{super().extra_repr()}, {self.parametrization}, radius={self.radius}"
        else:
            text = f"{super().extra_repr()}, metric={getattr(self.metric, '__name__', type(self.metric).__name__)}"
        text += f", stencil={self._stencil_name!r}" if self._stencil_name != "square_onion" else ""
        if self.ball == "geodesic":
            text += ", ball='geodesic'" + (f", steps={self.steps}" if self.steps is not None else "")
            text += f", smooth={self.smooth}" if self.smooth != 1 else ""
        return text

    def move_constants(self, device: torch.device) -> None:
        """Move the stencil and a given metric."""
        super().move_constants(device)
        # Apple's GPUs have no float64.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self.stencil = self.stencil.to(device, dtype)
        self.rays = None if self.rays is None else self.rays.to(device, dtype)
        if isinstance(self.metric, Metric):
            self.metric = self.metric.to(device)

    def _balls(self, metric: Metric) -> TangentBall | GeodesicBall:
        if self.rays is None or not len(self.rays.vectors):  # of one sample alone, balls of both kinds are the same
            return TangentBall(metric, self.stencil, self.dilation)
        return GeodesicBall(
            metric,
            self.rays,
            self.steps,
            self.smooth,
            dilation=self.dilation,
            stride=self.stride,
            padding_mode=metric_padding(self.padding_mode),
        )

    def _given(self, x: Tensor) -> Metric:
        metric = self.metric if isinstance(self.metric, Metric) else self.metric(x)  # type: ignore[misc]
        if not isinstance(metric, Metric):
            raise TypeError(f"`metric` must give a Metric, got {type(metric).__name__}")
        grid = OutputGrid(tuple(x.shape[2:]), self.kernel_size, self.dilation, self.stride, self.padding)
        # An output of stride 1 and the input's size has its centres at the input's pixels.
        if metric.spatial == x.shape[2:] and (max(self.stride) > 1 or grid.size != x.shape[2:]):
            like = next(iter(metric.tensors().values()))
            metric = metric.at(grid.centres(like).unsqueeze(0))
        return metric

    def _stencil(self, stencil: str | Stencil) -> Stencil:
        if isinstance(stencil, Stencil):
            if stencil.kernel_size != self.kernel_size:
                raise ValueError(
                    f"`stencil` has kernel size {stencil.kernel_size}; `kernel_size` (={self.kernel_size}) must agree"
                )
            return stencil
        if _checks.one_of(stencil, STENCILS, "stencil") == "square_onion":
            return square_onion(self.kernel_size, self.dim, self.dilation)
        if len(set(self.kernel_size)) > 1:
            raise ValueError(f"`kernel_size` (={self.kernel_size}) must be equal along all axes for {stencil!r}")
        return STENCILS[stencil](self.kernel_size[0], self.dim)

    def _parametrization(self, parametrization: str | Parametrization, eps_omega: float | None) -> Parametrization:
        if isinstance(parametrization, Parametrization):
            if eps_omega is not None:
                raise ValueError(f"`eps_omega` (={eps_omega}) must be set in `parametrization` (={parametrization})")
            if parametrization.dim != self.dim:
                raise ValueError(f"`parametrization` (={parametrization}) must have {self.dim} spatial axes")
            return parametrization
        _checks.one_of(parametrization, PARAMETRIZATIONS, "parametrization")
        made = PARAMETRIZATIONS[parametrization](dim=self.dim)
        return made if eps_omega is None else dataclasses.replace(made, eps_omega=eps_omega)


class MetricConv1d(MetricConv):
    """A metric convolution of signals (B, C, L): balls are intervals around each sample. See ``MetricConv``."""

    dim: ClassVar[int] = 1

    @classmethod
    def from_conv1d(cls, conv: nn.Conv1d, **geometry: Any) -> Self:
        """Return a metric convolution that starts equal to ``conv`` and shares its weights."""
        return cls.from_conv(conv, **geometry)


class MetricConv2d(MetricConv):
    """A metric convolution of images (B, C, H, W): balls are ellipses around each pixel. See ``MetricConv``."""

    dim: ClassVar[int] = 2

    @classmethod
    def from_conv2d(cls, conv: nn.Conv2d, **geometry: Any) -> Self:
        """Return a metric convolution that starts equal to ``conv`` and shares its weights.

        >>> conv = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        >>> x = torch.randn(1, 4, 9, 9)
        >>> torch.allclose(MetricConv2d.from_conv2d(conv)(x), conv(x), atol=1e-5)
        True
        """
        return cls.from_conv(conv, **geometry)


class MetricConv3d(MetricConv):
    """A metric convolution of volumes (B, C, D, H, W): balls are ellipsoids around each voxel. See ``MetricConv``."""

    dim: ClassVar[int] = 3

    @classmethod
    def from_conv3d(cls, conv: nn.Conv3d, **geometry: Any) -> Self:
        """Return a metric convolution that starts equal to ``conv`` and shares its weights."""
        return cls.from_conv(conv, **geometry)
