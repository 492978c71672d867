"""Options that the commands of all experiments share."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

Output = Annotated[Path, typer.Option(help="Folder of the CSV, the tables and the figures.")]
Accelerator = Annotated[str, typer.Option(help="Lightning's: auto, cpu, gpu.")]
Strategy = Annotated[str, typer.Option(help="Lightning's: auto, ddp …")]
Deterministic = Annotated[bool, typer.Option("--deterministic", help="Use algorithms that repeat themselves.")]


@dataclasses.dataclass(frozen=True)
class DataKnobs:
    """Where datasets come from."""

    data_root: Annotated[
        Path | None, typer.Option(help="Where datasets lie; then METRICCONV_DATA, ~/.cache/metricconv.")
    ] = None
    download: Annotated[bool, typer.Option("--download", help="Fetch a dataset that is missing.")] = False
