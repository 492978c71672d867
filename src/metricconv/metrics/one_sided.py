"""A metric computed from an image whose balls stay on one side of edges."""

import torch
from torch import Tensor

from .. import _checks
from . import _symmetric
from .asymmetric import AsymmetricQuadratic
from .from_image import _largest, _unit_gradient, image_gradient

__all__ = ["one_sided_metric"]


def one_sided_metric(
    image: Tensor,
    iota: float = 0.1,
    alpha: float = 10.0,
    *,
    scale: float | None = 1.5,
    padding_mode: str = "border",
    largest: float | None = None,
) -> AsymmetricQuadratic:
    """Return the metric whose balls near an edge are compressed towards it, so that they stay on one side.

    With n = ∇f_s/|∇f_s| and the edge strength g = |∇f_s| / max |∇f_s|:

        F(u)² = ι (|u|² + (α g nᵀu)²) + (α ∇gᵀu)₊².

    On an edge, where g is largest, balls are narrow across it. Beside it, steps that increase g are expensive, and
    steps away from the edge are not: balls are half discs.

    Args:
        image: (B, C, *spatial), finite; checked on the CPU and in ``check_finite()``. With several channels,
            ∇f_s is the longest of their gradients at each pixel.
        iota: scale ι of the metric, positive (default 0.1). Balls far from edges are round with radius 1/√ι.
        alpha: gain α of the compression, at least 0 (default 10).
        scale: standard deviation s of the Gaussian derivative filters, 0.01 to 1000 pixels (default 1.5); None for
            3×3 Sobel filters. Edges are noticed within about 2s.
        padding_mode: padding mode of the image, "border" (default), "reflect", "circular" or "zeros".
        largest: max |∇f_s| of a larger image of which ``image`` is a part. Default: the maximum over each image.

    Returns:
        ``AsymmetricQuadratic``: M (B, 1, d(d+1)/2, *spatial), w (B, 1, d, *spatial).

    >>> step = torch.zeros(1, 1, 9, 20)
    >>> step[..., 10:] = 1.0
    >>> ball = one_sided_metric(step).unit_vectors(torch.tensor([[0.0, 1.0], [0.0, -1.0]]))
    >>> ball[0, 0, :, 1, 4, 6].round(decimals=1)  # 3.5 pixels left of the edge: short to the right, long to the left
    tensor([ 0.8000, -2.7000])
    """
    iota, alpha = _checks.positive(iota, "iota"), _checks.not_negative(alpha, "alpha")
    normal, length = _unit_gradient(image, scale, padding_mode)
    strength = length / _largest(length, largest)
    slope = image_gradient(strength.squeeze(2), None, "circular" if padding_mode == "circular" else "border")
    # Limits the ratio of the eigenvalues of M, so that it is not singular.
    gain = min(alpha, 0.25 / torch.finfo(strength.dtype).eps ** 0.5)
    across = _symmetric.outer(normal)
    M = iota * (_symmetric.identity(across) + (gain * strength).square() * across)
    return AsymmetricQuadratic(M, min(alpha, 1e6) * slope)
