"""Fitting Randers metrics to the sampling locations of a support."""

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

__all__ = ["RandersFit", "SupportLike", "fit_randers"]

# Weight of the prior, a round ball, relative to the samples. It matters only if the samples do not determine the ball.
_PRIOR = 1e-12
# Lower bound of the eigenvalues of A, for samples scaled to root mean square length 1.
_SMALLEST_EIGENVALUE = 1e-3
# Lower bound of the size of samples, in pixels: the ball of samples at 0 has this radius.
_SMALLEST_SIZE = 1e-3
# Upper bound of the half-axes relative to the farthest sample, so that the reach of the ball is at most twice that. The
# residual does not bound the ball in directions without samples.
_LONGEST_AXIS = 1.5
# If all samples are this close to a ball, relative to their size, the bound on its half-axes is not applied.
_EXACT = 1e-4
# Largest asymmetry of the initial discs, and its number of values. Closer to 1, refinement converges slowly.
_MAX_ASYMMETRY, _ASYMMETRIES = 0.9, 6
# Lower bound of 1 − ‖ω‖, for which the constraint on ω is accurate in float64.
_LEAST_EPS = 1e-9
# Number of samples per chunk, which bounds the memory to about 100 MB.
_CHUNK_SAMPLES = 2**20


class SupportLike(Protocol):
    """Objects with offsets and a kernel size, such as ``metricconv.Support``."""

    kernel_size: tuple[int, ...]

    def offsets(self) -> Tensor:
        """Return the displacements of all samples, (B, G, P, d, *out)."""
        ...


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RandersFit:
    """A metric fitted to a support, and the residual.

    Args:
        metric: the Randers metric at each pixel, positive everywhere.
        residual: (B, G, *out), the root mean square in pixels of the distances between the samples y_j and the points
            s_j u_j/F(u_j) in the same directions u_j = y_j/|y_j|. It is 0 if the support is a unit tangent ball. For
            y_j = 0, u_j is the last unit vector.
    """

    metric: Randers
    residual: Tensor

    def __repr__(self) -> str:
        """Describe the fit without values of tensors."""
        return f"RandersFit(metric={self.metric})"


@torch.no_grad()
def fit_randers(
    offsets: Tensor | SupportLike,
    levels: Tensor | Sequence[float] | float | None = None,
    *,
    eps_omega: float = 1e-3,
    refinements: int = 10,
) -> RandersFit:
    """Return the Randers metric whose unit tangent ball is closest to a support, in the least-squares sense.

    A sample y_j of level s_j should satisfy F(y_j) = s_j, so that z_j = y_j/s_j is on the unit sphere of F. The square
    of √(zᵀMz) = 1 − ωᵀz is linear in A = M − ωωᵀ and ω,

        zᵀ A z + 2 ωᵀ z = 1,

    and is solved by linear least squares. Levenberg–Marquardt steps then reduce the residual itself. If A > 0,
    M = A + ωωᵀ is a positive Randers metric for every ω: ‖ω‖²_{M⁻¹} = q/(1 + q) < 1 with q = ωᵀA⁻¹ω
    (Sherman–Morrison).

    If the pixel is near the boundary of its samples or outside, the linear solution is often not a ball (A is not
    positive, or ω too large), and the refinement starts from a disc instead. Balls reach less than 3 times as far as
    the farthest z_j, unless the samples lie on the ball.

    Args:
        offsets: (B, G, P, d, *out), in pixels and tensor-axis order, (y, x) in 2-D; or a support.
        levels: s_j ≥ 0, (P,) or a number. Samples of level 0, such as the center, have no influence. Default: the radii
            of the stencil of the support, if it has one; otherwise |c|/⌊k/2⌋ for the cells c of a kernel k^d with odd
            k ≥ 3, as in ``stencils.square_onion``; otherwise 1, for samples on the boundary of the ball.
        eps_omega: 1 − the largest ‖ω‖_{M⁻¹}, in (0, 1) (default 0.001).
        refinements: maximum number of Levenberg–Marquardt steps (default 10). Steps that do not reduce the residual are
            rejected.

    Returns:
        The metric and its residual, detached from the autograd graph.

    >>> import metricconv as mc
    >>> fit = fit_randers(mc.Grid(5))  # the ball of radius ⌊5/2⌋: M = I/4
    >>> fit.metric.M.flatten()[::2], round(fit.residual.item(), 6)
    (tensor([0.2500, 0.2500]), 0.0)
    """
    if not _LEAST_EPS <= _checks.number(eps_omega) < 1:
        raise ValueError(f"`eps_omega` (={eps_omega!r}) must be in (0, 1), at least {_LEAST_EPS}")
    refinements = _checks.whole(refinements, "refinements", minimum=0)
    y, s = read_samples(offsets, levels)
    pixels = y.double().movedim((2, 3), (-2, -1))  # [B, G, *out, P, d]
    chunks = pixels.flatten(0, -3).split(max(_CHUNK_SAMPLES // y.shape[2], 1))
    parts = [_fit(chunk, s, eps_omega, refinements) for chunk in chunks]
    A, omega, residual = (torch.cat(part).unflatten(0, pixels.shape[:-2]) for part in zip(*parts, strict=True))
    A, omega = A.movedim(-1, 2), omega.movedim(-1, 2)
    dtype = torch.promote_types(y.dtype, torch.float32)
    return RandersFit(Randers((A + _symmetric.outer(omega)).to(dtype), omega.to(dtype)), residual.to(dtype))


def read_samples(
    offsets: Tensor | SupportLike, levels: Tensor | Sequence[float] | float | None
) -> tuple[Tensor, Tensor]:
    """Check offsets and levels, and return the samples (B, G, P, d, *out) and their levels (P,) in float64."""
    if not isinstance(offsets, Tensor) and not hasattr(offsets, "offsets"):
        raise TypeError(f"`offsets` must be a torch.Tensor or a Support, got {type(offsets).__name__}")
    y = _checks.floating(offsets if isinstance(offsets, Tensor) else offsets.offsets(), "offsets")
    if y.dim() < 5 or y.shape[3] != y.dim() - 4 or not y.shape[2] or not all(y.shape[4:]):
        raise ValueError(
            f"`offsets` must be (B, G, P, d, *out) with d spatial axes, P ≥ 1 and pixels, got shape {tuple(y.shape)}"
        )
    _checks.finite(y, "offsets")
    s = _levels(offsets, levels, *y.shape[2:4]).to(y.device)
    return y, s


def _levels(
    offsets: Tensor | SupportLike, levels: Tensor | Sequence[float] | float | None, samples: int, dim: int
) -> Tensor:
    """Return the given levels, or the default levels of the offsets: (P,) in float64."""
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
    s = _checks.vectors(levels, "levels", torch.float64).to("cpu", torch.float64)
    if s.shape not in ((), (samples,)) or not bool((s >= 0).all() & s.isfinite().all()):
        raise ValueError(f"`levels` must be finite and at least 0, one number or ({samples},), got {levels!r}")
    return s.expand(samples)


@dataclasses.dataclass(frozen=True, eq=False)
class _Samples:
    """The samples of N pixels, P each, scaled to root mean square |z| = 1, so that a round ball has A = I.

    Args:
        u: directions, (N, P, d).
        squares: (N, P, d(d+1)/2), so that uᵀAu = squares · A.
        length: |y|, (N, P).
        reach: |z|, (N, P); 0 for samples that are not valid.
        valid: whether |y| and the level are positive, (N, P).
        levels: (P,).
    """

    u: Tensor
    squares: Tensor
    length: Tensor
    reach: Tensor
    valid: Tensor
    levels: Tensor

    @property
    def dim(self) -> int:
        return self.u.shape[-1]

    def at(self, pixels: Tensor) -> "_Samples":
        """Return the samples of some pixels."""
        u, squares, length = self.u[pixels], self.squares[pixels], self.length[pixels]
        return _Samples(u, squares, length, self.reach[pixels], self.valid[pixels], self.levels)


def _fit(y: Tensor, s: Tensor, eps_omega: float, refinements: int) -> tuple[Tensor, Tensor, Tensor]:
    """Fit samples y (N, P, d) of levels s (P,): A, packed (N, d(d+1)/2), ω (N, d) and the residual (N,)."""
    dim = y.shape[-1]
    length = torch.linalg.vector_norm(y, dim=-1)  # [N, P]
    last_axis = torch.eye(dim, dtype=y.dtype, device=y.device)[-1]
    u = torch.where((length > 0).unsqueeze(-1), y / torch.where(length > 0, length, 1).unsqueeze(-1), last_axis)
    valid = (length > 0) & (s > 0)
    reach = torch.where(valid, length / torch.where(s > 0, s, 1), 0)
    size = (reach.square().sum(-1) / valid.sum(-1).clamp_min(1)).sqrt().clamp_min(_SMALLEST_SIZE).unsqueeze(-1)
    pairs = _symmetric.pairs(dim)
    squares = torch.stack([(1 if i == j else 2) * u[..., i] * u[..., j] for i, j in pairs], -1)
    samples = _Samples(u, squares, length / size, reach / size, valid, s)
    # The unknowns A and ω are concatenated to one vector p (N, n).
    p, longest = _start(samples, eps_omega)
    p, distance = _refine(p, samples, eps_omega, longest, refinements)
    A, omega = p.split((len(pairs), dim), -1)
    residual = distance.square().mean(-1, keepdim=True).sqrt() * size
    return A / size.square(), omega / size, residual.squeeze(-1)


def _start(samples: _Samples, eps_omega: float) -> tuple[Tensor, Tensor]:
    """Return the initial p (N, n), and the upper bound of the half-axes of each ball (N,).

    This is the algebraic solution if it is a ball. Otherwise its projection is often a needle at which the refinement
    stalls, and a disc is a better start.
    """
    algebraic = _algebraic(samples)
    p = _project(algebraic, samples.dim, eps_omega, torch.full_like(algebraic[:, 0], torch.inf))
    distance, _ = _distance(p, samples)
    nonzero = samples.levels > 0  # includes samples at y = 0
    exact = (distance * nonzero).square().sum(-1) <= _EXACT**2 * nonzero.sum()
    longest = torch.where(exact, torch.inf, _LONGEST_AXIS * samples.reach.amax(-1).clamp_min(1))
    change = (_project(algebraic, samples.dim, eps_omega, longest) - algebraic).abs().amax(-1)
    not_a_ball = ~exact & (change > 1e-9 * algebraic.abs().amax(-1))
    if not_a_ball.any():
        disc = _disc(samples.at(not_a_ball), eps_omega)
        p[not_a_ball] = _project(disc, samples.dim, eps_omega, longest[not_a_ball])
    return p, longest


def _refine(p: Tensor, samples: _Samples, eps_omega: float, longest: Tensor, refinements: int) -> tuple[Tensor, Tensor]:
    """Return p and the distances (N, P) after Levenberg–Marquardt steps."""
    distance, slope = _distance(p, samples)
    damping = torch.full_like(longest, 1e-2)
    for _ in range(refinements):
        constraint = _active_constraint(p, samples.dim, eps_omega)
        step = _least_squares(slope * samples.valid.unsqueeze(-1), distance, damping, constraint)
        candidate = _project(p - step, samples.dim, eps_omega, longest)
        new_distance, new_slope = _distance(candidate, samples)
        better = ((new_distance.square() - distance.square()) * samples.valid).sum(-1) < 0
        p = torch.where(better.view(-1, 1), candidate, p)
        distance = torch.where(better.view(-1, 1), new_distance, distance)
        slope = torch.where(better.view(-1, 1, 1), new_slope, slope)
        damping = torch.where(better, damping / 5, damping * 5)
    return p, distance


def _round(dim: int, like: Tensor) -> Tensor:
    """Return the p (n,) of the round ball around the pixel, A = I and ω = 0."""
    return like.new_tensor([float(i == j) for i, j in _symmetric.pairs(dim)] + [0.0] * dim)


def _algebraic(samples: _Samples) -> Tensor:
    """Return the solution of zᵀAz + 2ωᵀz = 1, not necessarily a ball. Weighted by |y|, errors approximate distances."""
    u, reach = samples.u, samples.reach
    weight = samples.length * samples.valid
    rows = torch.cat([reach.unsqueeze(-1) * samples.squares, 2 * u], -1) * (reach * weight).unsqueeze(-1)  # [N, P, n]
    round_ball = _round(samples.dim, u)
    return round_ball + _least_squares(rows, weight - rows @ round_ball, torch.zeros_like(reach[:, 0]))


def _disc(samples: _Samples, eps_omega: float) -> Tensor:
    """Return the p (N, n) of the best disc among several shifted towards the mean or the farthest of the samples.

    The boundary of a disc of radius R around aRv, |v| = 1, in direction u is at distance R ρ(u) with
    ρ = a uᵀv + √(1 − a² + (a uᵀv)²), so the best R has a closed form. The disc has A = I/(R²(1 − a²)), ω = −aRA v and
    asymmetry a.
    """
    u, z = samples.u, samples.u * samples.reach.unsqueeze(-1)
    farthest = samples.reach.argmax(-1).view(-1, 1, 1).expand(-1, 1, samples.dim)
    v = torch.nn.functional.normalize(torch.cat([z.sum(-2, keepdim=True), z.gather(-2, farthest)], -2), dim=-1)
    a = torch.linspace(0, min(1 - eps_omega, _MAX_ASYMMETRY), _ASYMMETRIES, dtype=u.dtype, device=u.device)
    center = (v.unsqueeze(-2) * a.unsqueeze(-1)).flatten(1, 2)  # av: [N, discs, d]
    depth = 1 - center.square().sum(-1)  # 1 − a²: [N, discs]
    along = u @ center.mT  # [N, P, discs]
    rho = (along + (depth.unsqueeze(-2) + along.square()).sqrt()) * (samples.valid * samples.levels).unsqueeze(-1)
    length = (samples.length * samples.valid).unsqueeze(-1)
    radius = (rho * length).sum(-2) / rho.square().sum(-2).clamp_min(1e-30)  # [N, discs]
    error = (length - rho * radius.unsqueeze(-2)).square().sum(-2)
    best = torch.arange(len(u), device=u.device), error.argmin(-1)
    radius = radius[best].clamp_min(_SMALLEST_SIZE).unsqueeze(-1)
    depth, center = depth[best].unsqueeze(-1), center[best]
    return torch.cat([_round(samples.dim, u)[: -samples.dim] / radius.square(), -center / radius], -1) / depth


def _least_squares(rows: Tensor, target: Tensor, damping: Tensor, constraint: Tensor | None = None) -> Tensor:
    """Return the x (N, n) that minimizes |rows·x − target|², regularized by the damping and the prior.

    With a constraint (N, n), subject to constraint·x ≥ 0.
    """
    normal = rows.mT @ rows
    scale = normal.diagonal(dim1=-2, dim2=-1)
    regularization = damping.unsqueeze(-1) * scale + (_PRIOR * scale.mean(-1, keepdim=True)).clamp_min(1e-30)
    sides = (target.unsqueeze(-2) @ rows).mT  # [N, n, 1]
    sides = sides if constraint is None else torch.cat([sides, constraint.unsqueeze(-1)], -1)
    x, *correction = torch.linalg.solve(normal + torch.diag_embed(regularization), sides).unbind(-1)
    if constraint is None:
        return x
    violation = -(constraint * x).sum(-1, keepdim=True).clamp_max(0)
    return x + correction[0] * (violation / (constraint * correction[0]).sum(-1, keepdim=True).clamp_min(1e-30))


def _active_constraint(p: Tensor, dim: int, eps_omega: float) -> Tensor:
    """Return the derivative by p of q = ωᵀA⁻¹ω where q is maximal, and 0 elsewhere: (N, n)."""
    pairs = _symmetric.pairs(dim)
    omega = p[:, len(pairs) :]
    center = -torch.linalg.solve(_matrix(p, dim), omega)  # of the ball
    q = -(center * omega).sum(-1, keepdim=True)
    products = [(1 if i == j else 2) * center[:, i] * center[:, j] for i, j in pairs]
    slope = -torch.cat([torch.stack(products, -1), 2 * center], -1)
    return torch.where(q > (1 - 1e-6) * _largest_q(eps_omega), slope, 0)


def _largest_q(eps_omega: float) -> float:
    """Return ωᵀA⁻¹ω for ‖ω‖_{M⁻¹} = 1 − ε_ω."""
    return (1 - eps_omega) ** 2 / (1 - (1 - eps_omega) ** 2)


def _matrix(p: Tensor, dim: int) -> Tensor:
    """Return A (N, d, d)."""
    pairs = _symmetric.pairs(dim)
    return p[:, [[pairs.index((min(i, j), max(i, j))) for j in range(dim)] for i in range(dim)]]


def _project(p: Tensor, dim: int, eps_omega: float, longest: Tensor) -> Tensor:
    """Return the p of a ball: A > 0, ‖ω‖_{M⁻¹} ≤ 1 − ε_ω, and half-axes of at most ``longest`` (N,)."""
    pairs = _symmetric.pairs(dim)
    values, vectors = torch.linalg.eigh(_matrix(p, dim))
    values = values.clamp_min(_SMALLEST_EIGENVALUE)
    omega = (p[:, None, len(pairs) :] @ vectors).squeeze(-2)  # in the basis of eigenvectors of A
    q = (omega.square() / values).sum(-1, keepdim=True)  # ωᵀA⁻¹ω
    largest = _largest_q(eps_omega)
    omega = omega * (largest / q.clamp_min(largest)).sqrt()
    # The ball is an ellipsoid with half-axes √((1 + q)/λ). Scaling it along one of them does not change q.
    half_axes = ((1 + q.clamp_max(largest)) / values).sqrt()
    factor = (half_axes / longest.unsqueeze(-1)).clamp_min(1)
    A = (vectors * (values * factor.square()).unsqueeze(-2)) @ vectors.mT
    omega = (vectors @ (omega * factor).unsqueeze(-1)).squeeze(-1)
    return torch.cat([torch.stack([A[:, i, j] for i, j in pairs], -1), omega], -1)


def _distance(p: Tensor, samples: _Samples) -> tuple[Tensor, Tensor]:
    """Return the signed distances |y| − s/F(u), (N, P), and their derivatives by p, (N, P, n)."""
    u, squares, s = samples.u, samples.squares, samples.levels
    A, omega = p.split((squares.shape[-1], u.shape[-1]), -1)
    omega_u = (u @ omega.unsqueeze(-1)).squeeze(-1)
    root = ((squares @ A.unsqueeze(-1)).squeeze(-1) + omega_u.square()).sqrt()  # ‖u‖_M
    norm = root + omega_u
    slope = torch.cat([squares / 2, u * norm.unsqueeze(-1)], -1) / root.unsqueeze(-1)  # of F(u)
    return samples.length - s / norm, slope * (s / norm.square()).unsqueeze(-1)
