"""Command that reads a dataset and writes runs.csv, curves.csv, stability.png and README.md."""

from pathlib import Path
from typing import Annotated

import typer

from metricconv._options import expand_options

from ..errors import errors_in_one_line
from ..options import DataOptions, Output
from .settings import SUPPORTS, Recipe, settings

app = typer.Typer()


@app.command()
@errors_in_one_line()
@expand_options
def stability(
    *,
    support: Annotated[
        list[str] | None,
        typer.Option(
            help="Support: tangent, geodesic, 'geodesic, unlimited', deformable or shifted; may be repeated. "
            "Default: all."
        ),
    ] = None,
    multiplier: Annotated[
        list[float] | None,
        typer.Option(help="Predictor learning rate / base learning rate; may be repeated. Default: 0.01 to 10."),
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Random seed; may be repeated. Default: 1.")] = None,
    recipe: Recipe,
    data: DataOptions,
    output: Output = Path("outputs/stability"),
    max_minutes: Annotated[float | None, typer.Option(min=0, help="Start no run after this many minutes.")] = None,
) -> None:
    """Record gradients, radii and the motion of samples during the first training steps.

    Existing rows of the table are not run again. Several processes may add rows to one table. The figure also draws
    the accuracies in ../classification/runs.csv of the same network.
    """
    import torch

    from ..classification import datasets
    from ..classification.batches import DeviceDataset
    from . import report, runs

    multipliers = multiplier or (1.0, 0.1, 10.0, 0.01)
    todo = list(settings(recipe, support or list(SUPPORTS), multipliers, seed or (1,)))
    results, added = runs.table(output), 0
    if any(setting not in results for setting in todo):
        images = datasets.load(recipe.dataset, data.data_root, download=data.download)
        dataset = DeviceDataset(images, torch.device("cpu"), train_images=recipe.train_images)
        added = runs.run(results, todo, dataset, max_minutes)
    written = ["runs.csv", "curves.csv"] * bool(added) + report.write_all(output)
    typer.echo(f"wrote {', '.join(written)} to {output}" if written else f"wrote nothing: no runs in {output}")
