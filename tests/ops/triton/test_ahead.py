"""The kernels compile for the architectures they are meant for, without a GPU."""

import pytest
import torch

from ops.cases import Case

pytest.importorskip("triton")

from ops.triton.ahead import build, launches_of

CASES = {
    "dense": Case(channels=(64, 128), size=(28, 28), dtype=torch.bfloat16, layout="channels_last"),
    "dense, whole images": Case(channels=(64, 64), size=(8, 8), dtype=torch.float16, modulated=True),
    "dense in float32": Case(kind="deformable", channels=(32, 48), size=(20, 60), groups=2, metric_groups=2),
    "depthwise": Case(channels=(64, 64), groups=64, metric_groups=2, size=(56, 56), dtype=torch.float16),
    "few channels": Case(channels=(1, 1), size=(64, 64), mode="reflect"),
}


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", CASES)
def test_kernels_compile(name: str, capability: int) -> None:
    launches = launches_of(CASES[name])
    assert len(launches) == (4 if name == "dense" else 3)  # forward, image and geometry (apart or not), weights
    for kernel, arguments in launches:
        assert build(kernel, arguments, capability).asm["cubin"]
