"""The predictor of an adaptive convolution: a convolution initialized to zero."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import _interpolation
from ..ops.fused import conv_with_few_outputs

__all__ = ["Predictor"]


class Predictor(nn.Module):
    """Predict the raw parameters of every output pixel from the input.

    It is initialized to zero, so that a layer starts at its identity. It is deliberately not an ``nn.Conv2d``, so that
    loops that initialize every ``nn.Conv2d`` of a model do not change it.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple[int, ...],
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
        padding_mode: str,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.stride, self.padding, self.dilation, self.padding_mode = stride, padding, dilation, padding_mode
        self.weight = nn.Parameter(torch.zeros(out_channels, in_channels, *kernel_size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(out_channels, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Set weights and bias to zero."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load a checkpoint; missing parameters become zero if they are on the meta device."""
        super()._load_from_state_dict(state_dict, prefix, *args)
        metadata, _, missing, *_ = args
        if metadata.get("assign_to_params_buffers"):
            for name, parameter in list(self.named_parameters()):
                if parameter.is_meta and prefix + name in missing:
                    zeros = torch.zeros(parameter.shape, dtype=parameter.dtype, device="cpu")
                    setattr(self, name, nn.Parameter(zeros, parameter.requires_grad))

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, out_channels, *out), on the output grid of the layer."""
        padding: Sequence[int] = self.padding
        if self.padding_mode != "zeros" and any(padding):
            x = pad(x, [(p, p) for p in padding], self.padding_mode)
            padding = (0,) * len(padding)
        return conv_with_few_outputs(x, self.weight, self.bias, self.stride, padding, self.dilation)

    def extra_repr(self) -> str:
        """Describe the predictor in a printed model."""
        out_channels, in_channels, *kernel = self.weight.shape
        return f"{in_channels} → {out_channels} parameters per pixel, kernel_size={tuple(kernel)}"


def pad(x: Tensor, amounts: Sequence[tuple[int, int]], padding_mode: str) -> Tensor:
    """Pad the start and the end of each spatial axis, if necessary by more than ``nn.functional.pad`` supports."""
    if padding_mode == "zeros" or all(max(a) < size for a, size in zip(amounts, x.shape[2:], strict=True)):
        mode = {"zeros": "constant", "border": "replicate"}.get(padding_mode, padding_mode)
        return nn.functional.pad(x, [p for both in reversed(amounts) for p in both], mode)
    for axis, (start, end) in enumerate(amounts, 2):
        size = x.shape[axis]
        index, _ = _interpolation.line(-start, size + end, size, padding_mode, x.device)
        x = x.index_select(axis, index)
    return x
