"""The reference backend: plain PyTorch for any support, dimension and order of derivative.

All other backends are tested against it. Samples are gathered as rows of channels and contracted with the weights, one
chunk of samples at a time, so that the kernel size does not affect the peak memory. If there are several chunks, they
are recomputed in the backward pass.
"""

import math

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .._interpolation import corners, lattice_tolerance
from ..supports import Grid
from ..supports.base import kernel_cells
from .problem import Problem

__all__ = ["description", "missing_dependency", "name", "run", "unsupported_reason"]

name = "reference"
description = "any support, any dimension, any order of derivative, in plain PyTorch"

# Values gathered at once, or coordinates where there are more of them: 64 MB in float32. Indices and weights of the
# corners need another 12 bytes per corner of each sample and group: with 64 channels a 2-D call peaks at 0.2 GB, with
# one channel at 1.2 GB.
_CHUNK_ELEMENTS = 2**24


def missing_dependency() -> None:
    """Return None: the backend is always available."""


def unsupported_reason(problem: Problem) -> None:
    """Return None: the backend supports all problems."""


def run(problem: Problem) -> Tensor:
    """Return Σ_j w_j m_j x(center + Δ_j) + bias, computed in float32 or wider: (B, C_out, *out)."""
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
    """Split the samples into slices of bounded memory; traced graphs use slices of fixed length."""
    samples, x = problem.support.samples, problem.input
    step = 32
    if not torch.compiler.is_compiling():
        per_pixel = max(x.shape[1], problem.support.groups * problem.support.dim)  # values or coordinates
        step = max(_CHUNK_ELEMENTS // max(x.shape[0] * per_pixel * math.prod(problem.grid.size), 1), 1)
    return [slice(start, min(start + step, samples)) for start in range(0, samples, step)]


def _partial_sum(problem: Problem, rows: Tensor, samples: slice) -> Tensor:
    """Gather a slice of the samples and contract them with their weights: (B, N, C_out), N output pixels."""
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
    offsets = sample_offsets(problem, samples)  # [B, G, p, d, *out]
    tolerance = lattice_tolerance(offsets.dtype)
    offsets = offsets.to(x.device, torch.promote_types(offsets.dtype, x.dtype))
    # Whole pixels are added later: in a long image, their sum with the offsets would lose precision.
    shifted = [_per_pixel(o + half, problem) for o, half in zip(offsets.unbind(3), problem.grid.halves, strict=True)]
    position = torch.stack(shifted, -1)  # [B, N, p, G, d]
    base = [cell.flatten().view(-1, 1, 1) for cell in problem.grid.cells(x.device)]  # [N, 1, 1]
    image = torch.arange(x.shape[0], device=x.device).view(-1, 1, 1, 1) * math.prod(x.shape[2:])
    group = torch.arange(support.groups, device=x.device)
    pairs = list(corners(position, x.shape[2:], problem.padding_mode, base, tolerance))
    return [(flat + image) * support.groups + group for flat, _ in pairs], [weight for _, weight in pairs]


def sample_offsets(problem: Problem, samples: slice) -> Tensor:
    """Return the offsets of a slice of the samples; those of a grid, which has no tensors, in the input's precision."""
    x, support = problem.input, problem.support
    if type(support) is not Grid:
        return support.offsets(samples)
    like = x.new_empty(0, dtype=torch.promote_types(x.dtype, torch.float32))
    return kernel_cells(support.kernel_size, support.spacing, samples, like=like)


def _per_pixel(field: Tensor, problem: Problem) -> Tensor:
    """Broadcast a field (B, G, p, *out) to all images, groups and pixels: (B, N, p, G)."""
    full = field.expand(problem.input.shape[0], problem.support.groups, field.shape[2], *problem.grid.size)
    return full.flatten(3).permute(0, 3, 2, 1)
