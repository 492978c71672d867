"""Ranges of the arguments of filters: outside of them an error states the limit, before anything is computed."""

import numbers

from .. import _checks

# Maximum number of samples along an axis, and per pixel: 1023 along an axis of an image, 101 along one of a volume.
MAX_SIDE, MAX_SAMPLES = 1023, 2**20
# Maximum length in pixels.
MAX_LENGTH = 2**20
# Maximum number of integration steps, and of smoothing passes.
MAX_STEPS = 1000


def check_at_most(value: object, maximum: int, name: str) -> None:
    """Check that a number is not too large. Other values are left to other checks."""
    if isinstance(value, numbers.Real) and value > maximum:  # type: ignore[operator]
        raise ValueError(f"`{name}` (={value!r}) must be at most {maximum}")


def check_side(value: int, name: str) -> int:
    """Check that a value is an odd number from 1 to ``MAX_SIDE``, and return it."""
    check_at_most(value, MAX_SIDE, name)
    return _checks.odd(value, name)


def check_sample_count(value: int, dim: int, name: str) -> int:
    """Check that value^dim samples per pixel are not too many, and return the value."""
    check_at_most(value, MAX_SIDE, name)
    if _checks.whole(value, name, minimum=1) ** dim > MAX_SAMPLES:
        raise ValueError(f"`{name}` (={value!r}) gives {value}^{dim} samples per pixel, expected at most {MAX_SAMPLES}")
    return value


def check_dilation(value: int) -> int:
    """Check that a dilation is an integer from 1 to ``MAX_LENGTH``, and return it."""
    check_at_most(value, MAX_LENGTH, "dilation")
    return _checks.whole(value, "dilation", minimum=1)


def check_steps(steps: int | None, smooth: int) -> None:
    """Check the number of integration steps of a geodesic, and of smoothing passes of its metric."""
    if steps is not None:
        check_at_most(steps, MAX_STEPS, "steps")
        _checks.whole(steps, "steps", minimum=1)
    check_at_most(smooth, MAX_STEPS, "smooth")
    _checks.whole(smooth, "smooth", minimum=0)


def check_box(samples: int, size: float) -> None:
    """Check the number of samples and the side length of a box of interpolated points."""
    check_at_most(samples, MAX_SIDE, "samples")
    _checks.whole(samples, "samples", minimum=2)
    check_at_most(size, MAX_LENGTH, "size")
    if _checks.positive(size, "size") <= 1:
        raise ValueError(f"`size` (={size!r}) must be more than 1")
