"""``python -m metricconv.bench``: check, time, and write ``benchmarks/<hardware>.csv``, a table and a plot."""

import argparse
import sys
from pathlib import Path

import torch

from ..ops.cpu import missing_dependency
from . import cpu, cpu_report, gpu, report


def main(arguments: list[str] | None = None, prog: str = "python -m metricconv.bench") -> None:
    """Run the benchmarks that the command line names."""
    parser = argparse.ArgumentParser(prog=prog, description="Check, time, and write a CSV, a table and a plot.")
    parser.add_argument("--output", type=Path, default=Path("benchmarks"), help="folder of the results")
    parser.add_argument(
        "--only",
        default="",
        help="run only shapes or contenders whose name contains this; other rows of the table stay as they are",
    )
    parser.add_argument("--eager", action="store_true", help="time eager calls too, launch overhead included")
    parser.add_argument("--device", choices=["cuda", "cpu"], help="whose engine to time; the GPU's, if there is one")
    options = parser.parse_args(arguments)
    if options.output.exists() and not options.output.is_dir():
        parser.error(f"--output (={str(options.output)!r}) must be a folder, and is none")
    if options.device == "cpu" or (options.device is None and not torch.cuda.is_available()):
        missing = missing_dependency()
        if missing is not None:
            sys.exit(f"{prog} cannot time the CPU engine: {missing}")
        cpu_report.write(cpu.run(options.output, options.only))
        return
    if not torch.cuda.is_available():
        sys.exit(f"{prog} --device cuda needs a GPU, and torch.cuda.is_available() is False")
    report.write(gpu.run(options.output, options.only, options.eager))


if __name__ == "__main__":
    main()
