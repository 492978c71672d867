"""The p-norm of non-negative numbers, with 1/p as a parameter, so that p = ∞ and its dual p = 1 are ordinary values."""

import torch
from torch import Tensor

# Norms with p above 1/this are computed as the maximum, from which they differ by less than this factor.
_SMALLEST_INVERSE = 1e-6


def p_norm(terms: Tensor, inverse_p: Tensor) -> Tensor:
    """Return (Σ t^p)^{1/p} over the first axis, or the maximum for 1/p = 0, with finite derivatives by t and 1/p.

    Args:
        terms: t ≥ 0, (n, …).
        inverse_p: 1/p in [0, 1], broadcastable to (…).
    """
    largest = terms.amax(0)
    # The result does not depend on the scale, which prevents overflow of powers.
    scale = largest.detach().clamp_max(torch.finfo(terms.dtype).max)
    summed = (scale > 0) & (inverse_p >= _SMALLEST_INVERSE)
    safe = torch.where(inverse_p >= _SMALLEST_INVERSE, inverse_p, 1.0)
    ratios = terms / torch.where(scale > 0, scale, 1.0)
    # Powers of 0 have derivatives by the exponent, whose derivatives are NaN; those by the base are 0 for p > 1.
    exponent, positive = 1 / safe, ratios > 0
    powers = torch.where(positive, torch.where(positive, ratios, 1.0).pow(exponent), ratios * (exponent == 1))
    total = torch.where(summed, powers.sum(0), 1.0)
    return torch.where(summed, scale * total.pow(safe), largest)


def ball_volume(inverse_p: Tensor, dim: int) -> Tensor:
    """Return the volume Γ(1 + 1/p)^d / Γ(1 + d/p) of the unit ball of the p-norm in one orthant."""
    return torch.exp(dim * torch.lgamma(1 + inverse_p) - torch.lgamma(1 + dim * inverse_p))


def is_convex(inverse_p: Tensor) -> Tensor:
    """Return where 1/p is in [0, 1], up to rounding of averages."""
    return (inverse_p >= 0) & (inverse_p <= 1 + 8 * torch.finfo(inverse_p.dtype).eps)
