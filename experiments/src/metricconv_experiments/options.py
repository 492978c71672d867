"""Common options of all experiments."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

Output = Annotated[Path, typer.Option(help="Folder for the CSV, tables and figures.")]
Accelerator = Annotated[str, typer.Option(help="Accelerator: auto, cpu or gpu.")]
Strategy = Annotated[str, typer.Option(help="Lightning's strategy: auto, ddp …")]
Deterministic = Annotated[bool, typer.Option("--deterministic", help="Use deterministic algorithms.")]


@dataclasses.dataclass(frozen=True)
class DataOptions:
    """Options of the datasets."""

    data_root: Annotated[
        Path | None, typer.Option(help="Folder of datasets, searched before METRICCONV_DATA and ~/.cache/metricconv.")
    ] = None
    download: Annotated[bool, typer.Option("--download", help="Download missing datasets.")] = False
