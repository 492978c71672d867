"""The image with a ring of one pixel around it, which holds what stands just past its border.

A position beyond the ring is brought onto it ("zeros", "border") or into the image ("reflect", "circular"), so that
kernels never ask whether a corner is inside.
"""

import numpy as np
from torch import Tensor
from torch.nn import functional

from .launch import Call

# A reflected position never reads the ring, unless there is one pixel alone, which reflects onto itself.
_RINGS = {"zeros": "constant", "border": "replicate", "reflect": "replicate", "circular": "circular"}


def as_planes(call: Call) -> np.ndarray:
    """Return the image with its ring, [B, C, plane]."""
    return _ringed(call).flatten(2).contiguous().numpy()


def as_rows(call: Call) -> np.ndarray:
    """Return the image with its ring as rows of channels, [B, plane, C]."""
    return _ringed(call).permute(0, 2, 3, 1).contiguous().flatten(1, 2).numpy()


def without(call: Call, grad: Tensor) -> Tensor:
    """Return the gradient of the image from that of the image with its ring, which it may overwrite; (B, C, *)."""
    if call.padding_mode != "zeros":
        for axis in (2, 3):
            last = grad.shape[axis] - 1
            near, far = (last, 0) if call.padding_mode == "circular" else (0, last)
            grad.select(axis, 1).add_(grad.select(axis, near))
            grad.select(axis, last - 1).add_(grad.select(axis, far))
    return grad[:, :, 1:-1, 1:-1].contiguous()


def _ringed(call: Call) -> Tensor:
    return functional.pad(call.x, (1, 1, 1, 1), mode=_RINGS[call.padding_mode])
