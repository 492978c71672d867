"""The paper's own geodesic ball, by heat: a Dirac at each pixel is diffused, and a stencil flows down its slope.

Kept to compare with. Its samples do not lie on the metric's ball, which ``GeodesicBall`` computes.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from .. import _checks
from .._interpolation import interpolate
from ..metrics import Metric
from ..stencils import Stencil
from .base import Support, check_ball

# Kernel values held at once: 64 MB in float32.
_CHUNK_ELEMENTS = 2**24
# A sample stays where the slope is no more than so many roundings of the heat: at its top, and beyond its reach.
_ROUNDINGS = 8


class HeatBall(Support):
    """A stencil around each pixel x that flows away from the heat of a Dirac at x.

    n = diffusion_time/dt times the Dirac δ_x is averaged with the Finsler–Gauss kernel of each pixel, normalised there,

        δ(x') ← Σ_y h_{x'}(y) δ(x' + y),    h_{x'}(y) ∝ exp(−F_{x'}(y)² / 4dt),    |y_i| ≤ r,

    then samples that start at s₀ s_j y(u_j) move with −∇δ/|∇δ|, one pixel in unit time, in steps of dt.

    Against the authors' released code the metric is not transposed, samples are read where they are, and F is squared.
    Only a window is diffused: what heat does farther than (n·r + R)/2 from x never comes back to where a sample, within
    R of x, could see it. So the window changes nothing, and costs nothing as the image grows.

    The flow is in the metric that is given, F for a displacement y. The paper lets the dual metric F* guide it, for
    which there is ``HeatBall.published``.

    Args:
        metric: the metric at each pixel of the image, at stride 1 and with "same" padding.
        stencil: the directions u_j and radii s_j.
        dt: the step in time of both flows, and the heat kernel's.
        diffusion_time, flow_time: how long the heat and the stencil flow: whole multiples of dt.
        scale: s₀.
        kernel_radius: r, in pixels.
        dilation: that of the reference kernel; it sets the output's size and centres, as in ``nn.Conv2d``.

    >>> import metricconv as mc
    >>> metric = mc.Riemannian.isotropic(1.0).expand_to((9, 9))
    >>> HeatBall(metric, mc.stencils.onion(3), dt=0.1).offsets()[0, 0, 1, :, 4, 4]  # 2 px up, and 0.1 px more
    tensor([-2.1000,  0.0000])
    """

    def __init__(
        self,
        metric: Metric,
        stencil: Stencil,
        dt: float = 0.01,
        diffusion_time: float = 0.1,
        flow_time: float = 0.1,
        scale: float = 2.0,
        kernel_radius: int = 5,
        dilation: int | Sequence[int] = 1,
    ) -> None:
        check_ball(metric, stencil)
        self.metric, self.stencil, self.kernel_size = metric, stencil, stencil.kernel_size
        self.dt, self.scale = _checks.positive(dt, "dt"), _checks.positive(scale, "scale")
        self.diffusion_steps = _whole(diffusion_time, dt, "diffusion_time", 1)
        self.flow_steps = _whole(flow_time, dt, "flow_time", 0)
        self.kernel_radius = _checks.whole(kernel_radius, "kernel_radius", minimum=1)
        self.dilation = _checks.tuple_of(dilation, stencil.dim, "dilation", minimum=1)
        self.stride = (1,) * stencil.dim

    @classmethod
    def published(cls, metric: Metric, stencil: Stencil, dilation: int | Sequence[int] = 1) -> Self:
        """Return the balls with the paper's settings: the dual metric, dt = 0.01, both flows until 0.1, s₀ = 2."""
        return cls(metric.dual(), stencil, dilation=dilation)

    def offsets(self, samples: slice = slice(None)) -> Tensor:
        """Return where the stencil has flowed to: (B, G, P, d, *out)."""
        radii = self.stencil.radii[samples]
        start = self.metric.unit_vectors(self.stencil.directions[samples])
        start = self.scale * start * radii.to(start).view(1, 1, -1, *(1,) * (self.dim + 1))
        shape, size = start.shape, self.metric.spatial
        start = start.expand(*shape[: -self.dim], *size).flatten(0, 1).flatten(3)  # [F, P, d, N]
        half = self.half_window(start)
        kernels = self._kernels()  # [F, *spatial, K]
        step = max(_CHUNK_ELEMENTS // (kernels.shape[-1] * (2 * half + 1) ** self.dim), 1)
        moved = []
        for image, kernel in zip(start, kernels, strict=True):
            pixels = torch.arange(image.shape[-1], device=image.device).split(step)
            moved.append(torch.cat([self._flow(image[:, :, n], self._diffuse(kernel, n, half)) for n in pixels], -1))
        return torch.stack(moved).unflatten(-1, size).unflatten(0, shape[:2])

    def tensors(self) -> dict[str, Tensor]:
        """The metric's numbers."""
        return self.metric.tensors()

    def half_window(self, start: Tensor) -> int:
        """Return (n·r + R)/2, rounded up, for samples that start from ``start``. Synchronises with the device.

        No more than the whole image: past it there is no heat, and no slope from the second pixel on.
        """
        reach = float(start.detach().abs().amax()) if start.numel() else 0.0
        # One more for the cell that a sample is read in, and one for the central difference at its corners.
        reach = math.ceil(reach + self.flow_steps * self.dt) + 2
        wanted = max(math.ceil((self.diffusion_steps * self.kernel_radius + reach) / 2), reach)
        return min(wanted, max(self.metric.spatial) + 1)

    def _kernels(self) -> Tensor:
        """Return h at every pixel, of sum 1: (B·G, *spatial, K)."""
        near = range(-self.kernel_radius, self.kernel_radius + 1)
        steps = list(itertools.product(near, repeat=self.dim))
        y = torch.tensor(steps, dtype=self.metric.dtype, device=self.metric.device)
        norm = self.metric.norm(y.view(1, 1, *y.shape, *(1,) * self.dim)).flatten(0, 1)  # [F, K, *spatial]
        return torch.softmax(-norm.square() / (4 * self.dt), 1).movedim(1, -1)

    def _diffuse(self, kernel: Tensor, pixels: Tensor, half: int) -> Tensor:
        """Diffuse the Diracs of some pixels of one image, each in its window: (n, *window)."""
        size = kernel.shape[:-1]
        side = 2 * half + 1
        span = torch.arange(-half, half + 1, device=pixels.device)
        window = torch.cartesian_prod(*[span] * self.dim).view(-1, self.dim)
        flat, inside = torch.zeros_like(pixels).unsqueeze(1), torch.ones_like(pixels, dtype=torch.bool).unsqueeze(1)
        for axis, centre in enumerate(torch.unravel_index(pixels, size)):
            place = centre.unsqueeze(1) + window[:, axis]  # [n, side^d]
            inside = inside & (place >= 0) & (place < size[axis])
            flat = flat * size[axis] + place.clamp(0, size[axis] - 1)
        here = kernel.flatten(0, -2)[flat] * inside.unsqueeze(-1)  # [n, side^d, K]
        here = here.movedim(-1, 1).unflatten(-1, (side,) * self.dim)
        heat = here.new_zeros(len(pixels), *(side,) * self.dim)
        heat[(slice(None), *(half,) * self.dim)] = 1.0
        near = list(itertools.product(range(2 * self.kernel_radius + 1), repeat=self.dim))
        for _ in range(self.diffusion_steps):
            padded = torch.nn.functional.pad(heat, (self.kernel_radius,) * (2 * self.dim))
            moved = (padded[(slice(None), *(slice(c, c + side) for c in y))] for y in near)
            heat = torch.stack([part * here[:, k] for k, part in enumerate(moved)]).sum(0)
        return heat

    def _flow(self, start: Tensor, heat: Tensor) -> Tensor:
        """Let samples (P, d, n) run down the heat (n, *window): (P, d, n)."""
        half = heat.shape[1] // 2
        padded = torch.nn.functional.pad(heat, (1,) * (2 * self.dim))
        slopes = []
        for axis in range(self.dim):
            inner = [slice(None), *(slice(1, -1),) * self.dim]
            before, after = list(inner), list(inner)
            before[1 + axis], after[1 + axis] = slice(None, -2), slice(2, None)
            slopes.append((padded[tuple(after)] - padded[tuple(before)]) / 2)
        fields = torch.stack([*slopes, heat], 1)  # [n, d + 1, *window]
        place = start.permute(2, 0, 1)  # [n, P, d]
        for _ in range(self.flow_steps):
            read = interpolate(fields, place + half, "zeros").transpose(1, 2)  # [n, P, d + 1]
            slope, here = read[..., :-1], read[..., -1:]
            length = torch.linalg.vector_norm(slope, dim=-1, keepdim=True)
            still = length <= _ROUNDINGS * torch.finfo(here.dtype).eps * here
            place = place - self.dt * torch.where(still, 0.0, slope / torch.where(still, 1.0, length))
        return place.permute(1, 2, 0)


def _whole(time: float, dt: float, name: str, least: int) -> int:
    """Return how many steps of dt a time is."""
    steps = round(time / dt) if math.isfinite(time) else -1
    if steps < least or not math.isclose(steps * dt, time, rel_tol=1e-6, abs_tol=1e-12):
        raise ValueError(f"`{name}` (={time!r}) must be a whole multiple of `dt` (={dt!r}), at least {least * dt!r}")
    return steps
