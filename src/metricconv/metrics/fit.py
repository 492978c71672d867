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
# Half an axis of a ball is at most this many times as long as its farthest sample is away, so that the ball reaches at
# most twice as many times as far: in directions without a sample, the residual does not mind how far it reaches.
_LONGEST_AXIS = 1.5
# Samples this near to a ball, in units of their own size, prove it, however far it reaches past them.
_EXACT = 1e-4
# The discs to start from have up to this asymmetry, in so many steps: nearer to 1, refinements are slow.
_LEAN, _LEANS = 0.9, 6
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

    Where a pixel is near the rim of its samples or beyond, the solution is often no ball (A is not positive, or ω too
    long), and a disc is refined instead. A ball reaches less than 3 times as far as its farthest z_j, unless the
    samples lie on it.

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


@dataclasses.dataclass(frozen=True, eq=False)
class _Samples:
    """What is fitted: N pixels with P samples each, in units of the samples' own size, in which a round ball has A = I.

    Args:
        u: (N, P, d), the directions.
        squares: (N, P, d(d+1)/2), with which uᵀAu = squares · A.
        length: (N, P), |y|.
        reach: (N, P), |z|; 0 where a sample tells nothing.
        tells: (N, P), whether a sample has a direction and a level.
        levels: (P,).
    """

    u: Tensor
    squares: Tensor
    length: Tensor
    reach: Tensor
    tells: Tensor
    levels: Tensor

    @property
    def dim(self) -> int:
        return self.u.shape[-1]

    def at(self, pixels: Tensor) -> "_Samples":
        """Return the samples of some pixels."""
        u, squares, length = self.u[pixels], self.squares[pixels], self.length[pixels]
        return _Samples(u, squares, length, self.reach[pixels], self.tells[pixels], self.levels)


def _fit(y: Tensor, s: Tensor, eps_omega: float, refinements: int) -> tuple[Tensor, Tensor, Tensor]:
    """Fit samples y (N, P, d) of levels s (P,): A, packed (N, d(d+1)/2), ω (N, d) and the residual (N,)."""
    dim = y.shape[-1]
    length = torch.linalg.vector_norm(y, dim=-1)  # [N, P]
    last_axis = torch.eye(dim, dtype=y.dtype, device=y.device)[-1]
    u = torch.where((length > 0).unsqueeze(-1), y / torch.where(length > 0, length, 1).unsqueeze(-1), last_axis)
    tells = (length > 0) & (s > 0)
    reach = torch.where(tells, length / torch.where(s > 0, s, 1), 0)
    size = (reach.square().sum(-1) / tells.sum(-1).clamp_min(1)).sqrt().clamp_min(_SMALLEST_SIZE).unsqueeze(-1)
    pairs = _symmetric.pairs(dim)
    squares = torch.stack([(1 if i == j else 2) * u[..., i] * u[..., j] for i, j in pairs], -1)
    samples = _Samples(u, squares, length / size, reach / size, tells, s)
    # The unknowns, A and ω, are one vector p (N, n).
    p, longest = _start(samples, eps_omega)
    p, distance = _refine(p, samples, eps_omega, longest, refinements)
    A, omega = p.split((len(pairs), dim), -1)
    residual = distance.square().mean(-1, keepdim=True).sqrt() * size
    return A / size.square(), omega / size, residual.squeeze(-1)


def _start(samples: _Samples, eps_omega: float) -> tuple[Tensor, Tensor]:
    """Return the p (N, n) to refine, and how long a half axis of each ball may be (N,).

    It is the algebraic solution where that is a ball. Where it is none, the ball made of it is often a needle that no
    step leaves, and a disc the better start.
    """
    algebraic = _algebraic(samples)
    p = _project(algebraic, samples.dim, eps_omega, torch.full_like(algebraic[:, 0], torch.inf))
    distance, _ = _distance(p, samples)
    counts = samples.levels > 0  # also on the pixel, where no ball ends
    exact = (distance * counts).square().sum(-1) <= _EXACT**2 * counts.sum()
    longest = torch.where(exact, torch.inf, _LONGEST_AXIS * samples.reach.amax(-1).clamp_min(1))
    moved = (_project(algebraic, samples.dim, eps_omega, longest) - algebraic).abs().amax(-1)
    no_ball = ~exact & (moved > 1e-9 * algebraic.abs().amax(-1))
    if no_ball.any():
        disc = _disc(samples.at(no_ball), eps_omega)
        p[no_ball] = _project(disc, samples.dim, eps_omega, longest[no_ball])
    return p, longest


def _refine(p: Tensor, samples: _Samples, eps_omega: float, longest: Tensor, refinements: int) -> tuple[Tensor, Tensor]:
    """Take Levenberg–Marquardt steps that lessen the residual: p and the distances (N, P)."""
    distance, slope = _distance(p, samples)
    damping = torch.full_like(longest, 1e-2)
    for _ in range(refinements):
        wall = _outward(p, samples.dim, eps_omega)  # along which a step may go, as through it would be undone
        step = _least_squares(slope * samples.tells.unsqueeze(-1), distance, damping, wall)
        tried = _project(p - step, samples.dim, eps_omega, longest)
        tried_distance, tried_slope = _distance(tried, samples)
        better = ((tried_distance.square() - distance.square()) * samples.tells).sum(-1) < 0
        p = torch.where(better.view(-1, 1), tried, p)
        distance = torch.where(better.view(-1, 1), tried_distance, distance)
        slope = torch.where(better.view(-1, 1, 1), tried_slope, slope)
        damping = torch.where(better, damping / 5, damping * 5)
    return p, distance


def _round(dim: int, like: Tensor) -> Tensor:
    """Return the p (n,) of the round ball around the pixel, A = I and ω = 0."""
    return like.new_tensor([float(i == j) for i, j in _symmetric.pairs(dim)] + [0.0] * dim)


def _algebraic(samples: _Samples) -> Tensor:
    """Solve zᵀAz + 2ωᵀz = 1, which may give no ball. Times |y|, an algebraic error is about a distance."""
    u, reach = samples.u, samples.reach
    weight = samples.length * samples.tells
    rows = torch.cat([reach.unsqueeze(-1) * samples.squares, 2 * u], -1) * (reach * weight).unsqueeze(-1)  # [N, P, n]
    round_ball = _round(samples.dim, u)
    return round_ball + _least_squares(rows, weight - rows @ round_ball, torch.zeros_like(reach[:, 0]))


def _disc(samples: _Samples, eps_omega: float) -> Tensor:
    """Return the p (N, n) of the best of some discs, which lean towards the samples' mean or the farthest of them.

    A disc of radius R around aRv, |v| = 1, ends at Rρ(u) with ρ = a uᵀv + √(1 − a² + (a uᵀv)²), so that the best R is
    known. It has A = I/(R²(1 − a²)), ω = −aRA v and the asymmetry a.
    """
    u, z = samples.u, samples.u * samples.reach.unsqueeze(-1)
    farthest = samples.reach.argmax(-1).view(-1, 1, 1).expand(-1, 1, samples.dim)
    v = torch.nn.functional.normalize(torch.cat([z.sum(-2, keepdim=True), z.gather(-2, farthest)], -2), dim=-1)
    a = torch.linspace(0, min(1 - eps_omega, _LEAN), _LEANS, dtype=u.dtype, device=u.device)
    centre = (v.unsqueeze(-2) * a.unsqueeze(-1)).flatten(1, 2)  # av: [N, discs, d]
    depth = 1 - centre.square().sum(-1)  # 1 − a²: [N, discs]
    lean = u @ centre.mT  # [N, P, discs]
    rho = (lean + (depth.unsqueeze(-2) + lean.square()).sqrt()) * (samples.tells * samples.levels).unsqueeze(-1)
    length = (samples.length * samples.tells).unsqueeze(-1)
    radius = (rho * length).sum(-2) / rho.square().sum(-2).clamp_min(1e-30)  # [N, discs]
    error = (length - rho * radius.unsqueeze(-2)).square().sum(-2)
    best = torch.arange(len(u), device=u.device), error.argmin(-1)
    radius = radius[best].clamp_min(_SMALLEST_SIZE).unsqueeze(-1)
    depth, centre = depth[best].unsqueeze(-1), centre[best]
    return torch.cat([_round(samples.dim, u)[: -samples.dim] / radius.square(), -centre / radius], -1) / depth


def _least_squares(rows: Tensor, target: Tensor, damping: Tensor, wall: Tensor | None = None) -> Tensor:
    """Return the x (N, n) for which rows·x is nearest to the target, held towards 0 by the damping and the prior.

    With a wall (N, n), among those with wall·x ≥ 0.
    """
    normal = rows.mT @ rows
    scale = normal.diagonal(dim1=-2, dim2=-1)
    held = damping.unsqueeze(-1) * scale + (_PRIOR * scale.mean(-1, keepdim=True)).clamp_min(1e-30)
    sides = (target.unsqueeze(-2) @ rows).mT  # [N, n, 1]
    sides = sides if wall is None else torch.cat([sides, wall.unsqueeze(-1)], -1)
    x, *push = torch.linalg.solve(normal + torch.diag_embed(held), sides).unbind(-1)
    if wall is None:
        return x
    short = -(wall * x).sum(-1, keepdim=True).clamp_max(0)
    return x + push[0] * (short / (wall * push[0]).sum(-1, keepdim=True).clamp_min(1e-30))


def _outward(p: Tensor, dim: int, eps_omega: float) -> Tensor:
    """Return, where ω is as long as it may be, the derivative by p of q = ωᵀA⁻¹ω, and 0 elsewhere: (N, n)."""
    pairs = _symmetric.pairs(dim)
    omega = p[:, len(pairs) :]
    centre = -torch.linalg.solve(_matrix(p, dim), omega)  # of the ball
    q = -(centre * omega).sum(-1, keepdim=True)
    products = [(1 if i == j else 2) * centre[:, i] * centre[:, j] for i, j in pairs]
    slope = -torch.cat([torch.stack(products, -1), 2 * centre], -1)
    return torch.where(q > (1 - 1e-6) * _largest_q(eps_omega), slope, 0)


def _largest_q(eps_omega: float) -> float:
    """Return ωᵀA⁻¹ω of ‖ω‖_{M⁻¹} = 1 − ε_ω."""
    return (1 - eps_omega) ** 2 / (1 - (1 - eps_omega) ** 2)


def _matrix(p: Tensor, dim: int) -> Tensor:
    """Return A (N, d, d)."""
    pairs = _symmetric.pairs(dim)
    return p[:, [[pairs.index((min(i, j), max(i, j))) for j in range(dim)] for i in range(dim)]]


def _project(p: Tensor, dim: int, eps_omega: float, longest: Tensor) -> Tensor:
    """Return the p of a ball: A > 0, ‖ω‖_{M⁻¹} ≤ 1 − ε_ω, and no half axis longer than the longest (N,)."""
    pairs = _symmetric.pairs(dim)
    values, vectors = torch.linalg.eigh(_matrix(p, dim))
    values = values.clamp_min(_SMALLEST_EIGENVALUE)
    omega = (p[:, None, len(pairs) :] @ vectors).squeeze(-2)  # along A's axes
    q = (omega.square() / values).sum(-1, keepdim=True)  # ωᵀA⁻¹ω
    largest = _largest_q(eps_omega)
    omega = omega * (largest / q.clamp_min(largest)).sqrt()
    # The ball is an ellipsoid with half axes √((1 + q)/λ). Squeezed along one of them, it keeps q and so its asymmetry.
    half_axes = ((1 + q.clamp_max(largest)) / values).sqrt()
    squeeze = (half_axes / longest.unsqueeze(-1)).clamp_min(1)
    A = (vectors * (values * squeeze.square()).unsqueeze(-2)) @ vectors.mT
    omega = (vectors @ (omega * squeeze).unsqueeze(-1)).squeeze(-1)
    return torch.cat([torch.stack([A[:, i, j] for i, j in pairs], -1), omega], -1)


def _distance(p: Tensor, samples: _Samples) -> tuple[Tensor, Tensor]:
    """Return how far samples lie beyond the ball, |y| − s/F(u), and the derivative by p: (N, P) and (N, P, n)."""
    u, squares, s = samples.u, samples.squares, samples.levels
    A, omega = p.split((squares.shape[-1], u.shape[-1]), -1)
    drift = (u @ omega.unsqueeze(-1)).squeeze(-1)
    root = ((squares @ A.unsqueeze(-1)).squeeze(-1) + drift.square()).sqrt()  # ‖u‖_M
    norm = root + drift
    slope = torch.cat([squares / 2, u * norm.unsqueeze(-1)], -1) / root.unsqueeze(-1)  # of F(u)
    return samples.length - s / norm, slope * (s / norm.square()).unsqueeze(-1)
