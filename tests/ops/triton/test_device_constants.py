"""Constants on a device are made once, and never freed while a CUDA graph may read them."""

import gc
import types
import weakref

import pytest
import torch

from metricconv.ops.triton import device_constants

CUDA = torch.device("cuda", 0)


class Constant:
    pass


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    state = types.SimpleNamespace(capturing=False, synchronizations=0)

    def synchronize() -> None:
        state.synchronizations += 1

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state.capturing)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(synchronize=synchronize))
    monkeypatch.setattr(device_constants, "_read_by_graphs", {})
    return state


def test_constant_is_made_and_synchronized_once(gpu: types.SimpleNamespace) -> None:
    cache: dict[str, Constant] = {}
    first = device_constants.device_constant(cache, "key", Constant, CUDA)
    assert device_constants.device_constant(cache, "key", Constant, CUDA) is first and gpu.synchronizations == 1


@pytest.mark.parametrize("capturing", [False, True])
def test_constant_read_by_a_graph_outlives_its_owner(gpu: types.SimpleNamespace, capturing: bool) -> None:
    cache: dict[str, Constant] = {}
    device_constants.device_constant(cache, "key", Constant, CUDA)
    gpu.capturing = capturing
    reference = weakref.ref(device_constants.device_constant(cache, "key", Constant, CUDA))
    del cache
    gc.collect()
    assert (reference() is not None) is capturing


def test_constant_made_during_capture_is_not_cached(gpu: types.SimpleNamespace) -> None:
    cache: dict[str, Constant] = {}
    gpu.capturing = True
    device_constants.device_constant(cache, "key", Constant, CUDA)
    assert not cache and not gpu.synchronizations
