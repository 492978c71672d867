"""From a finite support back to a metric: the Randers metric whose unit ball explains where a pixel looks."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from .. import _checks
from . import _symmetric
from .randers import Randers

# Weight, relative to the samples', of the belief in a round ball: it decides only what the samples leave open.
_PRIOR = 1e-12
# No eigenvalue of A is taken smaller than this, in units of the samples' own size.
_SMALLEST_EIGENVALUE = 1e-3
# The ball of a support without extent has this radius, in pixels.
_SMALLEST_SIZE = 1e-3
# Samples fitted at once, which bounds memory to some 100 MB.
_CHUNK_SAMPLES = 2**20


class SupportLike(Protocol):
    """What has offsets and the shape of a kernel: any ``metricconv.Support``."""

    kernel_size: tuple[int, ...]

    def offsets(self) -> Tensor:
        """Return the displacements (B, G, P, d, *out)."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class RandersFit:
    """A metric fitted to a support, and how far the two are apart.

    Args:
        metric: the Randers metric at each pixel, positive everywhere.
        residual: (B, G, *out), the root mean square, in pixels, of the distances between the samples y_j and the ball's
            points s_j u_j/F(u_j) in the same directions u_j = y_j/|y_j|: 0 where the support is a sampled ball. For a
            sample on the pixel itself, which has no direction, the last axis stands in.
    """

    metric: Randers
    residual: Tensor


@torch.no_grad()
def fit_randers(
    offsets: Tensor | SupportLike,
    levels: Tensor | Sequence[float] | float | None = None,
    *,
    eps_omega: float = 1e-3,
    refinements: int = 10,
) -> RandersFit:
    """Find the Randers metric whose unit tangent ball comes closest to a support.

    A sample y_j of level s_j asks for F(y_j) = s_j: z_j = y_j/s_j is to lie on the unit circle. Squaring
    √(zᵀMz) = 1 − ωᵀz makes this linear in A = M − ωωᵀ and ω,

        zᵀ A z + 2 ωᵀ z = 1,

    solved by least squares; Levenberg–Marquardt steps then lessen the residual itself. With A > 0, M = A + ωωᵀ is a
    positive Randers metric whatever ω is: ‖ω‖²_{M⁻¹} = q/(1 + q) < 1 with q = ωᵀA⁻¹ω (Sherman–Morrison).

    Args:
        offsets: (B, G, P, d, *out), in pixels and tensor-axis order, (y, x) in 2-D; or a support.
        levels: s_j ≥ 0, (P,) or one number for all; a sample of level 0, the centre, says nothing about the ball. If
            not given: those of the support's stencil if it has one; else |c|/⌊k/2⌋ for the cells c of a kernel k^d with
            k ≥ 3 odd, as in ``stencils.square_onion``; else 1, for points of the ball's boundary.
        eps_omega: the room left below ‖ω‖_{M⁻¹} = 1, in (0, 1).
        refinements: how many steps to take at most; a step that does not lessen the residual is not taken.

    Returns:
        The metric and its residual, cut from the autograd graph.

    >>> import metricconv as mc
    >>> fit = fit_randers(mc.Grid(5))  # the ball of radius ⌊5/2⌋: M = I/4
    >>> fit.metric.M.flatten()[::2], round(fit.residual.item(), 6)
    (tensor([0.2500, 0.2500]), 0.0)
    """
    if not 0 < eps_omega < 1:
        raise ValueError(f"`eps_omega` (={eps_omega!r}) must be in (0, 1)")
    refinements = _checks.whole(refinements, "refinements", minimum=0)
    if not isinstance(offsets, Tensor) and not hasattr(offsets, "offsets"):
        raise TypeError(f"`offsets` must be a torch.Tensor or a Support, got {type(offsets).__name__}")
    y = _checks.floating(offsets if isinstance(offsets, Tensor) else offsets.offsets(), "offsets")
    if y.dim() < 5 or y.shape[3] != y.dim() - 4 or not y.shape[2]:
        raise ValueError(f"`offsets` must be (B, G, P, d, *out) with d axes out and P ≥ 1, got shape {tuple(y.shape)}")
    _checks.finite(y, "offsets")
    s = _levels(offsets, levels, *y.shape[2:4]).to(y.device)
    pixels = y.double().movedim((2, 3), (-2, -1))  # [B, G, *out, P, d]
    chunks = pixels.flatten(0, -3).split(max(_CHUNK_SAMPLES // y.shape[2], 1))
    parts = [_fit(chunk, s, eps_omega, refinements) for chunk in chunks]
    A, omega, residual = (torch.cat(part).unflatten(0, pixels.shape[:-2]) for part in zip(*parts, strict=True))
    A, omega = A.movedim(-1, 2), omega.movedim(-1, 2)
    dtype = torch.promote_types(y.dtype, torch.float32)
    return RandersFit(Randers((A + _symmetric.outer(omega)).to(dtype), omega.to(dtype)), residual.to(dtype))


def _levels(
    offsets: Tensor | SupportLike, levels: Tensor | Sequence[float] | float | None, samples: int, dim: int
) -> Tensor:
    """Return the given levels, or those that go with the offsets: (P,) in float64."""
    if levels is None:
        stencil = getattr(offsets, "stencil", None)
        kernel = (round(samples ** (1 / dim)),) * dim if isinstance(offsets, Tensor) else offsets.kernel_size
        if stencil is not None:
            levels = stencil.radii
        elif math.prod(kernel) == samples > 1 and all(k % 2 for k in kernel):
            cells = itertools.product(*(range(-(k // 2), k // 2 + 1) for k in kernel))
            levels = [math.hypot(*cell) / (max(kernel) // 2) for cell in cells]
        else:
            levels = 1.0
    s = torch.as_tensor(levels, dtype=torch.float64, device="cpu")
    if s.shape not in ((), (samples,)) or not bool((s >= 0).all() & s.isfinite().all()):
        raise ValueError(f"`levels` must be finite and at least 0, one number or ({samples},), got {levels!r}")
    return s.expand(samples)


def _fit(y: Tensor, s: Tensor, eps_omega: float, refinements: int) -> tuple[Tensor, Tensor, Tensor]:
    """Fit samples y (N, P, d) of levels s (P,): A, packed (N, d(d+1)/2), ω (N, d) and the residual (N,)."""
    dim = y.shape[-1]
    length = torch.linalg.vector_norm(y, dim=-1)  # [N, P]
    last_axis = torch.eye(dim, dtype=y.dtype, device=y.device)[-1]
    u = torch.where((length > 0).unsqueeze(-1), y / torch.where(length > 0, length, 1).unsqueeze(-1), last_axis)
    tells = (length > 0) & (s > 0)
    reach = torch.where(tells, length / torch.where(s > 0, s, 1), 0)  # |z|
    # From here on in units of the samples' own size, in which a round ball has A = I.
    size = (reach.square().sum(-1) / tells.sum(-1).clamp_min(1)).sqrt().clamp_min(_SMALLEST_SIZE)
    length, reach = length / size.unsqueeze(-1), reach / size.unsqueeze(-1)
    pairs = _symmetric.pairs(dim)
    squares = torch.stack([(1 if i == j else 2) * u[..., i] * u[..., j] for i, j in pairs], -1)  # uᵀAu = squares · A

    # The unknowns, A and ω, are one vector p (N, n). Times |y|, an algebraic error is about a distance.
    weight = length * tells
    rows = torch.cat([reach.unsqueeze(-1) * squares, 2 * u], -1) * (reach * weight).unsqueeze(-1)  # [N, P, n]
    round_ball = torch.tensor([float(i == j) for i, j in pairs] + [0.0] * dim, dtype=y.dtype, device=y.device)
    p = _project(round_ball + _least_squares(rows, weight - rows @ round_ball, 0 * size), dim, eps_omega)

    distance, slope = _distance(p, squares, u, length, s)
    damping = torch.full_like(size, 1e-2)
    for _ in range(refinements):
        step = _least_squares(slope * tells.unsqueeze(-1), distance, damping)
        tried = _project(p - step, dim, eps_omega)
        tried_distance, tried_slope = _distance(tried, squares, u, length, s)
        better = ((tried_distance.square() - distance.square()) * tells).sum(-1) < 0
        p = torch.where(better.view(-1, 1), tried, p)
        distance = torch.where(better.view(-1, 1), tried_distance, distance)
        slope = torch.where(better.view(-1, 1, 1), tried_slope, slope)
        damping = torch.where(better, damping / 5, damping * 5)

    A, omega = p.split((len(pairs), dim), -1)
    residual = distance.square().mean(-1).sqrt() * size
    return A / size.square().unsqueeze(-1), omega / size.unsqueeze(-1), residual


def _least_squares(rows: Tensor, target: Tensor, damping: Tensor) -> Tensor:
    """Return the x (N, n) for which rows·x is nearest to the target, held towards 0 by the damping and the prior."""
    normal = rows.mT @ rows
    scale = normal.diagonal(dim1=-2, dim2=-1)
    held = damping.unsqueeze(-1) * scale + (_PRIOR * scale.mean(-1, keepdim=True)).clamp_min(1e-30)
    return torch.linalg.solve(normal + torch.diag_embed(held), (target.unsqueeze(-2) @ rows).squeeze(-2))


def _project(p: Tensor, dim: int, eps_omega: float) -> Tensor:
    """Raise the eigenvalues of A to the floor, and shorten ω to ‖ω‖_{M⁻¹} ≤ 1 − ε_ω."""
    pairs = _symmetric.pairs(dim)
    places = [[pairs.index((min(i, j), max(i, j))) for j in range(dim)] for i in range(dim)]
    values, vectors = torch.linalg.eigh(p[:, places])
    values = values.clamp_min(_SMALLEST_EIGENVALUE).unsqueeze(-2)
    A = (vectors * values) @ vectors.mT
    omega = p[:, len(pairs) :]
    q = ((omega.unsqueeze(-2) @ vectors).square() / values).sum(-1)  # ωᵀA⁻¹ω
    largest = (1 - eps_omega) ** 2 / (1 - (1 - eps_omega) ** 2)
    omega = omega * (largest / q.clamp_min(largest)).sqrt()
    return torch.cat([torch.stack([A[:, i, j] for i, j in pairs], -1), omega], -1)


def _distance(p: Tensor, squares: Tensor, u: Tensor, length: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far samples lie beyond the ball, |y| − s/F(u), and the derivative by p: (N, P) and (N, P, n)."""
    A, omega = p.split((squares.shape[-1], u.shape[-1]), -1)
    drift = (u @ omega.unsqueeze(-1)).squeeze(-1)
    root = ((squares @ A.unsqueeze(-1)).squeeze(-1) + drift.square()).sqrt()  # ‖u‖_M
    norm = root + drift
    slope = torch.cat([squares / 2, u * norm.unsqueeze(-1)], -1) / root.unsqueeze(-1)  # of F(u)
    return length - s / norm, slope * (s / norm.square()).unsqueeze(-1)
