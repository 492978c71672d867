"""Tiles filtered per second, by number of worker processes: ``python -m benchmarks.tiles`` writes ``tiles.csv``."""

import argparse
import datetime
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import dask.array as da
import distributed
import numpy as np
import zarr

from metricconv import filters, large
from metricconv._files import versions

from .rows import Row, Rows

COLUMNS = [
    "op", "tile", "workers", "tiles", "seconds", "tiles_per_second", "megapixels_per_second", "max_error", "cores",
    "load", "dask", "distributed", "zarr", "numba", "torch", "metricconv", "python", "date",
]  # fmt: skip
TOLERANCE = 1e-5
FILTERS: dict[str, dict[str, Any]] = {
    "box_filter": {"size": 11},
    "tangent_filter": {"samples": 11, "metric": "edge"},
    "geodesic_filter": {"samples": 5, "metric": "edge"},
}


def run(folder: Path, only: str, workers: list[int], tile: int, count: int) -> Path:
    """Measure what ``only`` selects for each number of workers; return the path of the CSV."""
    rows = Rows(folder / "tiles.csv", COLUMNS, ("op", "tile", "workers"), only)
    for number in workers:
        with (
            distributed.LocalCluster(
                n_workers=number, threads_per_worker=1, dashboard_address="127.0.0.1:0"
            ) as cluster,
            distributed.Client(cluster),
        ):
            for name in FILTERS:
                if only in name:
                    row = measure(name, number, tile, count)
                    rows.add(row)
                    print(f"{name:20}{number:4} workers {row['tiles_per_second']:>10} tiles/s", flush=True)
    return rows.written()


def measure(name: str, workers: int, tile: int, count: int) -> Row:
    """Filter ``count`` tiles per worker on the current cluster; all passes over the image are timed."""
    with tempfile.TemporaryDirectory() as folder:
        small = _image(Path(folder) / "small.zarr", (2 * workers, 2), 64)
        _filter(small, name)  # a warm-up of all workers
        error = np.abs(
            zarr.load(_filter(small, name)) - getattr(filters, name)(zarr.load(small), **FILTERS[name])
        ).max()
        image = _image(Path(folder) / "large.zarr", (workers, count), tile)
        start = time.perf_counter()
        _filter(image, name)
        seconds = time.perf_counter() - start
    if not error <= TOLERANCE:
        raise RuntimeError(f"{name}: error {error:.1e}, expected at most {TOLERANCE:.0e}")
    tiles = workers * count
    row = {
        "op": name,
        "tile": str(tile),
        "workers": str(workers),
        "tiles": str(tiles),
        "seconds": f"{seconds:.3f}",
        "tiles_per_second": f"{tiles / seconds:.3f}",
        "megapixels_per_second": f"{1e-6 * tiles * tile**2 / seconds:.3f}",
        "max_error": f"{error:.1e}",
        "cores": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.1f}",
        "date": datetime.date.today().isoformat(),
    }
    return row | versions("dask", "distributed", "zarr", "numba")


def _image(path: Path, grid: tuple[int, int], tile: int) -> Path:
    """Write grid[0] × grid[1] tiles of noise in float32."""
    shape = (grid[0] * tile, grid[1] * tile)
    noise = da.random.default_rng(0).random(shape, dtype=np.float32, chunks=tile)
    return _write(path, noise)


def _filter(source: Path, name: str) -> Path:
    """Filter an image from a store to another; return its path."""
    filtered = getattr(large, name)(da.from_zarr(source), **FILTERS[name])
    return _write(source.with_name(f"filtered-{source.name}"), filtered)


def _write(path: Path, array: da.Array) -> Path:
    chunks = tuple(sizes[0] for sizes in array.chunks)
    written: Any = zarr.create_array(path, shape=array.shape, chunks=chunks, dtype=array.dtype, overwrite=True)
    da.store(array, written, lock=False)
    return path


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiles", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("benchmarks"), help="output folder")
    parser.add_argument("--only", default="", help="measure only filters whose name contains this")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], help="numbers of worker processes")
    parser.add_argument("--tile", type=int, default=1024, help="side length of tiles in pixels")
    parser.add_argument("--count", type=int, default=16, help="tiles per worker")
    options = parser.parse_args(arguments)
    for name in ("tile", "count"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} (={getattr(options, name)}) must be at least 1")
    if min(options.workers) < 1:
        parser.error(f"--workers (={options.workers}) must be at least 1")
    run(options.output, options.only, options.workers, options.tile, options.count)


if __name__ == "__main__":
    main()
