"""Where each pixel looks: Δ_x as a value."""

from .base import Support
from .deformable import Deformable, from_torchvision_offsets, to_torchvision_offsets
from .dilated import Dilated
from .geodesic import GeodesicBall, Rays
from .grid import Grid
from .heat_ball import HeatBall
from .shifted import Shifted
from .tangent_ball import TangentBall

__all__ = [
    "Deformable",
    "Dilated",
    "GeodesicBall",
    "Grid",
    "HeatBall",
    "Rays",
    "Shifted",
    "Support",
    "TangentBall",
    "from_torchvision_offsets",
    "to_torchvision_offsets",
]
