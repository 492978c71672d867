"""The kernels of geodesics in Triton's interpreter, run by test_interpreted.py."""

from typing import Any

import pytest
import torch

import metricconv as mc
from metricconv.ops.triton import geodesic, plan, ray_tables
from ops.cases import Case, check, check_inference

pytestmark = pytest.mark.usefixtures("poison")
TOLERANCE = 2e-5


@pytest.mark.parametrize(("smooth", "steps", "drift"), [(2, 1, False), (0, 4, True)])
def test_geodesics(smooth: int, steps: int, drift: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    change_balls(monkeypatch, drift, smooth=smooth, steps=steps)
    check(Case(kind="geodesic", size=(4, 5), kernel=(3, 3)), TOLERANCE)


def change_balls(monkeypatch: pytest.MonkeyPatch, drift: bool, **changes: Any) -> None:
    """Use geodesic balls with other options, and without ω unless ``drift``."""

    def ball(metric: mc.Randers, stencil: mc.stencils.Stencil, **options: Any) -> mc.GeodesicBall:
        riemannian = mc.Riemannian(metric.M + 0.0 * metric.omega[:, :, :1])
        return GeodesicBall(metric if drift else riemannian, stencil, **{**options, **changes})

    GeodesicBall = mc.GeodesicBall
    monkeypatch.setattr(mc, "GeodesicBall", ball)


@pytest.mark.slow
def test_large_geodesic_stencils_are_traced_a_few_rays_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, trace = [], geodesic.trace
    monkeypatch.setattr(geodesic, "trace", lambda *args: counts.append(args[6]) or trace(*args))
    with plan.fixed_choices(chunk_bytes=8 * 2 * 12 * 4):  # four samples of 2 images of 12 pixels
        check(Case(kind="geodesic", size=(3, 4), kernel=(3, 3), modulated=True), TOLERANCE)
        # Each part but the first is traced once more in the backward pass.
        assert max(counts) <= 4 and sum(counts) == 2 * 9 - counts[0]
        counts.clear()
        check(Case(kind="geodesic", size=(3, 4), kernel=(3, 3), channels=(18, 20)), TOLERANCE)
        assert counts == [9]  # the displacements are no larger than the image


def test_ray_table_is_computed_once_per_stencil(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, make_table = [], ray_tables._make_table
    monkeypatch.setattr(ray_tables, "_make_table", lambda *args: calls.append(args) or make_table(*args))
    tensors, run = Case(kind="geodesic", size=(3, 4), kernel=(1, 3), padding=(0, 1)).make()
    for _ in range(2):
        run(tensors, backend="triton")
    assert len(calls) == 1


@pytest.mark.slow
def test_backward_is_split_into_launches_whose_states_fit_in_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    first_programs, bind = [], geodesic.bind

    def recorded(*args: Any, **options: Any) -> Any:
        first_programs.append(options.get("first_program"))
        return bind(*args, **options)

    monkeypatch.setattr(geodesic, "bind", recorded)
    with plan.fixed_choices(chunk_bytes=1):
        check(Case(kind="geodesic", size=(3, 4), kernel=(3, 3), channels=(18, 20), batch=3), TOLERANCE)
    # 3 images, 8 rays, one block each. The first entries are of the forward pass, which starts to compile the kernel.
    assert [first for first in first_programs if first is not None] == 2 * [0, 16]


@pytest.mark.parametrize("mode", ["zeros", "circular"])
@pytest.mark.parametrize(("smooth", "drift"), [(1, True), (0, False)])
def test_bfloat16_images_use_rounded_derivatives(
    smooth: int, drift: bool, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounded, trace = [], geodesic.trace
    monkeypatch.setattr(geodesic, "trace", lambda *args: rounded.append(args[-1]) or trace(*args))
    change_balls(monkeypatch, drift, smooth=smooth)
    check_inference(Case(kind="geodesic", dtype=torch.bfloat16, mode=mode, size=(4, 5), kernel=(3, 3)), 1e-2)
    assert rounded == [True]
