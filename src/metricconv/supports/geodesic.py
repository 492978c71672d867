"""The support of a geodesic metric convolution: a metric's unit ball, bent as the metric changes around a pixel."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .. import _checks
from ..metrics import Metric
from ..metrics.flow import PADDING_MODES, FlowField, Segment, Vector, shoot, smoothed
from ..stencils import Stencil
from .base import Support, check_ball
from .tangent_ball import farthest_sample

# Numbers looked up at once, for each corner of a cell: 16 MB in float32.
_CHUNK_ELEMENTS = 2**22


@dataclasses.dataclass(frozen=True, eq=False)
class Rays:
    """A stencil by its directions: one geodesic supplies all the samples of a ray.

    Args:
        stencil: whose samples they are.
        vectors: (R, d + 1), for each ray its direction and its largest radius.
        places: for each sample its ray and the part of it at which it lies, in (0, 1]; the centre has no place.
    """

    stencil: Stencil
    vectors: Tensor
    places: dict[int, tuple[int, float]]

    @classmethod
    def of(cls, stencil: Stencil) -> "Rays":
        """Find the rays of a stencil. Reads its numbers, so it synchronises with the device they are on.

        >>> from metricconv import stencils
        >>> len(Rays.of(stencils.polar(11)).vectors), len(Rays.of(stencils.onion(11)).vectors)
        (11, 80)
        """
        _checks.instance_of(stencil, Stencil, "stencil")
        radii = stencil.radii.tolist()
        # Directions are unit vectors, so that equal ones differ by rounding only, of float32 at worst.
        keys = [tuple(round(1e6 * x) for x in u) for u in stencil.directions.tolist()]
        farthest: dict[tuple[int, ...], int] = {}  # direction → its outermost sample
        for j, (key, radius) in enumerate(zip(keys, radii, strict=True)):
            if radius > 0 and (key not in farthest or radius > radii[farthest[key]]):
                farthest[key] = j
        order = {key: ray for ray, key in enumerate(farthest)}
        outer = list(farthest.values())
        return cls(
            stencil,
            torch.cat([stencil.directions[outer], stencil.radii[outer].unsqueeze(1)], 1),
            {j: (order[k], radii[j] / radii[farthest[k]]) for j, k in enumerate(keys) if radii[j] > 0},
        )

    def to(self, *args: Any, **kwargs: Any) -> "Rays":
        """Move or convert, with the arguments of torch.Tensor.to; return the rays themselves if nothing changes."""
        stencil, vectors = self.stencil.to(*args, **kwargs), self.vectors.to(*args, **kwargs)
        return self if stencil is self.stencil and vectors is self.vectors else Rays(stencil, vectors, self.places)


class GeodesicBall(Support):
    """Samples exp_x(s_j ρ y(u_j)) of the geodesic ball: y(u) = u/F(u) as for ``TangentBall``, carried along geodesics.

    The exponential map takes the tangent ball onto all points within distance ρ. A sample never lies farther from its
    pixel than s_j ρ, by the metric; on a constant metric geodesics are straight and this is the tangent ball.

    Nothing here looks whether the metric is positive, since looking waits for the device: of one that is not, samples
    mean nothing, finite or not. ``metrics.check_positive`` looks once, ``with check_finite():`` at every convolution.

    Args:
        metric: ``Riemannian`` or ``Randers``, at each output pixel, in pixels of the input, as for ``TangentBall``.
            Between output pixels it is interpolated: the field of a strided layer is as coarse as its output. One of
            size 1 along an axis is the same all along it in ``support_conv``; ``offsets`` sees a field one pixel wide.
        stencil: the directions u_j and radii s_j; or its ``Rays``, found ahead of time, which ``torch.compile`` needs.
        steps: of the integrator along each ray. By default 3 for kernels up to 5 wide, else 4; about 2/3 of the ball's
            reach in pixels is plenty.
        smooth: how many times M and ω are first averaged over 3^d pixels with binomial weights. Without it the samples
            of a metric that is rough from pixel to pixel depend on it wildly, and so do gradients.
        dilation: that of the reference kernel; it sets the output's size and centres, as in ``nn.Conv2d``.
        stride: input pixels between output pixels, the one that is given to ``support_conv``.
        padding_mode: how the metric goes on past its border: with the "border" values or "circular".

    >>> import metricconv as mc
    >>> slope = torch.linspace(0.5, 2.0, 9).square().view(1, 1, 1, 9, 1) * torch.tensor([1.0, 0.0, 1.0]).view(3, 1, 1)
    >>> down, up = GeodesicBall(mc.Riemannian(slope), mc.stencils.polar(4)).offsets()[0, 0, [13, 15], 0, 4, 0]
    >>> print(f"{down:.3f} down, {up:.3f} up, where distances are shorter")
    0.752 down, -0.846 up, where distances are shorter
    """

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
        self.rays = stencil if isinstance(stencil, Rays) else Rays.of(stencil)
        self.metric, self.stencil = metric, self.rays.stencil
        check_ball(metric, self.stencil)
        dim = self.stencil.dim
        self.kernel_size = self.stencil.kernel_size
        self.steps = default_steps(self.kernel_size) if steps is None else steps
        self.steps = _checks.whole(self.steps, "steps", minimum=1)
        self.smooth = _checks.whole(smooth, "smooth", minimum=0)
        self.dilation = _checks.tuple_of(dilation, dim, "dilation", minimum=1)
        self.stride: tuple[int, ...] = _checks.tuple_of(stride, dim, "stride", minimum=1)
        self.padding_mode = _checks.one_of(padding_mode, PADDING_MODES, "padding_mode")

    def offsets(self, samples: slice = slice(None)) -> Tensor:
        """Return exp_x(s_j y(u_j)) − x: (B, G, P, d, *out)."""
        metric = smoothed(self.metric, self.smooth, padding_mode=self.padding_mode)
        field = FlowField.of(metric, self.stride, self.padding_mode)
        places = {j: self.rays.places.get(j) for j in range(self.samples)[samples]}
        centre = field.nodes.new_zeros(()).expand(self.dim, field.fields, math.prod(metric.spatial))
        found = dict.fromkeys(places, centre)  # sample → displacement [d, B·G, N]
        chunks = self._chunks(field, sorted({place[0] for place in places.values() if place}))
        for rays in chunks:
            wanted = {j: (rays.index(place[0]), place[1]) for j, place in places.items() if place and place[0] in rays}
            if len(chunks) > 1 and torch.is_grad_enabled():
                traced = checkpoint(self._trace, field, rays, wanted, use_reentrant=False, preserve_rng_state=False)
            else:
                traced = self._trace(field, rays, wanted)
            found |= traced
        shape = (metric.batch, metric.groups, len(places), self.dim, *metric.spatial)
        # One more than there are, since torch stacks no empty list.
        return torch.stack([*found.values(), centre])[:-1].permute(2, 0, 1, 3).reshape(shape)

    def reach(self) -> float:
        """Return how far from its pixel the farthest sample may lie, in pixels. Synchronises with the device."""
        return farthest_sample(self.metric, self.stencil)

    def expand_to(self, size: Sequence[int]) -> "GeodesicBall":
        """Return the ball of every pixel of an output of this size: where a metric broadcasts, rays see it go on."""
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
        """The metric's numbers: in 2-D five a pixel, whatever the number of samples and steps."""
        return self.metric.tensors()

    def _chunks(self, field: FlowField, rays: list[int]) -> list[list[int]]:
        """Cut rays into lists short enough for memory; a traced graph keeps them together."""
        numbers = field.fields * math.prod(self.metric.spatial) * field.nodes.shape[1]
        step = len(rays) if torch.compiler.is_compiling() else _CHUNK_ELEMENTS // max(numbers, 1)
        return [rays[start : start + max(step, 1)] for start in range(0, len(rays), max(step, 1))]

    def _trace(self, field: FlowField, rays: list[int], places: dict[int, tuple[int, float]]) -> dict[int, Tensor]:
        """Shoot some rays from every pixel, and stop at samples, given by their places along these rays."""
        vectors = torch.stack([self.rays.vectors[ray] for ray in rays]).to(field.nodes)  # [R, d + 1]
        *direction, length = vectors.t()[:, :, None, None].unbind(0)
        found = {}
        segments = shoot(field, self._pixels(field.nodes), tuple(direction), length, self.steps)
        for n, segment in enumerate(segments):
            each = _split(segment)
            for j, (ray, part) in places.items():
                if min(math.ceil(part * self.steps), self.steps) == n + 1:
                    found[j] = torch.stack(each[ray].at(part * self.steps - n))  # [d, B·G, N]
        return found

    def _pixels(self, like: Tensor) -> Vector:
        """Return the index of every output pixel, d components (1, N)."""
        axes = [torch.arange(n, dtype=like.dtype, device=like.device) for n in self.metric.spatial]
        return tuple(axis.flatten().unsqueeze(0) for axis in torch.meshgrid(*axes, indexing="ij"))


def sight(reach: float, steps: int | None) -> int:
    """Return how many pixels away the geodesics of a ball look at a metric, given how far it reaches and their steps.

    A metric that is smoothed first is looked at from one pixel farther each time.
    """
    # A geodesic is never longer than the largest ball is wide: averages of a metric have no larger balls than it has.
    # Only the parabola of a first and only step may lie outside, by an eighth. The metric is read between pixels and
    # differentiated, one pixel each.
    return math.floor(reach * 9 / 8 if steps == 1 else reach) + 2


def default_steps(kernel_size: Sequence[int]) -> int:
    """Return how many steps a ray takes if nothing else is said."""
    return 3 if max(kernel_size) <= 5 else 4


def _split(segment: Segment) -> list[Segment]:
    """Take one step of many rays apart, along their first axis."""
    parts = [list(zip(*(component.unbind(0) for component in vector), strict=True)) for vector in segment]
    return [Segment(*ray) for ray in zip(*parts, strict=True)]
