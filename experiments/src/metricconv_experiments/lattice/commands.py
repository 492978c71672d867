"""Command that reads CIFAR-10 and writes runs.csv, curves.csv, lattice.png and README.md."""

from pathlib import Path
from typing import Annotated

import typer

from metricconv._options import expand_options

from ..errors import errors_in_one_line
from ..options import DataOptions, Output
from .settings import Recipe, settings

app = typer.Typer()


@app.command()
@errors_in_one_line()
@expand_options
def lattice(
    *,
    layer: Annotated[list[str] | None, typer.Option(help="standard, metric or deformable; may be repeated.")] = None,
    multiplier: Annotated[
        list[float] | None,
        typer.Option(help="Predictor learning rate / base learning rate; may be repeated. Default: 0.01 and 0.1."),
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Random seed; may be repeated. Default: 0 to 4.")] = None,
    recipe: Recipe,
    data: DataOptions,
    output: Output = Path("outputs/lattice"),
    max_minutes: Annotated[float | None, typer.Option(min=0, help="Start no run after this many minutes.")] = None,
) -> None:
    """Train with the one-sided and with the central derivative at lattice points, and compare the pairs.

    Existing rows of the table are not run again. Several processes may add rows to one table.
    """
    import torch

    from ..classification import datasets
    from ..classification.batches import DeviceDataset
    from . import report, runs
    from .network import LAYERS

    todo = list(settings(recipe, layer or LAYERS, multiplier or (0.01, 0.1), seed or range(5)))
    results, added = runs.table(output), 0
    if any(setting not in results for setting in todo):
        images = datasets.load("cifar10", data.data_root, download=data.download)
        dataset = DeviceDataset(images, torch.device("cpu"), train_images=recipe.train_images)
        added = runs.run(results, todo, dataset, max_minutes)
    written = ["runs.csv", "curves.csv"] * bool(added) + report.write_all(output)
    typer.echo(f"wrote {', '.join(written)} to {output}" if written else f"wrote nothing: no runs in {output}")
