"""The kernels compile for the GPU architectures that are supported, without a GPU."""

import pytest

from metricconv.metrics import Parametrization

pytest.importorskip("triton")

from ops.triton import compiled
from ops.triton.fused_parametrization import PARAMETRIZATIONS

CAPABILITIES = [80, pytest.param(90, marks=pytest.mark.slow)]
# Bytes per program, by compute capability.
SHARED_MEMORY = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024}


def check_builds(launches: compiled.Launches, capability: int) -> None:
    for kernel, arguments in launches:
        built = compiled.build(kernel, arguments, capability)
        assert built.asm["cubin"] and built.metadata.shared <= SHARED_MEMORY[capability]


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", compiled.CASES)
def test_kernels_compile(name: str, capability: int) -> None:
    launches = compiled.launches_of(compiled.CASES[name])
    # Forward, image, weights; outliers of patches; geometry apart for many channels; fields and rays of geodesics.
    # With im2col, the kernel for the image, or the one after its patches, also serves weights and geometry.
    im2col = 4 if name.startswith("dense") else 2
    counts = {"dense": 4, "dense, many channels": 5, "geodesic": 9}
    assert len(launches) == (im2col if name.endswith("im2col") else counts.get(name, 3))
    check_builds(launches, capability)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_kernels_of_rounded_fields_compile(capability: int) -> None:
    launches = compiled.rounded_field_launches()
    assert [arguments["ROUNDED"] for _, arguments in launches[:2]] == [True, True] and len(launches) == 3
    check_builds(launches, capability)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "precision"), compiled.SMALL_GPU_PRECISIONS)
def test_kernels_fit_a_small_gpu(name: str, precision: str) -> None:
    launches = compiled.small_gpu_launches(name, precision)
    assert launches
    check_builds(launches, 89)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_kernels_of_few_outputs_compile(capability: int) -> None:
    launches = compiled.few_outputs_launches()
    assert len(launches) == 2
    check_builds(launches, capability)


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("kind", compiled.KINDS)
def test_kernels_of_every_kind_compile(kind: str, capability: int) -> None:
    check_builds(compiled.launches_of(compiled.kind_case(kind)), capability)


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS[::3], ids=str)
def test_kernels_of_parametrizations_compile(parametrization: Parametrization, capability: int) -> None:
    launches = compiled.parametrization_launches(parametrization)
    assert len(launches) == 2
    check_builds(launches, capability)
