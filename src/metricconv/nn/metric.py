"""Metric convolutions: the support is the unit ball of a metric that is predicted, computed or given."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar, Self, Unpack

import torch
from torch import Tensor, nn

from .. import _checks
from .._deprecation import renamed_arguments
from ..metrics import (
    PARAMETRIZATIONS,
    AsymmetricQuadratic,
    EllipsoidParametrization,
    HalfSpace,
    Metric,
    Orthant,
    Parametrization,
    Randers,
    Riemannian,
    _symmetric,
    image_metric,
)
from ..metrics.flow import metric_padding
from ..ops import parametrize
from ..ops.problem import OutputGrid
from ..stencils import STENCILS, Stencil, square_onion
from ..supports import GeodesicBall, Rays, Support, TangentBall
from ..supports.geodesic import default_steps
from .base import AdaptiveConv, AdaptiveOptions

__all__ = ["MetricConv", "MetricConv1d", "MetricConv2d", "MetricConv3d", "MetricOptions"]

# Largest radius of the balls of a predicted M from which geodesic balls are computed: pixels per integration step, and
# at least a multiple of the initial radius.
_PIXELS_PER_STEP, _LEAST_GROWTH = 1.5, 2.0


class MetricOptions(AdaptiveOptions, total=False):
    """Options of a metric convolution that ``from_conv`` accepts; see ``MetricConv``."""

    parametrization: str | Parametrization
    eps_omega: float | None
    stencil: str | Stencil
    radius: float | None
    metric: Metric | Callable[[Tensor], Metric] | str | None
    ball: str
    steps: int | None
    smooth: int


class MetricConv(AdaptiveConv):
    """Base class of convolutions over the unit balls of a metric: predictor (x → metric), stencil and weights.

    Use ``MetricConv1d``, ``MetricConv2d`` or ``MetricConv3d``, which have the same arguments. A subclass with
    ``dim = 4`` or more convolves hyperimages, on the reference backend.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias: as in ``nn.Conv2d``. The
            default stencil requires odd kernel sizes. ``padding="same"`` is possible with any stride: the output size
            is then ⌈input size / stride⌉, and padding that cannot be equal on both sides is larger at the end.
        padding_mode: "zeros" (default), "border" (also called "replicate", as in ``nn.Conv2d``), "reflect" or
            "circular": the values of samples outside of the input.
        parametrization: how raw parameters become a metric: "cholesky", "spectral6" and "spectral7" (default) for
            ellipses, "asymmetric" for two half-ellipses, "orthant" for boxes, "half_space" for polygons; or a
            ``Parametrization``.
        eps_omega: 1 − the largest asymmetry of ellipses, in (0, 1]. At 1 balls are centered (Riemannian) and no drift
            is predicted. Default: that of the parametrization.
        stencil: how a ball is sampled: "square_onion" (default: the identity metric gives the ordinary grid, also if
            its ball is not round), "onion", "polar", or a ``Stencil``.
        radius: radius of the balls in pixels where the predicted M is the identity. Default: the extent of the
            ordinary kernel, dilation·⌊k/2⌋.
        metric: a metric that replaces the predictor: a ``Metric``, a callable from the input to one, or "gradient",
            "edge" or "structure" for ``metrics.gradient_metric`` and so on with their default arguments. A metric of
            the input's size is interpolated at the centers of the output pixels, also if a strided output happens to
            have the same size. It is neither in ``state_dict`` nor among the parameters.
        ball: "tangent" (default), from the metric at each pixel alone, or "geodesic", from the metric around each
            pixel. Both start equal, as the identity metric is constant. The balls of M of a predicted metric are then
            limited to a radius of 1.5 pixels per step, or 2·``radius`` if that is larger: through longer steps,
            gradients grow exponentially where the metric differs from pixel to pixel, and training collapses.
        steps: integration steps per ray of a geodesic ball; see ``GeodesicBall``.
        smooth: how many times the metric is smoothed before geodesic balls are computed (default 1); see
            ``GeodesicBall``.
        metric_groups: number of groups of input channels, each with its own metric (default 1).
        learn_weight: False fixes the kernel to the mean over samples and channels; it is then a buffer.
        modulation: True multiplies each sample, at each pixel, by a predicted factor in (0, 2) that starts at 1.
        backend: "auto" (default), "triton", "cpu" or "reference", as in ``support_conv``.
        device, dtype: of the parameters, as in ``nn.Conv2d``; the geometry is computed in float32 or wider.

    >>> conv = MetricConv2d(16, 32, 3, padding=1)
    >>> conv(torch.randn(2, 16, 8, 8)).shape
    torch.Size([2, 32, 8, 8])
    """

    @renamed_arguments(parametrisation="parametrization")
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        parametrization: str | Parametrization = "spectral7",
        eps_omega: float | None = None,
        stencil: str | Stencil = "square_onion",
        radius: float | None = None,
        metric: Metric | Callable[[Tensor], Metric] | str | None = None,
        ball: str = "tangent",
        steps: int | None = None,
        smooth: int = 1,
        metric_groups: int = 1,
        learn_weight: bool = True,
        modulation: bool = False,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            metric_groups=metric_groups,
            learn_weight=learn_weight,
            modulation=modulation,
            backend=backend,
            device=device,
            dtype=dtype,
        )
        self.metric = _resolve_metric(metric)
        self.parametrization: Parametrization | None = None
        if metric is None:
            self.parametrization = self._parametrization(parametrization, eps_omega)
        self.stencil = self._stencil(stencil)
        self._stencil_name = stencil if isinstance(stencil, str) else "given"
        self.ball = _checks.one_of(ball, ("tangent", "geodesic"), "ball")
        if self.ball == "geodesic" and isinstance(self.parametrization, Orthant | HalfSpace):
            raise ValueError(
                f"`ball` (='geodesic') does not support {type(self.parametrization).__name__} metrics: gradients of "
                "geodesics need second derivatives of the dual norm, which boxes and polytopes lack"
            )
        self.smooth = _checks.whole(smooth, "smooth", minimum=0)
        if steps is not None and ball == "tangent":
            raise ValueError(f"`steps` (={steps!r}) requires ball='geodesic'")
        if self.smooth != 1 and ball == "tangent":
            raise ValueError(f"`smooth` (={smooth!r}) requires ball='geodesic'")
        self.rays = Rays.of(self.stencil) if ball == "geodesic" else None
        self.steps = steps if steps is None else _checks.whole(steps, "steps", minimum=1)
        extent = max(d * (k // 2) for d, k in zip(self.dilation, self.kernel_size, strict=True))
        self.radius = float(max(extent, 1)) if radius is None else _checks.positive(radius, "radius")
        if self.parametrization is not None:
            self.add_predictor(self.parametrization.identity())
        else:
            for name, value, default in (
                ("modulation", self.modulation, False),
                ("metric_groups", self.metric_groups, 1),
                ("parametrization", parametrization, "spectral7"),
                ("eps_omega", eps_omega, None),
                ("radius", radius, None),
            ):
                if value != default:
                    raise ValueError(f"`{name}` (={value}) has no effect when `metric` is given")
        self.sync_constants()

    @classmethod
    @renamed_arguments(parametrisation="parametrization")
    def from_conv(cls, conv: nn.Conv1d | nn.Conv2d | nn.Conv3d, **geometry: Unpack[MetricOptions]) -> Self:
        """Return a metric convolution that shares the weights of ``conv``; see ``AdaptiveConv.from_conv``."""
        return cls._from_conv(conv, geometry)

    def make_support(self, predicted: Tensor) -> TangentBall | GeodesicBall:
        """Return the unit balls of the predicted metric."""
        assert self.parametrization is not None
        metric = parametrize(
            self.parametrization, predicted, self.identity, self.geometry_gain, self.radius, backend=self.backend
        )
        return self._unit_balls(metric if self.rays is None else self._limited(metric))

    def predict_support(self, x: Tensor) -> tuple[Support, Tensor | None]:
        """Return the unit balls of all output pixels, and the modulation (B, G, P, *out) or None."""
        if self.metric is None:
            return super().predict_support(x)
        self.check_input(x)
        return self._unit_balls(self._metric_of(self.pad_input(x))), None

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
        """Move the identity, the stencil and a given metric."""
        super().move_constants(device)
        # Apple's GPUs have no float64.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self.stencil = self.stencil.to(device, dtype)
        self.rays = None if self.rays is None else self.rays.to(device, dtype)
        if isinstance(self.metric, Metric):
            self.metric = self.metric.to(device)

    def _unit_balls(self, metric: Metric) -> TangentBall | GeodesicBall:
        if self.rays is None or not len(self.rays.vectors):  # one central sample: both kinds of ball are equal
            return TangentBall(metric, self.stencil, self.dilation, stride=self.stride)
        return GeodesicBall(
            metric,
            self.rays,
            self.steps,
            self.smooth,
            dilation=self.dilation,
            stride=self.stride,
            padding_mode=metric_padding(self.padding_mode),
        )

    def _limited(self, metric: Metric) -> Metric:
        """Return the weighted mean of a metric and the initial one for which no ball of M exceeds the largest radius.

        With a = (radius / largest radius)², this is (1 − a)M + aI/radius² and (1 − a)ω, which is positive if (M, ω) is.
        Metrics without M, of boxes and polygons, are returned unchanged.
        """
        if not isinstance(metric, Riemannian | Randers | AsymmetricQuadratic):
            return metric
        steps = default_steps(self.kernel_size) if self.steps is None else self.steps
        largest = max(_PIXELS_PER_STEP * steps, _LEAST_GROWTH * self.radius)
        share = (self.radius / largest) ** 2
        tensors = {name: (1 - share) * field for name, field in metric.tensors().items()}
        tensors["M"] = tensors["M"] + _symmetric.identity(tensors["M"]) / largest**2
        return type(metric)(**tensors)

    def _metric_of(self, x: Tensor) -> Metric:
        """Return the given metric, or the one computed from the input, at the output pixels."""
        metric = self.metric if isinstance(self.metric, Metric) else self.metric(x)  # type: ignore[misc]
        if not isinstance(metric, Metric):
            raise TypeError(f"`metric` must return a Metric, got {type(metric).__name__}")
        grid = OutputGrid(tuple(x.shape[2:]), self.kernel_size, self.dilation, self.stride, self.padding)
        # With stride 1 and equal sizes the centers of the output pixels are the input pixels.
        if metric.spatial == x.shape[2:] and (max(self.stride) > 1 or grid.size != x.shape[2:]):
            like = next(iter(metric.tensors().values()))
            metric = metric.at(grid.centers(like).unsqueeze(0))
        return metric

    def _stencil(self, stencil: str | Stencil) -> Stencil:
        if isinstance(stencil, Stencil):
            if stencil.kernel_size != self.kernel_size:
                raise ValueError(
                    f"`stencil` has kernel size {stencil.kernel_size}; `kernel_size` (={self.kernel_size}) must agree"
                )
            return stencil
        if _checks.one_of(stencil, STENCILS, "stencil") == "square_onion":
            return self._identity_grid(square_onion(self.kernel_size, self.dim, self.dilation))
        if len(set(self.kernel_size)) > 1:
            raise ValueError(f"`kernel_size` (={self.kernel_size}) must be equal along all axes for {stencil!r}")
        return STENCILS[stencil](self.kernel_size[0], self.dim)

    def _identity_grid(self, stencil: Stencil) -> Stencil:
        """Return the stencil whose samples in the identity metric are the ordinary grid, as for a round ball."""
        if self.parametrization is None or isinstance(self.parametrization, EllipsoidParametrization):
            return stencil
        ones = (1,) * self.dim
        identity = self.parametrization(self.parametrization.identity().view(1, 1, -1, *ones))
        length = identity.norm(stencil.directions.view(1, 1, *stencil.directions.shape, *ones)).flatten()
        return dataclasses.replace(stencil, radii=stencil.radii * length)

    def _parametrization(self, parametrization: str | Parametrization, eps_omega: float | None) -> Parametrization:
        if isinstance(parametrization, Parametrization):
            if eps_omega is not None:
                raise ValueError(f"`eps_omega` (={eps_omega}) must be set in `parametrization` (={parametrization})")
            if parametrization.dim != self.dim:
                raise ValueError(f"`parametrization` (={parametrization}) must have {self.dim} spatial axes")
            return parametrization
        _checks.one_of(parametrization, PARAMETRIZATIONS, "parametrization")
        default = PARAMETRIZATIONS[parametrization](dim=self.dim)
        if eps_omega is None:
            return default
        if not isinstance(default, EllipsoidParametrization):
            raise ValueError(f"`eps_omega` (={eps_omega}) has no effect on `parametrization` (={parametrization!r})")
        return dataclasses.replace(default, eps_omega=eps_omega)


class MetricConv1d(MetricConv):
    """Metric convolution of signals, (B, C_in, L) → (B, C_out, L_out): balls are intervals.

    Arguments as in ``MetricConv``; the output size is that of ``nn.Conv1d``.
    """

    dim: ClassVar[int] = 1

    @classmethod
    def from_conv1d(cls, conv: nn.Conv1d, **geometry: Unpack[MetricOptions]) -> Self:
        """Return a metric convolution that starts equal to ``conv`` and shares its weights."""
        return cls.from_conv(conv, **geometry)


class MetricConv2d(MetricConv):
    """Metric convolution of images, (B, C_in, H, W) → (B, C_out, H_out, W_out): balls are ellipses.

    Arguments as in ``MetricConv``; the output size is that of ``nn.Conv2d``.
    """

    dim: ClassVar[int] = 2

    @classmethod
    def from_conv2d(cls, conv: nn.Conv2d, **geometry: Unpack[MetricOptions]) -> Self:
        """Return a metric convolution that starts equal to ``conv`` and shares its weights.

        >>> conv = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        >>> x = torch.randn(1, 4, 9, 9)
        >>> torch.allclose(MetricConv2d.from_conv2d(conv)(x), conv(x), atol=1e-5)
        True
        """
        return cls.from_conv(conv, **geometry)


class MetricConv3d(MetricConv):
    """Metric convolution of volumes, (B, C_in, D, H, W) → (B, C_out, D_out, H_out, W_out): balls are ellipsoids.

    Arguments as in ``MetricConv``; the output size is that of ``nn.Conv3d``.
    """

    dim: ClassVar[int] = 3

    @classmethod
    def from_conv3d(cls, conv: nn.Conv3d, **geometry: Unpack[MetricOptions]) -> Self:
        """Return a metric convolution that starts equal to ``conv`` and shares its weights."""
        return cls.from_conv(conv, **geometry)


def _resolve_metric(
    metric: Metric | Callable[[Tensor], Metric] | str | None,
) -> Metric | Callable[[Tensor], Metric] | None:
    """Return the function that a name stands for; anything else must be a metric, a callable or None."""
    if isinstance(metric, str):
        return image_metric(metric)
    if metric is None or isinstance(metric, Metric) or callable(metric):
        return metric
    raise TypeError(f"`metric` must be a Metric, a function of the input or a name, got {type(metric).__name__}")
