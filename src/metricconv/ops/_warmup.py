"""Compilation of the CPU backend's kernels ahead of time."""

import time
from collections.abc import Callable
from typing import Any

import torch

from .. import _checks
from ..metrics import Spectral7
from . import cpu
from .functional import metric_conv
from .fused import parametrize

__all__ = ["warmup"]

# Channels of the families of CPU kernels.
_CHANNELS = {"few channels": 1, "many channels": 16, "wide layers": 64}


def warmup(
    ball: str | None = None, *, dtype: torch.dtype = torch.float32, report: Callable[[str], Any] | None = None
) -> None:
    """Compile the kernels of the CPU backend, forward and backward, and store them in numba's cache on disk.

    Otherwise they are compiled on the first call that needs them, which takes 8 to 15 seconds for the forward and the
    backward pass of a layer (AMD EPYC). Kernels that are in the cache are only loaded, in about half a second.

    Args:
        ball: "tangent", which includes all supports but geodesic balls, or "geodesic". Default: both.
        dtype: torch.float32 (default), which half precision uses too, or torch.float64.
        report: called with one line for each group of kernels, for example ``print``.

    >>> import metricconv as mc
    >>> mc.warmup("tangent", report=print)  # doctest: +SKIP
    """
    if ball is not None:
        _checks.one_of(ball, ("tangent", "geodesic"), "ball")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"`dtype` (={dtype!r}) must be torch.float32 or torch.float64")
    if report is not None and not callable(report):
        raise TypeError(f"`report` (={report!r}) must be a function of one line, or None")
    missing = cpu.missing_dependency()
    if missing is not None:
        raise RuntimeError(f"the CPU backend has nothing to compile: {missing}")
    for kind in (ball,) if ball is not None else ("tangent", "geodesic"):
        for family, channels in _CHANNELS.items():
            start = time.perf_counter()
            _run(kind, channels, dtype)
            if report is not None:
                report(f"{kind} balls, {family}: {time.perf_counter() - start:.1f} s")


def _run(ball: str, channels: int, dtype: torch.dtype) -> None:
    """Convolve a small image as a layer does, forward and backward."""
    options: dict[str, Any] = {"dtype": dtype, "device": "cpu"}
    parametrization = Spectral7()
    with torch.enable_grad():
        x = torch.ones(1, channels, 4, 4, requires_grad=True, **options)
        weight = torch.ones(channels, channels, 3, 3, requires_grad=True, **options)
        raw = torch.zeros(1, 1, 7, 4, 4, requires_grad=True, **options)
        metric = parametrize(parametrization, raw, parametrization.identity().to(**options), x.new_ones(()))
        metric_conv(x, metric, weight, padding=1, ball=ball, backend="cpu").sum().backward()
