"""Random problems of the operator with awkward sizes, geometries and values."""

import random

import torch

from ops.cases import BALLS, KINDS, MODES, Case

__all__ = ["draw"]


def draw(
    rng: random.Random, dims: tuple[int, ...] = (1, 2, 2, 2, 3), largest: int = 11, most_channels: int = 40
) -> Case:
    """Return a problem whose image has at most ``largest`` pixels per side."""
    dim = rng.choice(dims)
    kind = rng.choice([name for name in KINDS if dim == 2 or name != "geodesic"])  # geodesic balls are 2-D

    def axes(*choices: int) -> tuple[int, ...]:
        return tuple(rng.choice(choices) for _ in range(dim))

    kernel = axes(1, 3, 3, 5) if kind in BALLS else axes(1, 2, 3, 3, 4)
    if dim == 3:
        kernel = tuple(min(k, 3) for k in kernel)
    if kind == "geodesic" and max(kernel) == 1:  # the center alone: a tangent ball
        kernel = (3, *kernel[1:])
    stride, dilation = axes(1, 1, 1, 2, 3), axes(1, 1, 1, 2)
    padding = axes(0, 1, 1, 2, 4)
    least = [max(d * (k - 1) + 1 - 2 * p, 1) for d, k, p in zip(dilation, kernel, padding, strict=True)]
    largest = largest if dim < 3 else min(largest, 5)
    size = tuple(n + rng.choice([0, 0, 1, rng.randint(0, largest)]) for n in least)
    channels, out_channels, groups, metric_groups = _channels(rng, most_channels)
    constant = rng.random() < 0.2
    if kind == "grid" or constant:
        metric_groups = 1
    return Case(
        kind=kind,
        mode=rng.choice(MODES),
        batch=rng.choice([1, 1, 2, 3]),
        channels=(channels, out_channels),
        size=size,
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        metric_groups=metric_groups,
        modulated=rng.random() < 0.5,  # a sixth of these factors are 0, about half are negative
        biased=rng.random() < 0.5,
        radius=rng.choice([0.01, 0.3, 0.7, 1.7, 1.7, 4.0, 20.0]),
        constant=constant,
        dtype=rng.choice([torch.float32, torch.float64]),
        layout=rng.choice(["contiguous", "channels_last", "strided"]),
        whole=rng.choice([0.0, 0.0, 0.3, 1.0]),
    )


def _channels(rng: random.Random, most: int) -> tuple[int, int, int, int]:
    """Return input and output channels, groups of weights and of metrics."""
    groups = rng.choice([1, 1, 1, 2, 3])
    channels = groups * rng.randint(1, rng.choice([2, max(most // groups, 1)]))
    out_channels = groups * rng.randint(1, rng.choice([2, max(most // groups, 1)]))
    if rng.random() < 0.15:  # depthwise
        groups, out_channels = channels, channels * rng.choice([1, 2])
    shared = [n for n in range(1, channels + 1) if channels % n == 0 and n <= 6]
    return channels, out_channels, groups, rng.choice([1, *shared])
