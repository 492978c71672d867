"""The kernels compile for the architectures they are meant for, without a GPU."""

import dataclasses

import pytest
import torch

from metricconv.metrics import Parametrization
from ops.cases import Case

pytest.importorskip("triton")

from metricconv.ops.triton import backward, call, tiles
from ops.triton.ahead import build, inference_launches_of, launches_of, narrow_launches_of, parametrize_launches_of
from ops.triton.narrowed import make
from ops.triton.parametrized import PARAMETRIZATIONS

# Bytes that a program may have at most, by capability.
SHARED_MEMORY = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024}
CASES = {
    "dense": Case(channels=(64, 128), size=(28, 28), dtype=torch.bfloat16, layout="channels_last"),
    "dense, many channels": Case(channels=(512, 512), size=(9, 20), dtype=torch.bfloat16),
    "dense, whole images": Case(channels=(64, 64), size=(8, 8), dtype=torch.float16, modulated=True),
    "dense, samples kept": Case(channels=(256, 256), size=(32, 32), dtype=torch.float16),
    "whole images, samples kept": Case(channels=(256, 256), size=(8, 8), dtype=torch.float16, batch=32),
    "small images of any kind, samples kept": Case(
        kind="deformable", channels=(256, 256), size=(8, 8), dtype=torch.float16, batch=32, modulated=True
    ),
    "far apart, samples kept": Case(channels=(64, 64), size=(32, 32), stride=2, dtype=torch.bfloat16, batch=32),
    "dense in float32": Case(kind="deformable", channels=(32, 48), size=(20, 60), groups=2, metric_groups=2),
    "depthwise": Case(channels=(64, 64), groups=64, metric_groups=2, size=(56, 56), dtype=torch.float16),
    "geodesic": Case(kind="geodesic", channels=(16, 16), size=(20, 30)),
    "few channels": Case(channels=(1, 1), size=(64, 64), mode="reflect"),
}


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", CASES)
def test_kernels_compile(name: str, capability: int) -> None:
    launches = launches_of(CASES[name])
    # Forward, image, weights; strays of patches; the geometry, with many channels apart; fields and rays of geodesics.
    # Where samples are kept, weights and geometry come with the image, or after its patches.
    kept = 4 if name.startswith("dense") else 2
    counts = {"dense": 4, "dense, many channels": 5, "geodesic": 9}
    assert len(launches) == (kept if name.endswith("kept") else counts.get(name, 3))
    for kernel, arguments in launches:
        built = build(kernel, arguments, capability)
        assert built.asm["cubin"] and built.metadata.shared <= SHARED_MEMORY[capability]


@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_of_rounded_fields_compile(capability: int) -> None:
    launches = inference_launches_of(dataclasses.replace(CASES["geodesic"], dtype=torch.bfloat16))
    assert [arguments["ROUNDED"] for _, arguments in launches[:2]] == [True, True] and len(launches) == 3
    for kernel, arguments in launches:
        assert build(kernel, arguments, capability).asm["cubin"]


SMALL = {
    "many channels": (Case(channels=(64, 512), size=(8, 8), dtype=torch.bfloat16), False),
    "float32": (Case(channels=(128, 128), size=(16, 16)), False),
    "samples kept": (Case(channels=(256, 256), size=(16, 16), batch=16, dtype=torch.bfloat16), False),
    "deterministic": (Case(channels=(64, 128), size=(16, 16), dtype=torch.bfloat16), True),
}


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("many channels", "ieee"),
        ("samples kept", "ieee"),
        ("float32", "ieee"),
        ("float32", "tf32"),
        ("deterministic", "ieee"),
    ],
)
def test_kernels_fit_a_small_gpu(name: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "roomy", lambda device: False)
    for room in (call, backward):
        monkeypatch.setattr(room, "precision", lambda: precision)
    case, deterministic = SMALL[name]
    torch.use_deterministic_algorithms(deterministic)
    try:
        launches = launches_of(case)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(build(*caught, 89).metadata.shared <= SHARED_MEMORY[89] for caught in launches)


@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_of_few_outputs_compile(capability: int) -> None:
    launches = narrow_launches_of(*make(torch.float16)[:3])
    assert len(launches) == 2
    for kernel, arguments in launches:
        assert build(kernel, arguments, capability).asm["cubin"]


@pytest.mark.parametrize("kind", ["riemannian", "shifted", "dilated", "grid"])
def test_kernels_of_every_kind_compile(kind: str) -> None:
    for kernel, arguments in launches_of(Case(kind=kind, channels=(16, 16), size=(12, 60), dtype=torch.float16)):
        assert build(kernel, arguments, 90).asm["cubin"]


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS[::3], ids=str)
def test_kernels_of_parametrizations_compile(parametrization: Parametrization, capability: int) -> None:
    launches = parametrize_launches_of(parametrization)
    assert len(launches) == 2
    for kernel, arguments in launches:
        assert build(kernel, arguments, capability).asm["cubin"]
