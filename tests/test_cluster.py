"""Tiles computed by the processes of a dask.distributed cluster, one of which may die."""

import os
import resource
import signal
import sys
from functools import partial
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

from metricconv import filters, large
from metricconv.metrics import edge_metric

distributed = pytest.importorskip("distributed")
cloudpickle = pytest.importorskip("cloudpickle")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import tests

pytestmark = pytest.mark.slow

EDGE = partial(edge_metric, iota=0.1, scale=1.0)
CASES = {
    "tangent_filter": {"samples": 4},
    "geodesic_filter": {"samples": 3, "metric": EDGE},
    "box_filter": {"size": 5},
}


def start_cluster():
    return distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", memory_limit="2GiB"
    )


@pytest.fixture(scope="module")
def client():
    with start_cluster() as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture
def image():
    return np.random.default_rng(0).random((90, 110)).astype(np.float32)


def die_once(pixels, armed):
    """Return the pixels; the process that finds the file ``armed`` removes it and dies."""
    try:
        armed.unlink()
    except FileNotFoundError:
        return pixels
    os.kill(os.getpid(), signal.SIGKILL)


def process():
    """Return the id of this process."""
    return os.getpid()


def warm_up():
    """Import what a tile needs."""
    large.box_filter(da.ones((1000, 1000)), 3).compute(scheduler="synchronous")


def peak_memory():
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("name", CASES)
def test_result_of_processes_equals_whole_image(client, image, name):
    whole = getattr(filters, name)(image, **CASES[name])
    found = getattr(large, name)(da.from_array(image, chunks=30), **CASES[name]).compute()
    assert len(client.scheduler_info()["workers"]) == 2
    assert found.dtype == whole.dtype and np.abs(found - whole).max() < 1e-6


@pytest.mark.parametrize("name", CASES)
def test_result_is_right_after_a_worker_died(client, image, name, tmp_path):
    armed = tmp_path / "armed"
    before = set(client.run(process).values())
    pixels = da.from_array(image, chunks=30).map_blocks(die_once, armed, dtype=image.dtype)
    tiled = getattr(large, name)(pixels, **CASES[name])
    armed.touch()
    found = tiled.compute()
    assert not armed.exists()
    assert np.abs(found - getattr(filters, name)(image, **CASES[name])).max() < 1e-6
    client.wait_for_workers(2, timeout=60)
    assert set(client.run(process).values()) != before


def test_workers_hold_few_tiles(client):
    """The image has 288 MB, half of it per worker, and a tile 2 MB."""
    whole = da.random.default_rng(0).random((6000, 6000), chunks=500)
    client.run(warm_up)
    before = client.run(peak_memory)
    mean = large.box_filter(whole, 3).mean().compute()
    grown = {worker: peak - before[worker] for worker, peak in client.run(peak_memory).items()}
    assert abs(mean - 0.5) < 1e-3
    assert max(grown.values()) < 110


def test_workers_share_an_empty_cache_of_compiled_code(image, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    jobs = [large.box_filter(da.from_array(image.astype(dtype), chunks=60), 3) for dtype in ("f4", "f8")]
    for _ in range(2):  # both workers compile, then both load
        with start_cluster() as cluster, distributed.Client(cluster):
            results = dask.compute(*jobs)
        for result in results:
            assert np.abs(result - filters.box_filter(image.astype(result.dtype), 3)).max() < 1e-6
    assert list(Path(tmp_path).rglob("*.nbc"))
