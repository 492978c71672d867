"""``metricconv filter --scheduler``: addresses, a cluster of processes, and the loss of its parts."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import rich.console
import zarr
from rich.progress import Progress

from command_errors import fails
from metricconv import filters
from metricconv._errors import UserError
from metricconv.cli.app import run
from metricconv.io import tiled

distributed = pytest.importorskip("distributed")
cluster = pytest.importorskip("metricconv.cli.cluster")

EDGE = ["-k", "3", "--metric", "edge", "--iota", "0.2", "--scale", "1.0", "--tile", "32"]


@pytest.fixture
def pixels():
    found = np.random.default_rng(0).integers(0, 65535, (96, 150), dtype=np.uint16)
    zarr.save("in.zarr", found)
    return found


@pytest.fixture
def processes():
    """Start processes of the cluster; those that are left are killed."""
    started = []

    def start(command, *arguments):
        file = Path("scheduler.json").absolute()
        place = ["--host", "127.0.0.1", "--port", "0"] if command == "dask_scheduler" else ["--no-nanny"]
        line = [sys.executable, "-m", f"distributed.cli.{command}", "--scheduler-file", str(file), "--no-dashboard"]
        with Path(f"{command}-{len(started)}.log").open("w") as log:
            started.append(subprocess.Popen([*line, *place, *arguments], stdout=log, stderr=log, cwd=Path.home()))
        while command == "dask_scheduler" and not file.exists():
            time.sleep(0.05)
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def address():
    return json.loads(Path("scheduler.json").read_text())["address"]


def kill_when_written(process):
    """Kill a process when the first tiles have been written."""

    def watch():
        while not [p for p in Path().glob(".out.zarr.part/*/c/*/*") if p.is_file()]:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    "given", ["host", "host:8786", "tcp://host", "tcp://host:0", "tcp://host:65536", "tcp://:8786", "http://host:8786"]
)
def test_malformed_addresses_raise(given, pixels, capsys):
    fails(["filter", "in.zarr", "out.zarr", "--scheduler", given], capsys, f"--scheduler {given}: must be an address")


@pytest.mark.parametrize("paths", [("in.npy", "out.zarr"), ("in.zarr", "out.tif"), ("in.png", "out.png")])
def test_scheduler_requires_zarr(paths, capsys):
    fails(["filter", *paths, "--scheduler", "tcp://127.0.0.1:1"], capsys, "requires that IN and OUT are .zarr")


def test_unreachable_scheduler_prints_one_line(pixels, capsys, monkeypatch):
    monkeypatch.setattr(cluster, "_CONNECT_SECONDS", 0.5)
    fails(["filter", "in.zarr", "out.zarr", "--scheduler", "tcp://127.0.0.1:1"], capsys, "127.0.0.1:1: cannot connect")
    assert sorted(p.name for p in Path().iterdir()) == ["in.zarr"]


def test_tiles_are_not_written_where_the_store_is_missing(tmp_path):
    target = tiled._StoredArray(Path("out.zarr"), tmp_path / "elsewhere", zarr.zeros((4, 4)))
    with pytest.raises(UserError, match=r"^out.zarr: the worker on .* cannot find .*elsewhere$"):
        target[:2, :2] = np.ones((2, 2))
    assert not np.any(target.array[:])


def test_bar_counts_forgotten_groups_as_finished():
    bar = cluster._Bar(Progress(disable=True), "filtering")
    shown = []
    for counts in ({}, {"read": (1, 4)}, {"read": (4, 4), "write": (1, 4)}, {"write": (2, 4)}):
        bar.update(counts)
        shown.append((bar.progress.tasks[0].completed, bar.progress.tasks[0].total))
    assert shown == [(0, None), (1, 4), (5, 8), (6, 8)]


@pytest.mark.slow
def test_scheduler_without_workers_prints_one_line(pixels, processes, capsys, monkeypatch):
    monkeypatch.setattr(cluster, "_CONNECT_SECONDS", 3)
    processes("dask_scheduler")
    fails(["filter", "in.zarr", "out.zarr", "--scheduler", address()], capsys, "has no workers")


@pytest.mark.slow
def test_cluster_computes_the_same_with_a_worker_lost(pixels, processes, monkeypatch):
    text = io.StringIO()
    console = rich.console.Console(file=text, force_terminal=True, width=100)
    bar = partial(Progress, console=console, redirect_stdout=False, redirect_stderr=False)
    monkeypatch.setattr("metricconv.cli.filtering.progress_bar", bar)
    monkeypatch.setattr(cluster, "_POLL_SECONDS", 0.05)
    processes("dask_scheduler")
    workers = [processes("dask_worker", "--nthreads", "1") for _ in range(2)]
    assert run(["filter", "in.zarr", "expected.zarr", *EDGE]) == 0
    killed = kill_when_written(workers[0])
    assert run(["filter", "in.zarr", "out.zarr", *EDGE, "--scheduler", address()]) == 0
    killed.join(10)
    assert workers[0].wait(10) == -signal.SIGKILL
    assert np.array_equal(zarr.load("out.zarr"), zarr.load("expected.zarr"))
    assert not [p.name for p in Path().iterdir() if p.name.startswith(".")]
    assert "computing the largest ball" in text.getvalue() and "filtering in.zarr" in text.getvalue()


@pytest.mark.slow
def test_cluster_denoises_tiles_to_the_whole(pixels, processes):
    zarr.save("wide.zarr", np.tile(pixels, (1, 3)))
    processes("dask_scheduler")
    for _ in range(2):
        processes("dask_worker", "--nthreads", "1")
    arguments = ["--sigma", "9000", "--tile", "160"]
    assert run(["denoise", "wide.zarr", "out.zarr", *arguments, "--scheduler", address()]) == 0
    whole = filters.denoise(np.tile(pixels, (1, 3)), 9000)
    assert np.abs(zarr.load("out.zarr").astype(int) - whole).max() <= 1


@pytest.mark.slow
def test_lost_scheduler_leaves_no_output(pixels, processes, capsys):
    scheduler = processes("dask_scheduler")
    processes("dask_worker", "--nthreads", "1")
    kill_when_written(scheduler)
    command = ["filter", "in.zarr", "out.zarr", *EDGE, "--tile", "16", "--scheduler", address()]
    fails(command, capsys, f"--scheduler {address()}: lost the connection to the scheduler")
    assert not Path("out.zarr").exists()


@pytest.mark.slow
def test_tasks_that_kill_workers_print_one_line():
    def die(block):
        os.kill(os.getpid(), signal.SIGKILL)

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as local,
        cluster.Cluster(local.scheduler_address) as connected,
        connected.computing(Progress(disable=True), "computing"),
        pytest.raises(UserError, match="1 worker died in the same task, probably out of memory; use a smaller --tile"),
    ):
        da.ones((4, 4)).map_blocks(die, meta=np.empty((0, 0))).compute()
