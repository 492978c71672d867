"""The operator in plain PyTorch: any support, dimension and order of derivative. Backends are tested against it.

Samples are gathered as rows of channels and contracted with the weights, a chunk of samples at a time, so that memory
stays bounded whatever the kernel size; chunks are computed again in the backward pass.
"""

import math

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .._interpolation import corners, lattice_tolerance
from ..supports import Grid
from ..supports.base import lattice
from .problem import Problem

# Values gathered at once, or coordinates where those are more: 64 MB in float32. Rows and weights of their corners come
# on top, 12 bytes a corner of each sample and group: with 64 channels a 2-D call peaks at 0.2 GB, with one at 1.2 GB.
_CHUNK_ELEMENTS = 2**24


def run(problem: Problem) -> Tensor:
    """Compute Σ_j w_j m_j x(centre + Δ_j) + bias in float32 or wider: (B, C_out, *out)."""
    x = problem.input
    compute = torch.promote_types(x.dtype, torch.float32)
    rows = x.to(compute).movedim(1, -1).reshape(-1, x.shape[1] // problem.support.groups)  # [B·S·G, C/G]
    chunks = _chunks(problem)
    total = torch.zeros((), dtype=compute, device=x.device)
    for samples in chunks:
        if len(chunks) > 1 and torch.is_grad_enabled():
            part = checkpoint(_partial_sum, problem, rows, samples, use_reentrant=False, preserve_rng_state=False)
        else:
            part = _partial_sum(problem, rows, samples)
        total = total + part
    if problem.bias is not None:
        total = total + problem.bias.to(compute)
    return total.movedim(-1, 1).unflatten(2, problem.grid.size).to(x.dtype).contiguous()


def _chunks(problem: Problem) -> list[slice]:
    """Cut the samples into slices small enough for memory; a traced graph cuts by their number alone."""
    samples, x = problem.support.samples, problem.input
    step = 32
    if not torch.compiler.is_compiling():
        numbers = max(x.shape[1], problem.support.groups * problem.support.dim)  # the larger of values and positions
        step = max(_CHUNK_ELEMENTS // max(x.shape[0] * numbers * math.prod(problem.grid.size), 1), 1)
    return [slice(start, min(start + step, samples)) for start in range(0, samples, step)]


def _partial_sum(problem: Problem, rows: Tensor, samples: slice) -> Tensor:
    """Gather some samples and contract them with their weights: (B, N, C_out), N output pixels."""
    x, groups = problem.input, problem.groups
    index, weight = _addresses(problem, samples)
    gathered = sum(
        rows.index_select(0, i.flatten()).unflatten(0, i.shape) * w.unsqueeze(-1).to(rows.dtype)
        for i, w in zip(index, weight, strict=True)
    )  # [B, N, p, G, C/G]
    if problem.modulation is not None:
        gathered = gathered * _per_pixel(problem.modulation[:, :, samples], problem).to(rows.dtype).unsqueeze(-1)
    gathered = gathered.flatten(3).unflatten(3, (groups, -1))  # [B, N, p, groups, C/groups]
    kernel = problem.weight.to(x.dtype).to(rows.dtype).flatten(2)[:, :, samples].unflatten(0, (groups, -1))
    return torch.einsum("bnpgc,gocp->bngo", gathered, kernel).flatten(2).expand(x.shape[0], -1, -1)


def _addresses(problem: Problem, samples: slice) -> tuple[list[Tensor], list[Tensor]]:
    """Return, for each corner of each sample, its row and its interpolation weight: (B, N, p, G)."""
    x, support = problem.input, problem.support
    offsets = _offsets(problem, samples)  # [B, G, p, d, *out]
    tolerance = lattice_tolerance(offsets.dtype)
    offsets = offsets.to(x.device, torch.promote_types(offsets.dtype, x.dtype))
    # Whole pixels stay apart: with them a position would have few fractions in a long image.
    moved = [_per_pixel(o + half, problem) for o, half in zip(offsets.unbind(3), problem.grid.halves, strict=True)]
    position = torch.stack(moved, -1)  # [B, N, p, G, d]
    base = [cell.flatten().view(-1, 1, 1) for cell in problem.grid.cells(x.device)]  # [N, 1, 1]
    image = torch.arange(x.shape[0], device=x.device).view(-1, 1, 1, 1) * math.prod(x.shape[2:])
    group = torch.arange(support.groups, device=x.device)
    found = list(corners(position, x.shape[2:], problem.padding_mode, base, tolerance))
    return [(flat + image) * support.groups + group for flat, _ in found], [weight for _, weight in found]


def _offsets(problem: Problem, samples: slice) -> Tensor:
    """Return the offsets of some samples; a grid, which has no numbers a pixel, is as precise as the image."""
    x, support = problem.input, problem.support
    if type(support) is not Grid:
        return support.offsets(samples)
    like = x.new_empty(0, dtype=torch.promote_types(x.dtype, torch.float32))
    return lattice(support.kernel_size, support.spacing, samples, like=like)


def _per_pixel(field: Tensor, problem: Problem) -> Tensor:
    """Spread a field (B, G, p, *out) over every image, group and pixel: (B, N, p, G)."""
    full = field.expand(problem.input.shape[0], problem.support.groups, field.shape[2], *problem.grid.size)
    return full.flatten(3).permute(0, 3, 2, 1)
