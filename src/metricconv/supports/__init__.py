"""Where each pixel looks: Δ_x as a value."""

from .base import Support
from .deformable import Deformable, from_torchvision_offsets, to_torchvision_offsets
from .dilated import Dilated
from .grid import Grid
from .shifted import Shifted
from .tangent_ball import TangentBall

__all__ = [
    "Deformable",
    "Dilated",
    "Grid",
    "Shifted",
    "Support",
    "TangentBall",
    "from_torchvision_offsets",
    "to_torchvision_offsets",
]
