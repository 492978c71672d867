"""``denoise``: the filter with all parameters chosen."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from .. import _checks, _images
from ..metrics.from_image import Spacing
from . import _noise, _steered
from ._average import Image
from ._steered import Round

__all__ = ["denoise"]

Progress = Callable[[int, int], object]

# Tuned on photographs of BSDS300's training half. Lengths are in pixels, intensities in units of the noise.
ROUNDS = 5
# Radius of the balls of the first gradient.
FIRST_RADIUS = 4.2
# Parameters of the rounds, see ``Round``, and their factors from one round to the next.
RADIUS, RADIUS_FACTOR = {2: 9.7, 3: 6.0}, 0.83
CONTRAST, CONTRAST_FACTOR = {2: 0.017, 3: 0.03}, 0.71
RANGE, RANGE_FACTOR = 8.9, 0.55
EXPONENT, SCALE = {2: 0.05, 3: 0.2}, 1.9
FEEDBACK, ADAPTIVE_FEEDBACK = 0.12, 0.85
# The first round, whose gradient is noisier, has larger balls.
FIRST_RADIUS_FACTOR, FIRST_CONTRAST_FACTOR = {2: 1.4, 3: 1.0}, 1.3

# Below this share of the largest intensity, noise is lost in the rounding of float32.
_LEAST_NOISE = 1e-6


def denoise(
    image: Image,
    sigma: float | str = "auto",
    *,
    channel_axis: int | None = None,
    spacing: Spacing = None,
    progress: Progress | None = None,
) -> Image:
    """Remove white Gaussian noise from an image or a volume.

    Iterated local regression: each round fits a linear function around each pixel, with weights that fall off with a
    metric computed from the last estimate, so that balls grow along edges and end at them. All parameters follow from
    the noise level. The result does not depend on the scale of intensities: ``denoise(a * image + b, a * sigma)`` is
    ``a * denoise(image, sigma) + b`` for floats.

    Args:
        image: array or tensor (H, W) or (D, H, W), with channels if ``channel_axis`` is given; floats, or integers of
            at most 32 bits.
        sigma: standard deviation of the noise in the units of the image, for example 0 to 255 for 8-bit images; "auto"
            (default) for that of ``estimate_noise``. 0 returns a copy.
        channel_axis: axis of the channels, None for a gray image. Channels have the same noise level and metric.
        spacing: distance between pixels, a number or one per spatial axis, in any unit. Default: the same along all
            axes.
        progress: function called with the number of finished rows and of all rows of all rounds.

    Returns:
        The same type, shape and dtype as ``image``; integers are rounded.

    >>> clean = torch.zeros(64, 64)
    >>> clean[:, 32:] = 1.0
    >>> noisy = clean + 0.2 * torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    >>> bool((denoise(noisy) - clean).std() < 0.06)
    True
    """
    _checks.not_traced("filters")
    if progress is not None and not callable(progress):
        raise TypeError(f"`progress` must be a function of two integers, got {type(progress).__name__}")
    level = check_sigma(sigma)
    values = _images.to_floats(image)
    dtype, unit = check_dtype(image), _images.unit(image)
    x = _images.to_field(values, channel_axis)[0]
    del values  # frees memory
    steps = _checks.relative_spacing(spacing, x.dim() - 1)
    windows = _noise.noise_windows(x)
    noise = _noise.noise_level(windows) if level is None else level / unit
    y = to_dtype(denoise_field(x, noise, mean_level(windows), steps, progress), dtype, unit)
    y = y.squeeze(0) if channel_axis is None else y.movedim(0, channel_axis)
    return y if isinstance(image, Tensor) else y.contiguous().numpy()


def denoise_field(
    x: Tensor, sigma: float, offset: float, spacing: Sequence[float], progress: Progress | None = None
) -> Tensor:
    """Denoise an image (C, *spatial) with noise of a known level.

    Args:
        offset: intensity that is subtracted before computations in float32.
    """
    shifted = x.detach() - offset
    if not sigma > _LEAST_NOISE * float(shifted.abs().max()):
        return x.clone()
    noisy = (shifted / sigma).float()
    del shifted
    rounds = list(schedule(x.dim() - 1))
    total, done = x.shape[1] * len(rounds), 0

    def report(rows: int) -> None:
        nonlocal done
        done += rows
        if progress is not None:
            progress(done, total)

    with torch.no_grad():
        estimate, gradient = noisy, _steered.first_gradient(noisy, FIRST_RADIUS, spacing)
        for settings in rounds:
            estimate, gradient = _steered.steered_round(noisy, estimate, gradient, settings, spacing, report)
    return estimate.to(x.dtype).mul_(sigma).add_(offset)


def schedule(dim: int) -> Iterator[Round]:
    """Yield the parameters of each round."""
    for k in range(ROUNDS):
        radius, contrast = RADIUS[dim] * RADIUS_FACTOR**k, CONTRAST[dim] * CONTRAST_FACTOR**k
        yield Round(
            radius=radius if k else radius * FIRST_RADIUS_FACTOR[dim],
            contrast=contrast if k else contrast * FIRST_CONTRAST_FACTOR,
            exponent=EXPONENT[dim],
            scale=SCALE,
            range=RANGE * RANGE_FACTOR**k if k else None,
            feedback=FEEDBACK,
            adaptive_feedback=ADAPTIVE_FEEDBACK,
        )


def reach(spacing: Sequence[float]) -> tuple[int, ...]:
    """Return the distance in pixels, along each axis, at which a pixel can affect the result."""
    first = (math.ceil(FIRST_RADIUS / s) for s in spacing)
    margins = (settings.margins(spacing) for settings in schedule(len(spacing)))
    return tuple(map(sum, zip(first, *margins, strict=True)))


def check_sigma(sigma: object) -> float | None:
    """Check a noise level, and return it; None for "auto"."""
    if isinstance(sigma, str) and _checks.one_of(sigma, ("auto",), "sigma"):
        return None
    return _checks.positive(sigma, "sigma") if _checks.not_negative(sigma, "sigma") else 0.0


def check_dtype(image: object) -> torch.dtype:
    """Check that an image holds floats or integers of at most 32 bits, and return its dtype."""
    dtype = image.dtype if isinstance(image, Tensor) else _torch_dtype(image)
    if dtype == torch.bool or (not dtype.is_floating_point and dtype.itemsize > 4):
        raise TypeError(f"`image` must hold floats or integers of at most 32 bits, got dtype {dtype}")
    return dtype


def mean_level(windows: Sequence[Tensor]) -> float:
    """Return the mean intensity of the windows (C, *spatial) that represent an image."""
    return float(sum(w.double().sum() for w in windows)) / sum(w.numel() for w in windows)


def to_dtype(values: Tensor, dtype: torch.dtype, unit: int) -> Tensor:
    """Convert floats to a dtype; for integers, they are multiplied by ``unit`` and rounded."""
    if dtype.is_floating_point:
        return values.to(dtype)
    limits = torch.iinfo(dtype)
    return values.double().mul(unit).round_().clamp_(limits.min, limits.max).to(dtype)


def _torch_dtype(array: object) -> torch.dtype:
    import numpy

    return torch.from_numpy(numpy.empty(0, array.dtype.newbyteorder("="))).dtype  # type: ignore[attr-defined]
