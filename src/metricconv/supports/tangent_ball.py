"""The support of a metric convolution: the unit ball of a metric, in the tangent plane of each pixel."""

from collections.abc import Sequence

from torch import Tensor

from .. import _checks
from ..metrics import Metric
from ..stencils import Stencil
from .base import Support, check_ball


class TangentBall(Support):
    """Samples s_j y(u_j) of the unit tangent ball {u : F(u) ≤ 1}, with y(u) = u / F(u) in closed form.

    Args:
        metric: the metric at each output pixel.
        stencil: the directions u_j and radii s_j.
        dilation: that of the reference kernel; it sets the output's size and centres, as in ``nn.Conv2d``. The ball's
            own size is the metric's affair.

    >>> import metricconv as mc
    >>> ball = TangentBall(mc.Riemannian.isotropic(2.0), mc.stencils.square_onion(3))
    >>> ball.offsets().view(9, 2)[0]  # the ball of radius 2: a 3×3 grid, dilated by 2
    tensor([-2.0000, -2.0000])
    """

    def __init__(self, metric: Metric, stencil: Stencil, dilation: int | Sequence[int] = 1) -> None:
        check_ball(metric, stencil)
        self.metric, self.stencil, self.kernel_size = metric, stencil, stencil.kernel_size
        self.dilation = _checks.tuple_of(dilation, stencil.dim, "dilation", minimum=1)

    def offsets(self, samples: slice = slice(None)) -> Tensor:
        """Return s_j u_j / F(u_j): (B, G, P, d, *out)."""
        points = self.metric.unit_vectors(self.stencil.directions[samples])
        return points * self.stencil.radii[samples].to(points).view(1, 1, -1, *(1,) * (self.dim + 1))

    def reach(self) -> float:
        """Return how far from its pixel the farthest sample may lie, in pixels. Synchronises with the device."""
        return farthest_sample(self.metric, self.stencil)

    def tensors(self) -> dict[str, Tensor]:
        """The metric's numbers: in 2-D five a pixel, whatever the number of samples."""
        return self.metric.tensors()


def farthest_sample(metric: Metric, stencil: Stencil) -> float:
    """Return a bound on the length of all s_j y(u_j) of a field, in pixels."""
    return float(metric.bounding_radius.detach().max()) * float(stencil.radii.max())
