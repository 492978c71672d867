"""The operator as a plain Python loop, the reference of all backends; random metrics and supports."""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import metricconv as mc
from metricconv.metrics import _symmetric

PADDING_MODES = ("zeros", "border", "reflect", "circular")
SUPPORT_KINDS = ("grid", "spaced", "dilated", "shifted", "deformable", "riemannian", "randers", "square")

CONVOLUTIONS = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}


def loop_conv(
    input: Tensor,
    offsets: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
    modulation: Tensor | None = None,
    padding_mode: str = "zeros",
) -> Tensor:
    """Return Σ_j w_j · m_j · x(center + Δ_j), computed in Python floats; offsets (B, G, P, d, *out)."""
    batch, channels, *size = input.shape
    out_channels, group_channels, *kernel = weight.shape
    geometry = list(zip(size, kernel, dilation, stride, padding, strict=True))
    out = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, s, p in geometry]
    metric_groups, samples = offsets.shape[1:3]
    offset = offsets.double().expand(batch, -1, -1, -1, *out).tolist()
    factors = None if modulation is None else modulation.double().expand(batch, metric_groups, -1, *out).tolist()
    x, w = input.double().tolist(), weight.double().flatten(2).tolist()
    y = torch.zeros(batch, out_channels, *out, dtype=torch.float64)
    for b, *o in itertools.product(range(batch), *map(range, out)):
        center = [i * s - p + d * (k - 1) / 2 for i, (_, k, d, s, p) in zip(o, geometry, strict=True)]
        sampled = [[0.0] * samples for _ in range(channels)]
        for c, j in itertools.product(range(channels), range(samples)):
            g = c * metric_groups // channels
            position = [m + _at(component, o) for m, component in zip(center, offset[b][g][j], strict=True)]
            factor = 1.0 if factors is None else _at(factors[b][g][j], o)
            sampled[c][j] = factor * read(x[b][c], size, position, padding_mode)
        for oc in range(out_channels):
            first = (oc * groups // out_channels) * group_channels
            y[(b, oc, *o)] = sum(
                w[oc][c][j] * sampled[first + c][j] for c in range(group_channels) for j in range(samples)
            )
    return y if bias is None else y + bias.double().view(1, -1, *(1,) * len(out))


def read(image: Any, size: Sequence[int], position: Sequence[float], padding_mode: str) -> float:
    """Interpolate a nested list at a position, multilinearly."""
    total = 0.0
    for corner in itertools.product((0, 1), repeat=len(size)):
        factor, index = 1.0, []
        for c, p, n in zip(corner, position, size, strict=True):
            low = math.floor(p)
            factor *= p - low if c else 1 - (p - low)
            index.append(_fold(low + c, n, padding_mode))
        if None not in index:
            total += factor * _at(image, index)
    return total


def _fold(i: int, n: int, padding_mode: str) -> int | None:
    if padding_mode == "zeros":
        return i if 0 <= i < n else None
    if padding_mode == "circular":
        return i % n
    if padding_mode == "border" or n == 1:
        return min(max(i, 0), n - 1)
    while not 0 <= i < n:
        i = -i if i < 0 else 2 * (n - 1) - i
    return i


def _at(nested: Any, index: Sequence[int]) -> Any:
    return functools.reduce(operator.getitem, index, nested)


def riemannian(
    dim: int = 2,
    batch: int = 1,
    groups: int = 1,
    spatial: Sequence[int] | None = None,
    *,
    radius: float = 1.3,
    dtype: torch.dtype = torch.float64,
) -> mc.Riemannian:
    """Return random metrics whose half-axes are between ``radius`` / 2 and 2 ``radius``."""
    spatial = (1,) * dim if spatial is None else spatial
    rotation = torch.linalg.qr(torch.randn(batch, groups, *spatial, dim, dim, dtype=dtype))[0]
    axes = radius * torch.exp2(2 * torch.rand(batch, groups, *spatial, dim, dtype=dtype) - 1)
    return mc.Riemannian(_symmetric.packed(rotation @ torch.diag_embed(axes.pow(-2)) @ rotation.mT))


def randers(
    dim: int = 2,
    batch: int = 1,
    groups: int = 1,
    spatial: Sequence[int] | None = None,
    *,
    radius: float = 1.3,
    asymmetry: float = 0.6,
    dtype: torch.dtype = torch.float64,
) -> mc.Randers:
    """Return random metrics with ‖ω‖_{M⁻¹} = ``asymmetry``."""
    base = riemannian(dim, batch, groups, spatial, radius=radius, dtype=dtype)
    omega = torch.randn(batch, groups, dim, *base.spatial, dtype=dtype)
    return mc.Randers(base.M, asymmetry * omega / base.dual().norm(omega).unsqueeze(2))


def make_metric(kind: str, dim: int, *args: Any, **kwargs: Any) -> mc.Metric:
    """Return a random metric of the named kind."""
    return {"riemannian": riemannian, "randers": randers}[kind](dim, *args, **kwargs)


def make_support(
    kind: str,
    kernel_size: Sequence[int],
    batch: int = 1,
    groups: int = 1,
    out: Sequence[int] | None = None,
    dilation: int | Sequence[int] = 1,
    dtype: torch.dtype = torch.float64,
) -> mc.Support:
    """Return a random support; its samples are off the lattice unless the kind is "grid"."""
    dim = len(kernel_size)
    out = (1,) * dim if out is None else out

    def field(*components: int) -> Tensor:
        return torch.randn(batch, groups, *components, *out, dtype=dtype)

    match kind:
        case "grid":
            return mc.Grid(kernel_size, dilation)
        case "spaced":
            return mc.Grid(kernel_size, dilation, spacing=0.6875)
        case "dilated":
            return mc.Dilated(1.2 + 0.3 * field(1), kernel_size, dilation)
        case "shifted":
            return mc.Shifted(field(dim), kernel_size, dilation)
        case "deformable":
            return mc.Deformable(field(math.prod(kernel_size), dim), kernel_size, dilation)
        case "square":
            stencil = mc.stencils.square_onion(kernel_size)
            return mc.TangentBall(randers(dim, batch, groups, out, dtype=dtype), stencil, dilation)
    metric = make_metric(kind, dim, batch, groups, out, dtype=dtype)
    return mc.TangentBall(metric, mc.stencils.onion(kernel_size[0], dim), dilation)


def random_modulation(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return random modulation in [-1.2, 1.2], of which about a sixth is exactly 0."""
    return torch.nn.functional.hardshrink(2.4 * torch.rand(shape, dtype=dtype) - 1.2, 0.2)


def rebuilt(support: mc.Support, tensors: Sequence[Tensor]) -> mc.Support:
    """Return a support of the same kind with other tensors."""
    match support:
        case mc.Dilated() | mc.Shifted() | mc.Deformable():
            return type(support)(*tensors, support.kernel_size, support.dilation)
        case mc.TangentBall():
            return mc.TangentBall(type(support.metric)(*tensors), support.stencil, support.dilation)
    return support


def mapped(support: mc.Support, function: Callable[[Tensor], Tensor]) -> mc.Support:
    """Return the support with a function applied to each of its fields."""
    return rebuilt(support, [function(t) for t in support.tensors().values()])


def sphere(dim: int, count: int = 4096) -> Tensor:
    """Return unit vectors (count, d): both in 1-D, at even angles in 2-D, otherwise random."""
    if dim == 1:
        return torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    if dim == 2:
        angle = torch.arange(count, dtype=torch.float64) * (2 * math.pi / count)
        return torch.stack([angle.sin(), angle.cos()], 1)
    return torch.nn.functional.normalize(torch.randn(count, dim, dtype=torch.float64), dim=1)


def norm_of(metric: mc.Metric, directions: Tensor) -> Tensor:
    """Return F of the same vectors (P, d) at every pixel: (B, G, P, *spatial)."""
    return metric.norm(directions.view(1, 1, *directions.shape, *(1,) * metric.dim))


def loop_deform_conv2d(
    input: Tensor,
    offset: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    mask: Tensor | None,
) -> Tensor:
    """Compute deform_conv2d as torchvision documents it: channels of ``offset`` by group, then cell, then (y, x)."""
    batch, channels, *size = input.shape
    out_channels, group_channels, rows, columns = weight.shape
    offset_groups, groups = offset.shape[1] // (2 * rows * columns), channels // group_channels
    y = bias.double().view(1, -1, 1, 1).repeat(batch, 1, *offset.shape[2:])
    x, offsets = input.tolist(), offset.tolist()
    for b, oc, i, j in itertools.product(*map(range, y.shape)):
        for c, row, column in itertools.product(*map(range, weight.shape[1:])):
            channel = oc // (out_channels // groups) * group_channels + c
            cell = channel // (channels // offset_groups) * rows * columns + row * columns + column
            position = (
                stride[0] * i - padding[0] + dilation[0] * row + offsets[b][2 * cell][i][j],
                stride[1] * j - padding[1] + dilation[1] * column + offsets[b][2 * cell + 1][i][j],
            )
            factor = 1.0 if mask is None else mask[b, cell, i, j].item()
            y[b, oc, i, j] += weight[oc, c, row, column] * factor * read(x[b][channel], size, position, "zeros")
    return y
