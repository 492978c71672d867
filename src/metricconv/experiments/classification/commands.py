"""The commands: what they read (datasets, weights), what they write (CSV, Markdown, figures, trained networks).

Lightning is imported by the commands that train.
"""

import dataclasses
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..._options import expand_options
from ..errors import in_one_line
from ..options import Accelerator, DataKnobs, Deterministic, Output, Strategy

if TYPE_CHECKING:
    import torch

    from ..results import Results
    from .runs import Phase, Runner
    from .setting import Setting

app = typer.Typer()

RESULTS = Path("outputs/classification")

Dataset = Annotated[str | None, typer.Option(help="mnist, fashion-mnist, cifar10 or cifar100 (default).")]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help="standard, deformable, shifted, metric-randers, metric-riemann, metric-geodesic; may be repeated.",
    ),
]
Multipliers = Annotated[
    list[float] | None,
    typer.Option("--head-multiplier", help="The heads learn at the rate times this; may be repeated."),
]
Graphs = Annotated[bool, typer.Option("--graphs", help="Replay training steps as CUDA graphs; on one GPU.")]
Networks = Annotated[list[Path] | None, typer.Option(help="A network.pt that classify wrote; may be repeated.")]


@dataclasses.dataclass(frozen=True)
class ScheduleKnobs:
    """How long and how fast a run learns; what is None keeps its default."""

    recipe: Annotated[str | None, typer.Option(help="paper (Adam, cosine), sgd (cosine) or onecycle.")] = None
    epochs: Annotated[int | None, typer.Option(help="Of training; the recipe's by default (paper: 240).")] = None
    batch: Annotated[int | None, typer.Option(help="Images a step, over all processes (128).")] = None
    lr: Annotated[float | None, typer.Option(help="Learning rate; the recipe's by default.")] = None


@dataclasses.dataclass(frozen=True)
class SampleKnobs:
    """What a run learns from, in what precision, and how often it is repeated."""

    train_images: Annotated[int | None, typer.Option(help="Train on so many images only.")] = None
    holdout: Annotated[
        int | None, typer.Option(help="Hold so many training images out, to choose between settings.")
    ] = None
    precision: Annotated[str | None, typer.Option(help="Lightning's: 32-true, bf16-mixed …")] = None
    seed: Annotated[list[int] | None, typer.Option("--seed", help="Of the run; may be repeated.")] = None


@dataclasses.dataclass(frozen=True)
class SettingKnobs:
    """What is run; what is None keeps the default of ``Setting``, or is what a grid chooses."""

    dataset: Dataset = None
    network: Annotated[str | None, typer.Option(help="resnet18 (default), resnet50, resnet152 …")] = None
    method: Methods = None
    weights: Annotated[str | None, typer.Option(help="learnt (LKW, default) or fixed (FKW).")] = None
    pretrained: Annotated[
        Path | None, typer.Option(help="Start from the weights of this file, or torchvision's own.")
    ] = None
    layers: Annotated[
        str | None, typer.Option(help="Stages whose 3×3 convolutions are replaced: 2-4 (default) or 4.")
    ] = None
    init: Annotated[
        str | None, typer.Option(help="identity (default), or paper: constant kernels, balls of radius 1.")
    ] = None
    head: Annotated[int | None, typer.Option(help="Numbers that make a metric: 5, 6 or 7.")] = None
    eps_omega: Annotated[
        float | None, typer.Option(help="1 − the largest asymmetry of a Randers metric, in (0, 1].")
    ] = None
    stencil: Annotated[str | None, typer.Option(help="square_onion (default), onion or polar.")] = None
    metric_groups: Annotated[int | None, typer.Option(help="Metrics a layer, each for its part of the channels.")] = (
        None
    )
    s_min: Annotated[
        float | None, typer.Option(help="Least scale of a 7-number metric's eigenvalues; balls grow as it falls.")
    ] = None
    s_max: Annotated[float | None, typer.Option(help="Largest scale of a 7-number metric's eigenvalues.")] = None
    schedule: ScheduleKnobs = ScheduleKnobs()
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay; the recipe's by default.")] = None
    head_multiplier: Multipliers = None
    l1: Annotated[float | None, typer.Option("--l1", help="λ of the heads' L1 term; the paper takes 5000.")] = None
    warmup: Annotated[int | None, typer.Option(help="Epochs during which the geometry stays at its identity.")] = None
    augmentation: Annotated[
        str | None, typer.Option(help="none, pad-crop or resized-crop; the dataset's by default.")
    ] = None
    sample: SampleKnobs = SampleKnobs()


@dataclasses.dataclass(frozen=True)
class FileKnobs:
    """What is read and written where."""

    output: Output = RESULTS
    work: Annotated[Path, typer.Option(help="Folder of checkpoints, logs and trained networks.")] = RESULTS / "work"
    data: DataKnobs = dataclasses.field(default_factory=DataKnobs)


@dataclasses.dataclass(frozen=True)
class BudgetKnobs:
    """How long it may take."""

    max_minutes: Annotated[
        float | None, typer.Option(min=0, help="Begin no run that would not end within so many minutes.")
    ] = None
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Time a few steps of each kind of run, say how long all take, stop.")
    ] = False


@dataclasses.dataclass(frozen=True)
class TrainerKnobs:
    """Lightning's own."""

    accelerator: Accelerator = "auto"
    devices: Annotated[int, typer.Option(help="How many devices, each with a process of its own.")] = 1
    strategy: Strategy = "auto"
    deterministic: Deterministic = False


@app.command()
@in_one_line()
@expand_options
def classify(
    *,
    grid: Annotated[
        str | None, typer.Option(help="short, paper or ablation: a whole grid of runs, in order of importance.")
    ] = None,
    chosen: SettingKnobs,
    files: FileKnobs,
    budget: BudgetKnobs,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Epochs between checkpoints.")] = 5,
    eval_every: Annotated[
        int, typer.Option(min=0, help="Epochs between looks at the test images; 0 looks once, at the end.")
    ] = 0,
    trainer: TrainerKnobs,
    compile: Annotated[bool, typer.Option("--compile", help="Hand networks to torch.compile.")] = False,
    graphs: Graphs = False,
) -> None:
    """Train ResNets and add their rows to runs.csv; rows that are there already are not run again.

    By default the paper's network with metric convolutions on CIFAR-100. Without --grid, every combination of the
    options that are repeated is run; a grid chooses methods, weights and the heads' rates itself.
    """
    from . import grids

    _check_graphs(graphs, trainer.accelerator, trainer.devices)
    common = _given(chosen)
    seeds, pretrained = common.pop("seed", None), common.pop("pretrained", None)
    if pretrained is not None:
        common["start"] = pretrained.stem
    if grid == "short":
        common.setdefault("precision", _half_precision(trainer.accelerator))
    phases = grids.single(_combinations(common, seeds)) if grid is None else _grid(grid, common, seeds)
    runner = _runner(
        files,
        pretrained=pretrained,
        checkpoint_every=checkpoint_every,
        eval_every=eval_every,
        compile=compile,
        graphs=graphs,
        trainer=dataclasses.asdict(trainer),
    )
    _run(files.output, phases, runner, budget)


@app.command()
@in_one_line()
@expand_options
def classify_sweep(
    *,
    dataset: Dataset = None,
    method: Methods = None,
    head_multiplier: Multipliers = None,
    schedule: ScheduleKnobs,
    sample: SampleKnobs,
    files: FileKnobs,
    budget: BudgetKnobs,
    accelerator: Accelerator = "auto",
    graphs: Graphs = False,
) -> None:
    """Sweep the multiplier of the heads' learning rate and draw accuracy by it: sweep.png.

    By default 1, 0.3, 0.1, 0.03, 0.01 for metric, deformable and shifted networks, on the short grid's schedule.
    """
    from . import grids

    _check_graphs(graphs, accelerator)
    common = {"precision": _half_precision(accelerator)} | _given(schedule) | _given(sample)
    seeds = common.pop("seed", [0])
    if dataset is not None:
        common["dataset"] = dataset
    phases = grids.sweep(common, method or grids.ADAPTIVE, head_multiplier or grids.MULTIPLIERS, seeds)
    runner = _runner(files, graphs=graphs, trainer={"accelerator": accelerator})
    _run(files.output, phases, runner, budget)


@app.command()
@in_one_line()
@expand_options
def classify_diagnose(
    *,
    network: Networks = None,
    images: Annotated[int, typer.Option(min=1, help="How many test images to look at.")] = 256,
    files: FileKnobs,
    accelerator: Accelerator = "auto",
) -> None:
    """Tell what the learnt metrics are like, layer by layer; for other networks, the metrics fitted to their samples.

    Without --network, the best run of each method in the table whose trained network is still in the work folder.
    """
    from . import diagnose
    from .batches import TestBatches
    from .runs import trained_networks

    device, runner = _device(accelerator), _runner(files)
    statistics, about = [], {}
    for name, (setting, model) in trained_networks(network or [], files.output, files.work, adaptive=True).items():
        pictures = runner.pictures(setting, device)
        some = pictures.test._replace(x=pictures.test.x[:images], y=pictures.test.y[:images])
        model.to(device)
        statistics += diagnose.diagnose(name, model, TestBatches(pictures, some, batch=64))
        run = {key: getattr(setting, key) for key in ("dataset", "network", "epochs", "lr", "head_multiplier", "seed")}
        about[name] = {**run, "images": len(some.y)}
    diagnose.write(files.output, statistics, about)
    diagnose.show(statistics)
    typer.echo(f"wrote diagnosis.csv and diagnosis.png to {files.output}")


@app.command()
@in_one_line()
@expand_options
def classify_gradcam(
    *,
    network: Networks = None,
    image: Annotated[list[int] | None, typer.Option(help="Number of a test image; may be repeated.")] = None,
    count: Annotated[int, typer.Option(min=1, help="How many images to choose where none is named.")] = 4,
    files: FileKnobs,
    accelerator: Accelerator = "auto",
) -> None:
    """Draw what each method's network looks at: rows of images, columns of methods."""
    from . import gradcam
    from .datasets import NAMES
    from .runs import trained_networks

    device, runner = _device(accelerator), _runner(files)
    found = trained_networks(network or [], files.output, files.work)
    setting, *others = (setting for setting, _ in found.values())
    if any(other.dataset != setting.dataset for other in others):
        raise ValueError("`network` must name networks of one dataset, whose images all of them look at")
    pictures = runner.pictures(setting, device)
    chosen = image or gradcam.choose(pictures, count)
    if max(chosen) >= len(pictures.test.y) or min(chosen) < 0:
        raise ValueError(f"`image` (={max(chosen)}) must be at least 0 and less than {len(pictures.test.y)}")
    models = {name: model.to(device) for name, (_, model) in found.items()}
    gradcam.write(files.output / "gradcam.png", models, pictures, chosen, NAMES[setting.dataset])
    typer.echo(f"wrote gradcam.png to {files.output}")


def _given(knobs: Any) -> dict[str, Any]:
    """Return the options that were given, and their values, of a class of knobs and of those within it."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(knobs):
        value = getattr(knobs, field.name)
        if dataclasses.is_dataclass(value):
            found |= _given(value)
        elif value not in (None, []):
            found[field.name] = value
    return found


def _combinations(common: dict[str, Any], seeds: list[int] | None) -> "list[Setting]":
    """Return a setting for each seed, method and multiplier; a standard network has no heads to multiply for."""
    from .setting import Setting

    repeated = {"seed": seeds or [0]} | {name: common[name] for name in ("method", "head_multiplier") if name in common}
    every = itertools.product(*repeated.values())
    return list(dict.fromkeys(Setting(**common | dict(zip(repeated, values, strict=True))) for values in every))


def _grid(name: str, common: dict[str, Any], seeds: list[int] | None) -> "list[Phase]":
    """Return a grid with what the options say for all of its runs; what it chooses itself may not be among them."""
    from ... import _checks
    from . import grids

    _checks.one_of(name, grids.DATASETS, "grid")
    for option in ("method", "weights", "head_multiplier", *["layers"] * (name == "ablation")):
        if option in common:
            raise ValueError(f"`{option}` (={common[option]!r}) cannot be given: `grid` (={name!r}) chooses it itself")
    chosen, start = common.pop("dataset", None), common.get("start", "scratch")
    given = [seeds] if seeds else []
    if name == "short":
        phases = grids.short(common, *given)
    elif name == "paper":
        phases = grids.paper(common, dict.fromkeys(["scratch", start]), *given)
    else:
        phases = grids.ablation(common, start, *given)
    if chosen is None:
        return phases
    return grids.of_dataset(phases, _checks.one_of(chosen, grids.DATASETS[name], "dataset"))


def _runner(files: FileKnobs, **options: Any) -> "Runner":
    import torch

    from .runs import Options, Runner

    torch.set_float32_matmul_precision("high")
    return Runner(Options(files.work, files.data.data_root, files.data.download, **options))


def _run(output: Path, phases: "list[Phase]", runner: "Runner", budget: BudgetKnobs) -> None:
    from . import grids, report
    from .runs import run_all, table

    results = table(output)
    for _, setting in grids.planned(phases, results)[:1]:
        runner.images(setting.dataset)  # missing data is said before anything else is done
    if budget.estimate:
        _print_estimate(phases, runner, results)
        return
    added = run_all(results, phases, runner, budget.max_minutes)
    written = [*["runs.csv"] * bool(added), *report.write_all(output)]
    typer.echo(f"wrote {', '.join(written)} to {output}" if written else f"wrote nothing: {output} has no runs yet")


def _print_estimate(phases: "list[Phase]", runner: "Runner", results: "Results") -> None:
    from . import estimate, grids

    plan = [(title, setting) for title, setting in grids.planned(phases, results) if setting.key not in results]
    seconds = estimate.run_seconds(
        [s for _, s in plan], runner, _device(runner.options.trainer.get("accelerator", "auto"))
    )
    total = 0.0
    for (title, setting), one in zip(plan, seconds, strict=True):
        total += one
        typer.echo(f"{total / 60:6.1f} min  {one:6.1f} s  {title}: {setting}")
    typer.echo(f"{len(plan)} runs, about {total / 60:.1f} min")


def _check_graphs(graphs: bool, accelerator: str, devices: int = 1) -> None:
    if graphs and (devices > 1 or _device(accelerator).type != "cuda"):
        raise ValueError(f"`graphs` needs one GPU, got `accelerator` (={accelerator!r}) and `devices` (={devices})")


def _half_precision(accelerator: str) -> str:
    """Return bfloat16 where there is a GPU, whose units are made for it."""
    return "bf16-mixed" if _device(accelerator).type == "cuda" else "32-true"


def _device(accelerator: str) -> "torch.device":
    import torch

    if accelerator not in ("auto", "cpu", "gpu"):
        raise ValueError(f"`accelerator` (={accelerator!r}) must be 'auto', 'cpu' or 'gpu'")
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise ValueError("`accelerator` (='gpu') needs a GPU that torch can use, and there is none")
    return torch.device("cuda" if accelerator != "cpu" and torch.cuda.is_available() else "cpu")
