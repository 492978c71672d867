"""The paper's geodesic ball, by heat flow: a Dirac at each pixel diffuses, and the samples move down its slope.

It is implemented for comparison. Its samples do not form the unit ball of the metric, unlike
``metricconv.GeodesicBall``.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from metricconv import Metric, Support, _checks
from metricconv._interpolation import interpolate
from metricconv.stencils import Stencil
from metricconv.supports.base import check_ball, reference_kernel

# Number of kernel values in memory at a time: 64 MB in float32.
_CHUNK_ELEMENTS = 2**24
# A sample does not move where the slope is at most this many units of rounding of the heat.
_ROUNDINGS = 8


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class HeatBall(Support):
    """A stencil around each pixel x whose samples flow away from the heat of a Dirac at x.

    The Dirac δ_x is averaged n = diffusion_time/dt times with the normalized Finsler–Gauss kernel of each pixel,

        δ(x') ← Σ_y h_{x'}(y) δ(x' + y),    h_{x'}(y) ∝ exp(−F_{x'}(y)² / 4dt),    |y_i| ≤ r.

    Then samples that start at s₀ s_j y(u_j) move along −∇δ/|∇δ| at unit speed, in steps of dt.

    Differences to the authors' released code: the metric is not transposed, samples are read at their own positions,
    and F is squared. Only a window around x is diffused. Heat farther than (n·r + R)/2 from x cannot return to within R
    of x, where the samples are. The result is therefore exact.

    F measures displacements y. The paper uses the dual metric F* instead; see ``HeatBall.published``.

    Args:
        metric: metric at each pixel of the image, for stride 1 and "same" padding.
        stencil: directions u_j and radii s_j.
        dt: time step of both flows and of the heat kernel.
        diffusion_time, flow_time: duration of the diffusion and of the flow of the samples, multiples of dt.
        scale: s₀.
        kernel_radius: r, in pixels.
        dilation: dilation of the reference kernel, which determines the output size and the centers of the output
            pixels, as in ``nn.Conv2d``.

    >>> import metricconv as mc
    >>> metric = mc.Riemannian.isotropic(1.0).expand_to((9, 9))
    >>> HeatBall(metric, mc.stencils.onion(3), dt=0.1).offsets()[0, 0, 1, :, 4, 4]  # from 2 px up, 0.1 px further
    tensor([-2.1000,  0.0000])
    """

    metric: Metric
    stencil: Stencil
    dt: float
    diffusion_steps: int = dataclasses.field(init=False)
    flow_steps: int = dataclasses.field(init=False)
    scale: float
    kernel_radius: int
    dilation: tuple[int, ...]
    kernel_size: tuple[int, ...] = dataclasses.field(init=False)
    stride: tuple[int, ...] = dataclasses.field(init=False)

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
        self._set(metric=metric, stencil=stencil)
        self._set(dt=_checks.positive(dt, "dt"), scale=_checks.positive(scale, "scale"))
        self._set(diffusion_steps=_count_steps(diffusion_time, dt, "diffusion_time", 1))
        self._set(flow_steps=_count_steps(flow_time, dt, "flow_time", 0))
        self._set(kernel_radius=_checks.whole(kernel_radius, "kernel_radius", minimum=1))
        self._set(**reference_kernel(stencil.kernel_size, dilation, 1, stencil.dim))

    @classmethod
    def published(cls, metric: Metric, stencil: Stencil, dilation: int | Sequence[int] = 1) -> Self:
        """Return the balls with the paper's settings: the dual metric, dt = 0.01, both times 0.1, s₀ = 2."""
        return cls(metric.dual(), stencil, dilation=dilation)

    def offsets(self, samples: slice | None = None) -> Tensor:
        """Return the displacements of the samples after the flow: (B, G, P, d, *out)."""
        samples = samples or slice(None)
        radii = self.stencil.radii[samples]
        start = self.metric.unit_vectors(self.stencil.directions[samples])
        start = self.scale * start * radii.to(start).view(1, 1, -1, *(1,) * (self.dim + 1))
        shape, size = start.shape, self.metric.spatial
        start = start.expand(*shape[: -self.dim], *size).flatten(0, 1).flatten(3)  # [F, P, d, N]
        half = self.half_window(start)
        kernels = self._kernels()  # [F, *spatial, K]
        chunk_size = max(_CHUNK_ELEMENTS // (kernels.shape[-1] * (2 * half + 1) ** self.dim), 1)
        moved = []
        for image, kernel in zip(start, kernels, strict=True):
            chunks = torch.arange(image.shape[-1], device=image.device).split(chunk_size)
            moved.append(torch.cat([self._flow(image[:, :, n], self._diffuse(kernel, n, half)) for n in chunks], -1))
        return torch.stack(moved).unflatten(-1, size).unflatten(0, shape[:2])

    def tensors(self) -> dict[str, Tensor]:
        """Return the parameters of the metric."""
        return self.metric.tensors()

    def half_window(self, start: Tensor) -> int:
        """Return (n·r + R)/2, rounded up, for samples that start at ``start``. Synchronizes with the device.

        It is at most the size of the image, since there is no heat outside.
        """
        reach = float(start.detach().abs().amax()) if start.numel() else 0.0
        # One more pixel for interpolation, and one for the central differences.
        reach = math.ceil(reach + self.flow_steps * self.dt) + 2
        half = max(math.ceil((self.diffusion_steps * self.kernel_radius + reach) / 2), reach)
        return min(half, max(self.metric.spatial) + 1)

    def _repr_options(self) -> dict[str, object]:
        names = ("dt", "diffusion_steps", "flow_steps", "scale", "kernel_radius")
        return {"metric": type(self.metric).__name__} | {name: getattr(self, name) for name in names}

    def _kernels(self) -> Tensor:
        """Return h at every pixel, with sum 1: (B·G, *spatial, K)."""
        axis = range(-self.kernel_radius, self.kernel_radius + 1)
        window = list(itertools.product(axis, repeat=self.dim))
        y = torch.tensor(window, dtype=self.metric.dtype, device=self.metric.device)
        norm = self.metric.norm(y.view(1, 1, *y.shape, *(1,) * self.dim)).flatten(0, 1)  # [F, K, *spatial]
        return torch.softmax(-norm.square() / (4 * self.dt), 1).movedim(1, -1)

    def _diffuse(self, kernel: Tensor, pixels: Tensor, half: int) -> Tensor:
        """Diffuse the Diracs of some pixels of one image, each in its window: (n, *window)."""
        size = kernel.shape[:-1]
        side = 2 * half + 1
        axis = torch.arange(-half, half + 1, device=pixels.device)
        window = torch.cartesian_prod(*[axis] * self.dim).view(-1, self.dim)
        index, inside = torch.zeros_like(pixels).unsqueeze(1), torch.ones_like(pixels, dtype=torch.bool).unsqueeze(1)
        for n, center in enumerate(torch.unravel_index(pixels, size)):
            position = center.unsqueeze(1) + window[:, n]  # [n, side^d]
            inside = inside & (position >= 0) & (position < size[n])
            index = index * size[n] + position.clamp(0, size[n] - 1)
        kernels = kernel.flatten(0, -2)[index] * inside.unsqueeze(-1)  # [n, side^d, K]
        kernels = kernels.movedim(-1, 1).unflatten(-1, (side,) * self.dim)
        heat = kernels.new_zeros(len(pixels), *(side,) * self.dim)
        heat[(slice(None), *(half,) * self.dim)] = 1.0
        steps = list(itertools.product(range(2 * self.kernel_radius + 1), repeat=self.dim))
        for _ in range(self.diffusion_steps):
            padded = torch.nn.functional.pad(heat, (self.kernel_radius,) * (2 * self.dim))
            shifted = (padded[(slice(None), *(slice(c, c + side) for c in y))] for y in steps)
            heat = torch.stack([part * kernels[:, k] for k, part in enumerate(shifted)]).sum(0)
        return heat

    def _flow(self, start: Tensor, heat: Tensor) -> Tensor:
        """Move samples (P, d, n) down the slope of the heat (n, *window): (P, d, n)."""
        half = heat.shape[1] // 2
        padded = torch.nn.functional.pad(heat, (1,) * (2 * self.dim))
        slopes = []
        for axis in range(self.dim):
            inner = [slice(None), *(slice(1, -1),) * self.dim]
            before, after = list(inner), list(inner)
            before[1 + axis], after[1 + axis] = slice(None, -2), slice(2, None)
            slopes.append((padded[tuple(after)] - padded[tuple(before)]) / 2)
        fields = torch.stack([*slopes, heat], 1)  # [n, d + 1, *window]
        position = start.permute(2, 0, 1)  # [n, P, d]
        for _ in range(self.flow_steps):
            values = interpolate(fields, position + half, "zeros").transpose(1, 2)  # [n, P, d + 1]
            slope, level = values[..., :-1], values[..., -1:]
            length = torch.linalg.vector_norm(slope, dim=-1, keepdim=True)
            flat = length <= _ROUNDINGS * torch.finfo(level.dtype).eps * level
            position = position - self.dt * torch.where(flat, 0.0, slope / torch.where(flat, 1.0, length))
        return position.permute(1, 2, 0)


def _count_steps(time: float, dt: float, name: str, minimum: int) -> int:
    """Return time/dt, which must be an integer of at least ``minimum``."""
    steps = round(time / dt) if math.isfinite(time) else -1
    if steps < minimum or not math.isclose(steps * dt, time, rel_tol=1e-6, abs_tol=1e-12):
        raise ValueError(f"`{name}` (={time!r}) must be a whole multiple of `dt` (={dt!r}), at least {minimum * dt!r}")
    return steps
