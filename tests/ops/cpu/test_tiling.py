"""Results do not depend on the sizes of tasks, pixel ranges and tiles, but for rounding errors."""

import random

import pytest
import torch

from ops.cases import Case, random_case, relative
from ops.cpu.recorded import recorded_call

pytest.importorskip("numba")
from metricconv.ops.cpu import partition
from metricconv.ops.cpu.arguments import CpuArguments, new_output, view_3d
from metricconv.ops.cpu.tiling import DEFAULT, Tiling

# Several tasks and ranges, tiles of few pixels, samples of a pixel in several tiles.
SMALL = Tiling(tasks=5, min_range_pixels=3, tile_values=150, max_row_values=40, min_tile_pixels=1)


def outcome(args: CpuArguments, tiling: Tiling) -> list[torch.Tensor]:
    """Return the output without bias, and the gradients that exist, for a fixed gradient of the output."""
    out = new_output(args, args.writes_channels_last(False)).zero_()
    partition.forward(args, view_3d(args, out), tiling)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(7)).to(out)
    needs = (True, True, args.modulation is not None, args.params is not None)
    grads = partition.backward(args, view_3d(args, grad), needs, tiling)
    return [out, *(g for g in grads if g is not None)]


def check_tiling(case: Case, tiling: Tiling) -> None:
    tensors, run = case.make()
    args = CpuArguments(*recorded_call(run, tensors)[:-2])
    for found, expected in zip(outcome(args, tiling), outcome(args, DEFAULT), strict=True):
        assert relative(found, expected) <= 1e-5


CASES = {
    "few channels": Case(channels=(3, 5), modulated=True),
    "many channels": Case(channels=(18, 20), metric_groups=2, modulated=True),
    "many channels, channels-last": Case(channels=(16, 4), layout="channels_last"),
    "many channels in groups": Case(channels=(48, 40), groups=2, metric_groups=3, modulated=True),
    "depthwise": Case(channels=(16, 16), groups=16, metric_groups=2, modulated=True),
    "volume, few channels": Case("deformable", channels=(2, 3), size=(4, 3, 5), kernel=(3, 1, 3), padding=(1, 0, 1)),
    "volume, many channels": Case("grid", channels=(8, 1), size=(5, 4, 3), kernel=(2, 2, 2), padding=0),
    "signal": Case("shifted", channels=(8, 3), size=(17,), kernel=(3,), padding=1),
    "geodesic, few channels": Case("geodesic", channels=(1, 1), size=(9, 8)),
    "geodesic, many channels": Case("geodesic", channels=(16, 16), groups=2, metric_groups=2, modulated=True),
    "more images than tasks": Case(channels=(16, 2), batch=11, size=(3, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_small_parts_give_the_default_result(name: str) -> None:
    check_tiling(CASES[name], SMALL)


def test_weight_gradients_fit_the_memory_limit() -> None:
    check_tiling(CASES["many channels"], Tiling(max_weight_sums=1, min_range_pixels=1))


@pytest.mark.parametrize("seed", range(12))
def test_random_parts_give_the_default_result(seed: int) -> None:
    rng = random.Random(seed)
    tiling = Tiling(
        tasks=rng.choice([1, 2, 7]),
        min_range_pixels=rng.choice([1, 10]),
        tile_values=rng.choice([1, 100, 3000]),
        max_row_values=rng.choice([1, 30, 200]),
        min_tile_pixels=rng.choice([1, 7]),
    )
    check_tiling(random_case(seed + 100, 16), tiling)
