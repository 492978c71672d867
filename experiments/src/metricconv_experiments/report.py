"""``metricconv report``: tables and figures of all experiments from their CSVs."""

from pathlib import Path
from typing import Annotated

import typer

from . import coverage
from .classification import diagnose
from .classification import report as classification
from .denoising import report as denoising
from .errors import errors_in_one_line
from .lattice import report as lattice
from .segmentation import report as segmentation
from .stability import report as stability

app = typer.Typer()


@app.command()
@errors_in_one_line()
def report(
    results: Annotated[Path, typer.Argument(help="Folder with a subfolder for each experiment.")] = Path("results"),
    work: Annotated[Path, typer.Option(help="Folder with the images that runs wrote, for the figures.")] = Path(
        "outputs"
    ),
) -> None:
    """Regenerate the tables and figures of all experiments from their CSV files."""
    found = [Path("denoising", name) for name in denoising.write_all(results / "denoising", work / "denoising/work")]
    for write in (classification.write_all, diagnose.draw):
        found += [Path("classification", name) for name in write(results / "classification")]
    for name, write in (
        ("lattice", lattice.write_all),
        ("stability", stability.write_all),
        ("segmentation", segmentation.write_all),
    ):
        found += [Path(name, file) for file in write(results / name)]
    found += map(Path, coverage.write(results))
    if not found:
        raise ValueError(f"`results` (={results}) contains no CSV with rows, such as denoising/image.csv")
    typer.echo(f"wrote {', '.join(map(str, found))} to {results}")
