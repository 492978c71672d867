"""The support of a metric convolution: the unit ball of the metric at each pixel."""

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from ..metrics import Metric
from ..stencils import Stencil
from .base import Support, check_ball, reference_kernel

__all__ = ["TangentBall", "farthest_sample"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TangentBall(Support):
    """Samples of the unit tangent ball {u : F(u) ≤ 1} of a metric: Δ_j = s_j u_j / F(u_j).

    Args:
        metric: the metric at each output pixel, in pixels of the input.
        stencil: the directions u_j and radii s_j.
        dilation: dilation of the reference kernel, which determines the output size and the centers of the output
            pixels, as in ``nn.Conv2d`` (default 1). It does not scale the ball.
        stride: stride of the output, as in ``Support``.

    >>> import metricconv as mc
    >>> ball = TangentBall(mc.Riemannian.isotropic(2.0), mc.stencils.square_onion(3))
    >>> ball.offsets().view(9, 2)[0].round()  # the ball of radius 2 is a 3×3 grid with dilation 2
    tensor([-2., -2.])
    """

    metric: Metric
    stencil: Stencil
    dilation: tuple[int, ...]
    stride: tuple[int, ...] | None = None
    kernel_size: tuple[int, ...] = dataclasses.field(init=False)

    def __init__(
        self,
        metric: Metric,
        stencil: Stencil,
        dilation: int | Sequence[int] = 1,
        *,
        stride: int | Sequence[int] | None = None,
    ) -> None:
        check_ball(metric, stencil)
        self._set(metric=metric, stencil=stencil)
        self._set(**reference_kernel(stencil.kernel_size, dilation, stride, stencil.dim))

    def offsets(self, samples: slice | None = None) -> Tensor:
        """Return s_j u_j / F(u_j): (B, G, P, d, *out)."""
        samples = samples or slice(None)
        points = self.metric.unit_vectors(self.stencil.directions[samples])
        return points * self.stencil.radii[samples].to(points).view(1, 1, -1, *(1,) * (self.dim + 1))

    def reach(self) -> float:
        """Return a bound on the distance of any sample from its pixel, in pixels. Synchronizes with the device."""
        return farthest_sample(self.metric, self.stencil)

    def tensors(self) -> dict[str, Tensor]:
        """Return the parameters of the metric: five per pixel for a 2-D Randers metric, for any number of samples."""
        return self.metric.tensors()

    def _repr_options(self) -> dict[str, object]:
        return {"metric": type(self.metric).__name__}


def farthest_sample(metric: Metric, stencil: Stencil) -> float:
    """Return a bound on |s_j u_j / F(u_j)| over all pixels and samples, in pixels. Synchronizes with the device."""
    return float(metric.bounding_radius.detach().max()) * float(stencil.radii.max())
