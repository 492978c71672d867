"""The support of a geodesic metric convolution: unit balls of the geodesic distance of a metric."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .. import _checks
from ..metrics import Metric
from ..metrics.flow import METRIC_PADDING_MODES, FlowField, Segment, Vector, smoothed
from ..metrics.hamiltonian import HamiltonianField, flow_field, shoot
from ..stencils import Stencil
from .base import Support, check_ball, reference_kernel
from .tangent_ball import farthest_sample

__all__ = ["GeodesicBall", "Rays", "halo_width"]

# Number of interpolated values per chunk of rays and corner of a cell: 16 MB in float32.
_CHUNK_ELEMENTS = 2**22


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Rays:
    """The distinct directions of a stencil: one geodesic per ray passes through all of its samples.

    Args:
        stencil: the stencil.
        vectors: (R, d + 1), the direction and the largest radius of each ray.
        positions: for the index of each sample, the index of its ray and its radius as a fraction of the ray's
            largest, in (0, 1]. Samples of radius 0 lie on no ray.
    """

    stencil: Stencil
    vectors: Tensor
    positions: dict[int, tuple[int, float]]

    @classmethod
    def of(cls, stencil: Stencil) -> "Rays":
        """Return the rays of a stencil. Synchronizes with the device of the stencil.

        >>> from metricconv import stencils
        >>> len(Rays.of(stencils.polar(11)).vectors), len(Rays.of(stencils.onion(11)).vectors)
        (11, 80)
        """
        _checks.instance_of(stencil, Stencil, "stencil")
        radii = stencil.radii.tolist()
        # Directions are unit vectors; equal ones differ at most by rounding to float32.
        keys = [tuple(round(1e6 * x) for x in u) for u in stencil.directions.tolist()]
        farthest: dict[tuple[int, ...], int] = {}  # direction → its outermost sample
        for j, (key, radius) in enumerate(zip(keys, radii, strict=True)):
            if radius > 0 and (key not in farthest or radius > radii[farthest[key]]):
                farthest[key] = j
        ray_index = {key: ray for ray, key in enumerate(farthest)}
        outermost = list(farthest.values())
        return cls(
            stencil,
            torch.cat([stencil.directions[outermost], stencil.radii[outermost].unsqueeze(1)], 1),
            {j: (ray_index[k], radii[j] / radii[farthest[k]]) for j, k in enumerate(keys) if radii[j] > 0},
        )

    def to(self, *args: Any, **kwargs: Any) -> "Rays":
        """Move or convert, with the arguments of ``torch.Tensor.to``; return the same rays if nothing changes."""
        stencil, vectors = self.stencil.to(*args, **kwargs), self.vectors.to(*args, **kwargs)
        return self if stencil is self.stencil and vectors is self.vectors else Rays(stencil, vectors, self.positions)

    def __repr__(self) -> str:
        """Describe the rays without values of tensors."""
        return f"Rays(count={len(self.vectors)}, stencil={self.stencil})"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GeodesicBall(Support):
    """Samples of the unit geodesic ball of a metric: Δ_j = exp_x(s_j y(u_j)) − x, with y(u) = u / F(u).

    The exponential map takes the tangent ball of radius ρ onto the points within geodesic distance ρ, so sample j lies
    within distance s_j of its pixel. For a constant metric geodesics are straight, and the ball equals ``TangentBall``.

    The metric must be positive. The constructor does not check this, as it would synchronize with the device: use
    ``metrics.check_positive`` or ``with check_finite():``.

    Args:
        metric: the metric at each output pixel, in pixels of the input. It is interpolated between output pixels, so
            the field of a strided layer is as coarse as its output. ``support_conv`` extends
            axes of size 1 to the size of the output; ``offsets`` treats them as fields one pixel wide.
        stencil: the directions u_j and radii s_j; or its ``Rays``, which ``torch.compile`` requires.
        steps: integration steps per ray, at least 1. Default: 3 for kernels up to 5 wide, otherwise 4. About 2/3 of the
            reach of the ball in pixels suffices.
        smooth: number of smoothing passes over M and ω, by binomial weights over 3^d pixels (default 1). Without
            smoothing, samples and gradients are unstable if the metric varies strongly between adjacent pixels.
            Rounding is then amplified: backends differ by as much as samples move if last bits of the metric change.
        dilation: dilation of the reference kernel, which determines the output size and the centers of the output
            pixels, as in ``nn.Conv2d`` (default 1).
        stride: input pixels between output pixels, as given to ``support_conv`` (default 1).
        padding_mode: padding mode of the metric, "border" (default) or "circular".

    >>> import metricconv as mc
    >>> slope = torch.linspace(0.5, 2.0, 9).square().view(1, 1, 1, 9, 1) * torch.tensor([1.0, 0.0, 1.0]).view(3, 1, 1)
    >>> down, up = GeodesicBall(mc.Riemannian(slope), mc.stencils.polar(4)).offsets()[0, 0, [13, 15], 0, 4, 0]
    >>> print(f"{down:.3f} down, {up:.3f} up, where distances are shorter")
    0.752 down, -0.846 up, where distances are shorter
    """

    metric: Metric
    stencil: Stencil
    steps: int
    smooth: int
    dilation: tuple[int, ...]
    padding_mode: str
    stride: tuple[int, ...]
    kernel_size: tuple[int, ...] = dataclasses.field(init=False)
    rays: Rays = dataclasses.field(init=False)

    def __init__(
        self,
        metric: Metric,
        stencil: Stencil | Rays,
        steps: int | None = None,
        smooth: int = 1,
        dilation: int | Sequence[int] = 1,
        *,
        stride: int | Sequence[int] = 1,
        padding_mode: str = "border",
    ) -> None:
        rays = stencil if isinstance(stencil, Rays) else Rays.of(stencil)
        check_ball(metric, rays.stencil)
        kernel_size = rays.stencil.kernel_size
        steps = default_steps(kernel_size) if steps is None else _checks.whole(steps, "steps", minimum=1)
        self._set(metric=metric, stencil=rays.stencil, rays=rays, steps=steps)
        self._set(smooth=_checks.whole(smooth, "smooth", minimum=0))
        self._set(**reference_kernel(kernel_size, dilation, stride, metric.dim))
        self._set(padding_mode=_checks.padding_mode(padding_mode, choices=METRIC_PADDING_MODES))

    def offsets(self, samples: slice | None = None) -> Tensor:
        """Return exp_x(s_j y(u_j)) − x: (B, G, P, d, *out)."""
        metric = smoothed(self.metric, self.smooth, padding_mode=self.padding_mode)
        field = flow_field(metric, self.stride, self.padding_mode)
        positions = {j: self.rays.positions.get(j) for j in range(self.samples)[samples or slice(None)]}
        center = field.nodes.new_zeros(()).expand(self.dim, field.fields, math.prod(metric.spatial))
        displacements = dict.fromkeys(positions, center)  # sample → [d, B·G, N]
        chunks = self._chunks(field, sorted({position[0] for position in positions.values() if position}))
        for rays in chunks:
            stops = {j: (rays.index(at[0]), at[1]) for j, at in positions.items() if at and at[0] in rays}
            if len(chunks) > 1 and torch.is_grad_enabled():
                traced = checkpoint(self._trace, field, rays, stops, use_reentrant=False, preserve_rng_state=False)
            else:
                traced = self._trace(field, rays, stops)
            displacements |= traced
        shape = (metric.batch, metric.groups, len(positions), self.dim, *metric.spatial)
        # The center is appended and removed again since torch.stack does not accept an empty list.
        return torch.stack([*displacements.values(), center])[:-1].permute(2, 0, 1, 3).reshape(shape)

    def reach(self) -> float:
        """Return a bound on the distance of any sample from its pixel, in pixels. Synchronizes with the device."""
        return farthest_sample(self.metric, self.stencil)

    def expand_to(self, size: Sequence[int]) -> "GeodesicBall":
        """Return the ball with the metric expanded to an output of this size, along axes of size 1."""
        if tuple(self.metric.spatial) == tuple(size):
            return self
        return GeodesicBall(
            self.metric.expand_to(size),
            self.rays,
            self.steps,
            self.smooth,
            self.dilation,
            stride=self.stride,
            padding_mode=self.padding_mode,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the parameters of the metric: five per pixel for a 2-D Randers metric, for any number of samples."""
        return self.metric.tensors()

    def _repr_options(self) -> dict[str, object]:
        options = {"metric": type(self.metric).__name__, "steps": self.steps, "smooth": self.smooth}
        return options | ({} if self.padding_mode == "border" else {"padding_mode": repr(self.padding_mode)})

    def _chunks(self, field: FlowField | HamiltonianField, rays: list[int]) -> list[list[int]]:
        """Split rays into chunks that bound the memory; a traced graph has a single chunk."""
        values_per_ray = field.fields * math.prod(self.metric.spatial) * field.nodes.shape[1]
        size = len(rays) if torch.compiler.is_compiling() else _CHUNK_ELEMENTS // max(values_per_ray, 1)
        return [rays[start : start + max(size, 1)] for start in range(0, len(rays), max(size, 1))]

    def _trace(
        self, field: FlowField | HamiltonianField, rays: list[int], stops: dict[int, tuple[int, float]]
    ) -> dict[int, Tensor]:
        """Trace some rays from every pixel and return the displacement of each sample at its stop along them."""
        vectors = torch.stack([self.rays.vectors[ray] for ray in rays]).to(field.nodes)  # [R, d + 1]
        *direction, length = vectors.t()[:, :, None, None].unbind(0)
        displacements = {}
        segments = shoot(field, self._pixels(field.nodes), tuple(direction), length, self.steps)
        for n, segment in enumerate(segments):
            segment_of_ray = _split(segment)
            for j, (ray, fraction) in stops.items():
                if min(math.ceil(fraction * self.steps), self.steps) == n + 1:
                    displacements[j] = torch.stack(segment_of_ray[ray].at(fraction * self.steps - n))  # [d, B·G, N]
        return displacements

    def _pixels(self, like: Tensor) -> Vector:
        """Return the index of every output pixel, d components (1, N)."""
        axes = [torch.arange(n, dtype=like.dtype, device=like.device) for n in self.metric.spatial]
        return tuple(axis.flatten().unsqueeze(0) for axis in torch.meshgrid(*axes, indexing="ij"))


def halo_width(reach: float, steps: int | None) -> int:
    """Return the radius, in pixels, of the neighborhood whose metric determines a geodesic ball.

    Each smoothing pass adds one pixel.

    Args:
        reach: bound on the distance of samples, see ``GeodesicBall.reach``.
        steps: integration steps per ray.
    """
    # A geodesic is never longer than the reach of the largest ball, and smoothing does not enlarge balls. Only the
    # parabola of a single step may exceed it, by an eighth. Interpolation and derivatives add one pixel each.
    return math.floor(reach * 9 / 8 if steps == 1 else reach) + 2


def default_steps(kernel_size: Sequence[int]) -> int:
    """Return the default number of integration steps per ray."""
    return 3 if max(kernel_size) <= 5 else 4


def _split(segment: Segment) -> list[Segment]:
    """Split one step of several rays along the first axis."""
    parts = [list(zip(*(component.unbind(0) for component in vector), strict=True)) for vector in segment]
    return [Segment(*ray) for ray in zip(*parts, strict=True)]
