"""Products of large matrices by torch: oneDNN's or those of its BLAS library, whichever is faster on the processor."""

import functools
import time
from collections.abc import Callable

import torch
from torch import Tensor

from ... import _compat

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]

# oneDNN is used unless BLAS is faster by this factor: equal libraries should not be chosen by chance.
_TIE = 1.15


def multiply(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return A·Bᵀ + bias for A [rows, inner] and B [columns, inner], with any strides."""
    return fastest_product(a.dtype)(a, b, bias)


@functools.cache
def fastest_product(dtype: torch.dtype) -> Product:
    """Return the faster function of (A, B, bias), measured once per process.

    BLAS libraries do not use the vector units of every processor: on some of AMD's, oneDNN is twice as fast as MKL.
    """
    onednn = _compat.onednn_linear() if dtype == torch.float32 else None
    if onednn is None:
        return torch.nn.functional.linear
    a, b = (torch.ones(rows, 512, dtype=dtype, device="cpu") for rows in (256, 128))
    blas = torch.nn.functional.linear
    return blas if _TIE * _milliseconds(blas, a, b) < _milliseconds(onednn, a, b) else onednn


def _milliseconds(product: Product, a: Tensor, b: Tensor) -> float:
    """Return the least time of a few products, after a first one."""
    times = []
    for _ in range(4):
        begin = time.perf_counter()
        product(a, b, None)
        times.append(1e3 * (time.perf_counter() - begin))
    return min(times[1:])
