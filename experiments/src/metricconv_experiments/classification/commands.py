"""Commands that read datasets and weights and write CSV, Markdown, figures and trained networks.

Only the commands that train import Lightning.
"""

import dataclasses
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metricconv._options import expand_options

from ..errors import errors_in_one_line
from ..options import Accelerator, DataOptions, Deterministic, Output, Strategy

if TYPE_CHECKING:
    import torch

    from ..results import Results
    from .runs import Phase, Runner
    from .setting import Setting

app = typer.Typer()

RESULTS = Path("outputs/classification")

Dataset = Annotated[str | None, typer.Option(help="Dataset: mnist, fashion-mnist, cifar10 or cifar100 (default).")]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help="Method: standard, deformable, shifted, metric-randers, metric-riemann, metric-geodesic; may be repeated.",
    ),
]
Multipliers = Annotated[
    list[float] | None,
    typer.Option("--multiplier", help="Predictor learning rate / base learning rate; may be repeated."),
]
Graphs = Annotated[bool, typer.Option("--graphs", help="Replay training steps as CUDA graphs. Requires one GPU.")]
Networks = Annotated[list[Path] | None, typer.Option(help="A network.pt written by classify; may be repeated.")]


@dataclasses.dataclass(frozen=True)
class ScheduleOptions:
    """Options of the schedule; None keeps the default."""

    recipe: Annotated[
        str | None, typer.Option(help="Training recipe: paper (Adam, cosine), sgd (cosine) or onecycle.")
    ] = None
    epochs: Annotated[int | None, typer.Option(help="Training epochs. Default: that of the recipe (paper: 240).")] = (
        None
    )
    batch: Annotated[int | None, typer.Option(help="Batch size over all processes. Default: 128.")] = None
    lr: Annotated[float | None, typer.Option(help="Learning rate. Default: that of the recipe.")] = None


@dataclasses.dataclass(frozen=True)
class SampleOptions:
    """Options of the training images, the precision and the seeds."""

    train_images: Annotated[int | None, typer.Option(help="Number of training images. Default: all.")] = None
    holdout: Annotated[int | None, typer.Option(help="Number of training images to hold out for model selection.")] = (
        None
    )
    precision: Annotated[str | None, typer.Option(help="Precision in Lightning's terms: 32-true, bf16-mixed …")] = None
    seed: Annotated[list[int] | None, typer.Option("--seed", help="Random seed; may be repeated.")] = None


@dataclasses.dataclass(frozen=True)
class SettingOptions:
    """Options of a run; None keeps the default of ``Setting``, or the value that a grid sets."""

    dataset: Dataset = None
    network: Annotated[str | None, typer.Option(help="Network: resnet18 (default), resnet50, resnet152 …")] = None
    method: Methods = None
    weights: Annotated[str | None, typer.Option(help="Kernel weights: learnt (LKW, default) or fixed (FKW).")] = None
    pretrained: Annotated[
        Path | None, typer.Option(help="File of pretrained weights, or torchvision for those of torchvision.")
    ] = None
    layers: Annotated[
        str | None, typer.Option(help="Stages whose 3×3 convolutions are replaced: 2-4 (default) or 4.")
    ] = None
    init: Annotated[
        str | None,
        typer.Option(
            help="Initialization: identity (default), paper (as the released code) or constant (constant kernels, "
            "predictors at zero)."
        ),
    ] = None
    zero_gamma: Annotated[
        bool | None,
        typer.Option("--zero-gamma", help="Start the last batch normalization of each residual block at γ = 0."),
    ] = None
    metric_parameters: Annotated[int | None, typer.Option(help="Raw parameters per metric: 5, 6 or 7.")] = None
    eps_omega: Annotated[float | None, typer.Option(help="1 − maximum asymmetry of a Randers metric, in (0, 1].")] = (
        None
    )
    stencil: Annotated[str | None, typer.Option(help="Stencil: square_onion (default), onion or polar.")] = None
    metric_groups: Annotated[int | None, typer.Option(help="Metrics per layer, each for a group of channels.")] = None
    s_min: Annotated[
        float | None,
        typer.Option(help="Minimum eigenvalue scale of a metric with 7 parameters; smaller values allow larger balls."),
    ] = None
    s_max: Annotated[float | None, typer.Option(help="Maximum eigenvalue scale of a metric with 7 parameters.")] = None
    schedule: ScheduleOptions = ScheduleOptions()
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay. Default: that of the recipe.")] = None
    multiplier: Multipliers = None
    l1: Annotated[
        float | None, typer.Option("--l1", help="Weight of the L1 penalty of the predictors. The paper uses 5000.")
    ] = None
    warmup: Annotated[
        int | None, typer.Option(help="Warm-up epochs, in which all supports stay at their identity.")
    ] = None
    augmentation: Annotated[
        str | None, typer.Option(help="Augmentation: none, pad-crop or resized-crop. Default: that of the dataset.")
    ] = None
    sample: SampleOptions = SampleOptions()


@dataclasses.dataclass(frozen=True)
class RunFiles:
    """Paths of data, results and checkpoints."""

    output: Output = RESULTS
    work: Annotated[Path, typer.Option(help="Folder for checkpoints, logs and trained networks.")] = RESULTS / "work"
    data: DataOptions = dataclasses.field(default_factory=DataOptions)


@dataclasses.dataclass(frozen=True)
class BudgetOptions:
    """Limits of the run time."""

    max_minutes: Annotated[
        float | None, typer.Option(min=0, help="Start no run that would not end within this many minutes.")
    ] = None
    estimate: Annotated[bool, typer.Option("--estimate", help="Print an estimate of the run time and exit.")] = False


@dataclasses.dataclass(frozen=True)
class TrainerOptions:
    """Options of Lightning's trainer."""

    accelerator: Accelerator = "auto"
    devices: Annotated[int, typer.Option(help="Number of devices, with one process each.")] = 1
    strategy: Strategy = "auto"
    deterministic: Deterministic = False


@app.command()
@errors_in_one_line()
@expand_options
def classify(
    *,
    grid: Annotated[
        str | None, typer.Option(help="Grid of runs, in order of importance: short, paper, ablation, fixed or small.")
    ] = None,
    options: SettingOptions,
    files: RunFiles,
    budget: BudgetOptions,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Epochs between checkpoints.")] = 5,
    eval_every: Annotated[
        int, typer.Option(min=0, help="Epochs between evaluations on the test images; 0 evaluates once, at the end.")
    ] = 0,
    trainer: TrainerOptions,
    compile: Annotated[bool, typer.Option("--compile", help="Compile networks with torch.compile.")] = False,
    graphs: Graphs = False,
) -> None:
    """Train ResNets and add their rows to runs.csv; existing rows are not run again.

    By default, the paper's network with metric convolutions is trained on CIFAR-100. Without --grid, all combinations
    of repeated options are run. A grid sets methods, weights and predictor learning rates itself.
    """
    from . import grids

    _check_graphs(graphs, trainer.accelerator, trainer.devices)
    common = _given(options)
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
@errors_in_one_line()
@expand_options
def classify_sweep(
    *,
    dataset: Dataset = None,
    method: Methods = None,
    multiplier: Multipliers = None,
    schedule: ScheduleOptions,
    sample: SampleOptions,
    files: RunFiles,
    budget: BudgetOptions,
    accelerator: Accelerator = "auto",
    graphs: Graphs = False,
) -> None:
    """Sweep the predictor learning-rate multiplier and plot the accuracy (sweep.png).

    By default, the multipliers 1, 0.3, 0.1, 0.03 and 0.01 are run for metric, deformable and shifted networks, with
    the schedule of the short grid.
    """
    from . import grids

    _check_graphs(graphs, accelerator)
    common = {"precision": _half_precision(accelerator)} | _given(schedule) | _given(sample)
    seeds = common.pop("seed", [0])
    if dataset is not None:
        common["dataset"] = dataset
    phases = grids.sweep(common, method or grids.ADAPTIVE, multiplier or grids.MULTIPLIERS, seeds)
    runner = _runner(files, graphs=graphs, trainer={"accelerator": accelerator})
    _run(files.output, phases, runner, budget)


@app.command()
@errors_in_one_line()
@expand_options
def classify_diagnose(
    *,
    network: Networks = None,
    images: Annotated[int, typer.Option(min=1, help="Number of test images.")] = 256,
    files: RunFiles,
    accelerator: Accelerator = "auto",
) -> None:
    """Compute statistics of the learned metrics by layer; for other methods, of metrics fitted to their samples.

    Without --network, the best run of each method is used, among those whose trained network is in the work folder.
    """
    from . import diagnose
    from .batches import TestBatches
    from .runs import trained_networks

    device, runner = _device(accelerator), _runner(files)
    statistics, about = [], {}
    for name, (setting, model) in trained_networks(network or [], files.output, files.work, adaptive=True).items():
        dataset = runner.on_device(setting, device)
        subset = dataset.test._replace(x=dataset.test.x[:images], y=dataset.test.y[:images])
        model.to(device)
        statistics += diagnose.diagnose(name, model, TestBatches(dataset, subset, batch=64))
        run = {key: getattr(setting, key) for key in ("dataset", "network", "epochs", "lr", "multiplier", "seed")}
        about[name] = {**run, "images": len(subset.y)}
    diagnose.write(files.output, statistics, about)
    diagnose.show(statistics)
    typer.echo(f"wrote diagnosis.csv and diagnosis.png to {files.output}")


@app.command()
@errors_in_one_line()
@expand_options
def classify_gradcam(
    *,
    network: Networks = None,
    image: Annotated[list[int] | None, typer.Option(help="Index of a test image; may be repeated.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of random images, if --image is not given.")] = 4,
    files: RunFiles,
    accelerator: Accelerator = "auto",
) -> None:
    """Plot GradCAM maps of each method: one row per image, one column per method."""
    from . import gradcam
    from .datasets import NAMES
    from .runs import trained_networks

    device, runner = _device(accelerator), _runner(files)
    found = trained_networks(network or [], files.output, files.work)
    setting, *others = (setting for setting, _ in found.values())
    if any(other.dataset != setting.dataset for other in others):
        raise ValueError("`network` must name networks that were trained on the same dataset")
    dataset = runner.on_device(setting, device)
    selected = image or gradcam.choose(dataset, count)
    if max(selected) >= len(dataset.test.y) or min(selected) < 0:
        raise ValueError(f"`image` (={max(selected)}) must be at least 0 and less than {len(dataset.test.y)}")
    models = {name: model.to(device) for name, (_, model) in found.items()}
    gradcam.write(files.output / "gradcam.png", models, dataset, selected, NAMES[setting.dataset])
    typer.echo(f"wrote gradcam.png to {files.output}")


def _given(options: Any) -> dict[str, Any]:
    """Return the values of the given options, including those of nested option classes."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            found |= _given(value)
        elif value not in (None, []):
            found[field.name] = value
    return found


def _combinations(common: dict[str, Any], seeds: list[int] | None) -> "list[Setting]":
    """Return a setting for each seed, method and multiplier; standard networks have no multiplier."""
    from .setting import Setting

    repeated = {"seed": seeds or [0]} | {name: common[name] for name in ("method", "multiplier") if name in common}
    every = itertools.product(*repeated.values())
    return list(dict.fromkeys(Setting(**common | dict(zip(repeated, values, strict=True))) for values in every))


def _grid(name: str, common: dict[str, Any], seeds: list[int] | None) -> "list[Phase]":
    """Return a grid with common options; options that the grid sets itself raise an error."""
    from metricconv import _checks

    from . import grids

    _checks.one_of(name, grids.DATASETS, "grid")
    more = {
        "ablation": ("layers",),
        "fixed": ("metric_parameters", "zero_gamma"),
        "small": ("init", "l1", "warmup"),
    }
    for option in ("method", "weights", "multiplier", *more.get(name, ())):
        if option in common:
            raise ValueError(
                f"`{option}` (={common[option]!r}) cannot be combined with `grid` (={name!r}), which sets it"
            )
    dataset, start = common.pop("dataset", None), common.get("start", "scratch")
    given = [seeds] if seeds else []
    if name == "short":
        phases = grids.short(common, *given)
    elif name == "paper":
        phases = grids.paper(common, dict.fromkeys(["scratch", start]), *given)
    elif name in ("fixed", "small"):
        phases = (grids.fixed if name == "fixed" else grids.small)(common, *given)
    else:
        phases = grids.ablation(common, start, *given)
    if dataset is None:
        return phases
    return grids.of_dataset(phases, _checks.one_of(dataset, grids.DATASETS[name], "dataset"))


def _runner(files: RunFiles, **options: Any) -> "Runner":
    import torch

    from .runs import Runner, RunOptions

    torch.set_float32_matmul_precision("high")
    return Runner(RunOptions(files.work, files.data.data_root, files.data.download, **options))


def _run(output: Path, phases: "list[Phase]", runner: "Runner", budget: BudgetOptions) -> None:
    from . import grids, report
    from .runs import run_all, table

    results = table(output)
    for _, setting in grids.planned(phases, results)[:1]:
        runner.images(setting.dataset)  # reports missing data first
    if budget.estimate:
        _print_estimate(phases, runner, results)
        return
    added = run_all(results, phases, runner, budget.max_minutes)
    written = [*["runs.csv"] * bool(added), *report.write_all(output)]
    typer.echo(f"wrote {', '.join(written)} to {output}" if written else f"wrote nothing: no runs in {output}")


def _print_estimate(phases: "list[Phase]", runner: "Runner", results: "Results") -> None:
    from . import estimate, grids

    plan = [(title, setting) for title, setting in grids.planned(phases, results) if setting.key not in results]
    device = _device(runner.options.trainer.get("accelerator", "auto"))
    seconds = estimate.run_seconds([setting for _, setting in plan], runner, device)
    total = 0.0
    for (title, setting), one in zip(plan, seconds, strict=True):
        total += one
        typer.echo(f"{total / 60:6.1f} min  {one:6.1f} s  {title}: {setting}")
    typer.echo(f"{len(plan)} runs, about {total / 60:.1f} min")


def _check_graphs(graphs: bool, accelerator: str, devices: int = 1) -> None:
    if graphs and (devices > 1 or _device(accelerator).type != "cuda"):
        raise ValueError(f"`graphs` requires one GPU, got `accelerator` (={accelerator!r}) and `devices` (={devices})")


def _half_precision(accelerator: str) -> str:
    """Return mixed bfloat16 precision on a GPU, otherwise float32."""
    return "bf16-mixed" if _device(accelerator).type == "cuda" else "32-true"


def _device(accelerator: str) -> "torch.device":
    import torch

    if accelerator not in ("auto", "cpu", "gpu"):
        raise ValueError(f"`accelerator` (={accelerator!r}) must be 'auto', 'cpu' or 'gpu'")
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise ValueError("`accelerator` (='gpu') requires a GPU, but torch.cuda.is_available() is False")
    return torch.device("cuda" if accelerator != "cpu" and torch.cuda.is_available() else "cpu")
