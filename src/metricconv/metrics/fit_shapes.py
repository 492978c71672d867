"""Fitting metrics of any family to the sampling locations of a support."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import _checks
from ._frames import LARGEST_ANGLE
from .base import SMALLEST_NORM, Metric
from .fit import SupportLike, fit_randers, read_samples
from .half_space import HalfSpaceGauge
from .parametrizations import Asymmetric, Orthant, Parametrization

__all__ = ["FIT_FAMILIES", "MetricFit", "fit_metric"]

FIT_FAMILIES = ("randers", "asymmetric", "orthant", "half_space")
# Steps of Adam per start, and their size, which decreases linearly to 0.
_STEPS, _STEP_SIZE = 150, 0.1
# Raw parameter of 1/p for a box, with 1/p = 0.
_BOX = -1e4
# Lower bound of the size of samples in pixels.
_SMALLEST_SIZE = 1e-3


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MetricFit:
    """A metric fitted to a support, and the residual.

    Args:
        metric: the metric at each pixel, positive everywhere.
        residual: (B, G, *out), the root mean square in pixels of the distances between the samples y_j and the points
            s_j u_j/F(u_j) in the same directions u_j = y_j/|y_j|.
    """

    metric: Metric
    residual: Tensor

    def __repr__(self) -> str:
        """Describe the fit without values of tensors."""
        return f"MetricFit(metric={self.metric})"


def fit_metric(
    offsets: Tensor | SupportLike,
    levels: Tensor | Sequence[float] | float | None = None,
    *,
    family: str = "randers",
) -> MetricFit:
    """Return the metric of a family whose unit tangent ball explains a support best, and its residual.

    "randers" is ``fit_randers``. "asymmetric" and "orthant" minimize the residual by gradient descent from several
    starts, such as the smallest box with axes along those of the image that contains the samples, so that centered
    grids, also dilated, are explained exactly. "half_space" is the gauge of the convex hull of the samples.

    Args:
        offsets: (B, G, P, d, *out), in pixels and tensor-axis order, (y, x) in 2-D; or a support.
        levels: s_j, as in ``fit_randers``. The default for a kernel k^d with odd k depends on the family: |c|/⌊k/2⌋ for
            the cells c, and max |c_i|/⌊k/2⌋ for "orthant" and "half_space", whose balls may be boxes.
        family: "randers" (default), "asymmetric", "orthant" or "half_space".

    Returns:
        The metric and its residual, detached from the autograd graph.

    >>> import metricconv as mc
    >>> fit = fit_metric(mc.Grid(5), family="orthant")  # the 5×5 kernel is a box
    >>> fit.metric.extents.flatten(), round(fit.residual.item(), 6)
    (tensor([2., 2., 2., 2.]), 0.0)
    """
    _checks.one_of(family, FIT_FAMILIES, "family")
    if family == "randers":
        fit = fit_randers(offsets, levels)
        return MetricFit(fit.metric, fit.residual)
    if levels is None and family != "asymmetric":
        levels = _box_levels(offsets)
    y, s = read_samples(offsets, levels)
    samples = _Samples.of(y.detach().double(), s)
    if family == "half_space":
        metric: Metric = HalfSpaceGauge.from_points(samples.u * samples.reach.unsqueeze(3))
    else:
        parametrization, starts = _asymmetric_starts(samples) if family == "asymmetric" else _orthant_starts(samples)
        metric = _descend(samples, parametrization, starts)
    residual = samples.distances(metric).square().mean(2).sqrt()
    dtype = torch.promote_types(y.dtype, torch.float32)
    return MetricFit(metric.to(dtype), residual.to(dtype))


@dataclasses.dataclass(frozen=True, eq=False)
class _Samples:
    """Samples y_j = |y_j| u_j of levels s_j, in float64."""

    u: Tensor  # [B, G, P, d, *out]
    length: Tensor  # [B, G, P, *out]
    levels: Tensor  # [P, 1, …]

    @classmethod
    def of(cls, y: Tensor, s: Tensor) -> "_Samples":
        dim = y.shape[3]
        length = torch.linalg.vector_norm(y, dim=3)
        last = torch.eye(dim, dtype=y.dtype, device=y.device)[-1].view(1, 1, 1, dim, *(1,) * dim)
        unit = y / torch.where(length > 0, length, 1).unsqueeze(3)
        return cls(torch.where((length > 0).unsqueeze(3), unit, last), length, s.view(-1, *(1,) * dim))

    @property
    def dim(self) -> int:
        return self.u.shape[3]

    @property
    def reach(self) -> Tensor:
        """|y_j|/s_j, 0 for samples of level 0: [B, G, P, *out]."""
        positive = self.levels > 0
        return torch.where(positive, self.length / torch.where(positive, self.levels, 1), 0)

    @property
    def size(self) -> Tensor:
        """The root mean square of the reach: [B, G, 1, *out]."""
        count = (self.reach > 0).sum(2, keepdim=True).clamp_min(1)
        return (self.reach.square().sum(2, keepdim=True) / count).sqrt().clamp_min(_SMALLEST_SIZE)

    def distances(self, metric: Metric) -> Tensor:
        """Return |y_j| − s_j/F(u_j): [B, G, P, *out]."""
        return self.length - self.levels / metric.norm(self.u).clamp_min(SMALLEST_NORM)


def _descend(samples: _Samples, parametrization: Parametrization, starts: list[Tensor]) -> Metric:
    """Return the metric with the smallest residual at each pixel that Adam finds from any of the starts."""
    size = samples.size
    scaled = dataclasses.replace(samples, length=samples.length / size)
    best, least = starts[0], torch.full_like(size, math.inf)
    for start in starts:
        raw = start.clone().requires_grad_()
        optimizer = torch.optim.Adam([raw], _STEP_SIZE)
        for step in range(_STEPS + 1):
            with torch.enable_grad():
                squares = scaled.distances(parametrization(raw)).square().mean(2, keepdim=True)
                (raw.grad,) = torch.autograd.grad(squares.sum(), raw)
            better = squares.detach() < least
            best = torch.where(better, raw.detach(), best)
            least = torch.where(better, squares.detach(), least)
            optimizer.param_groups[0]["lr"] = _STEP_SIZE * (1 - step / (_STEPS + 1))
            optimizer.step()
    metric = parametrization(best)
    return _scaled(metric, size)


def _scaled(metric: Metric, size: Tensor) -> Metric:
    """Return the metric whose balls are larger by a factor per pixel."""
    powers = {"M": -2, "w": -1, "extents": 1}
    return type(metric)(
        **{name: t * size ** powers[name] if name in powers else t for name, t in metric.tensors().items()}
    )


def _asymmetric_starts(samples: _Samples) -> tuple[Parametrization, list[Tensor]]:
    """Return round balls, compressed on the side of each half-axis of the image."""
    parametrization = Asymmetric(samples.dim, s_min=0.01, s_max=20.0)
    round_ball = _everywhere(parametrization.identity(), samples)
    starts = [round_ball]
    for axis, sign in itertools.product(range(samples.dim), (-1, 1)):
        start = round_ball.clone()
        start[:, :, parametrization.channels - samples.dim + axis] += sign
        starts.append(start)
    return parametrization, starts


def _orthant_starts(samples: _Samples) -> tuple[Parametrization, list[Tensor]]:
    """Return the smallest boxes that contain the samples, along the image axes and in 2-D turned, with p = ∞ and 2."""
    parametrization, dim = Orthant(samples.dim), samples.dim
    z = samples.u * (samples.reach / samples.size).unsqueeze(3)
    starts = []
    for angle in (0.0, 0.7, -0.7) if dim == 2 else (0.0,):
        cos, sin = math.cos(angle), math.sin(angle)
        turned = (
            z
            if dim != 2
            else torch.stack([cos * z[:, :, :, 0] - sin * z[:, :, :, 1], sin * z[:, :, :, 0] + cos * z[:, :, :, 1]], 3)
        )
        extents = torch.cat([turned.amax(2), -turned.amin(2)], 2).clamp(1 / 12, 12)
        # The inverse of e^{t tanh(raw/t)}.
        bound = math.log(parametrization.max_extent)
        extents = bound * torch.atanh(extents.log() / bound)
        rotation = extents[:, :, :0].new_zeros((*extents.shape[:2], dim * (dim - 1) // 2, *extents.shape[3:]))
        rotation += angle / math.sqrt(1 - (angle / LARGEST_ANGLE) ** 2)
        for exponent in (_BOX, 0.0):
            p = extents.new_full((*extents.shape[:2], 1, *extents.shape[3:]), exponent)
            starts.append(torch.cat([rotation, extents, p], 2))
    return parametrization, starts


def _everywhere(raw: Tensor, samples: _Samples) -> Tensor:
    """Return the same raw parameters at each pixel."""
    batch, groups, _, _, *size = samples.u.shape
    return raw.to(samples.u).view(1, 1, -1, *(1,) * len(size)).expand(batch, groups, -1, *size).clone()


def _box_levels(offsets: Tensor | SupportLike) -> list[float] | None:
    """Return max |c_i| / ⌊k/2⌋ for the cells of a kernel with odd k, or None for other supports."""
    if isinstance(offsets, Tensor):
        if offsets.dim() < 5:
            return None
        samples, dim = offsets.shape[2:4]
        kernel = (round(samples ** (1 / dim)),) * dim if dim else ()
    elif hasattr(offsets, "kernel_size") and getattr(offsets, "stencil", None) is None:
        kernel, samples = tuple(offsets.kernel_size), math.prod(offsets.kernel_size)
    else:
        return None
    if math.prod(kernel) != samples or samples < 2 or any(k % 2 == 0 for k in kernel):
        return None
    half = max(kernel) // 2
    return [max(map(abs, cell)) / half for cell in itertools.product(*(range(-(k // 2), k // 2 + 1) for k in kernel))]
