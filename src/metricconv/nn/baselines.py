"""Baseline adaptive convolutions on the same base class: comparisons differ in the support alone."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from ..metrics.parametrizations import affine, constants
from ..supports import Deformable, Dilated, Shifted
from .base import AdaptiveConv

__all__ = ["DeformableConv2d", "DilatedConv2d", "ShiftedConv2d"]


class DeformableConv2d(AdaptiveConv):
    """Deformable convolution of images (B, C, H, W): one predicted offset per sample, 2·k_h·k_w parameters per pixel.

    With ``modulation=True`` it is the modulated version (DCNv2). Arguments as in ``MetricConv2d``, without those that
    concern the metric.
    """

    dim: ClassVar[int] = 2

    def identity_parameters(self) -> Tensor:
        """Return zero offsets."""
        return constants([0.0] * (2 * math.prod(self.kernel_size)))

    def make_support(self, predicted: Tensor) -> Deformable:
        """Return the support whose sample j is displaced by the j-th predicted offset (y, x)."""
        offsets = affine(predicted, gain=self.geometry_gain)
        return Deformable(offsets.unflatten(2, (-1, self.dim)), self.kernel_size, self.dilation, stride=self.stride)


class ShiftedConv2d(AdaptiveConv):
    """Shifted ("entire deformable") convolution of images (B, C, H, W): one predicted offset per pixel, 2 parameters.

    All samples of a pixel share the offset. Arguments as in ``DeformableConv2d``.
    """

    dim: ClassVar[int] = 2

    def identity_parameters(self) -> Tensor:
        """Return a zero offset."""
        return constants([0.0, 0.0])

    def make_support(self, predicted: Tensor) -> Shifted:
        """Return the grid displaced by the predicted offset (y, x)."""
        return Shifted(affine(predicted, gain=self.geometry_gain), self.kernel_size, self.dilation, stride=self.stride)


class DilatedConv2d(AdaptiveConv):
    """Convolution of images (B, C, H, W) with a predicted dilation factor: 1 parameter per pixel.

    The grid is scaled by a softplus that starts at 1. Arguments as in ``DeformableConv2d``.
    """

    dim: ClassVar[int] = 2

    def identity_parameters(self) -> Tensor:
        """Return the parameter for which the softplus is 1."""
        return constants([math.log(math.e - 1)])

    def make_support(self, predicted: Tensor) -> Dilated:
        """Return the grid scaled by the softplus of the raw parameter."""
        raw = affine(predicted, self.identity, self.geometry_gain)
        return Dilated(torch.nn.functional.softplus(raw), self.kernel_size, self.dilation, stride=self.stride)
