"""``metricconv report``: tables and figures of all experiments, anew from their CSVs."""

from pathlib import Path
from typing import Annotated

import typer

from .classification import diagnose
from .classification import report as classification
from .denoising import report as denoising
from .errors import in_one_line
from .lattice import report as lattice

app = typer.Typer()


@app.command()
@in_one_line()
def report(
    results: Annotated[Path, typer.Argument(help="Folder with a folder for each kind of experiment.")] = Path(
        "results"
    ),
    work: Annotated[Path, typer.Option(help="Folder of what the runs left: pictures for the figures.")] = Path(
        "outputs"
    ),
) -> None:
    """Render the tables and figures of all experiments anew from the CSVs in a folder."""
    found = [Path("denoising", name) for name in denoising.write_all(results / "denoising", work / "denoising/work")]
    for write in (classification.write_all, diagnose.draw):
        found += [Path("classification", name) for name in write(results / "classification")]
    found += [Path("lattice", name) for name in lattice.write_all(results / "lattice")]
    if not found:
        raise ValueError(
            f"`results` (={results}) has no tables of experiments with rows, such as denoising/image.csv, to render"
        )
    typer.echo(f"wrote {', '.join(map(str, found))} to {results}")
