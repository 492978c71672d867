"""``python -m benchmarks``: check results, measure times, and write ``<hardware>.csv``, a table and a plot."""

import argparse
import sys
from pathlib import Path

import torch

from metricconv.ops.cpu import missing_dependency

from . import cpu, cpu_report, gpu, gpu_report


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmarks selected by the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Check results, measure times, and write a CSV, a table and a plot."
    )
    parser.add_argument("--output", type=Path, default=Path("benchmarks"), help="output folder")
    parser.add_argument(
        "--only",
        default="",
        help="measure only shapes or implementations whose name contains this; other rows of the CSV are not changed",
    )
    parser.add_argument("--eager", action="store_true", help="also time eager calls, with launch overhead")
    parser.add_argument("--device", choices=["cuda", "cpu"], help="device to benchmark; default: cuda if available")
    options = parser.parse_args(arguments)
    if options.output.exists() and not options.output.is_dir():
        parser.error(f"--output (={str(options.output)!r}) must be a folder")
    if options.device == "cpu" or (options.device is None and not torch.cuda.is_available()):
        missing = missing_dependency()
        if missing is not None:
            sys.exit(f"{parser.prog}: the CPU backend is not available: {missing}")
        cpu_report.write(cpu.run(options.output, options.only))
        return
    if not torch.cuda.is_available():
        sys.exit(f"{parser.prog}: --device cuda needs a GPU, but torch.cuda.is_available() is False")
    gpu_report.write(gpu.run(options.output, options.only, options.eager))


if __name__ == "__main__":
    main()
