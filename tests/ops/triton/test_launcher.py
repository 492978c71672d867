"""Constants that kernels read: made once, and never gone while a graph may read them."""

import gc
import types
import weakref

import pytest
import torch

from metricconv.ops.triton import launcher

CUDA = torch.device("cuda", 0)


class Constants:
    pass


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    state = types.SimpleNamespace(capturing=False, waits=0)

    def wait() -> None:
        state.waits += 1

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state.capturing)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(synchronize=wait))
    monkeypatch.setattr(launcher, "_read_by_graphs", {})
    return state


def test_constants_are_made_once_and_waited_for_once(gpu: types.SimpleNamespace) -> None:
    known: dict[str, Constants] = {}
    first = launcher.constants(known, "key", Constants, CUDA)
    assert launcher.constants(known, "key", Constants, CUDA) is first and gpu.waits == 1


@pytest.mark.parametrize("capturing", [False, True])
def test_what_a_graph_reads_outlives_its_owner(gpu: types.SimpleNamespace, capturing: bool) -> None:
    known: dict[str, Constants] = {}
    launcher.constants(known, "key", Constants, CUDA)
    gpu.capturing = capturing
    seen = weakref.ref(launcher.constants(known, "key", Constants, CUDA))
    del known
    gc.collect()
    assert (seen() is not None) is capturing


def test_what_a_graph_makes_is_the_graphs_own(gpu: types.SimpleNamespace) -> None:
    known: dict[str, Constants] = {}
    gpu.capturing = True
    launcher.constants(known, "key", Constants, CUDA)
    assert not known and not gpu.waits
