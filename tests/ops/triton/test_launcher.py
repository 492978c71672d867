"""Kernels compiled ahead of their launch; and constants: made once, never gone while a graph may read them."""

import gc
import threading
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


class Kernel:
    """A kernel that takes its time to compile, and tells what happens to it."""

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.free, self.seen = fails, threading.Event(), []

    def warmup(self, grid: tuple[int, ...], image: object, size: int) -> None:
        assert self.free.wait(10)
        self.seen.append(("compiled", threading.current_thread() is threading.main_thread(), image.dtype, size))
        if self.fails:
            raise RuntimeError("does not compile")

    def __getitem__(self, grid: tuple[int, ...]) -> object:
        return lambda **arguments: self.seen.append(("launched", grid))


@pytest.mark.parametrize("fails", [False, True])
def test_a_launch_waits_for_what_is_compiled_ahead(fails: bool) -> None:
    pytest.importorskip("triton")
    kernel, image = Kernel(fails), torch.zeros(3, dtype=torch.float16)
    launch = launcher.Launch(kernel, [2], size=5)
    launch.ahead(image=image)
    launch.ahead(image=image)  # it is on its way
    assert not kernel.seen
    threading.Timer(0.05, kernel.free.set).start()
    launch(image=image)  # which, where compiling failed, would fail as it does without
    assert kernel.seen == [("compiled", False, torch.float16, 5), ("launched", (2,))]


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
