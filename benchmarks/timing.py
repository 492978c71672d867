"""Time and memory of a call on the GPU: quantiles measured with events after a warm-up."""

import dataclasses
import statistics
from collections.abc import Callable

import torch


@dataclasses.dataclass(frozen=True)
class Timing:
    """Milliseconds at three quantiles, and the peak memory allocated during a call, in MB of 2²⁰ bytes."""

    p20: float
    p50: float
    p80: float
    megabytes: float


def measure(call: Callable[[], object], *, graph: bool, seconds: float = 0.1) -> Timing:
    """Time ``call``; with ``graph`` it is captured once and replayed, which excludes launch overhead."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    megabytes = _peak(call)
    run = _capture(call) if graph else call
    # Overwrites the cache before each run, so that inputs are read from memory as in a network.
    flush = torch.empty(256 * 2**20, dtype=torch.int8, device="cuda")
    estimate = statistics.median(_run_once(run, flush) for _ in range(5))
    count = max(10, min(500, int(seconds * 1e3 / max(estimate, 1e-3))))
    times = sorted(_run_once(run, flush) for _ in range(count))
    p20, p50, p80 = (times[int(q * (count - 1))] for q in (0.2, 0.5, 0.8))
    return Timing(p20, p50, p80, megabytes)


def _run_once(call: Callable[[], object], flush: torch.Tensor) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    flush.zero_()
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def _peak(call: Callable[[], object]) -> float:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    del result
    return peak / 2**20


def _capture(call: Callable[[], object]) -> Callable[[], object]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
