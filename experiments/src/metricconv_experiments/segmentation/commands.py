"""Command that reads DRIVE and CrackForest and writes runs.csv and trained networks."""

import dataclasses
import itertools
from pathlib import Path
from typing import Annotated

import typer

from metricconv._options import expand_options

from ..errors import errors_in_one_line
from ..options import Accelerator, Output

app = typer.Typer()


@dataclasses.dataclass(frozen=True)
class SettingOptions:
    """Options of a run; None keeps the default of ``Setting``, or the value that a grid sets."""

    steps: Annotated[int | None, typer.Option(help="Training steps.")] = None
    batch: Annotated[int | None, typer.Option(help="Patches per step.")] = None
    patch: Annotated[int | None, typer.Option(help="Side of a patch in pixels, a multiple of 4.")] = None
    lr: Annotated[float | None, typer.Option(help="Learning rate. A grid selects it.")] = None
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay.")] = None
    holdout: Annotated[
        int | None, typer.Option(help="Training images to hold out and to evaluate on. A grid sets it.")
    ] = None


@dataclasses.dataclass(frozen=True)
class SelectedRuns:
    """Options that may be repeated."""

    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Method: standard, standard-5x5, deformable, snake, metric-randers, metric-riemann, metric-geodesic "
            "or metric-asymmetric; may be repeated. Default: all."
        ),
    ] = None
    images: Annotated[
        list[int] | None, typer.Option(help="Number of training images; may be repeated. Default: 4, all, 1, 2.")
    ] = None
    multiplier: Annotated[
        list[float] | None,
        typer.Option(help="Predictor learning rate / learning rate; may be repeated. A grid selects it."),
    ] = None
    seed: Annotated[list[int] | None, typer.Option(help="Random seed; may be repeated. Default: 1 to 5.")] = None


@app.command()
@errors_in_one_line()
@expand_options
def segment(
    *,
    dataset: Annotated[str, typer.Option(help="Dataset: drive or crackforest.")] = "drive",
    grid: Annotated[
        str | None,
        typer.Option(
            help="Grid of runs: selection (rates, on held-out images) or comparison (selection, then all methods at "
            "their best rates)."
        ),
    ] = None,
    runs: SelectedRuns,
    options: SettingOptions,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of datasets, searched before METRICCONV_DATA and ~/.cache/metricconv.")
    ] = None,
    output: Output = Path("outputs/segmentation"),
    accelerator: Accelerator = "auto",
    graphs: Annotated[bool, typer.Option("--graphs", help="Replay training steps as CUDA graphs.")] = False,
    max_minutes: Annotated[float | None, typer.Option(min=0, help="Start no run after this many minutes.")] = None,
) -> None:
    """Train segmentation networks on few images and add their rows to runs.csv; existing rows are not run again.

    Without --grid, all combinations of repeated options are run. Several processes may add rows to one table.
    """
    import torch

    from metricconv import _checks

    from . import grids
    from .runs import Runner, run_all, table
    from .setting import METHODS, Setting

    common = {name: value for name, value in dataclasses.asdict(options).items() if value is not None}
    methods, images, seeds = runs.method or METHODS, runs.images or grids.IMAGES, runs.seed or grids.SEEDS
    if grid is None:
        multipliers = runs.multiplier or (None,)
        phases = grids.single(
            Setting(dataset=dataset, method=method, images=count, seed=seed, multiplier=multiplier, **common)
            for count, seed, method, multiplier in itertools.product(images, seeds, methods, multipliers)
        )
    else:
        for name, value in (("multiplier", runs.multiplier), ("lr", options.lr), ("holdout", options.holdout)):
            if value is not None:
                raise ValueError(f"`{name}` (={value}) is set by the grid")
        phases = grids.grid(dataset, common, methods, images, seeds)
        if _checks.one_of(grid, ("selection", "comparison"), "grid") == "selection":
            phases = grids.selection_grid(dataset, common, methods)
    use_gpu = accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available())
    if graphs and not use_gpu:
        raise ValueError("`graphs` requires a GPU")
    device = torch.device("cuda" if use_gpu else "cpu")
    added = run_all(table(output), phases, Runner(device, data_root, output / "work", graphs=graphs), max_minutes)
    typer.echo(f"added {added} rows to {output / 'runs.csv'}")
