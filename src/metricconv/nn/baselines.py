"""The other adaptive convolutions, behind the same base: a comparison differs in the support alone."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..metrics.parametrizations import affine, constants
from ..supports import Deformable, Dilated, Shifted
from .base import AdaptiveConv


class DeformableConv2d(AdaptiveConv):
    """A deformable convolution: every sample has its own predicted displacement, 2k² numbers a pixel.

    With ``modulation=True`` it is the second version (DCNv2). See ``AdaptiveConv`` for the arguments.
    """

    dim: ClassVar[int] = 2

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.add_predictor(constants([0.0] * (2 * math.prod(self.kernel_size))))

    def make_support(self, predicted: Tensor) -> Deformable:
        """Read the numbers as displacements (y, x) of each sample."""
        numbers = affine(predicted, gain=self.geometry_gain)
        return Deformable(numbers.unflatten(2, (-1, self.dim)), self.kernel_size, self.dilation)


class ShiftedConv2d(AdaptiveConv):
    """A shifted ("entire deformable") convolution: the whole grid has one predicted displacement, 2 numbers a pixel."""

    dim: ClassVar[int] = 2

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.add_predictor(constants([0.0, 0.0]))

    def make_support(self, predicted: Tensor) -> Shifted:
        """Read the numbers as the displacement (y, x) of the grid."""
        return Shifted(affine(predicted, gain=self.geometry_gain), self.kernel_size, self.dilation)


class DilatedConv2d(AdaptiveConv):
    """A convolution with a predicted dilation, 1 number a pixel: the grid is scaled by a softplus that starts at 1."""

    dim: ClassVar[int] = 2

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.add_predictor(constants([math.log(math.e - 1)]))

    def make_support(self, predicted: Tensor) -> Dilated:
        """Read the number as a positive scale."""
        numbers = affine(predicted, self.identity, self.geometry_gain)
        return Dilated(torch.nn.functional.softplus(numbers), self.kernel_size, self.dilation)
