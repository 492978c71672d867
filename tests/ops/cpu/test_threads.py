"""Results are bitwise equal for every number of threads, also when several threads call at once."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from isolated import run_python
from ops.cases import Case, outcome

pytest.importorskip("numba")
CASES = {
    "few channels": Case(channels=(2, 3), batch=2, size=(40, 41), modulated=True),
    "many channels": Case(channels=(16, 12), batch=2, size=(40, 41), modulated=True),
    "depthwise": Case(channels=(16, 16), groups=16, batch=1, size=(40, 41)),
    "many images": Case(channels=(8, 4), batch=20, size=(9, 8), radius=6.0),
    "geodesics": Case("geodesic", channels=(1, 1), batch=1, size=(40, 41)),
}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CASES)
def test_results_are_bitwise_equal_for_every_number_of_threads(name: str) -> None:
    tensors, run = CASES[name].make()
    found = []
    for threads in (1, 2, 4, 2, 4):
        torch.set_num_threads(threads)
        found.append(outcome(run, tensors, backend="cpu"))
    for other in found[1:]:
        for key, value in found[0].items():
            assert torch.equal(value, other[key]), key


def test_concurrent_calls_give_the_result_of_one_call() -> None:
    tensors, run = CASES["many channels"].make()
    torch.set_num_threads(2)
    expected, found = outcome(run, tensors, backend="cpu"), {}
    callers = [
        threading.Thread(target=lambda n=n: found.update({n: outcome(run, tensors, backend="cpu")})) for n in range(3)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for n in range(3):
        for key, value in expected.items():
            assert torch.equal(value, found[n][key]), key


def test_error_in_a_task_reaches_the_caller() -> None:
    from metricconv.ops.cpu.threads import run_tasks

    torch.set_num_threads(2)
    with pytest.raises(ZeroDivisionError):
        run_tasks(lambda n: 1 // n, [1, 2, 0, 3])


def test_without_openmp_python_threads_run_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    from metricconv import _compat
    from metricconv.ops.cpu import threads

    monkeypatch.setattr(_compat, "openmp_library", lambda: None)
    torch.set_num_threads(3)
    done: list[int] = []
    threads.run_tasks(done.append, range(50))
    assert sorted(done) == list(range(50))


def test_forked_processes_filter_after_the_parent_did(tmp_path: Path) -> None:
    code = """
import multiprocessing
import torch
import metricconv as mc

def outcome(_=None):
    y = mc.metric_conv(x, mc.Riemannian.isotropic(1.5), w, padding=1, backend="cpu")
    return float(y.double().sum())

x, w = torch.rand(1, 16, 64, 64), torch.rand(16, 16, 3, 3)
torch.set_num_threads(2)
expected = outcome()
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map_async(outcome, range(2)).get(timeout=60) == [expected, expected]
"""
    done = run_python("-W", "ignore", "-c", code, folder=tmp_path)
    assert done.returncode == 0, done.stderr
