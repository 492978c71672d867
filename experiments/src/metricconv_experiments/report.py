"""``metricconv report``: tables and figures of all experiments from their CSVs."""

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from metricconv._files import writing

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
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite existing files.")] = False,
) -> None:
    """Regenerate the tables and figures of all experiments from their CSV files.

    Existing files that would change are only overwritten with --force.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "results")
        if results.is_dir():
            shutil.copytree(results, copy, ignore=_other_files)
        try:
            found = _write_all(copy, work)
        except ValueError as error:  # it may name the copy of a CSV
            raise ValueError(str(error).replace(str(copy), str(results))) from None
        if not found:
            raise ValueError(f"`results` (={results}) contains no CSV with rows, such as denoising/image.csv")
        changed = [path for path in found if not _same(copy / path, results / path)]
        existing = [results / path for path in changed if (results / path).exists()]
        if existing and not force:
            raise ValueError(f"{', '.join(map(str, existing))} would change: use --force to overwrite")
        for path in changed:
            with writing(results / path) as temporary:
                shutil.copyfile(copy / path, temporary)
    written = f"wrote {', '.join(map(str, changed))} to {results}" if changed else "no file changed"
    typer.echo(f"{written}; {len(found) - len(changed)} files are up to date")


def _write_all(results: Path, work: Path) -> list[Path]:
    """Write all pages and figures; return their paths relative to the folder."""
    found = [Path("denoising", name) for name in denoising.write_all(results / "denoising", work / "denoising/work")]
    for write in (classification.write_all, diagnose.draw):
        found += [Path("classification", name) for name in write(results / "classification")]
    for name, write in (
        ("lattice", lattice.write_all),
        ("stability", stability.write_all),
        ("segmentation", segmentation.write_all),
    ):
        found += [Path(name, file) for file in write(results / name)]
    return found + list(map(Path, coverage.write(results)))


def _other_files(folder: str, names: list[str]) -> list[str]:
    """Return the files that are not tables."""
    return [name for name in names if not name.endswith(".csv") and not Path(folder, name).is_dir()]


def _same(first: Path, second: Path) -> bool:
    return second.exists() and first.read_bytes() == second.read_bytes()
