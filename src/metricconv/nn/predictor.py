"""The predictor of an adaptive convolution: a convolution initialised to zero."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import _interpolation
from ..ops.functional import narrow_conv


class Predictor(nn.Module):
    """Predict the raw parameters of every output pixel from the input.

    It is initialised to zero, so that a layer starts at its identity. It is deliberately not an ``nn.Conv2d``, so that
    loops that initialise every ``nn.Conv2d`` of a model do not change it.
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
        """Load a checkpoint; parameters that it lacks become zero if they are on the meta device."""
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
            x = _pad(x, padding, self.padding_mode)
            padding = (0,) * len(padding)
        return narrow_conv(x, self.weight, self.bias, self.stride, padding, self.dilation)

    def extra_repr(self) -> str:
        """Describe the predictor in a printed model."""
        out_channels, in_channels, *kernel = self.weight.shape
        return f"{in_channels} → {out_channels} parameters per pixel, kernel_size={tuple(kernel)}"


def _pad(x: Tensor, padding: Sequence[int], padding_mode: str) -> Tensor:
    """Pad every spatial axis on both sides, if necessary by more than ``nn.functional.pad`` supports."""
    if all(p < size for p, size in zip(padding, x.shape[2:], strict=True)):
        mode = "replicate" if padding_mode == "border" else padding_mode
        return nn.functional.pad(x, [p for p in reversed(padding) for _ in range(2)], mode)
    for axis, p in enumerate(padding, 2):
        size = x.shape[axis]
        index, _ = _interpolation.line(-p, size + p, size, padding_mode, x.device)
        x = x.index_select(axis, index)
    return x
