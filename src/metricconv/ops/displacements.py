"""Any support on the compiled backends: by the displacements of its samples, through the path of deformable supports.

A backend without kernels for a support computes it by ``Support.offsets`` in plain PyTorch, for a chunk of samples at a
time, and convolves each chunk as a deformable support. Autograd continues from the gradients of the displacements to
the parameters of the support. If there is more than one chunk, chunks are recomputed in the backward pass.
"""

import dataclasses
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..supports import Support
from .problem import Problem

if TYPE_CHECKING:
    from .backends import Backend

__all__ = ["ByDisplacements", "Displacements", "placeholder"]

# Coordinates computed at once, 16 MB in float32. Norms and their derivatives need about ten times as much memory.
_CHUNK_ELEMENTS = 2**22


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Displacements(Support):
    """Samples at given displacements from the center of each output pixel, without a reference kernel.

    Kernel size and dilation only determine the output size and the centers. Backends compute it as a deformable
    support whose cells are all 0.

    Args:
        displacement: (B, G, P, d, *out), in pixels.
        kernel_size, dilation: of the problem, P samples in total.
    """

    displacement: Tensor
    kernel_size: tuple[int, ...]
    dilation: tuple[int, ...]
    stride: tuple[int, ...] | None = None

    @property
    def spacing(self) -> tuple[float, ...]:
        """0: cells do not contribute to the displacements."""
        return (0.0,) * self.dim

    def offsets(self, samples: slice | None = None) -> Tensor:
        """Return the displacements."""
        return self.displacement[:, :, samples or slice(None)]

    def tensors(self) -> dict[str, Tensor]:
        """Return the displacements, P vectors per pixel."""
        return {"displacement": self.displacement}


class ByDisplacements:
    """A backend for supports that another backend has no kernels for.

    Args:
        backend: the backend that convolves deformable supports.
    """

    def __init__(self, backend: "Backend") -> None:
        self.backend = backend
        self.name, self.description = backend.name, backend.description

    def missing_dependency(self) -> str | None:
        """Return what the backend lacks on this machine, or None."""
        return self.backend.missing_dependency()

    def unsupported_reason(self, problem: Problem) -> str | None:
        """Return why the backend does not support the problem by displacements either, or None."""
        return self.backend.unsupported_reason(placeholder(problem))

    def run(self, problem: Problem) -> Tensor:
        """Return the output of a problem, summed over chunks of samples in float32 or wider."""
        chunks, x = _chunks(problem), problem.input
        if len(chunks) == 1:
            return self._convolve(problem, chunks[0], problem.bias)
        compute, bias = torch.promote_types(x.dtype, torch.float32), problem.bias
        total = torch.zeros((), dtype=compute, device=x.device)
        for samples in chunks:
            if torch.is_grad_enabled():
                part = checkpoint(self._convolve, problem, samples, bias, use_reentrant=False, preserve_rng_state=False)
            else:
                part = self._convolve(problem, samples, bias)
            total, bias = total + part.to(compute), None
        return total.to(x.dtype)

    def _convolve(self, problem: Problem, samples: slice, bias: Tensor | None) -> Tensor:
        """Return the sum over a slice of the samples."""
        support = problem.support
        displacement = support.offsets(samples).to(problem.input.device)
        displacement = displacement.expand(-1, support.groups, *(-1,) * (support.dim + 2))
        return self.backend.run(dataclasses.replace(_part(problem, displacement, samples), bias=bias))


def placeholder(problem: Problem) -> Problem:
    """Return the problem of one sample at displacements without values, for checks whether a backend supports it."""
    tensors, support = list(problem.support.tensors().values()), problem.support
    like = tensors[0] if tensors else problem.input.new_empty(0, dtype=torch.float32)
    return _part(problem, like.new_empty((1, support.groups, 1, support.dim, *(1,) * support.dim)), slice(0, 1))


def _chunks(problem: Problem) -> list[slice]:
    """Split the samples into slices of bounded memory; a traced graph has a single slice."""
    support = problem.support
    if torch.compiler.is_compiling():
        return [slice(0, support.samples)]
    coordinates = support.batch * support.groups * support.dim * math.prod(support.spatial)
    step = max(_CHUNK_ELEMENTS // max(coordinates, 1), 1)
    return [slice(start, min(start + step, support.samples)) for start in range(0, support.samples, step)]


def _part(problem: Problem, displacement: Tensor, samples: slice) -> Problem:
    """Return the problem of some samples at given displacements, with the same output size and centers.

    Its kernel has q cells of dilation 1 along the first axis. Along the others it has one cell or, where the extent
    d(k − 1) of the kernel is odd and its center between two pixels, two. The padding is changed by the difference of
    the extents, which is even. Cells that are left over have weight 0.
    """
    support, count = problem.support, samples.stop - samples.start
    extents = [d * (k - 1) for d, k in zip(support.dilation, support.kernel_size, strict=True)]
    others = tuple(1 + extent % 2 for extent in extents[1:])
    length = -(-count // math.prod(others))
    length += (length - 1 - extents[0]) % 2
    kernel = (length, *others)
    dilation = (1, *(max(extent, 1) for extent in extents[1:]))
    new_extents = [length - 1, *(extent if extent % 2 else 0 for extent in extents[1:])]
    padding = tuple([p + (new - old) // 2 for p, new, old in zip(problem.padding, new_extents, extents, strict=True)])
    missing = math.prod(kernel) - count

    def with_missing(t: Tensor, axis: int) -> Tensor:
        if not missing:
            return t
        return torch.cat([t, t.new_zeros((*t.shape[:axis], missing, *t.shape[axis + 1 :]))], axis)

    weight = with_missing(problem.weight.flatten(2)[:, :, samples], 2).unflatten(2, kernel)
    modulation = problem.modulation
    if modulation is not None:
        modulation = with_missing(modulation[:, :, samples], 2)
    moved = Displacements(with_missing(displacement, 2), kernel, dilation)
    return dataclasses.replace(problem, support=moved, weight=weight, padding=padding, modulation=modulation)
