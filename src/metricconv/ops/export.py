"""The backend of exported programs in 2-D: one ``grid_sample``, and one convolution of the samples.

``torch.export`` and ONNX record every operation of Python, of which the reference has about three hundred per layer.
Here, the geometry is computed for all samples of a pixel at once, and the samples are arranged as an image with P
columns per output column, of which a convolution with kernel size (1, P) and stride (1, P) is the weighted sum.

Exported programs store the samples of a layer. At integer coordinates they have the derivatives of ``grid_sample``,
which are one-sided.
"""

import torch
from torch import Tensor
from torch.nn.functional import conv2d, grid_sample, pad

from .. import _compat
from ..metrics import Metric, Parametrization, Randers, Riemannian, Spectral7
from ..metrics._frames import _SHORTEST_VECTOR
from ..metrics.base import SMALLEST_NORM
from ..metrics.parametrizations.base import _SATURATION, affine
from ..metrics.parametrizations.ellipsoid import _SQUARED_NORM_FLOOR
from ..metrics.parametrizations.spectral import _EIGENVALUE_FLOOR
from ..supports import TangentBall
from .problem import OutputGrid, Problem
from .reference import sample_offsets

__all__ = ["description", "missing_dependency", "name", "parametrize", "run", "unsupported_reason"]

name = "export"
description = "exported programs (torch.export, ONNX) in 2-D, by grid_sample"

_MODES = {"zeros": "zeros", "border": "border", "reflect": "reflection"}
# Normalized coordinates are clamped to this, as larger ones do not fit into the integers of ``grid_sample``. Those of
# balls are bounded.
_FARTHEST = 2.0**20

# Coefficients of the products of (a, b, ω_y, ω_x): a² − b², 2ab, b² − a² and a² + b² for the direction of r = (a, b);
# ω_x²/4, −ω_y ω_x/2 and ω_y²/4 for the norm of ω, whose products with M_yy, M_yx and M_xx are det M ‖ω‖²/4.
_PRODUCTS = [
    [1, 0, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    [0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    [-1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.25],
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -0.25, 0, 0, -0.25, 0],
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.25, 0, 0, 0, 0, 0],
]


def missing_dependency() -> None:
    """Return None: the backend is always available."""


def unsupported_reason(problem: Problem) -> str | None:
    """Return why a problem is not computed in this way, or None."""
    if not _compat.exporting():
        return "it computes exported programs only"
    if problem.support.dim != 2:
        return f"it supports 2 spatial axes, `support` has {problem.support.dim}"
    if problem.padding_mode not in _MODES:
        return f"it does not support `padding_mode` {problem.padding_mode!r}"
    return None


def run(problem: Problem) -> Tensor:
    """Return the output (B, C_out, *out) of a problem, computed in float32 or wider."""
    x = problem.input.to(torch.promote_types(problem.input.dtype, torch.float32))
    support, groups = problem.support, problem.support.groups
    batch, height, columns = x.shape[0], problem.grid.size[0], problem.grid.size[1] * support.samples
    position = _normalized_positions(problem, x)  # [B, G, H, W, P, 2]
    position = position.expand(batch, groups, *position.shape[2:]).flatten(3, 4)  # [B, G, H, W·P, 2]
    samples = grid_sample(
        x.unflatten(1, (groups, -1)).flatten(0, 1) if groups > 1 else x,
        # Where G = 1, flatten would restrict the sizes of an exported program.
        position.flatten(0, 1) if groups > 1 else position.squeeze(1),
        padding_mode=_MODES[problem.padding_mode],
        align_corners=problem.padding_mode == "reflect",
    )  # [B·G, C/G, H, W·P]
    if groups > 1:
        samples = samples.view(batch, -1, height, columns)
    if problem.modulation is not None:
        modulation = problem.modulation.expand(batch, groups, support.samples, *problem.grid.size)
        modulation = modulation.movedim(2, -1).reshape(batch, groups, 1, height, columns).to(x.dtype)
        samples = (samples.unflatten(1, (groups, -1)) * modulation).flatten(1, 2)
    weight = problem.weight.flatten(2).unsqueeze(2).to(x.dtype)
    bias = None if problem.bias is None else problem.bias.to(x.dtype)
    y = conv2d(samples, weight, bias, stride=(1, support.samples), groups=problem.groups)
    return y.to(problem.input.dtype)


def _normalized_positions(problem: Problem, x: Tensor) -> Tensor:
    """Return the coordinates (x, y) of all samples, [B, G, H, W, P, 2], in an image that is [−1, 1].

    Its ends are the outer edges of the image, or for reflect the centers of its first and last pixels.
    """
    support, reflects = problem.support, problem.padding_mode == "reflect"
    extents = [max(n - 1, 1) if reflects else n for n in x.shape[:1:-1]]
    scale = torch.cat([x.new_full((1,), 2 / extent) for extent in extents])
    x_centers, y_centers = _centers(problem.grid, 0 if reflects else 0.5, scale)
    centers = (x_centers + y_centers) * scale - 1
    if isinstance(support, TangentBall) and type(support.metric) in (Riemannian, Randers):
        points = support.stencil.radii.to(scale).unsqueeze(1) * support.stencil.directions.to(scale)
        return points.flip(1) * scale / _norm(support).to(scale).unsqueeze(-1) + centers
    offsets = sample_offsets(problem, slice(None)).permute(0, 1, 4, 5, 2, 3).flip(-1)
    return (offsets.to(scale) * scale + centers).clamp(-_FARTHEST, _FARTHEST)


def _norm(ball: TangentBall) -> Tensor:
    """Return F(u_j), bounded from below: [B, G, H, W, P]."""
    metric = ball.metric
    M = metric.tensors()["M"]
    u = ball.stencil.directions.to(M)
    products = torch.stack([u[:, 0] * u[:, 0], 2 * u[:, 0] * u[:, 1], u[:, 1] * u[:, 1]], 1)
    norm = torch.einsum("bgchw,pc->bghwp", M, products).clamp_min(0).sqrt()
    if isinstance(metric, Randers):
        norm = norm + torch.einsum("bgchw,pc->bghwp", metric.omega, u)
    return norm.clamp_min(SMALLEST_NORM)


def _centers(grid: OutputGrid, edge: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the coordinates (x, 0) and (0, y) of the centers of the output pixels plus ``edge``, to be broadcast."""
    y, x = (
        torch.arange(n, dtype=like.dtype, device=like.device) * s + (o + edge)
        for n, s, o in zip(grid.size, grid.stride, grid.origin, strict=True)
    )
    return pad(x.view(1, -1, 1, 1), (0, 1)), pad(y.view(-1, 1, 1, 1), (1, 0))


def parametrize(
    parametrization: Parametrization, raw: Tensor, start: Tensor | None, gain: Tensor | None, radius: float
) -> Metric | None:
    """Return the metric of ``Spectral7`` in 2-D with few operations, or None for other parametrizations."""
    if not _compat.exporting() or type(parametrization) is not Spectral7 or parametrization.dim != 2:
        return None
    if parametrization.frame not in (None, "vector") or parametrization.eps_omega == 1:
        return None
    parametrization.check(raw, start, gain)
    frame, ratios, omega = affine(raw, start, gain).clamp(-_SATURATION, _SATURATION).split([2, 3, 2], 2)
    low, high = _EIGENVALUE_FLOOR, 2 - _EIGENVALUE_FLOOR
    least = _channels([low, low, parametrization.s_min / 2], raw)
    most = _channels([high, high, parametrization.s_max / 2], raw)
    first, second, half_scale = (least + (most - least) * ratios.sigmoid()).split(1, 2)
    mean, half = half_scale * (first + second), half_scale * (first - second)
    vectors = torch.cat([frame, omega], 2)  # a, b, ω_y, ω_x
    products = vectors.unsqueeze(2) * vectors.unsqueeze(3)
    table = products.new_tensor(_PRODUCTS).view(1, 1, -1, 4, 4, 1, 1)
    # Unlike einsum, a sum does not restrict the sizes of an exported program.
    direction, square, inverse = (products.unsqueeze(2) * table).sum((3, 4)).split([3, 1, 3], 2)
    half = half / (square + _SHORTEST_VECTOR**2)
    M = mean * _channels([1, 0, 1], raw) + half * direction
    determinant = mean * mean - (half * square).square()
    half_norm = ((M * inverse).sum(2, keepdim=True) / determinant + _SQUARED_NORM_FLOOR / 4).sqrt()
    metric = Randers(M, omega * (torch.tanh(half_norm) * (parametrization.max_asymmetry / 2) / half_norm))
    return metric if radius == 1 else metric.scaled(radius)


def _channels(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.promote_types(like.dtype, torch.float32), device=like.device).view(
        1, 1, -1, 1, 1
    )
