"""A filter that averages over randomly displaced samples."""

import math

import torch
from torch import Tensor

from .. import _checks
from ..supports import Deformable
from ._average import Image, average, convolve, filter_image, padded_strips
from ._limits import MAX_LENGTH, check_at_most, check_sample_count, check_side

# Maximum number of random values in memory: 256 MB, twice that in float64.
_MAX_RANDOM_VALUES = 2**26


def random_deformable_filter(
    image: Image,
    samples: int = 11,
    reach: float | None = None,
    seed: int = 0,
    *,
    channel_axis: int | None = None,
    padding_mode: str = "reflect",
) -> Image:
    """Average over a box whose samples are displaced at random, independently at every pixel.

    The displacements are uniform in [−reach, reach]^d, as in an untrained deformable convolution. For large images they
    are drawn some rows at a time.

    Args:
        image, channel_axis, padding_mode: as in ``box_filter``.
        samples: samples along each axis, odd, at most 1023; 101 for a volume.
        reach: maximum displacement along each axis in pixels, from 0 to 2^20. Default: samples/2.
        seed: random seed; the displacements are the same on every device.

    >>> image = torch.rand(16, 16)
    >>> torch.equal(random_deformable_filter(image, 3, seed=1), random_deformable_filter(image, 3, seed=1))
    True
    """
    samples = check_side(samples, "samples")
    reach = samples / 2 if reach is None else reach
    check_at_most(reach, MAX_LENGTH, "reach")
    reach = _checks.not_negative(reach, "reach")
    mode = _checks.padding_mode(padding_mode)
    seed = _checks.seed(seed, "seed")

    def mean(x: Tensor) -> Tensor:
        dim, (height, *others) = x.dim() - 2, x.shape[2:]
        check_sample_count(samples, dim, "samples")
        generator = torch.Generator().manual_seed(seed)

        def draw(rows: int) -> Tensor:
            uniform = torch.rand(1, 1, samples**dim, dim, rows, *others, generator=generator, device="cpu")
            return uniform.mul_(2).sub_(1).mul_(reach).to(x)

        step = max(_MAX_RANDOM_VALUES // (samples**dim * dim * math.prod(others)), 1)
        if step >= height or samples == 1:
            return average(x, Deformable(draw(height), (samples,) * dim), mode)
        # As for balls, a larger dilation widens the margin; the offsets below compensate for it.
        half = samples // 2
        dilation = math.ceil((half + reach + 1) / half)
        rows = torch.arange(-half, half + 1, device="cpu").repeat_interleave(samples ** (dim - 1))
        added = rows.mul(dilation - 1).to(x)
        strips = []
        for start, stop, padded in padded_strips(x, step, dilation * half, mode):
            vectors = draw(stop - start)
            vectors[:, :, :, 0] -= added.view(-1, *(1,) * dim)
            support = Deformable(vectors, (samples,) * dim, (dilation,) + (1,) * (dim - 1))
            strips.append(convolve(padded, support, (0,) + (half,) * (dim - 1), mode))
        return torch.cat(strips, 2)

    return filter_image(image, channel_axis, mean)
