"""Supports: the sampling locations Δ_x of each output pixel, as values."""

from .base import Support
from .deformable import Deformable, from_torchvision_offsets, to_torchvision_offsets
from .dilated import Dilated
from .geodesic import GeodesicBall, Rays
from .grid import Grid
from .shifted import Shifted
from .tangent_ball import TangentBall

__all__ = [
    "Deformable",
    "Dilated",
    "GeodesicBall",
    "Grid",
    "Rays",
    "Shifted",
    "Support",
    "TangentBall",
    "from_torchvision_offsets",
    "to_torchvision_offsets",
]
