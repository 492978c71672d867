"""Maps from raw parameters, such as the output of a convolution, to positive metrics.

There are three parametrizations of ellipsoids by a matrix M, each followed by d channels for the drift ω:

- ``Cholesky``: M = LLᵀ from the d(d+1)/2 entries of L (5 parameters in 2-D, including ω).
- ``Spectral6``: M from a frame and d eigenvalues (6 parameters in 2-D).
- ``Spectral7``: like ``Spectral6``, with a separate, bounded scale of the eigenvalues (7 parameters in 2-D).

and three of other shapes:

- ``Asymmetric``: two half-ellipsoids, from M as in ``Spectral7`` and a vector w (7 parameters in 2-D).
- ``Orthant``: a rotated box, diamond or anything in between, with 2d extents (6 parameters in 2-D).
- ``HalfSpace``: a polytope with fixed normals and rounded corners (9 parameters in 2-D).

All finite raw parameters, up to the largest of float32, give a metric with F > 0 (and ‖ω‖_{M⁻¹} ≤ 1 − ε_ω), a ball of
bounded size and finite derivatives. This requires bounds that the paper does not have: raw parameters are clamped to
±10⁴, and the ratio of the eigenvalues of M is at most about 10⁴ (balls at most 100 times as long as wide), so that M is
never numerically singular in float32.

Derivatives are computed in float32 or wider, and rounded to the dtype of the raw parameters. Those of float16 beyond
its range, ±65504, become infinite, as for other operators of torch. They are not clamped, because
``torch.amp.GradScaler`` recognizes by them that its scale is too large.
"""

from .base import _SATURATION as _SATURATION
from .base import Parametrization
from .base import affine as affine
from .base import constants as constants
from .cholesky import Cholesky
from .ellipsoid import _SQUARED_NORM_FLOOR as _SQUARED_NORM_FLOOR
from .ellipsoid import _TRACE_FLOOR as _TRACE_FLOOR
from .ellipsoid import EllipsoidParametrization
from .shapes import Asymmetric, HalfSpace, Orthant
from .spectral import _EIGENVALUE_FLOOR as _EIGENVALUE_FLOOR
from .spectral import Spectral, Spectral6, Spectral7

__all__ = [
    "PARAMETRIZATIONS",
    "Asymmetric",
    "Cholesky",
    "EllipsoidParametrization",
    "HalfSpace",
    "Orthant",
    "Parametrization",
    "Spectral",
    "Spectral6",
    "Spectral7",
]

PARAMETRIZATIONS: dict[str, type[Parametrization]] = {
    "cholesky": Cholesky,
    "spectral6": Spectral6,
    "spectral7": Spectral7,
    "asymmetric": Asymmetric,
    "orthant": Orthant,
    "half_space": HalfSpace,
}
"""The parametrizations by name."""
