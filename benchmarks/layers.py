"""``python -m benchmarks.layers PART``: training steps of networks, a sweep of shapes, memory or first calls, on a CPU.

Rows are added to ``<cpu>-layers.csv``, with a label for the version that is measured. PART "plot" writes the table and
the plot of that file.
"""

import argparse
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

import metricconv as mc
from metricconv._files import read_table, writing

from . import first_call, networks
from .cpu import _environment, _peak
from .rows import Row, Rows

COLUMNS = [
    "label", "part", "case", "threads", "layer", "p50_ms", "ratio", "peak_mb", "repetitions", "cpu", "load", "torch",
    "numba", "metricconv", "python", "date",
]  # fmt: skip
KEY = ("label", "part", "case", "threads", "layer")
PARTS = ("networks", "start", "sweep", "memory", "first")
# Batch, channels, height and width, kernel size.
SWEEP = [
    (1, 1, 1, 3), (1, 1, 32, 3), (1, 1, 256, 3), (1, 1, 256, 11), (64, 1, 28, 5), (1, 8, 16, 3), (1, 8, 256, 3),
    (16, 16, 64, 3), (1, 32, 128, 5), (4, 64, 64, 3), (4, 64, 16, 7), (1, 64, 256, 3), (1, 128, 16, 3),
    (64, 128, 4, 3), (16, 128, 16, 3), (1, 256, 8, 11), (16, 256, 8, 3), (64, 256, 2, 3), (1, 512, 1, 3),
    (16, 512, 1, 3), (16, 512, 2, 3), (64, 512, 4, 3), (1, 512, 32, 3), (64, 1, 1, 3), (16, 2, 64, 9), (1, 4, 128, 7),
    (64, 16, 32, 3), (1, 16, 1, 3), (64, 32, 8, 5), (16, 64, 1, 3), (1, 128, 64, 5),
]  # fmt: skip
MEMORY = (256, 512, 1024, 2048)

Call = Callable[[], object]
Tensors = tuple[Tensor, ...]
Wanted = Callable[[str], bool]  # whether to measure a case


def measure(calls: Mapping[str, Call], seconds: float) -> dict[str, list[float]]:
    """Return the milliseconds of each call; calls alternate, to share external load.

    Each is repeated, and the second time counts: the first depends on the memory that the call before it has freed.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    begin = time.perf_counter()
    while not times or len(next(iter(times.values()))) < 3 or time.perf_counter() - begin < seconds:
        for name, call in calls.items():
            call()
            start = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def network_rows(part: str, seconds: float, wanted: Wanted, layers: list[str]) -> Iterator[Row]:
    """Yield training steps; ``part`` "start" has all samples on pixels, as in a network that was just converted."""
    for name, batch, size in networks.CASES:
        case = f"{name} {batch}×3×{size}×{size}"
        if not wanted(case):
            continue
        perturbation = 0.0 if part == "start" else 0.02
        steps = {layer: networks.training_step(name, layer, batch, size, perturbation) for layer in layers}
        yield from _timed(case, measure(steps, seconds), "standard")


def sweep_rows(part: str, seconds: float, wanted: Wanted, layers: list[str]) -> Iterator[Row]:
    """Yield forward and backward passes of one convolution with as many outputs as inputs, given the metric."""
    for batch, channels, size, kernel in SWEEP:
        case = f"({batch},{channels},{size},{size}) k{kernel}"
        if not wanted(case):
            continue
        calls: dict[str, Callable[[], Tensors]] = {"standard": _standard(batch, channels, size, kernel)}
        for layer, backend in (("metric", "auto"), ("metric (reference)", "reference")):
            calls[layer] = _ball(batch, channels, size, kernel, "tangent", backend)
        _check_equal(calls["metric"](), calls["metric (reference)"](), case)
        yield from _timed(case, measure(calls, seconds), "standard")


def _check_equal(found: Tensors, expected: Tensors, case: str) -> None:
    """Raise an error if gradients differ by more than rounding errors."""
    for a, b in zip(found, expected, strict=True):
        error = ((a - b).norm() / b.norm().clamp_min(1e-12)).item()
        if not error < 1e-3:
            raise RuntimeError(f"{case}: gradients differ from the reference by {error:.1e}")


def memory_rows(part: str, seconds: float, wanted: Wanted, layers: list[str]) -> Iterator[Row]:
    """Yield the peak memory of a forward and backward pass of one layer of 16 channels, predictor included."""
    for size in MEMORY:
        case = f"(1,16,{size},{size}) k3"
        if not wanted(case):
            continue
        makers: dict[str, Callable[[], nn.Module]] = {
            "standard": lambda: nn.Conv2d(16, 16, 3, padding=1),
            "deformable": lambda: mc.nn.DeformableConv2d(16, 16, 3, padding=1),
            "metric": lambda: mc.nn.MetricConv2d(16, 16, 3, padding=1),
            "geodesic": lambda: mc.nn.MetricConv2d(16, 16, 3, padding=1, ball="geodesic"),
        }
        for name, make in makers.items():
            layer, x = make(), torch.randn(1, 16, size, size, requires_grad=True)
            megabytes = _peak(functools.partial(_layer_gradients, layer, x))
            yield {"case": case, "layer": name, "peak_mb": f"{megabytes:.1f}"}


def first_call_rows(part: str, seconds: float, wanted: Wanted, layers: list[str]) -> Iterator[Row]:
    """Yield the first forward and backward pass in a process, with an empty kernel cache and with a filled one."""
    for layer in first_call.CPU_LAYERS:
        case = f"{layer}, {layer.name}"
        if not wanted(case):
            continue
        with tempfile.TemporaryDirectory() as cache:
            for state in ("empty cache", "filled cache"):
                times = first_call.measure_with_cache(layer, cache)
                for name, milliseconds in times.items():
                    yield {"case": case, "layer": f"{state}, {name}", "p50_ms": f"{milliseconds:.1f}", "ratio": ""}


def _timed(case: str, times: dict[str, list[float]], baseline: str) -> Iterator[Row]:
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, values in times.items():
        ratio = medians[name] / medians[baseline]
        row = {"p50_ms": f"{medians[name]:.3f}", "ratio": f"{ratio:.2f}", "repetitions": str(len(values))}
        yield {"case": case, "layer": name} | row


def _standard(batch: int, channels: int, size: int, kernel: int) -> Callable[[], Tensors]:
    layer, x = _layer_and_input(batch, channels, size, kernel)
    return lambda: _gradients(layer(x), [x, layer.weight])


def _ball(batch: int, channels: int, size: int, kernel: int, ball: str, backend: str) -> Callable[[], Tensors]:
    layer, x = _layer_and_input(batch, channels, size, kernel)
    metric = mc.metrics.Spectral7()(torch.randn(batch, 1, 7, size, size) * 0.5).scaled(min(kernel // 2, 5))
    metric = metric.map(lambda t: t.detach().requires_grad_())
    leaves = [x, layer.weight, *metric.tensors().values()]

    def call() -> Tensors:
        y = mc.metric_conv(x, metric, layer.weight, padding=kernel // 2, ball=ball, backend=backend)
        return _gradients(y, leaves)

    return call


def _layer_and_input(batch: int, channels: int, size: int, kernel: int) -> tuple[nn.Conv2d, Tensor]:
    torch.manual_seed(0)
    layer = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, bias=False)
    return layer, torch.randn(batch, channels, size, size, requires_grad=True)


def _layer_gradients(layer: nn.Module, x: Tensor) -> object:
    return _gradients(layer(x), [x, *layer.parameters()])


def _gradients(y: Tensor, leaves: list[Tensor]) -> Tensors:
    return torch.autograd.grad(y, leaves, torch.ones_like(y))


def table(rows: list[Row]) -> str:
    """Return a table of all rows: one line per case and layer, one column per label."""
    labels = list(dict.fromkeys(row["label"] for row in rows))
    head = (
        f"{rows[0]['cpu']}, torch {rows[0]['torch']}, numba {rows[0]['numba']}. Medians in ms of alternating runs; in "
    )
    lines = [
        head + "brackets, the ratio to the standard layer in the same run. Memory is the peak above that before.\n"
    ]
    lines += [f"| part | case | threads | layer | {' | '.join(labels)} |", "|---" * (4 + len(labels)) + "|"]
    found = {tuple(row[name] for name in KEY): row for row in rows}
    for key in dict.fromkeys(tuple(row[name] for name in KEY[1:]) for row in rows):
        cells = [_cell(found.get((label, *key))) for label in labels]
        lines.append(f"| {' | '.join([*key, *cells])} |")
    return "\n".join(lines) + "\n"


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if not row.get("p50_ms"):
        return f"{row['peak_mb']} MB"
    return f"{float(row['p50_ms']):.3g}" + (f" ({row['ratio']}×)" if row["ratio"] else "")


def plot(rows: list[Row], path: Path) -> None:
    """Plot the time of the sweep against map size, and against channels, for standard and metric convolutions."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    colors = {"standard": "#999999", "metric": "#D55E00", "metric (reference)": "#E69F00"}
    for panel, axis, label in zip(figure.subplots(1, 2, sharey=True), (2, 1), ("map size", "channels"), strict=True):
        for layer, color in colors.items():
            points = []
            for row in rows:
                if row["part"] == "sweep" and row["layer"] == layer and row["threads"] == "2":
                    shape = [int(n) for n in row["case"].split(")")[0][1:].split(",")]
                    values = shape[0] * shape[1] * shape[2] * shape[3]
                    points.append((shape[axis], 1e6 * float(row["p50_ms"]) / values))
            panel.plot(*zip(*points, strict=True), "o", color=color, label=layer, alpha=0.8)
        panel.set(xscale="log", yscale="log", xlabel=label)
        panel.grid(alpha=0.4)
    figure.axes[0].set_ylabel("forward + backward, ns per input value")
    figure.axes[0].legend(fontsize=8)
    figure.suptitle(f"{rows[0]['cpu']}, 2 threads: one convolution of the sweep per point", fontsize=11)
    with writing(path) as file:
        figure.savefig(file, dpi=110)


def main(arguments: list[str] | None = None) -> None:
    """Measure one part and write its rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layers", description=__doc__)
    parser.add_argument("part", choices=[*PARTS, "plot"])
    parser.add_argument("--output", type=Path, default=Path("benchmarks"), help="output folder")
    parser.add_argument("--label", default="after", help="name of the version that is measured")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="time spent on each case")
    parser.add_argument("--only", default="", help="measure only cases whose name contains this")
    parser.add_argument("--missing", action="store_true", help="measure only cases without a row, to resume")
    parser.add_argument("--layers", nargs="+", default=list(networks.LAYERS), help="layers in networks; standard first")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    environment = _environment()
    path = options.output / f"{environment['cpu'].lower().replace(' ', '-')}-layers.csv"
    if options.part == "plot":
        with writing(path.with_suffix(".md")) as file:
            file.write_text(table(read_table(path)), encoding="utf-8")
        plot([row for row in read_table(path) if row["label"] == options.label], path.with_suffix(".png"))
        return
    rows = Rows(path, COLUMNS, KEY, "keep" if path.exists() else "")
    own = {"label": options.label, "part": options.part, "threads": str(options.threads)}
    known = {row["case"] for row in rows if options.missing and own.items() <= row.items()}

    def wanted(case: str) -> bool:
        return options.only in case and case not in known

    part = {"sweep": sweep_rows, "memory": memory_rows, "first": first_call_rows}.get(options.part, network_rows)
    for row in part(options.part, options.seconds, wanted, options.layers):
        full = environment | own | row
        rows.add(full)
        print(full["case"], full["threads"], full["layer"], row.get("p50_ms", ""), row.get("ratio", row.get("peak_mb")))


if __name__ == "__main__":
    main()
